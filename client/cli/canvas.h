/* canvas.h: rectangles, lines and text as PNG pixels or SVG elements. Internal to plot.c. */
#ifndef NCT_CLI_CANVAS_H
#define NCT_CLI_CANVAS_H
#include <stdint.h>
#include <stdio.h>

typedef struct {
    int w, h;
    unsigned char *rgb; /* PNG: w*h*3; NULL: SVG */
    FILE *svg;          /* SVG, borrowed */
} canvas;
enum { TEXT_LEFT, TEXT_MIDDLE, TEXT_RIGHT }; /* what of the text stands at x */
#define CANVAS_GLYPH_W 12                    /* an upper-case letter with its gap */
#define CANVAS_GLYPH_H 14

/* svg NULL: pixels. 0 or -ENOMEM. White. */
int canvas_init(canvas *c, int w, int h, FILE *svg);
void canvas_rect(canvas *c, double x, double y, double w, double h, uint32_t rgb);
void canvas_text(canvas *c, double x, double y_middle, int anchor, const char *text);
/* Write what was drawn to `to` (SVG: its end). 0 or -errno. */
int canvas_finish(canvas *c, FILE *to);
void canvas_done(canvas *c);
#endif
