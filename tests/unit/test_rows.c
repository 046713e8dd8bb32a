/* test_rows.c: payloads of every dtype, layout and alignment into a row, against one element at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "rows.h"

enum { GUARD = 64, POISON = 0xa5 };

static size_t x_size(const frame *f) {
    return rows_dtype_bytes(f->x_dtype);
}

/* Element (c, t) of the payload, as the layer must find it. */
static void element(const frame *f, int64_t c, int64_t t, void *want) {
    int64_t i = f->h.flags & WIRE_INTERLEAVED ? t * f->c_in + c : c * f->t_in + t;
    const unsigned char *at = (const unsigned char *)f->payload.data + i * (int64_t)rows_dtype_bytes(f->h.dtype);
    int32_t i32;
    double f64;
    float v;
    switch (f->h.dtype) {
    case NCT_I32:
        memcpy(&i32, at, 4);
        v = (float)(i32 / 2147483648.0);
        memcpy(want, &v, 4);
        break;
    case NCT_F64:
        memcpy(&f64, at, 8);
        v = (float)f64;
        memcpy(want, &v, 4);
        break;
    default: memcpy(want, at, x_size(f)); break;
    }
}

static void fill_payload(const frame *f, unsigned char *at) {
    for (int64_t i = 0; i < (int64_t)f->c_in * f->t_in; i++) {
        double v = (rand() - RAND_MAX / 2) / 1e4;
        int32_t k = (int32_t)((uint32_t)rand() * 2u + (uint32_t)rand() % 2u);
        if (f->h.dtype == NCT_F64)
            memcpy(at + i * 8, &v, 8);
        else if (f->h.dtype == NCT_I32)
            memcpy(at + i * 4, &k, 4);
        else
            memcpy(at + i * (int64_t)rows_dtype_bytes(f->h.dtype), &k, rows_dtype_bytes(f->h.dtype));
    }
}

/* Copies in pieces of `piece` samples (0: at once) and compares every sample, and what lies around and between. */
static void check(int dtype, bool interleaved, int32_t c_in, int32_t t_in, size_t misaligned, int64_t piece) {
    frame f = {.c_in = c_in, .t_in = t_in, .x_dtype = rows_x_dtype(dtype)};
    int64_t total = (int64_t)c_in * t_in, from = 0;
    f.h.dtype = (uint8_t)dtype;
    f.h.flags = interleaved ? WIRE_INTERLEAVED : 0;
    f.payload.bytes = (size_t)total * rows_dtype_bytes(dtype);
    unsigned char *message = malloc(f.payload.bytes + misaligned);
    f.payload.data = message + misaligned;
    fill_payload(&f, message + misaligned);

    size_t room = rows_x_bytes(&f), size = x_size(&f);
    unsigned char *memory = aligned_alloc(256, room + 2 * 256), *x = memory + 256, want[8];
    memset(memory, POISON, room + 2 * 256);
    while (from < total) {
        int64_t next = rows_copy_in(&f, x, from, piece ? piece : total);
        assert_true(next > from && next <= total && (!piece || next - from <= piece));
        from = next;
    }
    int64_t pitch = rows_x_pitch(&f);
    assert_true(pitch >= t_in && (size_t)((c_in - 1) * pitch + t_in) * size <= room);
    for (int64_t c = 0; c < c_in; c++) {
        for (int64_t t = 0; t < t_in; t++) {
            element(&f, c, t, want);
            if (memcmp(x + (size_t)(c * pitch + t) * size, want, size) != 0)
                fail_msg("dtype %d %s (%d, %d): wrong at channel %d, step %d", dtype, interleaved ? "TC" : "CT", c_in,
                    t_in, (int)c, (int)t);
        }
        for (size_t i = (size_t)(c * pitch + t_in) * size; i < (size_t)(c + 1) * (size_t)pitch * size; i++)
            assert_int_equal(x[i], POISON);
    }
    for (int i = 0; i < 256; i++) assert_true(memory[i] == POISON && x[room + (size_t)i] == POISON);
    free(memory);
    free(message);
}

static void test_copies(void **state) {
    (void)state;
    static const int32_t shapes[][2] = {
        {1, 1}, {1, 1000}, {1000, 1}, {2, 480}, {3, 31}, {17, 33}, {64, 100}, {5, 257}, {129, 65}};
    srand(3);
    for (int dtype = NCT_F32; dtype <= NCT_F64; dtype++)
        for (int tc = 0; tc < 2; tc++)
            for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
                for (size_t off = 0; off < 9; off += off < 1 ? 1 : 2)
                    check(dtype, tc, shapes[i][0], shapes[i][1], off, 0);
}

static void test_pieces(void **state) {
    (void)state;
    srand(4);
    for (int dtype = NCT_F32; dtype <= NCT_F64; dtype++)
        for (int tc = 0; tc < 2; tc++)
            for (int64_t piece = 1; piece < 400; piece = piece * 3 + 1) {
                check(dtype, tc, 7, 50, 5, piece);
                check(dtype, tc, 50, 7, 3, piece);
                check(dtype, tc, 1, 100, 1, piece);
            }
}

static void test_rooms(void **state) {
    (void)state;
    frame f = {
        .c_in = 2, .t_in = 481, .c_out = 3, .t_out = 100, .n_groups = 5, .x_dtype = NCT_I16, .y_dtype = NCT_F32};
    assert_int_equal(rows_x_pitch(&f), 488); /* 962 bytes -> 976 */
    assert_int_equal(rows_x_bytes(&f), 2048);
    assert_int_equal(rows_in_room(&f), 2048);
    assert_int_equal(rows_y_bytes(&f), 1200);
    assert_int_equal(rows_out_room(&f), 1280);
    f.norm = NCT_NORM_GIVEN;
    assert_int_equal(rows_in_room(&f), 2048 + 5 * 24);
    f.norm = NCT_NORM_OWN;
    f.t_out = 8192 / 3 + 1; /* 32772 bytes */
    assert_true(rows_y_pages(&f));
    assert_int_equal(rows_out_room(&f), 65536);
    f.observe = true;
    assert_false(rows_y_pages(&f));
    assert_int_equal(rows_y_bytes(&f), 120);
    assert_int_equal(rows_out_room(&f), 120);
}

/* No frame of max_frame_bytes, whatever its shape, takes more than the slot that the check asks for. */
static void test_slot_bytes_min(void **state) {
    (void)state;
    static const size_t limits[] = {4096, 65536, 1 << 20, (1 << 20) + 4};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        size_t max = limits[i], need = rows_slot_bytes_min(max);
        for (int dtype = NCT_F32; dtype <= NCT_I16; dtype++) {
            size_t size = rows_dtype_bytes(dtype);
            for (int32_t t = 1; (size_t)t * size <= max; t += 1 + t / 50) {
                frame f = {.t_in = t, .t_out = t, .x_dtype = dtype, .y_dtype = dtype};
                f.c_in = f.c_out = (int32_t)(max / ((size_t)t * size));
                assert_true(rows_in_room(&f) <= need);
                assert_true(rows_out_room(&f) <= need);
                f.n_groups = (int32_t)((max - (size_t)f.c_in * (size_t)t * size) / 24);
                f.norm = NCT_NORM_GIVEN;
                assert_true(rows_in_room(&f) <= need);
            }
        }
    }
}

static void test_stats(void **state) {
    (void)state;
    nct_stat want[3] = {{1, 2, 3}, {4, -5, 6}, {0, 0, 0}}, got[3];
    unsigned char message[1 + 12 + sizeof want];
    frame f = {.c_in = 1, .t_in = 3, .n_groups = 3, .x_dtype = NCT_F32, .norm = NCT_NORM_GIVEN};
    f.h.dtype = NCT_F32;
    f.payload.data = message + 1;
    f.payload.bytes = sizeof message - 1;
    memcpy(message + 1 + 12, want, sizeof want);
    rows_copy_stats(&f, got);
    assert_memory_equal(got, want, sizeof want);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_copies), cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_rooms), cmocka_unit_test(test_slot_bytes_min), cmocka_unit_test(test_stats)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
