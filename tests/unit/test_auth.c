/* test_auth.c: key files and the allow-list: what is read, what is refused with which words, and what each key may do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "auth.h"
#include "zsock_link.h"

static char folder[64];

static int setup(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/nct-auth-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state) {
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static const char *at(const char *name) {
    static char path[4][128];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

static void text_file(const char *name, const char *text, mode_t mode) {
    FILE *f = fopen(at(name), "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    chmod(at(name), mode);
}

#define KEY  "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
#define KEY2 "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"

/* The text of a file -> its error (0: none), and a word of the sentence. */
static void reads(const char *text, bool secret, mode_t mode, int error, const char *word) {
    keyfile k;
    keyfile_why why = {""};
    text_file("k", text, mode);
    int got = keyfile_read(&k, at("k"), secret, &why);
    if (got != error || (error && !strstr(why.text, word))) print_error("%s-> %d %s\n", text, got, why.text);
    assert_int_equal(got, error);
    if (error) assert_non_null(strstr(why.text, word));
    if (!error) assert_string_equal(k.public_key, KEY);
}

static void test_files(void **state) {
    (void)state;
    reads("curve\n    public-key = \"" KEY "\"\n", false, 0644, 0, "");
    reads("# x\n\nmetadata\n\tname=a\r\ncurve  \n  public-key='" KEY "' # mine\n", false, 0644, 0, "");
    reads("curve\n    public-key = " KEY "\n    secret-key = " KEY2 "\n", true, 0600, 0, "");
    reads("curve\n    public-key = " KEY "\n    secret-key = " KEY2 "\n", true, 0640, -EPERM, "chmod 600");
    reads("curve\n    public-key = " KEY "\n", false, 0646, -EPERM, "everybody change");
    reads("curve\n    public-key = " KEY "\n", true, 0600, -EINVAL, "no secret-key");
    reads("curve\n    public-key = " KEY "1\n", false, 0600, -EINVAL, ":2: public-key is not a key");
    reads("curve\n    public-key = \"" KEY "\n", false, 0600, -EINVAL, ":2: the quote");
    reads("curve\n    public-key = " KEY " and more\n", false, 0600, -EINVAL, ":2: text behind");
    reads("public-key = " KEY "\n", false, 0600, -EINVAL, "no public-key"); /* in no section */
    reads("", false, 0600, -EINVAL, "no public-key");
    keyfile_why why;
    keyfile k;
    assert_int_equal(keyfile_read(&k, at("none"), false, &why), -ENOENT);
    assert_int_equal(keyfile_read(&k, folder, false, &why), -EINVAL);
    mkfifo(at("fifo"), 0600);
    assert_int_equal(keyfile_read(&k, at("fifo"), false, &why), -EINVAL);
}

static void test_written_is_read(void **state) {
    keyfile k = {.name = "lab", .rights = "send", .topics = "m/* a/b", .has_rights = true, .has_topics = true}, back;
    keyfile_why why;
    struct stat st;
    (void)state;
    assert_int_equal(zlink_keypair(k.public_key, k.secret_key), 0);
    assert_int_equal(keyfile_write(&k, at("lab.key_secret"), true, &why), 0);
    assert_int_equal(keyfile_write(&k, at("lab.key_secret"), true, &why), -EEXIST);
    assert_int_equal(stat(at("lab.key_secret"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(keyfile_read(&back, at("lab.key_secret"), true, &why), 0);
    assert_memory_equal(&back, &k, sizeof k);
    assert_int_equal(zlink_keys_fit(back.public_key, back.secret_key), 0);
    assert_int_equal(zlink_keys_fit(KEY, back.secret_key), -EINVAL);
}

static void certificate(const char *name, const char *metadata, const char *key) {
    char text[600];
    snprintf(text, sizeof text, "metadata\n%scurve\n    public-key = \"%s\"\n", metadata, key);
    text_file(name, text, 0644);
}

static void test_what_a_key_may(void **state) {
    static const struct {
        const char *rights, *topics, *asked;
        bool send, subscribe;
    } rows[] = {{NULL, NULL, "m/s/", true, true}, {NULL, NULL, "", false, true}, {"send", NULL, "m/s/", true, false},
        {"subscribe", NULL, "m/s/", false, true}, {"", NULL, "m/s/", false, false}, {NULL, "m/s", "m/s/", true, true},
        {NULL, "m/s", "m/s1/", false, false}, {NULL, "m/s", "m/", false, false}, {NULL, "m/s", "", false, false},
        {NULL, "m/*", "m/s/", true, true}, {NULL, "m/*", "m/", false, true}, {NULL, "m/*", "m1/", false, false},
        {NULL, "m/*", "m1/s/", false, false}, {NULL, "m/*", "m/s", false, false}, {NULL, "*/*", "", false, true},
        {NULL, "*/*", "m/sub", false, true}, {NULL, "*/s", "m/s/", true, true}, {NULL, "*/s", "m/", false, false},
        {NULL, "a?/*", "ab/", false, true}, {NULL, "x/y, m/s", "m/s/", true, true}, {NULL, "", "m/s/", false, false}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char metadata[300] = "";
        keyfile_why why = {""};
        auth *a = NULL;
        if (rows[i].rights) snprintf(metadata, sizeof metadata, "    rights = \"%s\"\n", rows[i].rights);
        if (rows[i].topics) snprintf(metadata + strlen(metadata), 200, "    topics = \"%s\"\n", rows[i].topics);
        text_file("server", "curve\n public-key = " KEY2 "\n secret-key = " KEY2 "\n", 0600);
        certificate("one.key", metadata, KEY);
        assert_int_equal(auth_load(&a, at("server"), at("one.key"), &why), 0);
        const auth_key *k = auth_find(a, KEY);
        assert_non_null(k);
        assert_string_equal(k->name, "one");
        assert_null(auth_find(a, KEY2));
        size_t len = strlen(rows[i].asked);
        const char *slash = strchr(rows[i].asked, '/');
        bool whole = slash && slash[1] && rows[i].asked[len - 1] == '/'; /* as every frame's topic is */
        bool send = whole && auth_may_send(k, rows[i].asked), subscribe = auth_may_subscribe(k, rows[i].asked, len);
        if (send != rows[i].send || subscribe != rows[i].subscribe)
            print_error("rights %s topics %s asked %s: %d %d\n", rows[i].rights, rows[i].topics, rows[i].asked, send,
                subscribe);
        assert_int_equal(send, rows[i].send);
        assert_int_equal(subscribe, rows[i].subscribe);
        auth_free(a);
    }
}

static void test_lists(void **state) {
    keyfile_why why = {""};
    auth *a = NULL, *b = NULL;
    (void)state;
    mkdir(at("list"), 0755);
    text_file("server", "curve\n public-key = " KEY2 "\n secret-key = " KEY2 "\n", 0600);
    assert_int_equal(auth_load(&a, at("server"), at("list"), &why), -EINVAL); /* nobody could connect */
    certificate("list/a.key", "", KEY);
    certificate("list/note.txt", "", "nonsense");
    assert_int_equal(auth_load(&a, at("server"), at("list"), &why), 0);
    assert_int_equal(auth_load(&b, at("server"), at("list"), &why), 0);
    assert_true(auth_same(a, b));
    auth_free(b);
    certificate("list/a.key", "    topics = \"m/s\"\n", KEY);
    assert_int_equal(auth_load(&b, at("server"), at("list"), &why), 0);
    assert_false(auth_same(a, b));
    assert_false(auth_key_same(&a->keys[0], &b->keys[0]));
    auth_free(a);
    auth_free(b);
    certificate("list/b.key", "", KEY);
    assert_int_equal(auth_load(&a, at("server"), at("list"), &why), -EINVAL);
    assert_non_null(strstr(why.text, "twice"));
    certificate("list/b.key", "", KEY2);
    assert_int_equal(auth_load(&a, at("server"), at("list"), &why), -EINVAL);
    assert_non_null(strstr(why.text, "daemon's own"));
    certificate("list/b.key", "    topics = \"ms\"\n", KEY2);
    assert_int_equal(auth_load(&a, at("server"), at("list"), &why), -EINVAL);
    assert_non_null(strstr(why.text, "MODEL/STREAM"));
    chmod(at("list"), 0777);
    assert_int_equal(auth_load(&a, at("server"), at("list"), &why), -EPERM);
    chmod(at("list"), 0755);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_written_is_read, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_a_key_may, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lists, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
