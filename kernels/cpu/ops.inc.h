/* ops.inc.h: one variant's row of the table; see ops_*.c for what each defines. */
#include "vec.inc.h"
#include "stage.inc.h"
#include "turn.inc.h"
#include "conv.inc.h"
#include "wino.inc.h"
#include "act.inc.h"
#include "norm.inc.h"
#include "short.inc.h"
#include "beside.inc.h"

static void conv_block(const cpu_layer *c, const cpu_source *src, int32_t group, int32_t lo, int32_t hi, int64_t t0,
    int32_t n, cpu_target dst, float *x_tile, float *part) {
    int wino = cpu_is_wino(c, src->t_out);
    int32_t tile = wino ? CPU_WINO : c->plan.tile;
    for (int32_t t = 0; t < n; t += tile, dst.y += tile) {
        int32_t m = n - t < tile ? n - t : tile;
        if (wino)
            wino_tile(c, src, group, lo, hi, t0 + t, m, dst, x_tile, part);
        else
            conv_tile(c, src, group, lo, hi, t0 + t, m, dst, x_tile, part);
    }
}

static int supported(void) {
    return OPS_SUPPORTED;
}

const cpu_ops OPS = {OPS_NAME, LANES, COLS, WIDE, supported, conv_block, conv_short, conv_beside, leaf, apply};
