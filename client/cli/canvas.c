/* canvas.c: draws into pixels (PNG by libpng) or as SVG text. Called by plot.c. */
#include "canvas.h"
#include "canvas_font.h"
#include <errno.h>
#include <math.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>

int canvas_init(canvas *c, int w, int h, FILE *svg) {
    *c = (canvas){.w = w, .h = h, .svg = svg};
    if (svg) {
        fprintf(svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"sans-serif\" font-size=\"15\">\n<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
            w, h, w, h, w, h);
        return 0;
    }
    c->rgb = malloc((size_t)w * (size_t)h * 3);
    if (!c->rgb) return -ENOMEM;
    memset(c->rgb, 255, (size_t)w * (size_t)h * 3);
    return 0;
}

static void pixels(canvas *c, int x0, int y0, int x1, int y1, uint32_t rgb) {
    if (x0 < 0) x0 = 0;
    if (y0 < 0) y0 = 0;
    if (x1 > c->w) x1 = c->w;
    if (y1 > c->h) y1 = c->h;
    for (int y = y0; y < y1; y++)
        for (int x = x0; x < x1; x++) {
            unsigned char *p = c->rgb + 3 * ((size_t)y * (size_t)c->w + (size_t)x);
            p[0] = (unsigned char)(rgb >> 16);
            p[1] = (unsigned char)(rgb >> 8);
            p[2] = (unsigned char)rgb;
        }
}

/* A rectangle is never thinner than one pixel: an envelope of a quiet channel stays visible. */
void canvas_rect(canvas *c, double x, double y, double w, double h, uint32_t rgb) {
    if (c->svg) {
        fprintf(c->svg, "<rect x=\"%.4g\" y=\"%.4g\" width=\"%.4g\" height=\"%.4g\" fill=\"#%06x\"/>\n", x, y,
            w < 0.5 ? 0.5 : w, h < 0.5 ? 0.5 : h, rgb);
        return;
    }
    int x0 = (int)lround(x), y0 = (int)lround(y), x1 = (int)lround(x + w), y1 = (int)lround(y + h);
    pixels(c, x0, y0, x1 > x0 ? x1 : x0 + 1, y1 > y0 ? y1 : y0 + 1, rgb);
}

static void svg_text(canvas *c, double x, double y, int anchor, const char *text) {
    static const char *const anchors[] = {"start", "middle", "end"};
    fprintf(c->svg, "<text x=\"%.5g\" y=\"%.5g\" dy=\"0.35em\" text-anchor=\"%s\">", x, y, anchors[anchor]);
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '<')
            fputs("&lt;", c->svg);
        else if (*p == '&')
            fputs("&amp;", c->svg);
        else if (*p < 0x20 || *p > 0x7e)
            fputc('?', c->svg);
        else
            fputc(*p, c->svg);
    }
    fputs("</text>\n", c->svg);
}

void canvas_text(canvas *c, double x, double y, int anchor, const char *text) {
    if (c->svg) {
        svg_text(c, x, y, anchor, text);
        return;
    }
    int len = (int)strlen(text) * CANVAS_GLYPH_W, at = (int)x, top = (int)y - CANVAS_GLYPH_H / 2;
    if (anchor == TEXT_MIDDLE) at -= len / 2;
    if (anchor == TEXT_RIGHT) at -= len;
    for (; *text; text++, at += CANVAS_GLYPH_W) {
        const unsigned char *rows = canvas_glyph((unsigned char)*text);
        for (int r = 0; r < 7; r++)
            for (int b = 0; b < 5; b++)
                if (rows[r] >> (4 - b) & 1)
                    pixels(c, at + 2 * b, top + 2 * r, at + 2 * b + 2, top + 2 * r + 2, 0x222222);
    }
}

static int write_png(const canvas *c, FILE *to) {
    png_image image = {.version = PNG_IMAGE_VERSION,
        .width = (png_uint_32)c->w,
        .height = (png_uint_32)c->h,
        .format = PNG_FORMAT_RGB};
    int ok = png_image_write_to_stdio(&image, to, 0, c->rgb, 0, NULL);
    png_image_free(&image);
    return ok ? 0 : -EIO;
}

int canvas_finish(canvas *c, FILE *to) {
    int r = 0;
    if (c->svg)
        fputs("</svg>\n", c->svg);
    else
        r = write_png(c, to);
    if (!r && (fflush(to) || ferror(to))) r = errno ? -errno : -EIO;
    return r;
}

void canvas_done(canvas *c) {
    free(c->rgb);
    c->rgb = NULL;
}
