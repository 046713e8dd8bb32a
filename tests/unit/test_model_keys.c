/* test_model_keys.c: which tensors of a file are the layer, and which files are none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <math.h>

#include "model_files.h"
#include "model_loading.h"
#include <jansson.h>

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b0_and_its_likes),
        cmocka_unit_test(case_files_are_refused),
        cmocka_unit_test(one_pair_by_shape),
        cmocka_unit_test(several_pairs_need_a_choice),
        cmocka_unit_test(standard_names_come_first),
        cmocka_unit_test(what_is_no_group_norm),
        cmocka_unit_test(dtypes_that_load),
        cmocka_unit_test(biases_of_another_size),
        cmocka_unit_test(json_of_a_file),
    };
    return cmocka_run_group_tests_name("model keys", tests, make_folder, remove_folder);
}
