/* hist.h: a histogram of durations with equal relative precision (as in HdrHistogram): 128 buckets an octave, so a quantile
 * is at most 0.8 % above the value it stands for, over all of 64 bits, in 58 KB. Single-threaded. */
#ifndef NCT_CLI_HIST_H
#define NCT_CLI_HIST_H
#include <stdint.h>

enum { HIST_SUB = 128, HIST_BUCKETS = 58 * HIST_SUB };
typedef struct {
    uint64_t counts[HIST_BUCKETS], n, least, most;
    double sum;
} hist; /* zeroed: empty */

void hist_add(hist *h, uint64_t value);
void hist_merge(hist *h, const hist *more);
/* Upper edge of the bucket that holds the q-th value (0..1), never above the greatest value. 0 when empty. */
uint64_t hist_quantile(const hist *h, double q);
double hist_mean(const hist *h);
#endif
