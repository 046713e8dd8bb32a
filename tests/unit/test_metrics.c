/* test_metrics.c: the text of /metrics and /api/status from a daemon's books without a daemon: every row there once,
 * labels escaped, numbers the same in every locale. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "metrics.h"
#include "status.h"

static char *taken(textbuf *t) {
    size_t bytes = 0;
    char *text = text_take(t, &bytes);
    assert_non_null(text);
    assert_int_equal(strlen(text), bytes);
    return text;
}

static void label_is(const char *value, const char *expected) {
    textbuf t = {NULL};
    text_put(&t, "");
    text_label(&t, value);
    char *text = taken(&t);
    assert_string_equal(text, expected);
    free(text);
}

static void labels_are_escaped(void **state) {
    (void)state;
    label_is("", "");
    label_is("a\"b", "a\\\"b");
    label_is("C:\\", "C:\\\\");
    label_is("two\nlines", "two\\nlines");
    label_is("na\xc3\xafve \xf0\x9f\x8e\xa4", "na\xc3\xafve \xf0\x9f\x8e\xa4");
    label_is("\xff", "\xef\xbf\xbd");
    label_is("\xc3", "\xef\xbf\xbd");                                                 /* cut short */
    label_is("\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd");                                 /* overlong */
    label_is("\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");                 /* a surrogate */
    label_is("\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"); /* past the last code point */
}

static void json_strings_read_back(void **state) {
    (void)state;
    textbuf t = {NULL};
    const char *hard = "a\"b\\c\n\t\x01 \xc3\xaf \xff";
    text_json(&t, hard);
    char *text = taken(&t);
    json_t *o = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(o);
    assert_string_equal(json_string_value(o), "a\"b\\c\n\t\x01 \xc3\xaf \xef\xbf\xbd");
    json_decref(o);
    free(text);
}

/* ---- numbers --------------------------------------------------------------------------------------------------- */

static void double_is(double x, const char *expected) {
    textbuf t = {NULL};
    text_double(&t, x);
    char *text = taken(&t);
    assert_string_equal(text, expected);
    free(text);
}
static void seconds_are(uint64_t ns, const char *expected) {
    textbuf t = {NULL};
    text_seconds(&t, ns);
    char *text = taken(&t);
    assert_string_equal(text, expected);
    free(text);
}
static void numbers(void) {
    double_is(0.1, "0.1");
    double_is(1e-9, "1e-09");
    double_is(-2.5, "-2.5");
    double_is(1796127647.25, "1796127647.25");
    double_is(1.0 / 3, "0.3333333333333333");
    double_is(NAN, "NaN");
    double_is(INFINITY, "+Inf");
    double_is(-INFINITY, "-Inf");
    seconds_are(0, "0.000000000");
    seconds_are(1, "0.000000001");
    seconds_are(UINT64_MAX, "18446744073.709551615");
    textbuf t = {NULL};
    text_u64(&t, UINT64_MAX);
    text_put(&t, " ");
    text_i64(&t, INT64_MIN);
    text_put(&t, " ");
    text_json_double(&t, NAN);
    char *text = taken(&t);
    assert_string_equal(text, "18446744073709551615 -9223372036854775808 null");
    free(text);
}

static void numbers_of_the_c_locale(void **state) {
    (void)state;
    numbers();
}

/* A locale with a comma, made here: most machines have none. */
static void numbers_of_a_comma_locale(void **state) {
    (void)state;
    char folder[] = "/tmp/nct-locale-XXXXXX", command[256], sample[16];
    assert_non_null(mkdtemp(folder));
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 2>/dev/null", folder);
    int made = system(command); /* NOLINT(cert-env33-c): a test */
    setenv("LOCPATH", folder, 1);
    const char *set = made == 0 ? setlocale(LC_ALL, "de_DE.UTF-8") : NULL;
    snprintf(sample, sizeof sample, "%.1f", 0.5);
    bool comma = !strcmp(sample, "0,5");
    if (comma) numbers();
    setlocale(LC_ALL, "C");
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c): a test */
    if (!set) skip();
    assert_true(comma);
}

/* ---- the whole text -------------------------------------------------------------------------------------------- */

static spine *books(void) {
    spine *s = calloc(1, sizeof *s);
    assert_non_null(s);
    meters_init(&s->meters);
    assert_int_equal(models_new(&s->models), 0);
    s->counts.all.received = 9;
    s->counts.all.outcomes[OUTCOME_ok] = 7;
    s->counts.all.outcomes[OUTCOME_refused] = 2;
    s->counts.refused[REFUSED_ENOBUFS] = 2;
    s->counts.counts[COUNT_batches] = 12345;
    histogram_add(&s->meters.queue, 1500000, 7);
    meters_reload(&s->meters, RELOAD_RESULT_REFUSED, "weights \"x\"\nare gone");
    return s;
}
static void books_free(spine *s) {
    models_free(s->models);
    free(s);
}

static int times(const char *text, const char *what) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at += strlen(what)) n++;
    return n;
}

static void every_row_stands_there_once(void **state) {
    (void)state;
    static const char *const rows[] = {
#define METRIC(id, name, type, help) "# HELP " name " " help "\n# TYPE " name " " type "\n",
#include "metrics.def"
#undef METRIC
    };
#define XX(name, help) "\nnctd_" #name "_total ",
    static const char *const counters[] = {LEDGER_OTHERS(XX)};
#undef XX
    spine *s = books();
    size_t bytes = 0;
    char *text = metrics_text(&(metrics_source){.s = s, .ready = true}, &bytes);
    assert_non_null(text);
    assert_int_equal(strlen(text), bytes);
    assert_int_equal(text[bytes - 1], '\n');
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) assert_int_equal(times(text, rows[i]), 1);
    for (int i = 0; i < COUNTERS; i++) assert_int_equal(times(text, counters[i]), 1);
    assert_int_equal(times(text, "\nnctd_frames_received_total 9\n"), 1);
    assert_int_equal(times(text, "\nnctd_frames_total{outcome=\"ok\"} 7\n"), 1);
    assert_int_equal(times(text, "\nnctd_frames_refused_total{reason=\"ENOBUFS\"} 2\n"), 1);
    assert_int_equal(times(text, "\nnctd_batches_total 12345\n"), 1);
    assert_int_equal(times(text, "\nnctd_queue_seconds_sum 0.010500000\n"), 1);
    assert_int_equal(times(text, "\nnctd_queue_seconds_bucket{le=\"0.001\"} 0\n"), 1);
    assert_int_equal(times(text, "\nnctd_queue_seconds_bucket{le=\"0.0025\"} 7\n"), 1);
    assert_int_equal(times(text, "\nnctd_reloads_total{result=\"refused\"} 1\n"), 1);
    assert_int_equal(times(text, "\nnctd_last_reload_success 0\n"), 1);
    free(text);
    books_free(s);
}

static void status_is_json_and_says_the_same(void **state) {
    (void)state;
    spine *s = books();
    size_t bytes = 0;
    char *text = status_text(&(status_source){.s = s, .not_ready = "loading \"m\"", .streams_max = 10}, &bytes);
    assert_non_null(text);
    json_error_t why;
    json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, &why);
    if (!o) fail_msg("%s at %d: %.60s", why.text, why.position, text + why.position);
    json_t *l = json_object_get(o, "ledger"), *queue = json_object_get(json_object_get(o, "latency"), "queue");
    assert_int_equal(json_integer_value(json_object_get(l, "received")), 9);
    assert_int_equal(
        json_array_size(json_object_get(queue, "counts")), json_array_size(json_object_get(queue, "le")) + 1);
    assert_true(fabs(json_real_value(json_object_get(queue, "sum")) - 0.0105) < 1e-12);
    assert_true(json_is_false(json_object_get(o, "ready")));
    assert_string_equal(json_string_value(json_object_get(o, "reason")), "loading \"m\"");
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(o, "reload"), "why")), "weights \"x\"\nare gone");
    assert_int_equal(json_array_size(json_object_get(o, "streams")), 0);
    json_decref(o);
    free(text);
    books_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_are_escaped),
        cmocka_unit_test(json_strings_read_back),
        cmocka_unit_test(numbers_of_the_c_locale),
        cmocka_unit_test(numbers_of_a_comma_locale),
        cmocka_unit_test(every_row_stands_there_once),
        cmocka_unit_test(status_is_json_and_says_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
