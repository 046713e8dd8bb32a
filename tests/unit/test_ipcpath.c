/* test_ipcpath.c: one daemon a path, and nothing deleted but a stale socket of ours. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>
#include "ipcpath.h"

static char folder[64], path[96], lock[112], endpoint[112];

static int setup(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/nctd-test-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/s", folder);
    snprintf(lock, sizeof lock, "%s.lock", path);
    snprintf(endpoint, sizeof endpoint, "ipc://%s", path);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    unlink(path);
    unlink(lock);
    return rmdir(folder); /* nothing else may be left */
}

static int bound_socket(bool listening) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    if (listening) assert_int_equal(listen(fd, 1), 0);
    return fd;
}

static void refused(int error) {
    ipcpath p;
    zwhy why = {""};
    assert_int_equal(ipcpath_claim(&p, endpoint, &why), error);
    assert_non_null(strstr(why.text, path));
    ipcpath_release(&p);
}

static void test_claim(void **state) {
    (void)state;
    ipcpath p;
    zwhy why;
    struct stat st;
    assert_int_equal(ipcpath_claim(&p, endpoint, &why), 0);
    refused(-EADDRINUSE); /* the lock alone says so: no socket is there yet */
    close(bound_socket(true));
    assert_int_equal(ipcpath_open(&p, "0640", "", &why), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0640);
    assert_int_equal(ipcpath_open(&p, "0640", "no-such-group-here", &why), -EINVAL);
    ipcpath_release(&p);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(lock, F_OK), -1);
    ipcpath_release(&p);
}

/* What a killed daemon leaves behind: its socket, and the lock file with our mark that nobody holds. */
static void test_stale(void **state) {
    (void)state;
    ipcpath p;
    zwhy why;
    assert_int_equal(ipcpath_claim(&p, endpoint, &why), 0);
    close(bound_socket(true));
    close(p.lock_fd);
    assert_int_equal(ipcpath_claim(&p, endpoint, &why), 0);
    assert_int_equal(access(path, F_OK), -1); /* removed, to be bound again */
    ipcpath_release(&p);
}

static void test_somebody_listens(void **state) {
    (void)state;
    ipcpath p;
    zwhy why;
    int fd = bound_socket(true);
    refused(-EADDRINUSE);
    assert_int_equal(access(lock, F_OK), -1);
    assert_int_equal(unlink(path), 0);
    close(fd);
    assert_int_equal(
        ipcpath_claim(&p, endpoint, &why), 0); /* ours from here: a listener on it is still no stale one */
    fd = bound_socket(true);
    close(p.lock_fd);
    refused(-EADDRINUSE);
    assert_int_equal(access(path, F_OK), 0);
    close(fd);
}

static void test_foreign(void **state) {
    (void)state;
    close(bound_socket(false)); /* a dead socket that bears no mark of ours */
    refused(-EEXIST);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(unlink(path), 0);
    FILE *f = fopen(path, "w");
    fputs("precious", f);
    fclose(f);
    refused(-EEXIST);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(access(lock, F_OK), -1); /* and no litter */
}

static void test_link_as_lock(void **state) {
    (void)state;
    char target[112];
    struct stat st;
    snprintf(target, sizeof target, "%s/t", folder);
    FILE *f = fopen(target, "w");
    fputs("precious", f);
    fclose(f);
    assert_int_equal(symlink(target, lock), 0);
    ipcpath p;
    zwhy why = {""};
    assert_int_equal(ipcpath_claim(&p, endpoint, &why), -ELOOP);
    assert_int_equal(stat(target, &st), 0);
    assert_int_equal(st.st_size, 8);
    unlink(target);
}

static void test_no_path(void **state) {
    (void)state;
    static const char *const others[] = {"tcp://127.0.0.1:1", "inproc://x", "ipc://@abstract"};
    for (int i = 0; i < 3; i++) {
        ipcpath p;
        zwhy why;
        assert_int_equal(ipcpath_claim(&p, others[i], &why), 0);
        assert_int_equal(ipcpath_open(&p, "0600", "", &why), 0);
        ipcpath_release(&p);
    }
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {TEST(test_claim), TEST(test_stale), TEST(test_somebody_listens),
        TEST(test_foreign), TEST(test_link_as_lock), TEST(test_no_path)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
