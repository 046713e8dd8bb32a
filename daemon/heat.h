/* heat.h: a result made small enough to look at: at most HEAT_ROWS x HEAT_COLUMNS cells, each the sample of largest
 * magnitude among some of those it stands for (a mean would wash oscillations out). Bounded work, whatever the result's
 * size. Pure; any thread. */
#ifndef NCTD_HEAT_H
#define NCTD_HEAT_H
#include <stdbool.h>
#include <stdint.h>

#define HEAT_ROWS      64
#define HEAT_COLUMNS   16
#define HEAT_NONFINITE 255

typedef struct {
    int32_t channels, steps, rows, columns;
    float low, high;                               /* value of code 0 and 254; equal when all are */
    unsigned char cells[HEAT_ROWS * HEAT_COLUMNS]; /* (rows, columns); HEAT_NONFINITE: a NaN or Inf was among them */
} heat;

/* y: (channels, steps) of an nct_dtype f32, f16, bf16 or f64, any alignment, both at least 1. 0 or -EINVAL. */
int heat_make(heat *ret, const void *y, int32_t dtype, int32_t channels, int32_t steps);
#endif
