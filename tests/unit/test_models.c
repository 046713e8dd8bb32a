/* test_models.c: names and generations over reloads: what is kept, replaced, taken out and brought back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "models.h"

#define LAYER "in_channels = 2\nout_channels = 4\nkernel_size = 3\nnum_groups = 2\n"

/* What a configuration of these [model] sections loads, against what `m` serves (NULL: a start). */
static model_set *load(const models *m, bool cpu, const char *text) {
    config *c;
    config_why cwhy = {""};
    nct_why why = {""};
    model_set *set;
    models_target to = {.now = m};
    if (cpu) models_target_cpu(&to);
    if (config_parse(&c, "test", text, strlen(text), &cwhy)) fail_msg("%s", cwhy.text);
    if (model_set_load(&set, c, &to, &why)) fail_msg("%s", why.text);
    config_free(c);
    return set;
}

static void serve(models *m, const char *text, int changed, int added, int removed) {
    model_set *set = load(m, true, text);
    assert_int_equal(set->n_changed, changed);
    assert_int_equal(set->n_added, added);
    assert_int_equal(set->n_removed, removed);
    assert_int_equal(models_adopt(m, set), 0);
    assert_int_equal(set->n_left, changed + removed);
    for (int32_t i = 0; i < set->n_left; i++) assert_ptr_not_equal(set->left[i], set->left[i]->of->current);
    model_set_free(set);
}

static uint32_t number(models *m, const char *name) {
    const served *of = models_find(m, name);
    return of ? of->current->number : 0;
}

static void what_is_the_same_stays(void **state) {
    (void)state;
    models *m;
    assert_int_equal(models_new(&m), 0);
    serve(m, "[model a]\n" LAYER "[model b]\n" LAYER, 0, 2, 0);
    const generation *a = models_find(m, "a")->current, *b = models_find(m, "b")->current;
    serve(m, "[model a]\nseed = 0\n" LAYER "[model b]\n" LAYER, 0, 0, 0);
    assert_ptr_equal(models_find(m, "a")->current, a);
    serve(m, "[model a]\nseed = 1\n" LAYER "[model b]\n" LAYER, 1, 0, 0);
    assert_int_equal(number(m, "a"), 2);
    assert_ptr_equal(models_find(m, "b")->current, b);
    serve(m, "[model a]\nseed = 1\npublish = no\n" LAYER "[model b]\neps = 0.5\n" LAYER, 2, 0, 0);
    assert_false(models_find(m, "a")->current->publish);
    assert_int_equal(number(m, "b"), 2);
    models_free(m);
}

static void names_come_go_and_come_back(void **state) {
    (void)state;
    models *m;
    assert_int_equal(models_new(&m), 0);
    serve(m, "[model a]\n" LAYER "[model b]\n" LAYER "[model c]\n" LAYER, 0, 3, 0);
    served *b = models_find(m, "b");
    b->counts.received = 9;
    serve(m, "[model d]\n" LAYER "[model c]\n" LAYER, 0, 1, 2);
    assert_int_equal(models_count(m), 2); /* in the order of the configuration */
    assert_string_equal(models_at(m, 0)->name, "d");
    assert_string_equal(models_at(m, 1)->name, "c");
    assert_null(models_at(m, 2));
    assert_null(models_find(m, "b"));
    assert_null(b->current); /* a frame may still name it */
    serve(m, "[model b]\n" LAYER "[model c]\n" LAYER, 0, 1, 1);
    assert_ptr_equal(models_find(m, "b"), b);
    assert_int_equal(b->counts.received, 9);
    assert_int_equal(number(m, "b"), 2); /* its numbers rise */
    assert_int_equal(number(m, "c"), 1);
    models_free(m);
}

/* A frame of the old generation is on its way while the new one is served. */
static void a_frame_keeps_its_generation(void **state) {
    (void)state;
    models *m;
    assert_int_equal(models_new(&m), 0);
    serve(m, "[model a]\n" LAYER, 0, 1, 0);
    generation *of_frame = generation_ref(models_find(m, "a")->current);
    serve(m, "[model a]\nseed = 5\n" LAYER, 1, 0, 0);
    assert_int_equal(of_frame->refs, 1);
    assert_int_equal(of_frame->number, 1);
    assert_non_null(generation_layer(of_frame, -1));
    assert_ptr_equal(generation_model(of_frame), generation_model(models_find(m, "a")->current));
    generation_unref(of_frame);
    models_free(m);
}

/* Equal weights, but no layer for the device: it is made. */
static void a_device_more_makes_it_anew(void **state) {
    (void)state;
    models *m;
    assert_int_equal(models_new(&m), 0);
    model_set *set = load(NULL, false, "[model a]\n" LAYER);
    assert_int_equal(models_adopt(m, set), 0);
    model_set_free(set);
    assert_null(generation_layer(models_find(m, "a")->current, -1));
    serve(m, "[model a]\n" LAYER, 1, 0, 0);
    assert_non_null(generation_layer(models_find(m, "a")->current, -1));
    serve(m, "[model a]\n" LAYER, 0, 0, 0);
    models_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_the_same_stays),
        cmocka_unit_test(names_come_go_and_come_back), cmocka_unit_test(a_frame_keeps_its_generation),
        cmocka_unit_test(a_device_more_makes_it_anew)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
