/* test_model.c: settings against metadata, fresh layers, digests, saving. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <math.h>

#include "model_files.h"
#include "model_loading.h"
#include "model_settings.h"
#include <jansson.h>

/* ---- settings and metadata ------------------------------------------------------------------------------------------- */

static void metadata_as_python_writes_it(void **state) {
    (void)state;
    pair_file(
        "{\"format\":\"pt\",\"in_channels\":\"2\",\"out_channels\":\"4\",\"kernel_size\":\"(3,)\",\"stride\":\"(1,)"
        "\","
        "\"padding\":\"same\",\"dilation\":\"(2,)\",\"groups\":\"1\",\"bias\":\"True\",\"padding_mode\":\"reflect\","
        "\"num_groups\":\"2\",\"eps\":\"1e-05\",\"affine\":\"True\",\"activation\":\"gelu_tanh\",\"sample_rate\":"
        "\"16000\","
        "\"conv\":\"not ours\"}",
        "conv", "norm", 1);
    model *m = loads(made, NO_SETTINGS);
    assert_int_equal(m->params.dilation, 2);
    assert_int_equal(m->params.pad_left, 2);
    assert_int_equal(m->params.pad_right, 2);
    assert_string_equal(m->padding, "same");
    assert_int_equal(m->params.padding_mode, NCT_REFLECT);
    assert_int_equal(m->params.activation, NCT_GELU_TANH);
    assert_true(m->sample_rate == 16000);
    model *said = loads(made, SET({"stride", "1"}, {"eps", "0.00001"}, {"bias", "yes"}, {"sample_rate", "16000.0"}));
    assert_string_equal(said->digest, m->digest); /* the same said twice is one saying */
    model_free(said);
    model_free(m);
    refused(made, SET({"stride", "2"}), "stride: the setting says 2, but the file's metadata said 1 before");
    refused(made, SET({"padding", "2"}), "padding: the setting says 2, but the file's metadata said same before");
    refused(made, SET({"eps", "1e-6"}), "eps: the setting says 1e-06, but the file's metadata said 1e-05 before");
}

static void what_tensors_show_must_agree(void **state) {
    (void)state;
    pair_file(NULL, "conv", "norm", 1);
    refused(made, SET({"num_groups", "2"}, {"in_channels", "3"}),
        "in_channels: the setting says 3, but tensor \"conv.weight\" of shape [4, 2, 3] has 2");
    refused(made, SET({"num_groups", "2"}, {"out_channels", "5"}), "out_channels: the setting says 5");
    refused(made, SET({"num_groups", "2"}, {"kernel_size", "5"}), "kernel_size: the setting says 5");
    refused(made, SET({"num_groups", "2"}, {"bias", "no"}),
        "bias: the setting says False, but \"conv.weight\" has a bias beside it");
    refused(made, SET({"num_groups", "2"}, {"groups", "3"}), "groups = 3 does not divide the 4 output channels");
    refused(made, SET({"num_groups", "2"}, {"groups", "2"}, {"in_channels", "2"}),
        "in_channels: the setting says 2, but tensor \"conv.weight\" of shape [4, 2, 3] has 4");
    model *m = loads(made, SET({"num_groups", "2"}, {"groups", "2"}, {"in_channels", "4"}));
    assert_int_equal(m->params.in_channels, 4);
    model_free(m);
    pair_file("{\"in_channels\":\"7\"}", "conv", "norm", 0);
    refused(made, SET({"num_groups", "2"}), "in_channels: the file's metadata says 7, but tensor");
    pair_file("{\"bias\":\"True\"}", "conv", "norm", 0);
    refused(made, SET({"num_groups", "2"}),
        "bias: the file's metadata says True, but \"conv.weight\" has no bias beside it");
}

static void values_that_are_wrong(void **state) {
    (void)state;
    pair_file(NULL, "conv", "norm", 0);
    refused(made, SET({"num_groups", "2"}, {"stides", "1"}), "unknown setting \"stides\": nearest is \"stride\"");
    refused(made, SET({"num_group", "2"}), "unknown setting \"num_group\": nearest is \"num_groups\"");
    refused(made, SET({"num_groups", "0"}), "num_groups: the setting says \"0\", expected a whole number from 1");
    refused(made, SET({"num_groups", "2.0"}), "num_groups: the setting says \"2.0\"");
    refused(made, SET({"num_groups", "-2"}), "num_groups: the setting says \"-2\"");
    refused(made, SET({"num_groups", "99999999999999999999"}), "num_groups: the setting says");
    refused(made, SET({"num_groups", "(2, 2)"}), "num_groups: the setting says \"(2, 2)\"");
    refused(made, SET({"num_groups", ""}), "num_groups: the setting says \"\"");
    refused(made, SET({"num_groups", "2"}, {"num_groups", "4"}),
        "num_groups: the setting says 4, but a setting said 2 before");
    refused(made, SET({"num_groups", "2"}, {"padding", "full"}),
        "expected a whole number from 0 to 2147483647, same or valid");
    refused(
        made, SET({"num_groups", "2"}, {"padding_mode", "edge"}), "expected zeros, reflect, replicate or circular");
    refused(made, SET({"num_groups", "2"}, {"activation", "swish"}),
        "expected none, relu, gelu, gelu_tanh, silu, mish or elu");
    refused(made, SET({"num_groups", "2"}, {"eps", "nan"}), "eps: the setting says \"nan\"");
    refused(made, SET({"num_groups", "2"}, {"eps", "1e-5x"}), "eps: the setting says \"1e-5x\"");
    refused(made, SET({"num_groups", "2"}, {"eps", "-1"}), "eps: the setting says \"-1\"");
    refused(made, SET({"num_groups", "2"}, {"sample_rate", "0"}), "sample_rate: the setting says \"0\"");
    refused(made, SET({"num_groups", "2"}, {"affine", "maybe"}), "expected True or False");
    refused(made, SET({"num_groups", "2"}, {"padding", "same"}, {"stride", "2"}), "stride 1");
    pair_file("{\"stride\":\"two\"}", "conv", "norm", 0);
    refused(
        made, SET({"num_groups", "2"}), "stride: the file's metadata says \"two\", expected a whole number from 1");
}

static void padding_words(void **state) {
    (void)state;
    pair_file("{\"padding\":\"0\"}", "conv", "norm", 0);
    model *m = loads(made, SET({"num_groups", "2"}, {"padding", "valid"}));
    assert_int_equal(m->params.pad_left + m->params.pad_right, 0);
    model_free(m);
    pair_file("{\"padding\":\"valid\"}", "conv", "norm", 0);
    m = loads(made, SET({"num_groups", "2"}, {"padding", "0"}));
    model_free(m);
    refused(made, SET({"num_groups", "2"}, {"padding", "1"}), "padding: the setting says 1");
    file_maker f;
    file_begin(&f, NULL);
    file_f32(&f, "conv.weight", "[4,2,4]", 32, 0, 1);
    file_end_at(&f, made);
    m = loads(made, SET({"num_groups", "2"}, {"padding", "same"}));
    assert_int_equal(m->params.pad_left, 1); /* the extra zero on the right */
    assert_int_equal(m->params.pad_right, 2);
    model_free(m);
    m = loads(made, SET({"num_groups", "2"}, {"padding", "7"}));
    assert_int_equal(m->params.pad_left, 7);
    assert_int_equal(m->params.pad_right, 7);
    model_free(m);
}

/* One value of one tensor makes another digest. */
static void every_tensor_is_in_the_digest(void **state) {
    static const char *const names[] = {"conv.weight", "conv.bias", "norm.weight", "norm.bias"};
    static const size_t counts[] = {24, 4, 4, 4};
    char digests[5][65];
    (void)state;
    for (int changed = 0; changed < 5; changed++) {
        file_maker f;
        file_begin(&f, NULL);
        for (int i = 0; i < 4; i++)
            file_f32(&f, names[i], i ? "[4]" : "[4,2,3]", counts[i], i == changed ? 1.5f : 1, 0);
        file_end_at(&f, made);
        model *m = loads(made, SET({"num_groups", "2"}));
        strcpy(digests[changed], m->digest);
        model_free(m);
        for (int i = 0; i < changed; i++) assert_string_not_equal(digests[i], digests[changed]);
    }
}

/* ---- fresh layers, saving, JSON ------------------------------------------------------------------------------------ */

static model *fresh(uint64_t seed, const model_setting *s, int32_t n) {
    model *m = NULL;
    nct_why why = {{0}};
    if (model_fresh(&m, s, n, seed, &why)) fail_msg("%s", why.text);
    return m;
}

#define DEFAULT_LAYER                                                                                                \
    {"in_channels", "128"}, {"out_channels", "256"}, {"kernel_size", "3"}, {"padding", "1"}, {                       \
        "num_groups", "32"                                                                                           \
    }

static void fresh_layer(void **state) {
    const size_t n = 256 * 128 * 3;
    model *m = fresh(1, SET(DEFAULT_LAYER)), *again = fresh(1, SET(DEFAULT_LAYER)),
          *other = fresh(2, SET(DEFAULT_LAYER));
    const float *w = values(&m->weights.weight);
    double sum = 0, square = 0, low = 0, high = 0, bound = 1 / sqrt(128 * 3), pairs = 0;
    (void)state;
    for (size_t i = 0; i < n; i++) {
        sum += (double)w[i];
        square += (double)w[i] * (double)w[i];
        if (i) pairs += (double)w[i] * (double)w[i - 1];
        low = fmin(low, (double)w[i]);
        high = fmax(high, (double)w[i]);
    }
    /* uniform(-b, b): variance b^2/3, both ends reached, neighbours unrelated; 6 sigma of n values */
    double sigma = bound / sqrt(3);
    assert_true(low >= -bound * (1 + 1e-6) && high <= bound && low < -0.999 * bound && high > 0.999 * bound);
    assert_true(fabs(sum / (double)n) <= 6 * sigma / sqrt((double)n));
    assert_true(fabs(square / (double)n / (sigma * sigma) - 1) <= 6 * sqrt(0.8 / (double)n));
    assert_true(fabs(pairs / (double)n / (sigma * sigma)) <= 6 / sqrt((double)n));
    for (int i = 0; i < 256; i++) assert_true(values(&m->weights.gamma)[i] == 1 && values(&m->weights.beta)[i] == 0);
    assert_null(m->weights.bias.data);
    assert_string_equal(m->digest, again->digest);
    assert_string_not_equal(m->digest, other->digest);
    assert_int_equal(m->params.pad_left, 1);
    model_free(m);
    model_free(again);
    model_free(other);
    m = fresh(3, SET({"in_channels", "6"}, {"out_channels", "4"}, {"kernel_size", "5"}, {"groups", "2"},
                     {"num_groups", "1"}, {"bias", "True"}, {"affine", "False"}));
    bound = 1 / sqrt(3 * 5);
    for (int i = 0; i < 4; i++)
        assert_true(fabs((double)values(&m->weights.bias)[i]) <= bound && values(&m->weights.bias)[i] != 0);
    assert_null(m->weights.gamma.data);
    assert_string_equal(m->norm_key, "");
    model_free(m);
}

static void fresh_layers_that_cannot_be(void **state) {
    (void)state;
    load_fails(NULL, SET({"in_channels", "2"}, {"kernel_size", "3"}, {"num_groups", "2"}), -EINVAL,
        "out_channels is not said: a new layer needs it");
    load_fails(NULL, SET({"in_channels", "2"}, {"out_channels", "4"}, {"kernel_size", "3"}), -EINVAL,
        "num_groups is not said");
    load_fails(NULL, SET({"in_channels", "2"}, {"out_channels", "4"}, {"kernel_size", "3"}, {"num_groups", "3"}),
        -EINVAL, "num_groups 3");
    load_fails(NULL,
        SET({"in_channels", "2"}, {"out_channels", "4"}, {"kernel_size", "3"}, {"num_groups", "2"}, {"conv", "x"}),
        -EINVAL, "conv = x chooses tensors of a file");
    load_fails(NULL,
        SET({"in_channels", "1000000"}, {"out_channels", "1000000"}, {"kernel_size", "3"}, {"num_groups", "2"}),
        -EINVAL, "over the limit of 1073741824 values");
}

static void saved_and_loaded(void **state) {
    static const model_setting all[] = {{"in_channels", "6"}, {"out_channels", "8"}, {"kernel_size", "3"},
        {"stride", "2"}, {"padding", "3"}, {"dilation", "2"}, {"groups", "2"}, {"bias", "yes"},
        {"padding_mode", "circular"}, {"num_groups", "4"}, {"eps", "0.001"}, {"activation", "silu"},
        {"sample_rate", "44100"}};
    nct_why why;
    (void)state;
    model *m = fresh(9, all, 13), *back;
    put_file(made, "something else", 14); /* is replaced */
    assert_int_equal(model_save(m, made, &why), 0);
    back = loads(made, NO_SETTINGS); /* its metadata says everything */
    assert_string_equal(back->digest, m->digest);
    assert_memory_equal(&back->params, &m->params, sizeof m->params);
    assert_memory_equal(values(&back->weights.bias), values(&m->weights.bias), 8 * sizeof(float));
    assert_true(back->sample_rate == 44100);
    model_free(back);
    model_free(m);

    size_t len;
    uint64_t header;
    unsigned char *b = get_file(made, &len);
    memcpy(&header, b, 8);
    assert_int_equal(header % 8, 0); /* so the data stands aligned for those who map it */
    assert_int_equal(len, 8 + header + (8 * 3 * 3 + 8 * 3) * sizeof(float));
    free(b);
    m = fresh(9, SET(DEFAULT_LAYER, {"padding", "1"}, {"affine", "no"}));
    assert_int_equal(model_save(m, made, &why), 0);
    back = loads(made, NO_SETTINGS);
    assert_null(back->weights.gamma.data);
    assert_string_equal(back->digest, m->digest);
    model_free(back);
    assert_int_equal(model_save(m, "/nonexistent/m.safetensors", &why), -ENOENT);
    assert_non_null(strstr(why.text, "/nonexistent/m.safetensors: cannot be made: No such file"));
    assert_int_equal(model_save(m, folder, &why), -EISDIR);
    char left[100];
    snprintf(left, sizeof left, "ls -A %s/../ | grep -q \"$(basename %s).*part\"", folder, folder);
    assert_int_not_equal(system(left), 0); /* the temporary file went */
    model_free(m);
}

static void json_for_programs(void **state) {
    (void)state;
    model *m = fresh(1, SET(DEFAULT_LAYER, {"activation", "gelu"}));
    char *text = model_json(m);
    json_error_t e;
    json_t *j = json_loads(text, JSON_REJECT_DUPLICATES, &e);
    assert_non_null(j);
    assert_non_null(strstr(text, "\"eps\": 1e-05"));
    for (int i = 0; i < MODEL_PARAMS; i++) assert_non_null(json_object_get(j, model_setting_name(i)));
    assert_int_equal(json_object_size(j), MODEL_PARAMS + 3);
    assert_int_equal(json_integer_value(json_object_get(j, "in_channels")), 128);
    assert_int_equal(json_integer_value(json_object_get(j, "padding")), 1);
    assert_true(json_real_value(json_object_get(j, "eps")) == 1e-5);
    assert_true(json_is_false(json_object_get(j, "bias")) && json_is_true(json_object_get(j, "affine")));
    assert_true(json_is_null(json_object_get(j, "sample_rate")));
    assert_string_equal(json_string_value(json_object_get(j, "activation")), "gelu");
    assert_string_equal(json_string_value(json_object_get(j, "digest")), m->digest);
    json_decref(j);
    free(text);
    model_free(m);
    m = fresh(1, SET({"in_channels", "1"}, {"out_channels", "1"}, {"kernel_size", "1"}, {"num_groups", "1"},
                     {"padding", "same"}));
    text = model_json(m);
    assert_non_null(strstr(text, "\"padding\": \"same\""));
    free(text);
    model_free(m);
}

static void the_table_of_names(void **state) {
    (void)state;
    assert_null(model_setting_name(-1));
    assert_string_equal(model_setting_name(0), "in_channels");
    assert_string_equal(model_setting_name(MODEL_SETTINGS - 1), "prefix");
    assert_null(model_setting_name(MODEL_SETTINGS));
    for (int i = 0; i < MODEL_SETTINGS; i++) {
        assert_int_equal(model_setting_find(model_setting_name(i)), i);
        assert_string_equal(model_setting_nearest(model_setting_name(i)), model_setting_name(i));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metadata_as_python_writes_it),
        cmocka_unit_test(what_tensors_show_must_agree),
        cmocka_unit_test(values_that_are_wrong),
        cmocka_unit_test(padding_words),
        cmocka_unit_test(every_tensor_is_in_the_digest),
        cmocka_unit_test(fresh_layer),
        cmocka_unit_test(fresh_layers_that_cannot_be),
        cmocka_unit_test(saved_and_loaded),
        cmocka_unit_test(json_for_programs),
        cmocka_unit_test(the_table_of_names),
    };
    return cmocka_run_group_tests_name("model", tests, make_folder, remove_folder);
}
