/* test_http_host.c: where the HTTP server may listen, and which Host names it answers to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "http_host.h"

static void known_hosts(void **state) {
    (void)state;
    static const char *const yes[] = {"localhost", "LocalHost:7772", "localhost.", "127.0.0.1", "127.0.0.1:80",
        "[::1]", "[::1]:7772", "192.168.7.9:7772", "192.168.7.9", "rack4.example", "RACK4.example.:99", "b"};
    static const char *const no[] = {"", "evil.example", "localhost.evil.example", "localhos", "localhost:7x",
        "127.0.0.1.evil.example", "::1", "[::2]", "192.168.7.90", "rack4", "rack4.example.org", "b c", ":80",
        "rack4.example b", " localhost"};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        if (!http_host_known(yes[i], "192.168.7.9:7772", "rack4.example  b")) fail_msg("%s is refused", yes[i]);
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        if (http_host_known(no[i], "192.168.7.9:7772", "rack4.example  b")) fail_msg("%s is taken", no[i]);
}

static void refused(const char *endpoint, int error, const char *sentence) {
    char bound[80] = "untouched";
    nct_why why = {""};
    int fd = http_listen(endpoint, false, bound, &why);
    assert_int_equal(fd, error);
    assert_string_equal(bound, "untouched");
    if (!strstr(why.text, sentence)) fail_msg("%s: %s", endpoint, why.text);
}

static void endpoints(void **state) {
    (void)state;
    char bound[80], again[80];
    nct_why why = {""};
    refused("127.0.0.1", -EINVAL, "not ADDRESS:PORT");
    refused("127.0.0.1:", -EINVAL, "not ADDRESS:PORT");
    refused(":7772", -EINVAL, "not ADDRESS:PORT");
    refused("::1:7772", -EINVAL, "not ADDRESS:PORT");
    refused("127.0.0.1:http", -EINVAL, "not ADDRESS:PORT");
    refused("0.0.0.0:0", -EACCES, "reachable from other hosts");
    refused("[::]:0", -EACCES, "reachable from other hosts");
    int fd = http_listen("127.0.0.1:0", false, bound, &why);
    assert_true(fd >= 0);
    assert_memory_equal(bound, "127.0.0.1:", 10);
    assert_string_not_equal(bound, "127.0.0.1:0");
    assert_int_equal(http_listen(bound, false, again, &why), -EADDRINUSE);
    assert_non_null(strstr(why.text, "http.enabled = no"));
    close(fd);
    fd = http_listen("0.0.0.0:0", true, bound, &why);
    assert_true(fd >= 0);
    close(fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_hosts), cmocka_unit_test(endpoints)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
