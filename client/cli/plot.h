/* plot.h: a picture of a result: lines of up to 12 channels, a heat map of more, with axes. Memory does not grow with the
 * result's length: it keeps least, greatest and mean square of at most 2 x PLOT_COLUMNS spans of time. Single-threaded. */
#ifndef NCT_CLI_PLOT_H
#define NCT_CLI_PLOT_H
#include <stdint.h>
#include "nct_layer.h"

#define PLOT_COLUMNS 1024

typedef struct plot plot;
/* path ends in .png or .svg. seconds_per_step: of the result. title is copied. 0, -EINVAL (another extension), -ENOMEM. */
int plot_new(plot **ret, const char *path, int channels, double seconds_per_step, const char *title, nct_why *why);
void plot_add(plot *p, const void *payload, int64_t pos, int64_t n); /* (channels, n) f32, any alignment, in order */
int plot_finish(plot *p, nct_why *why); /* writes the file, by a temporary name; frees p in any case */
void plot_free(plot *p);                /* NULL is fine */
#endif
