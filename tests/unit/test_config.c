/* test_config.c: the configuration says what is wrong, where, and what was meant; and drifts from nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "config_table.h"

static config *parse(const char *text, config_why *why) {
    config *c = NULL;
    why->text[0] = 0;
    return config_parse(&c, "t.conf", text, strlen(text), why) ? NULL : c;
}

static void refused(const char *text, const char *expected) {
    config_why why;
    config *c = parse(text, &why);
    if (c || !strstr(why.text, expected))
        fail_msg("%s\n  gave: %s\n  expected: %s", text, c ? "accepted" : why.text, expected);
}

static void defaults_stand_without_a_file(void **state) {
    (void)state;
    config_why why;
    config *c = parse("", &why);
    assert_non_null(c);
    assert_int_equal(c->batch.max_delay_us, 500);
    assert_int_equal(c->limits.max_frame_bytes, 16 << 20);
    assert_string_equal(c->ingest.endpoint, "ipc:///run/nctd/ingest.sock");
    assert_true(c->publish.enabled);
    assert_int_equal(c->n_models, 0);
    config_free(c);
}

static void values_are_read_in_every_form(void **state) {
    (void)state;
    config_why why;
    config *c = parse("\xef\xbb\xbf[batch]\r\n  max_frames=4\r\n\tmax_delay_us =  7   # "
                      "why\n[limits]\nmax_frame_bytes = 2M\n"
                      "; a comment\n[engine]\nengine = cpu\n[ingest]\nendpoint = ipc:///a#b "
                      "tcp://127.0.0.1:1\ninsecure = true",
        &why);
    assert_non_null(c);
    assert_int_equal(c->batch.max_frames, 4);
    assert_int_equal(c->batch.max_delay_us, 7);
    assert_int_equal(c->limits.max_frame_bytes, 2 << 20);
    assert_int_equal(c->engine.engine, ENGINE_CPU);
    assert_string_equal(c->ingest.endpoint, "ipc:///a#b tcp://127.0.0.1:1");
    assert_true(c->ingest.insecure);
    config_free(c);
}

static void every_fault_names_its_line_and_what_was_expected(void **state) {
    (void)state;
    refused("[ingest]\nendpoint =;x\n",
        "t.conf:2: ingest.endpoint: 0 octets"); /* no value begins with a comment's mark */
    refused("[ingest]\nendpoint =#x\n", "t.conf:2: ingest.endpoint: 0 octets");
    refused("[batch]\nmax_frames = 0\n",
        "t.conf:2: batch.max_frames = 0: expected a whole number of frames from 1 to 4096");
    refused("[batch]\nmax_frames = 1x\n", "expected a whole number");
    refused("[batch]\nmax_frames = -1\n", "expected a whole number");
    refused("[batch]\nmax_frames = 99999999999999999999\n", "expected a whole number");
    refused("[limits]\nqueue_bytes = 17179869184G\n", "expected a whole number");
    refused("[batch]\n\nmax_frame = 1\n", "t.conf:3: unknown key max_frame in [batch]; nearest: max_frames");
    refused("[batch]\nwindow = 1\n", "it stands in [limits]");
    refused("[bach]\n", "unknown section [bach]; nearest: [batch]");
    refused("max_frames = 1\n", "stands before the first [section]");
    refused("[batch]\nmax_frames\n", "expected `key = value`");
    refused("[batch\n", "a section is written");
    refused("[batch x]\n", "only [model NAME] takes a second word");
    refused("[engine]\nengine = gpu\n", "expected one of auto|cuda|cpu");
    refused("[ingest]\ninsecure = maybe\n", "expected yes or no");
    refused(
        "[batch]\nmax_frames = 1\nmax_frames = 2\n", "t.conf:3: batch.max_frames is given twice; first in line 2");
    refused("[model a]\nseed = 1\n[model b]\n[model a]\n",
        "t.conf:4: [model a] is there twice in this file; first in line 1");
    refused("[model a/b]\n", "a name is 1 to 64");
    refused("[model]\n", "a name is 1 to 64");
    refused("[model a]\nmode = stream\n", "not there yet");
    refused("[model a]\nstrid = 2\n", "nearest: stride");
}

static void inert_combinations_are_faults(void **state) {
    (void)state;
    refused("[publish]\nenabled = no\nendpoint = tcp://127.0.0.1:1\n", "t.conf:3: publish.endpoint has no effect");
    refused("[engine]\nengine = cpu\non_gpu_error = cpu\n", "engine.on_gpu_error has no effect");
    refused("[engine]\nengine = cpu\nprecision = bf16\n", "the CPU computes f32");
    refused("[engine]\nengine = cuda\nslots = 1\n", "at least 2");
    refused("[publish]\npublish_bytes = 1M\n", "under 4 x limits.max_frame_bytes");
}

static void text_that_is_no_text_is_refused(void **state) {
    (void)state;
    config *c = NULL;
    config_why why;
    char big[6000];
    assert_int_equal(config_parse(&c, "t.conf", "[batch]\n\0\n", 10, &why), -EINVAL);
    assert_non_null(strstr(why.text, "NUL"));
    memset(big, 'a', sizeof big);
    assert_int_equal(config_parse(&c, "t.conf", big, sizeof big, &why), -EINVAL);
    assert_non_null(strstr(why.text, "longer than 4096"));
    assert_null(c);
}

static void models_keep_their_layer_settings(void **state) {
    (void)state;
    config_why why;
    config *c = parse(
        "[model eeg]\nfile = /m/eeg.safetensors\nnum_groups = 8\npadding = same\npublish = no\n[model b]\n", &why);
    assert_non_null(c);
    assert_int_equal(c->n_models, 2);
    assert_string_equal(c->models[0].name, "eeg");
    assert_string_equal(c->models[0].file, "/m/eeg.safetensors");
    assert_int_equal(c->models[0].n_settings, 2);
    assert_string_equal(c->models[0].settings[1].value, "same");
    assert_false(c->models[0].publish);
    assert_string_equal(c->models[1].origin, "t.conf:6");
    config_free(c);
}

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void folder_and_command_line_come_after_the_file(void **state) {
    (void)state;
    char folder[] = "/tmp/test_config.XXXXXX", path[128], sub[128], a[160], b[160];
    const char *const overrides[] = {"batch.max_delay_us=9"}, *const wrong[] = {"batch.max_delay=9"};
    config *c = NULL;
    config_why why;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/nctd.conf", folder);
    snprintf(sub, sizeof sub, "%s/conf.d", folder);
    snprintf(a, sizeof a, "%s/10-a.conf", sub);
    snprintf(b, sizeof b, "%s/20-b.conf", sub);
    mkdir(sub, 0700);
    write_file(path, "[batch]\nmax_frames = 2\n");
    write_file(a, "[batch]\nmax_frames = 3\n");
    write_file(b, "[batch]\nmax_frames = 5\n");
    assert_int_equal(config_load(&c, path, overrides, 1, &why), 0);
    assert_int_equal(c->batch.max_frames, 5);
    assert_int_equal(c->batch.max_delay_us, 9);
    config_free(c);
    c = NULL;
    assert_int_equal(config_load(&c, path, wrong, 1, &why), -EINVAL);
    assert_non_null(strstr(why.text, "nearest: max_delay_us"));
    static const char *const odd[][2] = {{"bach.frames=1", "unknown section [bach]; nearest: [batch]"},
        {"foo.max_frames=1", "it stands in [batch]"},
        {"model m.file=x", "models are named in the configuration file"}};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        assert_int_equal(config_load(&c, path, &odd[i][0], 1, &why), -EINVAL);
        if (!strstr(why.text, odd[i][1])) fail_msg("%s: %s", odd[i][0], why.text);
    }
    write_file(b, "[batch]\nbroken\n");
    assert_int_equal(config_load(&c, path, NULL, 0, &why), -EINVAL);
    assert_non_null(strstr(why.text, "20-b.conf:2:"));
    assert_int_equal(config_load(&c, "/nonexistent/nctd.conf", NULL, 0, &why), -ENOENT);
    assert_non_null(strstr(why.text, "/nonexistent/nctd.conf"));
    unlink(a), unlink(b), unlink(path), rmdir(sub), rmdir(folder);
}

static void what_is_dumped_reads_back_equal(void **state) {
    (void)state;
    config_why why;
    char *text = NULL, *again = NULL;
    size_t len, again_len;
    config *c =
        parse("[limits]\nqueue_bytes = 1536K\n[engine]\nprecision = f32\n[model m]\nstride = 2\nseed = 4\n", &why);
    assert_non_null(c);
    FILE *f = open_memstream(&text, &len);
    config_dump(c, f);
    fclose(f);
    assert_non_null(strstr(text, "queue_bytes = 1536K # t.conf:2"));
    config *d = parse(text, &why);
    if (!d) fail_msg("%s\n%s", why.text, text);
    assert_int_equal(d->limits.queue_bytes, 1536 << 10);
    assert_int_equal(d->models[0].seed, 4);
    f = open_memstream(&again, &again_len);
    config_defaults(f);
    fclose(f);
    config *e = parse(again, &why);
    if (!e) fail_msg("%s", why.text);
    config_free(c), config_free(d), config_free(e);
    free(text), free(again);
}

static void a_reload_may_not_change_what_needs_a_restart(void **state) {
    (void)state;
    config_why why;
    config *a = parse("[engine]\nslots = 3\n", &why), *b = parse("[engine]\nslots = 4\n", &why);
    config *c = parse("[engine]\nslots = 3\n[batch]\nmax_frames = 1\n", &why);
    assert_int_equal(config_may_reload(a, b, &why), -EPERM);
    assert_non_null(strstr(why.text, "engine.slots changed from 3 to 4"));
    assert_int_equal(config_may_reload(a, c, &why), 0);
    config_free(a), config_free(b), config_free(c);
}

static void a_reload_exchanges_its_keys_and_can_take_them_back(void **state) {
    (void)state;
    config_why why;
    config *a = parse("[daemon]\nlog_level = error\n[model x]\nin_channels = 1\n", &why);
    config *b = parse("[batch]\nmax_frames = 7\nmax_delay_us = 9\n[daemon]\nlog_level = debug\n"
                      "[engine]\non_gpu_error = cpu\n",
        &why);
    config *same = parse("[daemon]\nlog_level = error\n[model y]\nin_channels = 1\n", &why);
    const char *endpoint = a->ingest.endpoint;
    assert_true(config_differs(a, b));
    assert_false(config_differs(a, same)); /* models are compared when they are loaded */
    config_swap(a, b);
    assert_int_equal(a->batch.max_frames, 7);
    assert_int_equal(a->batch.max_delay_us, 9);
    assert_int_equal(a->daemon.log_level, 0);
    assert_int_equal(a->engine.on_gpu_error, GPU_ERROR_CPU);
    assert_int_equal(a->n_models, 0);
    assert_int_equal(b->n_models, 1);
    assert_ptr_equal(a->ingest.endpoint, endpoint);
    config_swap(a, b);
    assert_false(config_differs(a, same));
    assert_int_equal(a->batch.max_frames, 16);
    assert_string_equal(a->models[0].name, "x");
    config_free(a), config_free(b), config_free(same);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_stand_without_a_file),
        cmocka_unit_test(values_are_read_in_every_form),
        cmocka_unit_test(every_fault_names_its_line_and_what_was_expected),
        cmocka_unit_test(inert_combinations_are_faults),
        cmocka_unit_test(text_that_is_no_text_is_refused),
        cmocka_unit_test(models_keep_their_layer_settings),
        cmocka_unit_test(folder_and_command_line_come_after_the_file),
        cmocka_unit_test(what_is_dumped_reads_back_equal),
        cmocka_unit_test(a_reload_may_not_change_what_needs_a_restart),
        cmocka_unit_test(a_reload_exchanges_its_keys_and_can_take_them_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
