/* canvas_font.h: a 5 x 7 font of capitals, digits and a few signs, drawn for this program. Internal to canvas.c. */
#ifndef NCT_CLI_CANVAS_FONT_H
#define NCT_CLI_CANVAS_FONT_H
/* Seven rows, the left pixel in bit 4. Lower case is shown as capitals, what is not there as a box. */
const unsigned char *canvas_glyph(unsigned char letter);
#endif
