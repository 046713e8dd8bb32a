/* ops.inc.h: one variant's row of the table; see ops_*.c for what each defines. */
#include "vec.inc.h"
#include "stage.inc.h"
#include "conv.inc.h"
#include "act.inc.h"
#include "norm.inc.h"
#include "short.inc.h"

static int supported(void) {
    return OPS_SUPPORTED;
}

const cpu_ops OPS = {OPS_NAME, LANES, supported, conv_tile, conv_short, leaf, apply};
