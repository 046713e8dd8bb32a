/* test_ledger.c: the two identities hold or are seen not to, and every row has its name in JSON and in the line. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "ledger.h"

static void test_identities(void **state) {
    (void)state;
    ledger l = {0};
    frame_counts of = {0};
    for (int i = 0; i < 10; i++) ledger_received(&l, &of);
    ledger_received(&l, NULL); /* a frame that named no model */
    assert_true(ledger_check(&l, 11, 0));
    assert_false(ledger_check(&l, 10, 0));
    for (int o = 0; o < OUTCOMES; o++) ledger_outcome(&l, &of, (outcome)o);
    ledger_refused(&l, NULL, -ENOENT);
    ledger_refused(&l, &of, -ENOBUFS);
    assert_int_equal(l.all.outcomes[OUTCOME_refused], 3);
    assert_int_equal(l.refused[REFUSED_ENOENT], 1);
    assert_int_equal(l.refused[REFUSED_ENOBUFS], 1);
    assert_true(ledger_check(&l, 11 - OUTCOMES - 2, 0));
    assert_true(counts_balanced(&of, 10 - OUTCOMES - 1));
    assert_false(counts_balanced(&of, 10 - OUTCOMES));
    l.counts[COUNT_handed] = 7, l.counts[COUNT_let_go] = 4, l.counts[COUNT_cut] = 1;
    assert_true(ledger_check(&l, 11 - OUTCOMES - 2, 2));
    assert_false(ledger_check(&l, 11 - OUTCOMES - 2, 1));
    ledger_refused(&l, NULL, -12345); /* outside the wire's table: as it is answered, EIO */
    assert_int_equal(l.refused[REFUSED_EIO], 1);
}

/* Gives every row a number of its own and finds it again under its name. */
static void test_names(void **state) {
    (void)state;
    ledger l = {0};
    uint64_t n = 100;
    char line[8192], want[64];
    l.all.received = n++;
#define XX(name, ...) l.all.outcomes[OUTCOME_##name] = n++;
    LEDGER_OUTCOMES(XX)
#undef XX
#define XX(name, ...) l.counts[COUNT_##name] = n++;
    LEDGER_OTHERS(XX)
#undef XX
#define XX(name, ...) l.malformed[MALFORMED_##name] = n++;
    LEDGER_MALFORMED(XX)
#undef XX
#define XX(name, ...) l.cuts[CUT_##name] = n++;
    LEDGER_CUTS(XX)
#undef XX
    json_t *o = ledger_json(&l, 7, 8);
    ledger_line(&l, 7, 8, line, sizeof line);
    assert_int_equal(json_integer_value(json_object_get(o, "in_flight")), 7);
    assert_int_equal(json_integer_value(json_object_get(o, "held")), 8);
#define CHECK(object, prefix, name, value)                                                                           \
    assert_int_equal(json_integer_value(json_object_get(object, #name)), value);                                     \
    snprintf(want, sizeof want, " %s%s=%d ", prefix, #name, (int)(value));                                           \
    strcat(line, " ");                                                                                               \
    assert_non_null(strstr(line, want));
#define XX(name, ...) CHECK(o, "", name, l.all.outcomes[OUTCOME_##name])
    LEDGER_OUTCOMES(XX)
#undef XX
#define XX(name, ...) CHECK(o, "", name, l.counts[COUNT_##name])
    LEDGER_OTHERS(XX)
#undef XX
#define XX(name, ...) CHECK(json_object_get(o, "malformed"), "malformed.", name, l.malformed[MALFORMED_##name])
    LEDGER_MALFORMED(XX)
#undef XX
#define XX(name, ...) CHECK(json_object_get(o, "cuts"), "cuts.", name, l.cuts[CUT_##name])
    LEDGER_CUTS(XX)
#undef XX
    assert_non_null(json_object_get(json_object_get(o, "refused_by"), "EAGAIN"));
    assert_null(strstr(line, "refused.")); /* nested rows only where not 0 */
    json_decref(o);
    char small[20];
    ledger_line(&l, 7, 8, small, sizeof small); /* cut, never past its end */
    assert_true(strlen(small) < sizeof small);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_identities), cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
