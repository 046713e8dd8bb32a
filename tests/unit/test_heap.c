/* test_heap.c: the pairing heap against a linear search; removals from anywhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>
#include "heap.h"

static void test_against_search(void **state) {
    (void)state;
    enum { ITEMS = 300 };
    static heap_node node[ITEMS];
    static bool in[ITEMS];
    heap h = {0};
    int n = 0;
    srand(5);
    for (int step = 0; step < 60000; step++) {
        int i = rand() % ITEMS;
        if (in[i])
            heap_remove(&h, &node[i]);
        else
            heap_push(&h, &node[i], (uint64_t)(rand() % 1000));
        n += in[i] ? -1 : 1;
        in[i] = !in[i];
        uint64_t least = UINT64_MAX;
        for (int k = 0; k < ITEMS; k++)
            if (in[k] && node[k].key < least) least = node[k].key;
        assert_int_equal(h.top != NULL, n > 0);
        if (n > 0) assert_true(h.top->key == least && in[h.top - node]);
    }
}

/* Sorted input makes the longest lists of siblings: no recursion, and everything comes out in order. */
static void test_long_lists(void **state) {
    (void)state;
    enum { ITEMS = 200000 };
    heap_node *node = calloc(ITEMS, sizeof *node);
    heap h = {0};
    for (int i = 0; i < ITEMS; i++) heap_push(&h, &node[i], (uint64_t)i);
    for (int i = 0; i < ITEMS; i++) {
        assert_ptr_equal(h.top, &node[i]);
        heap_remove(&h, h.top);
    }
    assert_null(h.top);
    free(node);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_search), cmocka_unit_test(test_long_lists)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
