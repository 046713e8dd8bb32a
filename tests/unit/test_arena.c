/* test_arena.c: runs of pages against a plain array of bytes, one a page. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "arena.h"

static void test_sizes(void **state) {
    (void)state;
    arena *a = NULL;
    assert_int_equal(arena_new(&a, ARENA_PAGE - 1), -EINVAL);
    assert_null(a);
    assert_int_equal(arena_new(&a, 3 * ARENA_PAGE + 5), 0);
    assert_int_equal(arena_bytes(a), 3 * ARENA_PAGE);
    assert_int_equal(arena_pages_free(a), 3);
    memset(arena_base(a), 7, arena_bytes(a));
    arena_free(a);
    arena_free(NULL);
}

static void test_first_fit(void **state) {
    (void)state;
    arena *a;
    assert_int_equal(arena_new(&a, 130 * ARENA_PAGE), 0);
    assert_int_equal(arena_take(a, 60), 0);
    assert_int_equal(arena_take(a, 10), 60); /* across two words */
    assert_int_equal(arena_take(a, 60), 70);
    assert_int_equal(arena_take(a, 1), -ENOSPC);
    arena_give(a, 60, 10);
    arena_give(a, 0, 3);
    assert_int_equal(arena_pages_free(a), 13);
    assert_int_equal(arena_take(a, 13), -ENOSPC); /* enough pages, but not in one piece */
    assert_int_equal(arena_take(a, 4), 60);       /* the first run that is long enough */
    assert_int_equal(arena_take(a, 3), 0);
    assert_int_equal(arena_take(a, 6), 64);
    arena_give(a, 0, 130);
    assert_int_equal(arena_take(a, 130), 0);
    arena_give(a, 0, 130);
    arena_free(a);
}

/* The oracle: look at every page from the left. */
static int64_t naive_take(unsigned char *taken, uint32_t n_pages, uint32_t n) {
    for (uint32_t first = 0; first + n <= n_pages; first++) {
        uint32_t len = 0;
        while (len < n && !taken[first + len]) len++;
        if (len == n) {
            memset(taken + first, 1, n);
            return first;
        }
    }
    return -ENOSPC;
}

static void test_random(void **state) {
    (void)state;
    enum { PAGES = 333, RUNS = 400 };
    static unsigned char taken[PAGES];
    struct {
        uint32_t first, n;
    } run[RUNS];
    int n_runs = 0, refused = 0;
    uint32_t n_free = PAGES;
    arena *a;
    assert_int_equal(arena_new(&a, (size_t)PAGES * ARENA_PAGE), 0);
    srand(1);
    for (int i = 0; i < 100000; i++) {
        if (n_runs < RUNS && rand() % 100 < 55) {
            uint32_t n = 1 + (uint32_t)(rand() % (rand() % 10 ? 4 : 140));
            int64_t got = arena_take(a, n), want = naive_take(taken, PAGES, n);
            assert_int_equal(got, want);
            if (got < 0) {
                refused++;
                continue;
            }
            run[n_runs].first = (uint32_t)got;
            run[n_runs++].n = n;
            n_free -= n;
        } else if (n_runs > 0) {
            int r = rand() % n_runs;
            arena_give(a, run[r].first, run[r].n);
            memset(taken + run[r].first, 0, run[r].n);
            n_free += run[r].n;
            run[r] = run[--n_runs];
        }
        assert_int_equal(arena_pages_free(a), n_free);
    }
    assert_true(refused > 100);
    while (n_runs > 0) n_runs--, arena_give(a, run[n_runs].first, run[n_runs].n);
    arena_free(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_first_fit),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
