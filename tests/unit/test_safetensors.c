/* test_safetensors.c: the container's rules, on files that broke other readers and on files made by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <sys/stat.h>

#include "model_files.h"
#include "safetensors.h"

#define DATA "tests/data/"
static char folder[] = "/tmp/nct-test-safetensors-XXXXXX";

/* Parses a malloc'ed file; expects a refusal whose sentence holds `says`. */
static void refused(unsigned char *bytes, size_t len, const char *says) {
    safetensors *s = NULL;
    nct_why why = {{0}};
    assert_int_equal(safetensors_parse(&s, bytes, len, "made.safetensors", &why), -EINVAL);
    assert_null(s);
    assert_non_null(strstr(why.text, "made.safetensors: "));
    if (!strstr(why.text, says)) fail_msg("\"%s\" does not say \"%s\"", why.text, says);
}

static void header_refused(const char *header, size_t data_len, const char *says) {
    size_t len;
    unsigned char *b = file_of_header(header, data_len, &len);
    refused(b, len, says);
}

/* ---- files of the case collection ------------------------------------------------------------------------------ */

static void case_files_are_refused(void **state) {
    static const struct {
        const char *file, *says;
    } cases[] = {
        {"B1_empty_file", "the file is empty"},
        {"B1_seven_bytes", "7 bytes are no safetensors file"},
        {"B1_len_zero", "a header of 0 bytes"},
        {"B1_len_past_eof", "4096 bytes long, but only 192 follow"},
        {"B1_len_100000001", "100000001 bytes long, but only 16 follow"},
        {"B1_len_u64max", "18446744073709551615 bytes long, but only 2 follow"},
        {"B1_len_wraps_plus8", "18446744073709551608 bytes long, but only 66 follow"},
        {"B2_git_lfs_pointer", "a Git LFS pointer"},
        {"B2_html_error_page", "HTML"},
        {"B2_zip_torch_pickle", "a zip, perhaps a torch checkpoint"},
        {"B4_shape_1000x1000_4bytes",
            "\"conv.weight\": shape [1000, 1000, 3] of F32 is 12000000 bytes, data_offsets [0, 96] hold 96"},
        {"B4_shape_product_overflow", "\"conv.weight\": the product of its shape overflows at side 1 (4294967296)"},
        {"B4_shape_negative", "\"conv.weight\": side 0 of its shape is -4"},
        {"B4_shape_float", "\"conv.weight\": side 0 of its shape is no whole number"},
        {"B8_nul_padded_header", "NUL byte at position 239"},
        {"B8_bom", "byte order mark"},
        {"B8_leading_space", "begins with byte 0x20"},
        {"B8_not_utf8", "header: unable to decode byte 0xff"},
        {"B8_duplicate_key", "duplicate object key near '\"norm.bias\"'"},
        {"B8_metadata_number", "\"epoch\" is no string"},
        {"B8_deep_nesting", "maximum parsing depth reached"},
        {"B8_metadata_only", "no tensor"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[200];
        safetensors *s = NULL;
        nct_why why = {{0}};
        snprintf(path, sizeof path, DATA "%s.safetensors", cases[i].file);
        assert_int_equal(safetensors_open(&s, path, &why), -EINVAL);
        assert_null(s);
        if (!strstr(why.text, cases[i].says))
            fail_msg("%s: \"%s\" does not say \"%s\"", path, why.text, cases[i].says);
        if (!strstr(why.text, path)) fail_msg("%s: \"%s\" does not name it", path, why.text);
    }
}

static void values(const safetensors *s, const char *name, float *dst, int64_t count) {
    const st_tensor *t = safetensors_find(s, name);
    assert_non_null(t);
    assert_int_equal(t->count, count);
    st_to_f32(t, dst);
}

/* The layer of B0 in other clothes: unaligned data, odd headers, harmless extras. */
static void case_files_equal_b0(void **state) {
    static const char *const files[] = {"B6_unaligned_header_mod4_is_2", "B6_unaligned_header_mod4_is_3",
        "B6_u8_first_odd_offsets", "B8_space_padded_4k", "B8_metadata_empty", "B8_metadata_null",
        "B8_metadata_nested_tensorlike", "B9_scalar_and_empty_extra"};
    safetensors *b0, *s;
    nct_why why;
    float want[32], got[32];
    (void)state;
    assert_int_equal(safetensors_open(&b0, DATA "B0_good_f32.safetensors", &why), 0);
    values(b0, "conv.weight", want, 24);
    values(b0, "norm.weight", want + 24, 4);
    values(b0, "norm.bias", want + 28, 4);
    assert_true(fabsf(want[28] + 0.25f) < 1e-7f); /* the case page: silence gives norm.bias = -0.25, ... */
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[200];
        snprintf(path, sizeof path, DATA "%s.safetensors", files[i]);
        memset(got, 0xff, sizeof got);
        if (safetensors_open(&s, path, &why)) fail_msg("%s", why.text);
        values(s, "conv.weight", got, 24);
        values(s, "norm.weight", got + 24, 4);
        values(s, "norm.bias", got + 28, 4);
        assert_memory_equal(got, want, sizeof got);
        safetensors_free(s);
    }
    safetensors_free(b0);
}

static void every_cut_is_refused(void **state) {
    size_t len;
    unsigned char *b = get_file(DATA "B9_scalar_and_empty_extra.safetensors", &len);
    (void)state;
    for (size_t cut = 0; cut < len; cut++) {
        unsigned char *part = malloc(cut ? cut : 1);
        memcpy(part, b, cut);
        refused(part, cut, "");
    }
    free(b);
}

/* ---- layout ------------------------------------------------------------------------------------------------------ */

#define T(name, dtype, shape, offsets)                                                                               \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void layouts_are_refused(void **state) {
    (void)state;
    header_refused("{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[8,12]") "}", 12,
        "\"b\" begins at byte 8 of the data, expected 4: a hole");
    header_refused("{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[1]", "[4,8]") "}", 8,
        "\"b\" begins at byte 4 of the data, expected 8: it overlaps");
    header_refused("{" T("a", "F32", "[1]", "[0,4]") "}", 5, "end at byte 4, the data is 5 bytes long");
    header_refused("{" T("a", "F32", "[1]", "[4,8]") "}", 8, "expected 0: a hole");
    header_refused("{" T("a", "F32", "[1]", "[0,4]") "}", 3, "[0, 4] lie outside the 3 bytes");
    header_refused("{" T("a", "F32", "[1]", "[4,0]") "}", 4, "[4, 0] lie outside");
    header_refused("{" T("a", "F32", "[1]", "[-4,0]") "}", 4, "[-4, 0] lie outside");
    header_refused("{" T("a", "F32", "[1]", "[0]") "}", 4, "not two whole numbers");
    header_refused("{" T("a", "F32", "[1]", "[0,4,8]") "}", 4, "not two whole numbers");
    header_refused("{" T("a", "F32", "1", "[0,4]") "}", 4, "\"a\" has no shape");
    header_refused("{" T("a", "F31", "[1]", "[0,4]") "}", 4, "\"F31\" is no dtype");
    header_refused("{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"a\" has no dtype");
    header_refused("{\"a\":[1]}", 4, "\"a\" is no object");
    header_refused("{" T("a", "F4", "[3]", "[0,1]") "}", 1, "shape [3] of F4 is 2 bytes");
    header_refused("{" T("a", "F64", "[2305843009213693952]", "[0,0]") "}", 0, "overflows");
    header_refused("{\"__metadata__\":[]," T("a", "F32", "[1]", "[0,4]") "}", 4, "__metadata__ is no object");
    header_refused("[1,2]", 0, "begins with byte 0x5b");
    header_refused("{}", 0, "no tensor");
    header_refused("{" T("a", "F32", "[1]", "[0,4]") "} x", 4, "header: ");
}

static void layouts_that_are_right(void **state) {
    static const struct {
        const char *header;
        size_t data_len, n;
    } good[] = {
        {"{" T("a", "F32", "[]", "[0,4]") "}", 4, 1},                                       /* a scalar */
        {"{" T("b", "F32", "[1]", "[4,8]") "," T("a", "F32", "[1]", "[0,4]") "}", 8, 2},    /* any order */
        {"{" T("e", "F32", "[0,7]", "[4,4]") "," T("a", "F32", "[1]", "[0,4]") "}", 4, 2},  /* empty at an end */
        {"{" T("e", "F32", "[0]", "[0,0]") "}", 0, 1},                                      /* nothing but empty */
        {"{" T("a", "F4", "[4]", "[0,2]") "," T("b", "F8_E4M3", "[3]", "[2,5]") "}", 5, 2}, /* odd sizes */
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"more\":null}}\n\t ", 1, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        size_t len;
        safetensors *s;
        nct_why why;
        unsigned char *b = file_of_header(good[i].header, good[i].data_len, &len);
        if (safetensors_parse(&s, b, len, "made", &why)) fail_msg("%s", why.text);
        assert_int_equal(s->n_tensors, good[i].n);
        safetensors_free(s);
    }
}

/* A hostile name must not forge a line of a log, nor fill the sentence. */
static void names_are_printable(void **state) {
    st_text t;
    char long_name[400];
    (void)state;
    header_refused("{\"a\\nERROR forged\\u001b[31m\":[1]}", 0, "tensor \"a?ERROR forged?[31m\"");
    for (size_t shift = 0; shift < 3; shift++) { /* the cuts must not fall inside a euro sign */
        memset(long_name, 'x', shift);
        for (size_t i = 0; i < 100; i++) memcpy(long_name + shift + 3 * i, "\xe2\x82\xac", 3);
        strcpy(long_name + shift + 300, ".weight");
        st_printable(&t, long_name);
        assert_true(strlen(t.text) < sizeof t.text);
        assert_non_null(strstr(t.text, "..."));
        json_t *j = json_string(t.text); /* NULL if it is not UTF-8 */
        assert_non_null(j);
        json_decref(j);
        assert_string_equal(t.text + strlen(t.text) - 7, ".weight");
    }
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static float half_by_definition(uint16_t h) {
    int exp = h >> 10 & 31, man = h & 1023;
    double v = exp == 31 ? (man ? NAN : INFINITY) : exp ? ldexp(1024 + man, exp - 25) : ldexp(man, -24);
    return (float)(h & 0x8000 ? -v : v);
}

static void every_half_and_bfloat(void **state) {
    uint16_t *all = malloc(65536 * 2 + 1);
    float *got = malloc(65536 * sizeof *got);
    unsigned char *odd = (unsigned char *)all + 1; /* an unaligned place */
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) memcpy(odd + 2 * i, &(uint16_t){(uint16_t)i}, 2);
    st_tensor t = {.load = NCT_F16, .count = 65536, .bytes = 131072, .data = odd};
    st_to_f32(&t, got);
    for (uint32_t i = 0; i < 65536; i++) {
        float want = half_by_definition((uint16_t)i);
        if (isnan(want) ? !isnan(got[i]) : !(got[i] == want && !signbit(got[i]) == !signbit(want)))
            fail_msg("half 0x%04x: %a, expected %a", i, (double)got[i], (double)want);
    }
    t.load = NCT_BF16;
    st_to_f32(&t, got);
    for (uint32_t i = 0; i < 65536; i++) {
        uint32_t bits;
        memcpy(&bits, &got[i], 4);
        assert_int_equal(bits, i << 16);
    }
    free(all);
    free(got);
}

static void doubles_go_to_nearest_even(void **state) {
    const double in[] = {1 + 0x1p-24, 1 + 3 * 0x1p-24, 1 + 0x1.8p-24, 0x1.fffffefp127, -0x1.4p-149, 1e300};
    const float want[] = {1.0f, 1 + 0x1p-22f, 1 + 0x1p-23f, 0x1.fffffep127f, -0x1p-149f, INFINITY};
    float got[6];
    st_tensor t = {.load = NCT_F64, .count = 6, .bytes = sizeof in, .data = (const unsigned char *)in};
    (void)state;
    st_to_f32(&t, got);
    for (int i = 0; i < 6; i++) {
        if (!(got[i] == want[i])) fail_msg("value %d: %a, expected %a", i, (double)got[i], (double)want[i]);
    }
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void open_refused(const char *path, int error, const char *says) {
    safetensors *s = NULL;
    nct_why why = {{0}};
    int r = safetensors_open(&s, path, &why);
    if (r != error || s || !strstr(why.text, says))
        fail_msg("%s: %d \"%s\", expected %d \"%s\"", path, r, why.text, error, says);
}

static void odd_places(void **state) {
    char path[200];
    (void)state;
    open_refused("/nonexistent/x.safetensors", -ENOENT, "No such file");
    open_refused(DATA "B0_good_f32.safetensors/x", -ENOENT, "Not a directory");
    open_refused(folder, -EINVAL, "a folder, expected a file");
    snprintf(path, sizeof path, "%s/fifo", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    open_refused(path, -EINVAL, "no regular file"); /* and does not wait for a writer */
    unlink(path);
    open_refused("/dev/zero", -EINVAL, "no regular file");
    snprintf(path, sizeof path, "%s/huge", folder);
    put_file(path, "", 0);
    assert_int_equal(truncate(path, (off_t)5 << 30), 0); /* sparse */
    open_refused(path, -EINVAL, "5368709120 bytes are over the limit of 4294967296");
    unlink(path);
    put_file(path, "\x01\xe1\xf5\x05\0\0\0\0{}", 10); /* a header of 100,000,001 bytes that are there */
    assert_int_equal(truncate(path, 100000009), 0);
    open_refused(path, -EINVAL, "a header of 100000001 bytes is over the limit of 100000000");
    unlink(path);
    if (geteuid() == 0) return; /* root reads everything */
    snprintf(path, sizeof path, "%s/closed", folder);
    put_file(path, "x", 1);
    chmod(path, 0);
    open_refused(path, -EACCES, "Permission denied");
    unlink(path);
}

/* An index in the test's folder; the parts come as links to the case files. */
static const char *index_with(const char *weight_map) {
    static char path[200];
    char text[2000];
    snprintf(path, sizeof path, "%s/m.safetensors.index.json", folder);
    snprintf(text, sizeof text, "{\"metadata\":{\"total_size\":128},\"weight_map\":{%s}}", weight_map);
    put_file(path, text, strlen(text));
    return path;
}

static void shard_index(void **state) {
    safetensors *s;
    nct_why why;
    char part[200];
    size_t len;
    (void)state;
    if (safetensors_open(&s, DATA "B10_model.safetensors.index.json", &why)) fail_msg("%s", why.text);
    assert_int_equal(s->n_tensors, 3);
    assert_int_equal(s->n_parts, 2);
    assert_string_equal(s->tensors[0].name, "conv.weight");
    assert_string_equal(s->tensors[1].name, "norm.bias");
    safetensors_free(s);

    unsigned char *b = get_file(DATA "B10_model-00001-of-00002.safetensors", &len);
    snprintf(part, sizeof part, "%s/one.safetensors", folder);
    put_file(part, b, len);
    open_refused(index_with("\"conv.weight\":\"one.safetensors\",\"norm.bias\":\"two.safetensors\",\"norm.weight\":"
                            "\"two.safetensors\""),
        -ENOENT, "part \"two.safetensors\" is missing; it holds norm.bias, norm.weight");
    open_refused(index_with("\"conv.weight\":\"one.safetensors\",\"norm.bias\":\"one.safetensors\""), -EINVAL,
        "no part holds norm.bias");
    open_refused(index_with("\"conv.weight\":\"../one.safetensors\""), -EINVAL,
        "\"../one.safetensors\", outside the index's folder");
    open_refused(index_with("\"conv.weight\":\"/etc/passwd\""), -EINVAL, "outside the index's folder");
    open_refused(index_with("\"conv.weight\":\"..\""), -EINVAL, "outside the index's folder");
    open_refused(index_with("\"conv.weight\":3"), -EINVAL, "\"conv.weight\" is no file name");
    open_refused(index_with("\"conv.weight\":\"\""), -EINVAL, "\"conv.weight\" is no file name");
    open_refused(index_with(""), -EINVAL, "no weight_map");
    char copy[200];
    snprintf(copy, sizeof copy, "%s/two.safetensors", folder);
    put_file(copy, b, len);
    open_refused(index_with("\"conv.weight\":\"one.safetensors\",\"x\":\"two.safetensors\""), -EINVAL,
        "two parts hold tensor \"conv.weight\"");
    put_file(copy, b, 7);
    open_refused(index_with("\"conv.weight\":\"one.safetensors\",\"x\":\"two.safetensors\""), -EINVAL,
        "two.safetensors: 7 bytes");
    put_file(index_with(""), "{\"weight_map\":", 14);
    char path[200];
    snprintf(path, sizeof path, "%s/m.safetensors.index.json", folder);
    open_refused(path, -EINVAL, "index: ");
    unlink(path);
    unlink(part);
    unlink(copy);
    free(b);
}

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder); /* fails when a test left something behind */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_files_are_refused),
        cmocka_unit_test(case_files_equal_b0),
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(layouts_are_refused),
        cmocka_unit_test(layouts_that_are_right),
        cmocka_unit_test(names_are_printable),
        cmocka_unit_test(every_half_and_bfloat),
        cmocka_unit_test(doubles_go_to_nearest_even),
        cmocka_unit_test(odd_places),
        cmocka_unit_test(shard_index),
    };
    return cmocka_run_group_tests_name("safetensors", tests, make_folder, remove_folder);
}
