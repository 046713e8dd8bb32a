/* test_audio.c: sound files that other readers tripped over: lengths, scales, truncation, streamed headers; by name and
 * through a pipe. The files are those of tests/data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "audio.h"

#define DATA "tests/data/"

/* All steps of an input, interleaved; *ret_steps of them. */
static float *read_all(audio *a, int64_t *ret_steps) {
    nct_why why;
    int c = audio_about(a)->channels;
    int64_t room = 65536, n = 0, got;
    float *x = malloc(sizeof *x * (size_t)(room * c));
    while ((got = audio_read(a, x + n * c, room - n, &why)) > 0)
        if ((n += got) == room) x = realloc(x, sizeof *x * (size_t)((room *= 2) * c));
    if (got < 0) fail_msg("read: %s", why.text);
    *ret_steps = n;
    return x;
}

/* The file through a FIFO, `block` bytes at a time. */
static audio *open_pipe(
    const char *file, size_t block, const audio_raw *raw, int live, int *ret_error, nct_why *why) {
    char fifo[64];
    audio *a = NULL;
    snprintf(fifo, sizeof fifo, "/tmp/test_audio.%d", (int)getpid());
    unlink(fifo);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    pid_t writer = fork();
    if (!writer) {
        char bytes[65536];
        int in = open(file, O_RDONLY), out = open(fifo, O_WRONLY);
        for (ssize_t n; (n = read(in, bytes, block)) > 0;)
            if (write(out, bytes, (size_t)n) != n) _exit(1);
        _exit(0);
    }
    *ret_error = audio_open(&a, fifo, raw, live, NULL, NULL, why);
    unlink(fifo);
    if (live) return a; /* its writer ends when it is read */
    int status = -1;
    waitpid(writer, &status, 0);
    if (!*ret_error) assert_int_equal(status, 0);
    return a;
}

static void same_as_st(audio *a, int64_t want_steps) {
    nct_why why;
    audio *st;
    int64_t n, m;
    assert_int_equal(audio_open(&st, DATA "A7_fmt18_cbsize0.wav", NULL, 0, NULL, NULL, &why), 0);
    float *want = read_all(st, &m), *got = read_all(a, &n);
    assert_int_equal(m, 1000);
    assert_int_equal(n, want_steps);
    assert_int_equal(audio_about(a)->channels, 2);
    assert_int_equal(audio_about(a)->rate, 16000);
    assert_memory_equal(got, want, sizeof *want * 2 * (size_t)want_steps);
    free(want);
    free(got);
    audio_close(st);
    audio_close(a);
}

static void one_signal_in_many_wrappings(void **state) {
    (void)state;
    static const char *const files[] = {"A1_ffmpeg_pipe_ffffffff.wav", "A1_sox_pipe_7ffff000.wav",
        "A1_riff_ok_data_ffffffff.wav", "A1_data_7fffffff_int32max.wav", "A3_odd_list_padded_before_data.wav",
        "A4_data_4002_half_frame.wav", "A5_zero_list_20k_before_data.wav", "A6_bwf_bext_pad40k_before_data.wav",
        "A6_trailing_chunks_after_data.wav", "A7_wavex_pcm16_stereo.wav", "A7_wavex_24valid_in_32.wav",
        "A7_wavex_cbsize_34_oversize.wav", "A7_wavex_float32.wav", "A10_double64.wav", "A11_blockalign_wrong.wav",
        "A13_sniff_wrong_extension.flac"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[128];
        nct_why why = {""};
        audio *a;
        int r;
        snprintf(path, sizeof path, DATA "%s", files[i]);
        r = audio_open(&a, path, NULL, 0, NULL, NULL, &why);
        if (r) fail_msg("%s: %s", path, why.text);
        assert_int_equal(audio_about(a)->steps, 1000);
        assert_true(audio_about(a)->announced == -1 || audio_about(a)->announced == 1000);
        same_as_st(a, 1000);
        a = open_pipe(path, 16, NULL, 0, &r, &why);
        if (r) fail_msg("%s through a pipe: %s", path, why.text);
        assert_int_equal(audio_about(a)->steps, 1000);
        same_as_st(a, 1000);
    }
}

static void a_live_pipe_has_no_length(void **state) {
    (void)state;
    nct_why why = {""};
    int r;
    audio *a = open_pipe(DATA "A1_ffmpeg_pipe_ffffffff.wav", 7, NULL, 1, &r, &why);
    if (r) fail_msg("%s", why.text);
    assert_int_equal(audio_about(a)->steps, -1);
    same_as_st(a, 1000);
    wait(NULL);
}

static void truncated_files_say_so(void **state) {
    (void)state;
    nct_why why = {""};
    audio *a;
    int r;
    for (int pipe = 0; pipe < 2; pipe++) {
        if (pipe)
            a = open_pipe(DATA "A4_truncated_mid_frame.wav", 100, NULL, 0, &r, &why);
        else
            r = audio_open(&a, DATA "A4_truncated_mid_frame.wav", NULL, 0, NULL, NULL, &why);
        assert_int_equal(r, 0);
        assert_int_equal(audio_about(a)->steps, 625);
        assert_int_equal(audio_about(a)->announced, 1000);
        same_as_st(a, 625);
        if (pipe)
            a = open_pipe(DATA "A4_header_only_44.wav", 100, NULL, 0, &r, &why);
        else
            r = audio_open(&a, DATA "A4_header_only_44.wav", NULL, 0, NULL, NULL, &why);
        assert_int_equal(r, 0);
        assert_int_equal(audio_about(a)->steps, 0);
        audio_close(a);
    }
}

static void refused(const char *file, const char *word) {
    char path[128];
    nct_why why = {""};
    audio *a = NULL;
    int r;
    snprintf(path, sizeof path, DATA "%s", file);
    r = audio_open(&a, path, NULL, 0, NULL, NULL, &why);
    if (r != -EINVAL || !strstr(why.text, word)) fail_msg("%s: %d, '%s' does not say '%s'", file, r, why.text, word);
    assert_null(open_pipe(path, 100, NULL, 0, &r, &why));
    if (r != -EINVAL || !strstr(why.text, word)) fail_msg("%s, pipe: %d, '%s'", file, r, why.text);
}

static void what_is_no_sound_is_refused(void **state) {
    (void)state;
    nct_why why = {""};
    audio *a = NULL;
    refused("A12_zero_byte.wav", "empty");
    refused("A4_cut_in_fmt_chunk.wav", "cannot be read");
    refused("A11_1025ch.wav", "channel");
    refused("A11_channels_0.wav", "Channel count is zero");
    assert_int_equal(audio_open(&a, DATA "there_is_none.wav", NULL, 0, NULL, NULL, &why), -ENOENT);
    assert_int_equal(audio_open(&a, "tests/data", NULL, 0, NULL, NULL, &why), -EISDIR);
}

static float *values(const char *file, int64_t *ret_steps, int channels) {
    char path[128];
    nct_why why = {""};
    audio *a;
    snprintf(path, sizeof path, DATA "%s", file);
    if (audio_open(&a, path, NULL, 0, NULL, NULL, &why)) fail_msg("%s: %s", file, why.text);
    assert_int_equal(audio_about(a)->channels, channels);
    float *x = read_all(a, ret_steps);
    audio_close(a);
    return x;
}

static void integers_are_divided_by_powers_of_two(void **state) {
    (void)state;
    int64_t n;
    float *x = values("A9_int16_edges_mono.wav", &n, 1);
    int least = 0, most = 0, one = 0;
    for (int64_t i = 0; i < n; i++) {
        least += x[i] == -1.0f;
        most += x[i] == 0.999969482421875f;
        one += x[i] == 0x1p-15f;
        assert_true(x[i] >= -1 && x[i] <= 0.999969482421875f);
        assert_true(x[i] * 32768 == (float)(int)(x[i] * 32768));
    }
    assert_true(least && most && one);
    free(x);
    x = values("A9_u8_mono.wav", &n, 1);
    int zero = 0;
    for (int64_t i = 0; i < n; i++) zero += x[i] == 0, assert_true(x[i] * 128 == (float)(int)(x[i] * 128));
    assert_true(zero);
    free(x);
    for (int i = 0; i < 2; i++) {
        x = values(i ? "A3_24bit_mono_101f_nopad_eof.wav" : "A3_24bit_mono_101f_padded_list.wav", &n, 1);
        assert_int_equal(n, 101);
        assert_true(x[0] == -8000000 / 8388608.0f);
        free(x);
    }
}

static void channels_stay_in_file_order(void **state) {
    (void)state;
    int64_t n;
    float *x = values("A7_wavex_24bit_64ch_mask0.wav", &n, 64);
    for (int64_t t = 0; t < n; t++)
        for (int c = 0; c < 64; c++) assert_true(x[t * 64 + c] == (float)((c + 1) * 1000 + t) * 0x1p-23f);
    free(x);
    x = values("A14_flac_3ch_5592406f.flac", &n, 3);
    assert_int_equal(n, 5592406);
    for (int c = 0; c < 3; c++)
        assert_true(x[c] == (float)(c + 1) * 0x1p-15f && x[(n - 1) * 3 + c] == (float)(11 * (c + 1)) * 0x1p-15f);
    free(x);
}

static void headerless_samples(void **state) {
    (void)state;
    static const struct {
        int dtype, bytes;
        unsigned char sample[8];
        float want;
    } rows[] = {{NCT_I16, 2, {0x00, 0x80}, -1}, {NCT_I16, 2, {0x01, 0x00}, 0x1p-15f},
        {NCT_I32, 4, {0, 0, 0, 0x40}, 0.5f}, {NCT_F32, 4, {0, 0, 0xc0, 0x3f}, 1.5f},
        {NCT_F64, 8, {0, 0, 0, 0, 0, 0, 0x04, 0xc0}, -2.5f}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int pipe = 0; pipe < 2; pipe++) {
            char path[] = "/tmp/test_audio.XXXXXX";
            nct_why why = {""};
            audio *a;
            int fd = mkstemp(path), r;
            audio_raw raw = {rows[i].dtype, 8000, 1};
            for (int k = 0; k < 3; k++)
                assert_int_equal(write(fd, rows[i].sample, (size_t)rows[i].bytes), rows[i].bytes);
            assert_int_equal(write(fd, "x", 1), 1); /* one byte of a step that never came */
            close(fd);
            if (pipe)
                a = open_pipe(path, 1, &raw, 1, &r, &why);
            else
                r = audio_open(&a, path, &raw, 0, NULL, NULL, &why);
            assert_int_equal(r, 0);
            assert_int_equal(audio_about(a)->steps, pipe ? -1 : 3);
            int64_t n;
            float *x = read_all(a, &n);
            assert_int_equal(n, 3);
            for (int k = 0; k < 3; k++) assert_true(x[k] == rows[i].want);
            assert_int_equal(audio_about(a)->odd_bytes, 1);
            free(x);
            audio_close(a);
            unlink(path);
            if (pipe) wait(NULL);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_signal_in_many_wrappings),
        cmocka_unit_test(a_live_pipe_has_no_length),
        cmocka_unit_test(truncated_files_say_so),
        cmocka_unit_test(what_is_no_sound_is_refused),
        cmocka_unit_test(integers_are_divided_by_powers_of_two),
        cmocka_unit_test(channels_stay_in_file_order),
        cmocka_unit_test(headerless_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
