/* test_cli.c: nct's command line: options from a table, values, names, histograms, the list of inputs, progress. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cli.h"
#include "help.h"
#include "hist.h"
#include "progress.h"
#include "run_inputs.h"

static const cli_option table[] = {{"output", 'o', "FILE", NULL, "."}, {"json", 'j', NULL, NULL, "."},
    {"raw", 0, "TYPE", NULL, "."}, {"recursive", 'r', "DIR", NULL, "."}, {0}};

/* "0=a.wav 1 OPERAND=x END" */
static char *parse(int argc, char **argv) {
    static char out[512];
    cli_args a;
    const char *value;
    int row;
    out[0] = 0;
    cli_args_init(&a, table, argc, argv);
    do {
        size_t n = strlen(out);
        value = NULL;
        row = cli_next(&a, &value);
        if (row >= 0) snprintf(out + n, sizeof out - n, "%d%s%s ", row, value ? "=" : "", value ? value : "");
        if (row == CLI_OPERAND) snprintf(out + n, sizeof out - n, "'%s' ", value);
        if (row == CLI_WRONG) snprintf(out + n, sizeof out - n, "WRONG");
    } while (row != CLI_END && row != CLI_WRONG);
    return out;
}

#define PARSE(...) parse((int)(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *)), (char *[]){__VA_ARGS__})

static void options_of_every_form(void **state) {
    (void)state;
    assert_string_equal(PARSE("run", "a", "-o", "b", "c"), "'a' 0=b 'c' ");
    assert_string_equal(PARSE("run", "-ob", "--output=c", "--output", "-d"), "0=b 0=c 0=-d ");
    assert_string_equal(PARSE("run", "-jo", "x", "-jj"), "1 0=x 1 1 ");
    assert_string_equal(PARSE("run", "-", "--", "-o", "--json"), "'-' '-o' '--json' ");
    assert_string_equal(PARSE("run", "--raw=", ""), "2= '' ");
    assert_string_equal(PARSE("run", "-j", "-o"), "1 WRONG");
    assert_string_equal(PARSE("run", "--json=1"), "WRONG");
    assert_string_equal(PARSE("run", "--outptu", "x"), "WRONG");
    assert_string_equal(PARSE("run", "-x"), "WRONG");
    assert_int_equal(cli_row(table, "raw"), 2);
}

static void near_words(void **state) {
    (void)state;
    const char *const words[] = {"run", "send", "sub", "info"};
    assert_string_equal(help_nearest("rnu", words, 4), "run");
    assert_string_equal(help_nearest("inf", words, 4), "info");
    assert_null(help_nearest("elephant", words, 4));
}

static void values_are_checked_whole(void **state) {
    (void)state;
    uint64_t n = 77, steps = 77;
    double d = 77;
    assert_int_equal(cli_u64("x", "12", 1, 20, &n), 0);
    assert_int_equal(n, 12);
    static const char *const bad[] = {
        "", " 1", "-1", "+1", "1.5", "21", "0", "12x", "0x10", "99999999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(cli_u64("x", bad[i], 1, 20, &n), -EINVAL);
    assert_int_equal(n, 12);
    assert_int_equal(cli_double("x", "2.5", 0, 10, &d), 0);
    assert_true(d == 2.5);
    assert_int_equal(cli_double("x", "2,5", 0, 10, &d), -EINVAL);
    assert_int_equal(cli_double("x", "nan", 0, 10, &d), -EINVAL);
    assert_int_equal(cli_span("x", "500ms", &d, &steps), 0);
    assert_true(d == 0.5 && steps == 0);
    assert_int_equal(cli_span("x", "480", &d, &steps), 0);
    assert_true(d == 0 && steps == 480);
    assert_int_equal(cli_span("x", "48.5", &d, &steps), -EINVAL);
    assert_int_equal(cli_span("x", "1h", &d, &steps), -EINVAL);
    assert_int_equal(cli_span("x", "0s", &d, &steps), -EINVAL);
    assert_int_equal(cli_word("x", "npy", "wav|npy|raw"), 1);
    assert_int_equal(cli_word("x", "np", "wav|npy|raw"), -EINVAL);
    assert_int_equal(cli_word("x", "", "wav|npy|raw"), -EINVAL);
}

static void names_are_escaped(void **state) {
    (void)state;
    char longer[3000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    assert_string_equal(cli_quote("a\nb\x1b\"c\\"), "a\\nb\\x1b\\\"c\\\\");
    assert_string_equal(cli_quote("\xe9\x9f\xb3.wav"), "\xe9\x9f\xb3.wav");
    assert_true(strlen(cli_quote(longer)) < 1024);
    assert_non_null(strstr(cli_quote(longer), "..."));
}

static void quantiles(void **state) {
    (void)state;
    hist *h = calloc(1, sizeof *h);
    assert_int_equal(hist_quantile(h, 0.5), 0);
    for (uint64_t i = 1; i <= 1000000; i++) hist_add(h, i);
    static const double qs[] = {0, 0.5, 0.9, 0.99, 0.999, 1};
    for (int i = 0; i < 6; i++) {
        double want = fmin(qs[i] * 1e6 + 1, 1e6), got = (double)hist_quantile(h, qs[i]);
        assert_true(got >= want && got <= want * 1.008);
    }
    assert_int_equal(h->most, 1000000);
    assert_int_equal(h->least, 1);
    assert_true(fabs(hist_mean(h) - 500000.5) < 1e-6);
    hist_add(h, UINT64_MAX); /* beyond the last bucket: counted, and told as what it was */
    assert_true(hist_quantile(h, 1) == UINT64_MAX || hist_quantile(h, 1) > 1ull << 62);
    free(h);
}

/* ---- inputs ------------------------------------------------------------------------------------------------ */
static char folder[64];

static void touch(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
}

static int make_folder(void **state) {
    (void)state;
    char path[128];
    strcpy(folder, "/tmp/test_cli.XXXXXX");
    if (!mkdtemp(folder)) return -1;
    static const char *const folders[] = {"b", "out", ".hidden"};
    for (int i = 0; i < 3; i++) snprintf(path, sizeof path, "%s/%s", folder, folders[i]), mkdir(path, 0700);
    static const char *const files[] = {
        "z.wav", "a.WAV", "note.txt", ".dot.wav", "b/z.wav", "b/a.flac", "out/a.wav", ".hidden/x.wav", "noextension"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) touch(files[i]);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    return system(command);
}

static const char *base(const char *path) {
    return path + strlen(folder) + 1;
}

static void folders_are_walked_in_order(void **state) {
    (void)state;
    inputs in = {0};
    char out[128];
    snprintf(out, sizeof out, "%s/out", folder);
    assert_int_equal(inputs_add_folder(&in, folder, NULL, out), 0);
    assert_int_equal(in.n, 4);
    static const char *const want[] = {"a.WAV", "b/a.flac", "b/z.wav", "z.wav"};
    for (int i = 0; i < 4; i++) assert_string_equal(base(in.v[i].path), want[i]);
    assert_int_equal(inputs_name(&in, "/o", "{dir}{stem}-{ext}.npy"), 0);
    assert_string_equal(in.v[1].out, "/o/b/a-flac.npy");
    assert_string_equal(in.v[3].out, "/o/z-wav.npy");
    inputs_shard(&in, 2, 3);
    assert_int_equal(in.n, 1);
    assert_string_equal(base(in.v[0].path), "b/a.flac");
    inputs_done(&in);
    assert_int_equal(inputs_add_folder(&in, folder, "note*", NULL), 0);
    assert_int_equal(in.n, 1);
    inputs_done(&in);
    assert_int_equal(inputs_add_folder(&in, "/nowhere", NULL, NULL), CLI_USAGE);
}

static void two_inputs_never_share_a_name(void **state) {
    (void)state;
    inputs in = {0};
    inputs_add(&in, "x/a.wav", "");
    inputs_add(&in, "y/a.flac", "");
    assert_int_equal(inputs_name(&in, "/o", "{dir}{stem}.wav"), CLI_USAGE);
    inputs_done(&in);
    inputs_add(&in, "x/a.wav", "");
    assert_int_equal(inputs_name(&in, "/o", "{nmae}.wav"), CLI_USAGE);
    inputs_done(&in);
    inputs_add(&in, "x/a.wav", "");
    assert_int_equal(inputs_name(&in, "/o", "{stem.wav"), CLI_USAGE);
    inputs_done(&in);
}

static void lists_of_both_kinds(void **state) {
    (void)state;
    for (int nul = 0; nul < 2; nul++) {
        char path[128];
        inputs in = {0};
        snprintf(path, sizeof path, "%s/list", folder);
        FILE *f = fopen(path, "w");
        if (nul)
            fwrite("one.wav\0two\nlines.wav\0", 1, 22, f);
        else
            fputs("one.wav\n\n two .wav\nlast.wav", f);
        fclose(f);
        assert_int_equal(inputs_add_list(&in, path), 0);
        if (!nul) {
            assert_int_equal(in.n, 3);
            assert_string_equal(in.v[1].path, " two .wav");
            assert_string_equal(in.v[2].path, "last.wav");
        } else {
            assert_int_equal(in.n, 2);
            assert_string_equal(in.v[1].path, "two\nlines.wav");
        }
        inputs_done(&in);
        unlink(path);
    }
}

static void estimates_are_honest(void **state) {
    (void)state;
    progress p;
    progress_start(&p, PROGRESS_NONE, 1, -1);
    progress_file(&p, "x", 0);
    assert_true(progress_fraction(&p) == -1);
    progress_of(&p, -1);
    progress_add(&p, 1000);
    assert_true(progress_fraction(&p) == -1 && progress_left_s(&p, p.began_s + 100) == -1);
    progress_of(&p, 200);
    progress_add(&p, 50);
    assert_true(progress_fraction(&p) == 0.25);
    assert_true(progress_left_s(&p, p.began_s + 0.5) == -1); /* too early to know */
    assert_true(fabs(progress_left_s(&p, p.began_s + 10) - 30) < 1e-9);
    progress_end(&p);
    progress_start(&p, PROGRESS_NONE, 2, 400);
    progress_file(&p, "a", 100);
    progress_of(&p, 10);
    progress_add(&p, 5);
    assert_true(progress_fraction(&p) == 0.125);
    progress_file_over(&p);
    progress_file(&p, "b", 300);
    assert_true(progress_fraction(&p) == 0.25);
    progress_end(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_of_every_form),
        cmocka_unit_test(near_words),
        cmocka_unit_test(values_are_checked_whole),
        cmocka_unit_test(names_are_escaped),
        cmocka_unit_test(quantiles),
        cmocka_unit_test(folders_are_walked_in_order),
        cmocka_unit_test(two_inputs_never_share_a_name),
        cmocka_unit_test(lists_of_both_kinds),
        cmocka_unit_test(estimates_are_honest),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
