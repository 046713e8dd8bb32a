/* test_wire.c: the header's bytes against tests/golden, every refusal of wire_read and wire_frame_check,
 * topics. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "wire.h"

#define SESSION 0x1122334455667788ull

static const struct {
    const char *file;
    wire_header h;
} golden[] = {
    {"hello", {.kind = WIRE_HELLO, .request_id = 1}},
    {"welcome", {.kind = WIRE_WELCOME,
                    .session = SESSION,
                    .request_id = 1,
                    .window = 64,
                    .t_answer_ns = 1754000000000000000}},
    {"open", {.kind = WIRE_OPEN, .session = SESSION, .request_id = 2}},
    {"opened", {.kind = WIRE_OPENED,
                   .session = SESSION,
                   .request_id = 2,
                   .window = 64,
                   .epoch = 3,
                   .t_answer_ns = 1754000000100000000}},
    {"frame", {.kind = WIRE_FRAME,
                  .dtype = 1,
                  .session = SESSION,
                  .request_id = 7,
                  .seq = 42,
                  .pos = 20160,
                  .t_capture_ns = 1764547200000000000,
                  .channels = 2,
                  .steps = 480,
                  .ttl_us = 20000,
                  .epoch = 1}},
    {"frame_given", {.kind = WIRE_FRAME,
                        .dtype = 4,
                        .want = 2,
                        .flags = WIRE_NO_REPLY | WIRE_INTERLEAVED | WIRE_NO_PUBLISH | WIRE_INNER_LEFT |
                                 WIRE_INNER_RIGHT | WIRE_GIVEN,
                        .session = SESSION,
                        .request_id = 0xfedcba9876543210ull,
                        .seq = UINT64_MAX,
                        .pos = (1ull << 63) + 5,
                        .t_capture_ns = -1,
                        .channels = 128,
                        .steps = 1024,
                        .epoch = 0xdeadbeef}},
    {"result", {.kind = WIRE_RESULT,
                   .dtype = 1,
                   .flags = WIRE_GAP_SEEN | WIRE_CPU_FALLBACK,
                   .session = SESSION,
                   .request_id = 7,
                   .seq = 42,
                   .pos = 20160,
                   .t_capture_ns = 1764500000000000000,
                   .channels = 256,
                   .steps = 480,
                   .window = 17,
                   .epoch = 1,
                   .generation = 5,
                   .queue_us = 321,
                   .compute_us = 1234567,
                   .t_answer_ns = 1764500000002345678}},
    {"result_observe", {.kind = WIRE_RESULT,
                           .dtype = 6,
                           .flags = WIRE_OBSERVE,
                           .session = SESSION,
                           .request_id = 9,
                           .seq = 43,
                           .channels = 32,
                           .steps = 3,
                           .window = 16,
                           .epoch = 1,
                           .generation = 5,
                           .queue_us = UINT32_MAX,
                           .compute_us = 1,
                           .t_answer_ns = 1764500000002345679}},
    {"error_eilseq", {.kind = WIRE_ERROR,
                         .status = -84,
                         .session = SESSION,
                         .request_id = 8,
                         .seq = 44,
                         .window = 64,
                         .epoch = 1,
                         .t_answer_ns = 1764500000002345680}},
    {"close", {.kind = WIRE_CLOSE, .session = SESSION, .request_id = 10}},
    {"closed", {.kind = WIRE_CLOSED,
                   .session = SESSION,
                   .request_id = 10,
                   .window = 64,
                   .epoch = 1,
                   .t_answer_ns = 1764500000002345681}},
    {"ping", {.kind = WIRE_PING, .session = SESSION, .request_id = 11}},
    {"pong",
        {.kind = WIRE_PONG, .session = SESSION, .request_id = 11, .window = 64, .t_answer_ns = 1764500000002345682}},
    {"goaway", {.kind = WIRE_GOAWAY, .session = SESSION, .window = 1, .t_answer_ns = 1764500000002345683}},
};

static void golden_read(const char *name, uint8_t out[WIRE_HEADER_BYTES]) {
    char path[128];
    snprintf(path, sizeof path, "tests/golden/%s.hex", name);
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("%s: not there; run the tests from the project's top folder", path);
    for (int i = 0; i < WIRE_HEADER_BYTES; i++) {
        unsigned byte;
        assert_int_equal(fscanf(f, "%2x", &byte), 1);
        out[i] = (uint8_t)byte;
    }
    fclose(f);
}

static void headers_equal(const wire_header *a, const wire_header *b) {
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->dtype, b->dtype);
    assert_int_equal(a->want, b->want);
    assert_int_equal(a->header_words, 12);
    assert_int_equal(a->flags, b->flags);
    assert_int_equal(a->status, b->status);
    assert_true(a->session == b->session && a->request_id == b->request_id);
    assert_true(a->seq == b->seq && a->pos == b->pos);
    assert_true(a->t_capture_ns == b->t_capture_ns && a->t_answer_ns == b->t_answer_ns);
    assert_int_equal(a->channels, b->channels);
    assert_int_equal(a->steps, b->steps);
    assert_int_equal(a->ttl_us, b->ttl_us);
    assert_int_equal(a->window, b->window);
    assert_int_equal(a->epoch, b->epoch);
    assert_int_equal(a->generation, b->generation);
    assert_int_equal(a->queue_us, b->queue_us);
    assert_int_equal(a->compute_us, b->compute_us);
}

/* Written and read at every address modulo 8. */
static void golden_bytes(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof golden / sizeof golden[0]; i++)
        for (size_t shift = 0; shift < 8; shift++) {
            uint8_t want[WIRE_HEADER_BYTES], room[WIRE_HEADER_BYTES + 16];
            golden_read(golden[i].file, want);
            memset(room, 0xa5, sizeof room);
            wire_write(room + shift, &golden[i].h);
            assert_memory_equal(room + shift, want, sizeof want);
            assert_int_equal(room[shift + WIRE_HEADER_BYTES], 0xa5);
            wire_header h;
            memset(&h, 0xee, sizeof h);
            assert_int_equal(wire_read(&h, room + shift, WIRE_HEADER_BYTES, NULL), 0);
            headers_equal(&h, &golden[i].h);
        }
}

static void refused(const uint8_t *bytes, size_t len, const char *word, uint64_t session) {
    wire_header h;
    wire_why why;
    memset(&h, 0xee, sizeof h);
    assert_int_equal(wire_read(&h, bytes, len, &why), -EPROTO);
    if (!strstr(why.text, word)) fail_msg("\"%s\" does not name \"%s\"", why.text, word);
    assert_true(h.session == session && h.request_id == (session ? 7 : 0));
    assert_int_equal(h.kind, 0);
    assert_int_equal(h.header_words, 0);
    assert_int_equal(h.channels, 0);
    assert_int_equal(wire_read(&h, bytes, len, NULL), -EPROTO);
}

static void bad_headers(void **state) {
    (void)state;
    uint8_t good[WIRE_HEADER_BYTES], b[256 * 8] = {0};
    golden_read("frame", good);
    for (size_t len = 0; len < WIRE_HEADER_BYTES; len++) {
        char word[32];
        snprintf(word, sizeof word, "has %zu bytes", len);
        refused(good, len, word, len >= 32 ? SESSION : 0);
    }
    memcpy(b, good, sizeof good);
    refused(b, 97, "97 bytes", SESSION); /* header_words says 96 */
    refused(b, 104, "104 bytes", SESSION);
    b[3] = '2';
    refused(b, 96, "4e 43 54 32", SESSION);
    b[3] = '1';
    for (unsigned words = 0; words < 12; words++) {
        b[7] = (uint8_t)words;
        refused(b, 96, "header_words", SESSION);
    }
    b[7] = 12;
    static const uint8_t kinds[] = {0, 15, 16, 255};
    for (size_t i = 0; i < sizeof kinds; i++) {
        b[4] = kinds[i];
        refused(b, 96, "kind is", SESSION);
    }
    for (uint8_t kind = 1; kind <= 14; kind++) {
        wire_header h;
        b[4] = kind;
        assert_int_equal(wire_read(&h, b, 96, NULL), 0);
        assert_int_equal(h.kind, kind);
    }
    for (unsigned words = 13; words < 256; words++) { /* longer headers are read, the tail is skipped */
        wire_header h;
        b[7] = (uint8_t)words;
        assert_int_equal(wire_read(&h, b, words * 8, NULL), 0);
        assert_int_equal(h.header_words, words);
        assert_true(h.seq == 42);
        refused(b, words * 8 - 1, "bytes", SESSION);
    }
}

static void check(const wire_header *h, uint64_t payload, uint32_t groups, uint64_t max, int want, const char *word) {
    wire_why why = {""};
    int got = wire_frame_check(h, payload, groups, max, &why);
    if (got != want || (word && !strstr(why.text, word)))
        fail_msg("got %d \"%s\", expected %d with \"%s\"", got, why.text, want, word);
    assert_int_equal(wire_frame_check(h, payload, groups, max, NULL), want);
}

static void frame_checks(void **state) {
    (void)state;
    const uint64_t max = 16 << 20;
    const wire_header good = {.kind = WIRE_FRAME, .dtype = 1, .channels = 2, .steps = 480};
    wire_header h = good;
    check(&h, 3840, 0, max, 0, NULL);
    check(&h, 3840, 8, max, 0, NULL); /* groups count with GIVEN only */
    check(&h, 3839, 0, max, -EINVAL, "3839");
    check(&h, 3841, 0, max, -EINVAL, "3840");
    check(&h, 0, 0, max, -EINVAL, "0 bytes");
    check(&h, 3840, 0, 3840, 0, NULL);
    check(&h, 3840, 0, 3839, -EMSGSIZE, "3839");
    h.flags = WIRE_GIVEN;
    check(&h, 3840 + 8 * 24, 8, max, 0, NULL);
    check(&h, 3840, 8, max, -EINVAL, "4032");
    check(&h, 3840 + 8 * 24, 8, 3840 + 8 * 24 - 1, -EMSGSIZE, "more than");
    check(&h, 3840 + 8 * 24, UINT32_MAX, UINT64_MAX, -EINVAL, "given");
    h.flags = WIRE_GIVEN | WIRE_OBSERVE;
    check(&h, 3840 + 8 * 24, 8, max, -EINVAL, "OBSERVE");
    static const uint8_t sizes[] = {0, 4, 2, 2, 2, 4, 8, 0, 0};
    for (unsigned dtype = 0; dtype < 256; dtype++) {
        h = good;
        h.dtype = (uint8_t)dtype;
        unsigned size = dtype < sizeof sizes ? sizes[dtype] : 0;
        check(&h, 960 * size, 0, max, size ? 0 : -EINVAL, size ? NULL : "dtype is");
        h = good;
        h.want = (uint8_t)dtype;
        check(&h, 3840, 0, max, dtype <= 3 ? 0 : -EINVAL, dtype <= 3 ? NULL : "want is");
    }
    for (int bit = 0; bit < 32; bit++) {
        char word[32];
        h = good;
        h.flags = 1u << bit;
        snprintf(word, sizeof word, "flag %d", bit);
        check(&h, 3840, 0, max, bit <= 22 ? 0 : -ENOTSUP, bit <= 22 ? NULL : word);
    }
    h = good, h.channels = 0;
    check(&h, 0, 0, max, -EINVAL, "0 channels");
    h = good, h.steps = 0;
    check(&h, 0, 0, max, -EINVAL, "0 steps");
}

/* Products that wrap 32 or 64 bits must not pass as small frames. */
static void frame_products(void **state) {
    (void)state;
    wire_header h = {.kind = WIRE_FRAME, .dtype = 1, .channels = 1u << 16, .steps = 1u << 16};
    check(&h, 0, 0, 16 << 20, -EMSGSIZE, "65536 channels");
    h.channels = 1u << 31, h.steps = 1u << 31; /* x 4 is 2^64 */
    check(&h, 0, 0, 16 << 20, -EMSGSIZE, "2147483648");
    h.channels = UINT32_MAX, h.steps = UINT32_MAX, h.dtype = 6;
    check(&h, 8, 0, UINT64_MAX, -EMSGSIZE, "4294967295");
    h.flags = WIRE_GIVEN;
    check(&h, 8, UINT32_MAX, 16 << 20, -EMSGSIZE, NULL);
    h = (wire_header){.kind = WIRE_FRAME, .dtype = 1, .channels = 1, .steps = 1};
    check(&h, 2ull << 30, 0, 16 << 20, -EMSGSIZE, "2147483648 bytes");
}

static void topic_bad(const char *topic, size_t len) {
    char model[WIRE_NAME_MAX + 1] = "m0", stream[WIRE_NAME_MAX + 1] = "s0";
    wire_why why = {""};
    if (wire_topic_read(topic, len, model, stream, &why) != -EINVAL) fail_msg("\"%.*s\" passed", (int)len, topic);
    assert_string_equal(model, "m0");
    assert_string_equal(stream, "s0");
    assert_true(strlen(why.text) > 0);
}

static void topics(void **state) {
    (void)state;
    char model[WIRE_NAME_MAX + 1], stream[WIRE_NAME_MAX + 1], out[WIRE_TOPIC_MAX + 1];
    assert_int_equal(wire_topic_read("default/mic.0-1_x/", 18, model, stream, NULL), 0);
    assert_string_equal(model, "default");
    assert_string_equal(stream, "mic.0-1_x");
    assert_int_equal(wire_topic_write(out, model, stream), 18);
    assert_string_equal(out, "default/mic.0-1_x/");

    static const char *bad[] = {"", "/", "//", "m", "m/", "m//", "/s/", "m/s", "m/s//", "m//s/", "m/s/t/", " m/s/",
        "-m/s/", "m/.s/", "m/s /", "m/\xc3\xa9/", "m/a*b/", "_m/s/"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) topic_bad(bad[i], strlen(bad[i]));
    topic_bad("m/s\0/", 5);
    char longest[WIRE_TOPIC_MAX + 2];
    memset(longest, 'x', sizeof longest);
    longest[WIRE_NAME_MAX] = '/', longest[WIRE_TOPIC_MAX - 1] = '/';
    assert_int_equal(wire_topic_read(longest, WIRE_TOPIC_MAX, model, stream, NULL), 0);
    assert_int_equal(strlen(model), WIRE_NAME_MAX);
    assert_int_equal(wire_topic_write(out, model, stream), WIRE_TOPIC_MAX);
    longest[WIRE_TOPIC_MAX - 1] = 'x', longest[WIRE_TOPIC_MAX] = '/';
    topic_bad(longest, WIRE_TOPIC_MAX + 1);
    assert_int_equal(wire_name_ok("", 0), 0);
    assert_int_equal(wire_name_ok("9", 1), 1);
}

static void words(void **state) {
    (void)state;
    assert_string_equal(wire_kind_name(5), "FRAME");
    assert_string_equal(wire_kind_name(12), "GOAWAY");
    assert_string_equal(wire_kind_name(0), "?");
    assert_string_equal(wire_kind_name(200), "?");
    assert_null(wire_dtype_name(0));
    assert_null(wire_dtype_name(7));
    assert_null(wire_dtype_name(255));
    for (uint8_t dtype = 1; dtype <= 6; dtype++) assert_int_equal(wire_dtype_number(wire_dtype_name(dtype)), dtype);
    assert_int_equal(wire_dtype_number("f80"), -EINVAL);
    assert_int_equal(wire_dtype_number(""), -EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_bytes),
        cmocka_unit_test(bad_headers),
        cmocka_unit_test(frame_checks),
        cmocka_unit_test(frame_products),
        cmocka_unit_test(topics),
        cmocka_unit_test(words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
