/* test_output.c: result files: what a reader finds in them, when they appear, what integer encodings do, what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sndfile.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "npy.h"
#include "output.h"
#include "output_wav.h"

static char folder[64], path[128];

static int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/test_output.XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int entries(void) {
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.' || strlen(e->d_name) > 2;
    closedir(d);
    return n;
}

static int remove_folder(void **state) {
    (void)state;
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));) unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    return rmdir(folder);
}

static const char *in_folder(const char *name) {
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Writes (channels, steps) in blocks of `cut`, at an odd address. */
static int write_all(const output_spec *s, const float *x, int64_t cut, output_counts *ret, nct_why *why) {
    output *o;
    int r = output_open(&o, s, why);
    char *block = malloc((size_t)(cut * s->channels) * 4 + 1);
    for (int64_t at = 0; !r && at < s->steps; at += cut) {
        int64_t n = s->steps - at < cut ? s->steps - at : cut;
        for (int c = 0; c < s->channels; c++)
            memcpy(block + 1 + (size_t)(c * n) * 4, x + c * s->steps + at, (size_t)n * 4);
        r = output_write(o, block + 1, at, n, why);
    }
    free(block);
    return r ? r : output_finish(o, ret, why);
}

static float *signal(int channels, int64_t steps) {
    float *x = malloc(sizeof *x * (size_t)channels * (size_t)steps);
    for (int64_t i = 0; i < channels * steps; i++) x[i] = (float)sin((double)i * 0.37) * 3;
    return x;
}

static void every_kind_reads_back(void **state) {
    (void)state;
    static const char *const names[] = {"a.wav", "a.WAV", "a.aiff", "a.caf", "a.w64", "a.au"};
    static const int64_t cuts[] = {1, 7, 100, 1000};
    float *x = signal(3, 101);
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        for (size_t i = 0; i < 4; i++) {
            nct_why why = {""};
            output_counts counts;
            output_spec s = {in_folder(names[k]), output_kind_of(names[k]), ENCODE_DEFAULT, 3, 8000, 101, 0};
            if (write_all(&s, x, cuts[i], &counts, &why)) fail_msg("%s: %s", names[k], why.text);
            assert_int_equal(counts.steps, 101);
            assert_int_equal(counts.clipped, 0);
            SF_INFO si = {0};
            SNDFILE *f = sf_open(path, SFM_READ, &si);
            float got[303];
            assert_non_null(f);
            assert_int_equal(si.frames, 101);
            assert_int_equal(si.samplerate, 8000);
            assert_int_equal(sf_readf_float(f, got, 101), 101);
            for (int c = 0; c < 3; c++)
                for (int t = 0; t < 101; t++) assert_true(got[t * 3 + c] == x[c * 101 + t]);
            sf_close(f);
        }
    free(x);
    assert_int_equal(output_kind_of("x.y/z"), OUTPUT_NONE);
    assert_int_equal(output_kind_of("x.mp3"), OUTPUT_NONE);
}

static void integers_saturate_and_are_counted(void **state) {
    (void)state;
    static const output_encoding encodings[] = {ENCODE_I16, ENCODE_I24, ENCODE_I32};
    static const int bits[] = {16, 24, 32};
    float x[9] = {0, 1, -1, 1.5f, -1.5f, 0.5f, NAN, INFINITY, -INFINITY};
    for (int e = 0; e < 3; e++) {
        double scale = pow(2, bits[e] - 1);
        nct_why why = {""};
        output_counts counts;
        output_spec s = {in_folder("i.wav"), OUTPUT_WAV, encodings[e], 1, 8000, 9, 0};
        if (write_all(&s, x, 4, &counts, &why)) fail_msg("%s", why.text);
        assert_int_equal(
            counts.clipped, 3); /* 1, 1.5 and -1.5: the greatest integer stands for a little less than 1 */
        assert_int_equal(counts.not_finite, 3);
        SF_INFO si = {0};
        SNDFILE *f = sf_open(path, SFM_READ, &si);
        int got[9];
        assert_int_equal(sf_readf_int(f, got, 9), 9);
        double want[9] = {0, scale - 1, -scale, scale - 1, -scale, scale / 2, 0, scale - 1, -scale};
        for (int i = 0; i < 9; i++) assert_true(got[i] / pow(2, 32 - bits[e]) == want[i]);
        sf_close(f);
    }
}

static void odd_24_bit_files_are_padded(void **state) {
    (void)state;
    float *x = signal(1, 101);
    nct_why why = {""};
    output_counts counts;
    output_spec s = {in_folder("p.wav"), OUTPUT_WAV, ENCODE_I24, 1, 8000, 101, 0};
    if (write_all(&s, x, 50, &counts, &why)) fail_msg("%s", why.text);
    unsigned char header[8];
    struct stat st;
    int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, header, 8), 8);
    fstat(fd, &st);
    close(fd);
    uint32_t riff =
        (uint32_t)header[4] | (uint32_t)header[5] << 8 | (uint32_t)header[6] << 16 | (uint32_t)header[7] << 24;
    assert_int_equal(st.st_size % 2, 0);
    assert_int_equal(riff + 8, st.st_size);
    free(x);
}

static void npy_is_a_c_order_array(void **state) {
    (void)state;
    float *x = signal(5, 77), *got = malloc(sizeof *got * 5 * 77);
    nct_why why = {""};
    output_counts counts;
    output_spec s = {in_folder("n.npy"), OUTPUT_NPY, ENCODE_DEFAULT, 5, 8000, 77, 0};
    if (write_all(&s, x, 10, &counts, &why)) fail_msg("%s", why.text);
    char header[NPY_HEADER_BYTES + 1] = "";
    int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, header, NPY_HEADER_BYTES), NPY_HEADER_BYTES);
    assert_int_equal(read(fd, got, sizeof *got * 5 * 77), sizeof *got * 5 * 77);
    assert_int_equal(read(fd, header + NPY_HEADER_BYTES, 1), 0);
    close(fd);
    assert_memory_equal(
        header, "\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (5, 77), }", 68);
    assert_int_equal(header[NPY_HEADER_BYTES - 1], '\n');
    assert_memory_equal(got, x, sizeof *got * 5 * 77);
    free(x);
    free(got);
}

static void what_no_format_holds_is_refused_first(void **state) {
    (void)state;
    nct_why why = {""};
    output *o;
    int before = entries();
    output_spec s = {in_folder("z.flac"), OUTPUT_FLAC, ENCODE_DEFAULT, 9, 8000, 10, 0};
    assert_int_equal(output_open(&o, &s, &why), -EINVAL);
    assert_non_null(strstr(why.text, "9"));
    assert_non_null(strstr(why.text, ".wav"));
    s = (output_spec){in_folder("z.wav"), OUTPUT_WAV, ENCODE_DEFAULT, 1025, 8000, 10, 0};
    assert_int_equal(output_open(&o, &s, &why), -EINVAL);
    assert_non_null(strstr(why.text, "1025"));
    s = (output_spec){in_folder("z.npy"), OUTPUT_NPY, ENCODE_I16, 2, 8000, 10, 0};
    assert_int_equal(output_open(&o, &s, &why), -EINVAL);
    s = (output_spec){in_folder("z.npy"), OUTPUT_NPY, ENCODE_DEFAULT, 2, 8000, -1, 0};
    assert_int_equal(output_open(&o, &s, &why), -EINVAL);
    s = (output_spec){folder, OUTPUT_WAV, ENCODE_DEFAULT, 2, 8000, 10, 0};
    assert_int_equal(output_open(&o, &s, &why), -EISDIR);
    s = (output_spec){"/nowhere/z.wav", OUTPUT_WAV, ENCODE_DEFAULT, 2, 8000, 10, 0};
    assert_int_equal(output_open(&o, &s, &why), -ENOENT);
    assert_int_equal(entries(), before);
}

static void a_file_appears_only_when_it_is_whole(void **state) {
    (void)state;
    float x[20] = {0};
    nct_why why = {""};
    output *o;
    output_counts counts;
    char old[8] = "";
    int fd = open(in_folder("old.wav"), O_CREAT | O_WRONLY, 0644), before;
    assert_int_equal(write(fd, "old", 3), 3);
    close(fd);
    char old_path[128];
    strcpy(old_path, path);
    before = entries();
    output_spec s = {old_path, OUTPUT_WAV, ENCODE_DEFAULT, 2, 8000, 10, 0};
    for (int way = 0; way < 2; way++) { /* given up; finished too early */
        assert_int_equal(output_open(&o, &s, &why), 0);
        assert_int_equal(output_write(o, x, 0, 5, &why), 0);
        assert_int_equal(entries(), before);
        if (way)
            assert_int_equal(output_finish(o, &counts, &why), -EIO);
        else
            output_abort(o);
        assert_int_equal(entries(), before);
        fd = open(old_path, O_RDONLY);
        assert_int_equal(read(fd, old, 8), 3);
        assert_memory_equal(old, "old", 3);
        close(fd);
    }
    char link_path[128];
    snprintf(link_path, sizeof link_path, "%s/link.wav", folder);
    assert_int_equal(symlink(old_path, link_path), 0);
    s.path = link_path;
    if (write_all(&s, x, 10, &counts, &why)) fail_msg("%s", why.text);
    struct stat st;
    assert_int_equal(lstat(link_path, &st), 0);
    assert_true(S_ISLNK(st.st_mode)); /* the file behind the link was replaced, not the link */
    assert_int_equal(stat(old_path, &st), 0);
    assert_true(st.st_size > 80);
    assert_int_equal(st.st_mode & 0777, 0644);
}

static void long_files_are_rf64(void **state) {
    (void)state;
    nct_why why = {""};
    output *o;
    output_counts counts;
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    char magic[5] = "";
    /* Unknown length: RF64 in waiting, plain WAV when it stayed short. */
    output_spec s = {in_folder("r.wav"), OUTPUT_WAV, ENCODE_DEFAULT, 2, 8000, -1, 0};
    assert_int_equal(output_open(&o, &s, &why), 0);
    assert_int_equal(output_write(o, x, 0, 4, &why), 0);
    assert_int_equal(output_finish(o, &counts, &why), 0);
    SF_INFO si = {0};
    SNDFILE *f = sf_open(path, SFM_READ, &si);
    assert_non_null(f);
    assert_int_equal(si.frames, 4);
    sf_close(f);
    int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, magic, 4), 4);
    close(fd);
    assert_string_equal(magic, "RIFF");
    /* 1.5e9 steps of 2 f32 channels: RF64 from the first byte. The file has no name yet; its descriptor shows it. */
    s.steps = 1500000000;
    assert_int_equal(output_open(&o, &s, &why), 0);
    assert_int_equal(output_write(o, x, 0, 4, &why), 0);
    int seen = 0;
    for (fd = 3; fd < 64; fd++) seen += pread(fd, magic, 4, 0) == 4 && !memcmp(magic, "RF64", 4);
    assert_int_equal(seen, 1);
    assert_int_equal(output_finish(o, &counts, &why), -EIO);
}

static void a_live_wav_header_announces_no_length(void **state) {
    (void)state;
    unsigned char h[64];
    size_t n = output_wav_stream(h, 4, 16000, 32, 1);
    assert_int_equal(n, 46);
    assert_memory_equal(h,
        "RIFF\xff\xff\xff\xffWAVEfmt "
        "\x12\0\0\0\x03\0\x04\0\x80\x3e\0\0\0\xe8\x03\0\x10\0\x20\0\0\0data\xff\xff\xff\xff",
        46);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_reads_back),
        cmocka_unit_test(integers_saturate_and_are_counted),
        cmocka_unit_test(odd_24_bit_files_are_padded),
        cmocka_unit_test(npy_is_a_c_order_array),
        cmocka_unit_test(what_no_format_holds_is_refused_first),
        cmocka_unit_test(a_file_appears_only_when_it_is_whole),
        cmocka_unit_test(long_files_are_rf64),
        cmocka_unit_test(a_live_wav_header_announces_no_length),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
