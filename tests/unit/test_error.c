/* test_error.c: the error space there and back, and what stands outside of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <limits.h>
#include <string.h>

#include "error.h"

/* The wire's numbers are a contract of their own: written out here, not taken from the table. */
static void numbers(void **state) {
    (void)state;
    static const struct {
        int error;
        int32_t status;
        const char *name;
    } rows[] = {{-ENOENT, -2, "ENOENT"}, {-EIO, -5, "EIO"}, {-EAGAIN, -11, "EAGAIN"}, {-EACCES, -13, "EACCES"},
        {-EBUSY, -16, "EBUSY"}, {-EEXIST, -17, "EEXIST"}, {-EINVAL, -22, "EINVAL"}, {-ETIME, -62, "ETIME"},
        {-EPROTO, -71, "EPROTO"}, {-EILSEQ, -84, "EILSEQ"}, {-EUSERS, -87, "EUSERS"}, {-EMSGSIZE, -90, "EMSGSIZE"},
        {-ENOTSUP, -95, "ENOTSUP"}, {-ENOBUFS, -105, "ENOBUFS"}, {-ESHUTDOWN, -108, "ESHUTDOWN"},
        {-ESTALE, -116, "ESTALE"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(error_to_wire(rows[i].error), rows[i].status);
        assert_int_equal(error_from_wire(rows[i].status), rows[i].error);
        assert_string_equal(error_name(rows[i].error), rows[i].name);
        assert_true(strlen(error_text(rows[i].error)) > 5);
    }
}

static void outside(void **state) {
    (void)state;
    assert_int_equal(error_to_wire(0), 0);
    assert_int_equal(error_from_wire(0), 0);
    assert_int_equal(error_to_wire(-ENOSPC), -5);
    assert_int_equal(error_to_wire(INT_MIN), -5);
    assert_int_equal(error_to_wire(EAGAIN), -5); /* positive: not ours */
    assert_int_equal(error_from_wire(-1), -EPROTO);
    assert_int_equal(error_from_wire(11), -EPROTO);
    assert_int_equal(error_from_wire(INT32_MIN), -EPROTO);
    assert_string_equal(error_name(-ENOSPC), "?");
    assert_string_equal(error_name(0), "?");
    assert_string_equal(error_text(-ENOSPC), strerror(ENOSPC));
    assert_string_equal(error_text(0), "no error");
    assert_string_equal(error_text(INT_MIN), "unknown error");
    assert_string_equal(error_text(-100000), "unknown error");
    assert_string_equal(error_text(7), "unknown error");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers), cmocka_unit_test(outside)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
