/* test_plot.c: pictures of results: that they are images of what came in, for few and many channels, short and long. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "plot.h"

static char path[64];

static void draw(const char *extension, int channels, int64_t steps, int64_t cut, float loud_from) {
    nct_why why = {""};
    plot *p;
    snprintf(path, sizeof path, "/tmp/test_plot.%d.%s", (int)getpid(), extension);
    if (plot_new(&p, path, channels, 1.0 / 16000, "a title", &why)) fail_msg("%s", why.text);
    float *x = malloc(sizeof *x * (size_t)channels * (size_t)cut);
    for (int64_t at = 0; at < steps; at += cut) {
        int64_t n = steps - at < cut ? steps - at : cut;
        for (int64_t i = 0; i < channels * n; i++)
            x[i] = (at + i % n >= (int64_t)(loud_from * (float)steps) ? 1.0f : 0.01f) * (i % 2 ? 1 : -1);
        plot_add(p, x, at, n);
    }
    free(x);
    if (plot_finish(p, &why)) fail_msg("%s", why.text);
}

/* Mean darkness of a rectangle of the PNG, in its own 1100 x 640 pixels. */
static double darkness(int x0, int y0, int x1, int y1) {
    png_image image = {.version = PNG_IMAGE_VERSION};
    assert_true(png_image_begin_read_from_file(&image, path));
    assert_int_equal(image.width, 1100);
    image.format = PNG_FORMAT_GRAY;
    unsigned char *p = malloc(PNG_IMAGE_SIZE(image));
    assert_true(png_image_finish_read(&image, NULL, p, 0, NULL));
    double sum = 0;
    for (int y = y0; y < y1; y++)
        for (int x = x0; x < x1; x++) sum += 255 - p[(size_t)y * image.width + (size_t)x];
    free(p);
    return sum / ((x1 - x0) * (y1 - y0)) / 255;
}

static void loud_and_quiet_halves_look_so(void **state) {
    (void)state;
    static const int channels[] = {1, 4, 64, 2000};
    static const int64_t steps[] = {300, 100000};
    for (int c = 0; c < 4; c++)
        for (int s = 0; s < 2; s++) {
            if (channels[c] == 2000 && s) continue;
            draw("png", channels[c], steps[s], 997, 0.5f);
            double quiet = darkness(140, 60, 500, 570), loud = darkness(560, 60, 930, 570);
            if (!(loud > quiet + 0.2))
                fail_msg("%d channels, %d steps: %g against %g", channels[c], (int)steps[s], loud, quiet);
            assert_true(darkness(0, 590, 1100, 640) > 0.002); /* the time axis has its text */
            assert_true(darkness(0, 60, 115, 570) > 0.0005);  /* and the channels theirs */
            unlink(path);
        }
}

static void svg_is_text_with_axes(void **state) {
    (void)state;
    char *text = calloc(1, 1 << 22);
    for (int channels = 3; channels <= 64; channels += 61) {
        draw("svg", channels, 5000, 100, 0.5f);
        FILE *f = fopen(path, "r");
        size_t n = fread(text, 1, (1 << 22) - 1, f);
        fclose(f);
        text[n] = 0;
        assert_true(!strncmp(text, "<svg", 4) && strstr(text, "</svg>"));
        assert_non_null(strstr(text, ">time (s)<"));
        assert_non_null(strstr(text, ">ch 0<"));
        assert_non_null(strstr(text, ">a title<"));
        assert_null(strchr(text, 'n') ? strstr(text, "nan") : NULL);
        unlink(path);
    }
    free(text);
}

static void nothing_at_all_is_still_a_picture(void **state) {
    (void)state;
    draw("png", 4, 0, 1, 0);
    assert_true(darkness(0, 0, 1100, 640) > 0);
    unlink(path);
    draw("svg", 64, 0, 1, 0);
    unlink(path);
    nct_why why;
    plot *p;
    assert_int_equal(plot_new(&p, "/tmp/x.gif", 1, 1, "", &why), -EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loud_and_quiet_halves_look_so),
        cmocka_unit_test(svg_is_text_with_axes),
        cmocka_unit_test(nothing_at_all_is_still_a_picture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
