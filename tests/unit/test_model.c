/* test_model.c: which tensors of a file are the layer, settings against metadata, fresh layers, saving. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <math.h>

#include "model.h"
#include "model_files.h"
#include "model_settings.h"
#include "safetensors.h"

#define DATA "tests/data/"
static char folder[] = "/tmp/nct-test-model-XXXXXX";
static char made[64]; /* the file that a test makes in it */

#define SET(...)                                                                                                     \
    ((const model_setting[]){__VA_ARGS__}), (int32_t)(sizeof((model_setting[]){__VA_ARGS__}) / sizeof(model_setting))
#define NO_SETTINGS NULL, 0

static model *loads(const char *path, const model_setting *s, int32_t n) {
    model *m = NULL;
    nct_why why = {{0}};
    if (model_load(&m, path, s, n, &why)) fail_msg("%s", why.text);
    return m;
}

static void load_fails(const char *path, const model_setting *s, int32_t n, int error, const char *says) {
    model *m = NULL;
    nct_why why = {{0}};
    int r = model_load(&m, path, s, n, &why);
    if (r != error || m || !strstr(why.text, says) || (path && !strstr(why.text, path)))
        fail_msg("%s: %d \"%s\", expected %d \"%s\"", path ? path : "fresh", r, why.text, error, says);
}

#define refused(path, settings, says) load_fails(path, settings, -EINVAL, says)

static const float *values(const nct_tensor *t) {
    assert_non_null(t->data);
    assert_int_equal(t->dtype, NCT_F32);
    assert_int_equal(t->on_device, 0);
    assert_int_equal((uintptr_t)t->data % 64, 0);
    return t->data;
}

/* A conv (4, 2, 3) and a norm of 4 under these keys; NULL leaves one out. */
static void pair_file(const char *metadata, const char *conv, const char *norm, int bias) {
    file_maker f;
    char name[300];
    file_begin(&f, metadata);
    if (conv) {
        snprintf(name, sizeof name, "%s.weight", conv);
        file_f32(&f, name, "[4,2,3]", 24, -1, 0.1f);
        snprintf(name, sizeof name, "%s.bias", conv);
        if (bias) file_f32(&f, name, "[4]", 4, 10, 1);
    }
    if (norm) {
        snprintf(name, sizeof name, "%s.weight", norm);
        file_f32(&f, name, "[4]", 4, 1, 0.5f);
        snprintf(name, sizeof name, "%s.bias", norm);
        file_f32(&f, name, "[4]", 4, -3, 1);
    }
    file_end_at(&f, made);
}

/* ---- the case collection ------------------------------------------------------------------------------------------ */

static void b0_and_its_likes(void **state) {
    static const char *const same[] = {"B6_unaligned_header_mod4_is_2.safetensors",
        "B6_unaligned_header_mod4_is_3.safetensors", "B6_u8_first_odd_offsets.safetensors",
        "B8_space_padded_4k.safetensors", "B8_metadata_null.safetensors", "B9_scalar_and_empty_extra.safetensors",
        "B10_model.safetensors.index.json"};
    model *b0 = loads(DATA "B0_good_f32.safetensors", SET({"num_groups", "2"}));
    const nct_params *p = &b0->params;
    (void)state;
    const int32_t got[] = {p->in_channels, p->out_channels, p->kernel_size, p->stride, p->dilation, p->groups,
        p->num_groups, p->pad_left, p->pad_right, p->padding_mode, p->activation, p->pre_activation};
    const int32_t want[] = {2, 4, 3, 1, 1, 1, 2, 0, 0, NCT_ZEROS, NCT_NONE, NCT_NONE};
    assert_memory_equal(got, want, sizeof got);
    assert_true(p->eps == 1e-5 && b0->sample_rate == 0);
    assert_string_equal(b0->conv_key, "conv");
    assert_string_equal(b0->norm_key, "norm");
    assert_null(b0->weights.bias.data);
    const float beta[] = {-0.25f, -0.125f, 0, 0.125f};
    assert_memory_equal(values(&b0->weights.beta), beta, sizeof beta);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        char path[200];
        snprintf(path, sizeof path, DATA "%s", same[i]);
        model *m = loads(path, SET({"num_groups", "2"}));
        assert_string_equal(m->digest, b0->digest);
        assert_memory_equal(values(&m->weights.weight), values(&b0->weights.weight), 24 * sizeof(float));
        model_free(m);
    }
    model *other = loads(DATA "B0_good_f32.safetensors", SET({"num_groups", "4"}));
    assert_string_not_equal(other->digest, b0->digest);
    model_free(other);
    model_free(b0);
}

static void case_files_are_refused(void **state) {
    (void)state;
    refused(DATA "B0_good_f32.safetensors", NO_SETTINGS,
        "num_groups is not said, neither in the file's metadata nor as a setting");
    refused(DATA "B4_norm_weight_5.safetensors", SET({"num_groups", "2"}),
        "\"norm.weight\" has shape [5], expected [4] as \"conv.weight\" [4, 2, 3] has 4 output channels");
    refused(DATA "B4_conv_2d.safetensors", SET({"num_groups", "2"}),
        "\"conv.weight\" has shape [4, 6], expected 3 sides");
    refused(DATA "B4_conv_kernel0.safetensors", SET({"num_groups", "2"}),
        "\"conv.weight\" has shape [4, 2, 0], expected sides from 1");
    refused(DATA "B4_cout_3_not_div_by_groups.safetensors", SET({"num_groups", "2"}),
        "num_groups = 2 does not divide the 3 output channels of \"conv.weight\" [3, 2, 3]");
    refused(DATA "B9_nan_in_norm_weight.safetensors", SET({"num_groups", "2"}),
        "\"norm.weight\": 1 of its 4 values are not finite, the first at index");
    refused(DATA "B8_metadata_only.safetensors", SET({"num_groups", "2"}), "no tensor");
    refused(DATA "B10_model-00001-of-00002.safetensors", SET({"num_groups", "2"}),
        "norm.weight and norm.bias are missing: this is part 1 of 2");
    refused(DATA "B10_model-00002-of-00002.safetensors", SET({"num_groups", "2"}),
        "conv.weight is missing: this is part 2 of 2");
    load_fails("/nonexistent.safetensors", NO_SETTINGS, -ENOENT, "No such file");
}

/* ---- names of other projects ---------------------------------------------------------------------------------------- */

static void one_pair_by_shape(void **state) {
    static const char *const pairs[][2] = {
        {"feature_extractor.conv_layers.0.conv", "feature_extractor.conv_layers.0.layer_norm"}, /* HF wav2vec 2.0 */
        {"feature_extractor.conv_layers.0.0", "feature_extractor.conv_layers.0.2"},             /* fairseq */
        {"block.0", "block.1"},                                                                 /* Diffusion Policy */
        {"conv", "layer_norm"},
        {"c1", "norm"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        for (int bias = 0; bias < 2; bias++) {
            pair_file(NULL, pairs[i][0], pairs[i][1], bias);
            model *m = loads(made, SET({"num_groups", "4"}));
            assert_string_equal(m->conv_key, pairs[i][0]);
            assert_string_equal(m->norm_key, pairs[i][1]);
            assert_true(values(&m->weights.weight)[0] == -1 && values(&m->weights.gamma)[3] == 2.5f);
            assert_true(values(&m->weights.beta)[0] == -3);
            assert_int_equal(m->weights.bias.data != NULL, bias);
            if (bias) assert_true(values(&m->weights.bias)[3] == 13);
            model_free(m);
        }
    }
}

/* Two layers of a wav2vec: conv_layers.0 has a norm, conv_layers.1 has none, another norm of 4 stands behind them. */
static void wav2vec_file(void) {
    file_maker f;
    file_begin(&f, NULL);
    file_f32(&f, "w.conv_layers.0.conv.weight", "[4,1,10]", 40, 0, 0.1f);
    file_f32(&f, "w.conv_layers.0.layer_norm.weight", "[4]", 4, 1, 1);
    file_f32(&f, "w.conv_layers.0.layer_norm.bias", "[4]", 4, 0, 1);
    file_f32(&f, "w.conv_layers.1.conv.weight", "[4,4,3]", 48, 0, 0.1f);
    file_f32(&f, "w.layer_norm.weight", "[4]", 4, 5, 1);
    file_f32(&f, "w.layer_norm.bias", "[4]", 4, 0, 1);
    file_f32(&f, "w.proj.weight", "[6,4]", 24, 0, 1);
    file_f32(&f, "w.proj.bias", "[6]", 6, 0, 1);
    file_f32(&f, "w.alpha.weight", "[4]", 4, 0, 1); /* a PReLU's: no bias beside it */
    file_end_at(&f, made);
}

static void several_pairs_need_a_choice(void **state) {
    (void)state;
    wav2vec_file();
    refused(made, SET({"num_groups", "4"}),
        "4 pairs fit by shape: w.conv_layers.0.conv.weight + w.conv_layers.0.layer_norm.weight, ");
    refused(made, SET({"num_groups", "4"}),
        "w.conv_layers.1.conv.weight + w.layer_norm.weight; choose by conv = KEY and norm = KEY, or prefix = KEY");
    refused(made, SET({"num_groups", "4"}, {"conv", "w.conv_layers.1.conv"}), "2 pairs fit by shape");
    refused(made, SET({"num_groups", "4"}, {"conv", "w.nothing"}),
        "conv = w.nothing: there is no tensor \"w.nothing.weight\"");
    refused(made, SET({"num_groups", "4"}, {"conv", "w.proj"}, {"norm", "w.layer_norm"}),
        "\"w.proj.weight\" has shape [6, 4], expected 3 sides");
    refused(made, SET({"num_groups", "4"}, {"conv", "w.conv_layers.1.conv"}, {"norm", "w.proj"}),
        "\"w.proj.weight\" has shape [6, 4], expected 1 side");
    refused(made, SET({"num_groups", "4"}, {"conv", "w.conv_layers.1.conv"}, {"norm", "w.alpha"}),
        "the bias beside \"w.alpha.weight\" is missing");
    refused(made, SET({"num_groups", "4"}, {"prefix", "w.conv"}),
        "conv.weight is missing, and no other 3-D *.weight is there under \"w.conv\"");

    model *m = loads(made, SET({"num_groups", "4"}, {"conv", "w.conv_layers.1.conv"}, {"norm", "w.layer_norm"}));
    assert_int_equal(m->params.in_channels, 4);
    assert_true(values(&m->weights.gamma)[0] == 5);
    model_free(m);
    m = loads(made, SET({"num_groups", "4"}, {"prefix", "w.conv_layers.0"}));
    assert_string_equal(m->norm_key, "w.conv_layers.0.layer_norm");
    assert_int_equal(m->params.kernel_size, 10);
    model_free(m);
    m = loads(made, SET({"num_groups", "4"}, {"prefix", "w.conv_layers.1"})); /* nothing there but the convolution */
    assert_string_equal(m->norm_key, "");
    assert_null(m->weights.gamma.data);
    model_free(m);
    m = loads(made, SET({"num_groups", "4"}, {"conv", "w.conv_layers.0.conv"}, {"affine", "no"}));
    assert_null(m->weights.gamma.data);
    assert_null(m->weights.beta.data);
    model_free(m);
}

static void standard_names_come_first(void **state) {
    file_maker f;
    (void)state;
    file_begin(&f, NULL);
    file_f32(&f, "conv.weight", "[4,2,3]", 24, 0, 1);
    file_f32(&f, "conv2.weight", "[4,2,3]", 24, 1, 1);
    file_f32(&f, "norm.weight", "[4]", 4, 1, 0);
    file_f32(&f, "norm.bias", "[4]", 4, 0, 0);
    file_f32(&f, "norm2.weight", "[4]", 4, 2, 0);
    file_f32(&f, "norm2.bias", "[4]", 4, 2, 0);
    file_end_at(&f, made);
    model *m = loads(made, SET({"num_groups", "4"}));
    assert_string_equal(m->conv_key, "conv");
    assert_string_equal(m->norm_key, "norm");
    model_free(m);
    refused(made, SET({"num_groups", "4"}, {"affine", "no"}), "affine = False, but tensor \"norm.weight\" is there");
}

static void what_is_no_group_norm(void **state) {
    file_maker f;
    (void)state;
    file_begin(&f, NULL);
    file_f32(&f, "conv.weight", "[4,2,3]", 24, 0, 1);
    file_f32(&f, "bn.weight", "[4]", 4, 1, 0);
    file_f32(&f, "bn.bias", "[4]", 4, 0, 0);
    file_f32(&f, "bn.running_mean", "[4]", 4, 0, 0);
    file_end_at(&f, made);
    refused(made, SET({"num_groups", "4"}), "norm.weight and norm.bias of 4 values are missing");
    refused(made, SET({"num_groups", "4"}, {"norm", "bn"}), "\"bn.weight\" is a BatchNorm");

    pair_file(NULL, "conv", NULL, 1); /* nothing but a convolution */
    model *m = loads(made, SET({"num_groups", "4"}));
    assert_null(m->weights.gamma.data);
    assert_non_null(m->weights.bias.data);
    model_free(m);
    refused(made, SET({"num_groups", "4"}, {"affine", "True"}), "norm.weight and norm.bias of 4 values are missing");
    pair_file("{\"affine\":\"False\",\"num_groups\":\"2\"}", "a.b", NULL, 0);
    m = loads(made, NO_SETTINGS);
    assert_string_equal(m->conv_key, "a.b");
    model_free(m);
    pair_file(NULL, NULL, "norm", 0);
    refused(made, SET({"num_groups", "4"}),
        "conv.weight is missing, and no other 3-D *.weight is there; the file holds norm.bias [4], norm.weight [4]");
}

static void dtypes_that_load(void **state) {
    const uint16_t half[24] = {0x3c00, 0xc000}, bf16[4] = {0x3f80, 0x4000, 0x4040, 0x4080},
                   nan16[4] = {0, 0x7e00, 0x7c00, 0};
    const double wide[4] = {0.1, 1e-300, 3, -7}, far[4] = {0, 0, 1e39, 0};
    file_maker f;
    (void)state;
    file_begin(&f, NULL);
    file_raw(&f, "conv.weight", "F16", "[4,2,3]", half, sizeof half);
    file_raw(&f, "norm.weight", "BF16", "[4]", bf16, sizeof bf16);
    file_raw(&f, "norm.bias", "F64", "[4]", wide, sizeof wide);
    file_end_at(&f, made);
    model *m = loads(made, SET({"num_groups", "1"}));
    assert_true(values(&m->weights.weight)[0] == 1 && values(&m->weights.weight)[1] == -2);
    assert_true(values(&m->weights.gamma)[3] == 4);
    assert_true(
        values(&m->weights.beta)[0] == 0.1f && values(&m->weights.beta)[1] == 0 && values(&m->weights.beta)[3] == -7);
    model_free(m);

    file_begin(&f, NULL);
    file_raw(&f, "conv.weight", "F16", "[4,2,3]", half, sizeof half);
    file_raw(&f, "norm.weight", "F16", "[4]", nan16, sizeof nan16);
    file_raw(&f, "norm.bias", "F64", "[4]", wide, sizeof wide);
    file_end_at(&f, made);
    refused(made, SET({"num_groups", "1"}),
        "\"norm.weight\": 2 of its 4 values are not finite, the first at index 1 (nan)");
    file_begin(&f, NULL);
    file_raw(&f, "conv.weight", "F16", "[4,2,3]", half, sizeof half);
    file_raw(&f, "norm.weight", "BF16", "[4]", bf16, sizeof bf16);
    file_raw(&f, "norm.bias", "F64", "[4]", far, sizeof far);
    file_end_at(&f, made);
    refused(made, SET({"num_groups", "1"}),
        "\"norm.bias\": 1 of its 4 values are not finite as f32, the first at index 2 (inf)");
    file_begin(&f, NULL);
    file_raw(&f, "conv.weight", "I16", "[4,2,3]", half, sizeof half);
    file_raw(&f, "norm.weight", "BF16", "[4]", bf16, sizeof bf16);
    file_raw(&f, "norm.bias", "F64", "[4]", wide, sizeof wide);
    file_end_at(&f, made);
    load_fails(made, SET({"num_groups", "1"}), -ENOTSUP, "\"conv.weight\" is I16, expected F64, F32, F16 or BF16");
}

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

static void biases_of_another_size(void **state) {
    file_maker f;
    (void)state;
    file_begin(&f, NULL);
    file_f32(&f, "conv.weight", "[4,2,3]", 24, 0, 1);
    file_f32(&f, "a.weight", "[4]", 4, 1, 0);
    file_f32(&f, "a.bias", "[5]", 5, 0, 0); /* no norm's */
    file_f32(&f, "b.weight", "[4]", 4, 1, 0);
    file_f32(&f, "b.bias", "[4]", 4, 0, 0);
    file_end_at(&f, made);
    model *m = loads(made, SET({"num_groups", "2"}));
    assert_string_equal(m->norm_key, "b");
    model_free(m);
    refused(made, SET({"num_groups", "2"}, {"norm", "a"}), "\"a.bias\" has shape [5], expected [4]");
    file_begin(&f, NULL);
    file_f32(&f, "conv.weight", "[4,2,3]", 24, 0, 1);
    file_f32(&f, "conv.bias", "[3]", 3, 0, 1);
    file_f32(&f, "norm.weight", "[4]", 4, 1, 0);
    file_f32(&f, "norm.bias", "[4]", 4, 0, 0);
    file_end_at(&f, made);
    refused(made, SET({"num_groups", "2"}), "\"conv.bias\" has shape [3], expected [4]");
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

static void json_of_a_file(void **state) {
    char *text;
    nct_why why;
    (void)state;
    wav2vec_file();
    assert_int_equal(model_pairs_json(&text, made, &why), 0);
    json_t *j = json_loads(text, JSON_REJECT_DUPLICATES, NULL), *one = json_array_get(j, 3);
    assert_int_equal(json_array_size(j), 4);
    assert_string_equal(json_string_value(json_object_get(one, "conv")), "w.conv_layers.1.conv");
    assert_string_equal(json_string_value(json_object_get(one, "norm")), "w.layer_norm");
    assert_int_equal(json_integer_value(json_object_get(one, "kernel_size")), 3);
    json_decref(j);
    free(text);
    assert_int_equal(model_file_json(&text, made, &why), 0);
    j = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_int_equal(json_array_size(json_object_get(j, "tensors")), 9);
    assert_int_equal(json_array_size(json_object_get(j, "pairs")), 4);
    assert_string_equal(json_string_value(json_object_get(json_object_get(j, "metadata"), "format")), "pt");
    json_decref(j);
    free(text);
    assert_int_equal(model_pairs_json(&text, DATA "B1_empty_file.safetensors", &why), -EINVAL);
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

static int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(made, sizeof made, "%s/m.safetensors", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    unlink(made);
    return rmdir(folder); /* fails when a temporary file was left */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b0_and_its_likes),
        cmocka_unit_test(case_files_are_refused),
        cmocka_unit_test(one_pair_by_shape),
        cmocka_unit_test(several_pairs_need_a_choice),
        cmocka_unit_test(standard_names_come_first),
        cmocka_unit_test(what_is_no_group_norm),
        cmocka_unit_test(dtypes_that_load),
        cmocka_unit_test(metadata_as_python_writes_it),
        cmocka_unit_test(what_tensors_show_must_agree),
        cmocka_unit_test(values_that_are_wrong),
        cmocka_unit_test(padding_words),
        cmocka_unit_test(every_tensor_is_in_the_digest),
        cmocka_unit_test(biases_of_another_size),
        cmocka_unit_test(fresh_layer),
        cmocka_unit_test(fresh_layers_that_cannot_be),
        cmocka_unit_test(saved_and_loaded),
        cmocka_unit_test(json_for_programs),
        cmocka_unit_test(json_of_a_file),
        cmocka_unit_test(the_table_of_names),
    };
    return cmocka_run_group_tests_name("model", tests, make_folder, remove_folder);
}
