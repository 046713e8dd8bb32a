/* model_loading.h: what the tests of model files share: a folder with one file in it, loads that must work and loads that
 * must be refused with a sentence. Included by one test program each, after cmocka.h. */
#ifndef TEST_MODEL_LOADING_H
#define TEST_MODEL_LOADING_H
#include <errno.h>
#include <stdint.h>
#include "model.h"
#include "model_files.h"

#define DATA "tests/data/"

static char folder[] = "/tmp/nct-test-model-XXXXXX";
static char made[64]; /* the file that a test makes in it */

#define SET(...)                                                                                                     \
    ((const model_setting[]){__VA_ARGS__}), (int32_t)(sizeof((model_setting[]){__VA_ARGS__}) / sizeof(model_setting))
#define NO_SETTINGS NULL, 0

static inline model *loads(const char *path, const model_setting *s, int32_t n) {
    model *m = NULL;
    nct_why why = {{0}};
    if (model_load(&m, path, s, n, &why)) fail_msg("%s", why.text);
    return m;
}

static inline void load_fails(const char *path, const model_setting *s, int32_t n, int error, const char *says) {
    model *m = NULL;
    nct_why why = {{0}};
    int r = model_load(&m, path, s, n, &why);
    if (r != error || m || !strstr(why.text, says) || (path && !strstr(why.text, path)))
        fail_msg("%s: %d \"%s\", expected %d \"%s\"", path ? path : "fresh", r, why.text, error, says);
}

#define refused(path, settings, says) load_fails(path, settings, -EINVAL, says)

static inline const float *values(const nct_tensor *t) {
    assert_non_null(t->data);
    assert_int_equal(t->dtype, NCT_F32);
    assert_int_equal(t->on_device, 0);
    assert_int_equal((uintptr_t)t->data % 64, 0);
    return t->data;
}

/* A conv (4, 2, 3) and a norm of 4 under these keys; NULL leaves one out. */
static inline void pair_file(const char *metadata, const char *conv, const char *norm, int bias) {
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

static inline int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(made, sizeof made, "%s/m.safetensors", folder);
    return 0;
}

static inline int remove_folder(void **state) {
    (void)state;
    unlink(made);
    return rmdir(folder); /* fails when a temporary file was left */
}

#endif
