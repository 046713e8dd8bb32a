/* test_watchdog.c: what counts as progress: the loop, each engine and the publisher moved, or had nothing to do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>
#include "watchdog.h"

static watchdog_view idle(uint64_t turns) {
    return (watchdog_view){.turns = turns, .n_engines = 2};
}

static void the_loop_must_turn(void **state) {
    (void)state;
    watchdog_view a = idle(5), b = idle(6);
    assert_true(watchdog_moved(&a, &b));
    assert_false(watchdog_moved(&a, &a));
}

static void an_engine_with_work_must_finish_a_batch(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        watchdog_view a = idle(5), b = idle(6);
        b.engines[i].computing = true; /* it began since the last look */
        assert_true(watchdog_moved(&a, &b));
        a.engines[i].computing = true;
        assert_false(watchdog_moved(&a, &b));
        b.engines[1 - i].finished = 100; /* another one's work is no excuse */
        assert_false(watchdog_moved(&a, &b));
        b.engines[i].finished = 1;
        assert_true(watchdog_moved(&a, &b));
        a.engines[i].finished = 1;
        b.engines[i].computing = false;
        assert_true(watchdog_moved(&a, &b));
    }
}

static void a_publisher_with_results_must_answer(void **state) {
    (void)state;
    watchdog_view a = idle(5), b = idle(6);
    a.publishing = b.publishing = true;
    a.answered = b.answered = 7;
    assert_false(watchdog_moved(&a, &b));
    b.answered = 8;
    assert_true(watchdog_moved(&a, &b));
    b.answered = 7;
    b.publishing = false;
    assert_true(watchdog_moved(&a, &b));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_loop_must_turn),
        cmocka_unit_test(an_engine_with_work_must_finish_a_batch),
        cmocka_unit_test(a_publisher_with_results_must_answer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
