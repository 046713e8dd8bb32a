/* test_log.c: one event is one line, whole, whatever it holds; a reader who stopped does not stop the writer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "log.h"

static int saved_stderr, reader;

static void capture(void) {
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    saved_stderr = dup(STDERR_FILENO);
    dup2(fds[1], STDERR_FILENO);
    close(fds[1]);
    reader = fds[0];
    fcntl(reader, F_SETFL, O_NONBLOCK);
}

static void release(char *out, size_t size) {
    ssize_t n = read(reader, out, size - 1);
    out[n > 0 ? n : 0] = 0;
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr), close(reader);
}

static void one_event_is_one_line_with_its_priority(void **state) {
    (void)state;
    char out[4096];
    capture();
    log_info("file %s", "a\nb\x01\"q\\\xff na\xc3\xafve");
    log_error("second");
    log_debug("not shown at level info");
    release(out, sizeof out);
    assert_string_equal(out, "<6>file a\\x0ab\\x01\"q\\\\xff na\xc3\xafve\n<3>second\n");
}

static void a_long_event_is_cut_and_says_so(void **state) {
    (void)state;
    char big[3000], out[8192];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    capture();
    log_warning("%s", big);
    release(out, sizeof out);
    assert_int_equal(strlen(out), 3 + 2000 + 1);
    assert_string_equal(out + strlen(out) - 4, "...\n");
}

static void a_full_pipe_loses_lines_and_counts_them(void **state) {
    (void)state;
    static char out[1 << 20];
    capture();
    fcntl(STDERR_FILENO, F_SETPIPE_SZ, 4096);
    for (int i = 0; i < 60; i++)
        log_info("%0100d", i); /* 4096 octets take 38 of them; each further one waits 100 ms */
    ssize_t n = read(reader, out, sizeof out - 1);
    assert_true(n > 0);
    log_info("after");
    release(out, sizeof out);
    assert_non_null(strstr(out, "lines lost before this one) after\n"));
}

/* 100 ms for each line would be a quarter of an hour; the alarm ends that. */
static void a_megabyte_that_nobody_reads_waits_once(void **state) {
    (void)state;
    char out[4096];
    capture();
    alarm(60);
    for (int i = 0; i < 10000; i++) log_info("%0100d", i);
    alarm(0);
    release(out, sizeof out);
}

static void invalid_utf8_is_escaped(void **state) {
    (void)state;
    char out[64];
    assert_string_equal(log_escape("\xc0\xaf", out, sizeof out), "\\xc0\\xaf");          /* overlong */
    assert_string_equal(log_escape("\xed\xa0\x80", out, sizeof out), "\\xed\\xa0\\x80"); /* surrogate */
    assert_string_equal(log_escape("\xe2\x82", out, sizeof out), "\\xe2\\x82");          /* cut short */
    assert_string_equal(log_escape("\xe2\x82\xac", out, sizeof out), "\xe2\x82\xac");
    assert_string_equal(log_escape("abcdef", out, 4), "abc");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_event_is_one_line_with_its_priority),
        cmocka_unit_test(a_long_event_is_cut_and_says_so),
        cmocka_unit_test(a_full_pipe_loses_lines_and_counts_them),
        cmocka_unit_test(a_megabyte_that_nobody_reads_waits_once),
        cmocka_unit_test(invalid_utf8_is_escaped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
