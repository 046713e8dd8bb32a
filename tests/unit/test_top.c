/* test_top.c: nct top without a daemon: figures of two snapshots, and lines that fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "top.h"

/* A snapshot as daemon/status.h describes it: `n` results in all, `up` seconds after the start, streams 0..n_streams-1. */
static json_t *snapshot(double up, double n, int n_streams, int reversed) {
    json_t *j = json_pack("{s:s, s:f, s:f, s:b, s:s, s:s, s:s, s:s, s:s, s:i, s:i}", "version", "0.1.0", "unix_s",
        1e9 + up, "uptime_s", up, "ready", 1, "reason", "", "backend", "cpu", "variant", "avx512", "precision", "f32",
        "device", "x86_64", "clients", 2, "streams_open", n_streams);
    json_object_set_new(j, "ledger",
        json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:{s:i, s:i}}", "received", n + 7, "ok", n, "refused", 5.0,
            "in_flight", 2.0, "batches", n / 4, "batch_frames", n, "refused_by", "EAGAIN", 5, "EINVAL", 0));
    json_object_set_new(j, "latency",
        json_pack("{s:{s:[f,f,f], s:[f,f,f,f], s:f}}", "queue", "le", 0.001, 0.002, 0.01, "counts", n * 0.25,
            n * 0.65, n * 0.09, n * 0.01, "sum", n * 0.0015));
    json_object_set_new(j, "models",
        json_pack("[{s:s, s:i, s:i, s:i, s:i, s:f, s:f}]", "name", "m", "generation", 1, "in_channels", 2,
            "out_channels", 4, "kernel_size", 3, "received", n, "ok", n));
    json_t *list = json_array();
    for (int i = 0; i < n_streams; i++) {
        char name[32];
        int k = reversed ? n_streams - 1 - i : i;
        snprintf(name, sizeof name, "s%04d", k);
        json_array_append_new(list,
            json_pack("[s,s,s,f,i,i,i,f,i]", "m", name, "a client", up * (k + 1), k % 3, k % 5, k % 2, 0.5 * k, 9));
    }
    json_object_set_new(j, "streams", list);
    return j;
}

static void rates_are_of_the_interval(void **state) {
    (void)state;
    top_facts f = {NULL};
    top_facts_add(&f, snapshot(10, 1000, 3, 0));
    assert_true(fabs(top_per_s(&f, "ledger.ok") - 100) < 1e-9); /* since the start */
    assert_int_equal(f.n_rates, 0);
    top_facts_add(&f, snapshot(12, 1500, 3, 1));
    assert_true(fabs(top_per_s(&f, "ledger.ok") - 250) < 1e-9);
    assert_true(f.n_rates == 1 && fabs(f.rates[0] - 250) < 1e-9);
    assert_int_equal(top_streams_sort(&f, TOP_BY_RATE), 0);
    assert_int_equal(f.n_streams, 3);
    for (int i = 0; i < 3; i++)
        assert_true(fabs(f.streams[i].frames_s - (3 - i)) < 1e-9); /* found in the other order */
    assert_string_equal(f.streams[0].stream, "s0002");
    top_facts_add(&f, snapshot(1, 10, 3, 0)); /* another process */
    assert_null(f.before);
    assert_true(fabs(top_per_s(&f, "ledger.ok") - 10) < 1e-9 && f.n_rates == 0);
    for (int i = 0; i < 2 * TOP_HISTORY; i++) top_facts_add(&f, snapshot(2 + i, 10 * (2 + i), 0, 0));
    assert_int_equal(f.n_rates, TOP_HISTORY);
    top_facts_done(&f);
}

static void bands(void **state) {
    (void)state;
    top_facts f = {NULL};
    top_band b;
    top_facts_add(&f, snapshot(10, 1000, 0, 0));
    top_facts_add(&f, snapshot(11, 2000, 0, 0));
    top_band_of(&f, "latency.queue", 1e3, &b);
    assert_true(fabs(b.n - 1000) < 1e-6 && b.n_buckets == 4 && isinf(b.le_ms[3]));
    assert_true(fabs(b.mean_ms - 1.5) < 1e-6);
    assert_true(fabs(b.p50_ms - (1 + 0.25 / 0.65)) < 1e-6 && fabs(b.p90_ms - 2) < 1e-6 && fabs(b.p99_ms - 10) < 1e-6);
    top_band_of(&f, "latency.nothing", 1e3, &b);
    assert_true(b.n == 0 && b.n_buckets == 0);
    top_facts_add(&f, snapshot(12, 2000, 0, 0));
    top_band_of(&f, "latency.queue", 1e3, &b);
    assert_true(b.n == 0);
    top_facts_done(&f);
}

static void streams_in_order(void **state) {
    (void)state;
    top_facts f = {NULL};
    const char *const first[] = {"s0039", "s0039", "s0004", "s0000"};
    top_facts_add(&f, snapshot(10, 1, 40, 0));
    top_facts_add(&f, snapshot(20, 2, 40, 0));
    for (int o = 0; o < TOP_ORDERS; o++) {
        assert_int_equal(top_streams_sort(&f, (top_order)o), 0);
        assert_string_equal(f.streams[0].stream, first[o]);
    }
    top_facts_done(&f);
}

/* ---- lines ---- */
typedef struct {
    int n, widest;
    char text[4 << 20];
} lines;

static void keep(void *ctx, const char *text, top_look look) {
    lines *l = ctx;
    int columns = 0;
    (void)look;
    for (const char *c = text; *c; c++) {
        assert_true((unsigned char)*c >= 0x20 && *c != 0x7f);
        columns += (*c & 0xc0) != 0x80;
    }
    l->n++;
    if (columns > l->widest) l->widest = columns;
    strncat(l->text, text, sizeof l->text - strlen(l->text) - 1);
    strncat(l->text, "\n", sizeof l->text - strlen(l->text) - 1);
}

static size_t show(const top_facts *f, lines *l, int width, int height, size_t first, int blocks) {
    *l = (lines){0};
    top_view v = {
        .width = width, .height = height, .first = first, .most = 5, .blocks = blocks, .line = keep, .ctx = l};
    v.hint = height ? "q quit" : NULL;
    return top_show(f, &v);
}

static void a_screen_is_filled_and_never_passed(void **state) {
    (void)state;
    static const int sizes[][2] = {{80, 24}, {80, 25}, {200, 60}, {132, 43}, {40, 10}, {20, 3}, {1, 1}, {1000, 1000}};
    top_facts f = {NULL};
    static lines l;
    for (int i = 1; i < 300; i++) top_facts_add(&f, snapshot(i, 1e9 * i, i == 299 ? 1000 : 0, 0));
    assert_int_equal(top_streams_sort(&f, TOP_BY_NAME), 0);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int blocks = 0; blocks < 2; blocks++) {
            size_t shown = show(&f, &l, sizes[i][0], sizes[i][1], 0, blocks);
            assert_int_equal(l.n, sizes[i][1]);
            assert_true(l.widest <= sizes[i][0]);
            if (sizes[i][1] >= 24) assert_true(shown >= 3 && strstr(l.text, "q quit"));
        }
    size_t shown = show(&f, &l, 80, 24, 500, 0);
    assert_true(shown >= 3 && strstr(l.text, "m/s0500") && !strstr(l.text, "m/s0499"));
    top_facts_done(&f);
}

static void what_a_report_says(void **state) {
    (void)state;
    top_facts f = {NULL};
    static lines l;
    top_facts_add(&f, snapshot(10, 1000, 7, 0));
    top_facts_add(&f, snapshot(11, 1200, 7, 0));
    top_streams_sort(&f, TOP_BY_RATE);
    assert_int_equal(show(&f, &l, 100, 0, 0, 0), 5);
    const char *const words[] = {"nctd 0.1.0  ready  cpu avx512 f32", "received 200.0  ok 200.0",
        "received 1207 = ok 1200 + refused 5 + in flight 2", "refused   EAGAIN 5\n",
        "queue        1.385    2.000   10.000    1.500", "50.0/s of 4.00 frames", "compute          -", "m/s0006"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strstr(l.text, words[i])) fail_msg("'%s' is not in:\n%s", words[i], l.text);
    assert_null(strstr(l.text, "EINVAL"));
    json_object_set_new(f.now, "ready", json_false());
    json_object_set_new(f.now, "reason", json_string("engine \x1b[31mfailed"));
    json_object_set_new(f.now, "reload",
        json_pack("{s:s, s:f, s:s, s:i, s:i, s:i}", "last", "refused", "last_s", 1e9 + 1, "why", "no such file",
            "applied", 2, "unchanged", 1, "refused", 3));
    show(&f, &l, 100, 0, 0, 0);
    assert_non_null(strstr(l.text, "NOT READY"));
    assert_non_null(strstr(l.text, "not ready: engine ?[31mfailed"));
    assert_non_null(strstr(l.text, "refused 10 s ago: no such file (2 applied, 1 unchanged, 3 refused)"));
    top_facts_done(&f);
}

/* Of a daemon that says next to nothing, or something else. */
static void little_is_known(void **state) {
    (void)state;
    const char *const said[] = {"{}",
        "{\"ledger\":{},\"streams\":[1,[],[null,2,{}]],\"models\":[7],\"latency\":{\"queue\":[]}}",
        "{\"ledger\":{\"refused\":1,\"refused_by\":{\"\\u001b[2J\":1}}}",
        "{\"ledger\":[],\"streams\":{},\"use\":[],\"latency\":{\"queue\":{\"counts\":[1,2,3],\"le\":4}},\"uptime_s\":"
        "\"x\"}"};
    static lines l;
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        top_facts f = {NULL};
        for (int k = 0; k < 2; k++) top_facts_add(&f, json_loads(said[i], 0, NULL));
        assert_int_equal(top_streams_sort(&f, TOP_BY_RATE), 0);
        show(&f, &l, 80, 24, 0, 1);
        assert_int_equal(l.n, 24);
        top_facts_done(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rates_are_of_the_interval), cmocka_unit_test(bands),
        cmocka_unit_test(streams_in_order), cmocka_unit_test(a_screen_is_filled_and_never_passed),
        cmocka_unit_test(what_a_report_says), cmocka_unit_test(little_is_known)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
