/* rows.cu: the table of rows: every schedule of every plan, best first within a plan. nct_where.force names
 * one, tests walk it. A row without a launcher names its plan alone: the best row of it that fits. */
#include "mma_rows.cuh"

static const mma_tile mma_128x128 = {2, 2, 4}, mma_64x128 = {2, 2, 2}, mma_32x256 = {1, 4, 2}, mma_64x64 = {4, 1, 1},
                      mma_64x128_f32 = {4, 2, 1};
static const turned_tile turned_128x256 = {2, 4, 4}, turned_128x128 = {2, 2, 4}, turned_64x128 = {2, 2, 2},
                         turned_32x256 = {1, 4, 2}, turned_64x64 = {4, 1, 1}, turned_128x128_3x = {4, 2, 2};
static const simt_tile simt_8x256 = {8, 8}, simt_4x256 = {4, 8}, simt_1x256 = {1, 8}, simt_8x64 = {8, 2},
                       simt_4x64 = {4, 2}, simt_1x64 = {1, 2};

static const wgmma_tile wgmma_128x256 = {2, 2, 128}, wgmma_128x128 = {1, 2, 128}, wgmma_64x64 = {1, 1, 64},
                        wgmma_32x256 = {2, 2, 32};
static const short_tile short_64x128 = {1, 128}, short_128x128 = {2, 128};

#define WGMMA(c, t)                                                                                                  \
    {"wgmma-" #c "x" #t "-fused", PLAN_WGMMA, PASS_FUSED, 90, c, t, wgmma_fits, wgmma_launch, &wgmma_##c##x##t},     \
        {"wgmma-" #c "x" #t, PLAN_WGMMA, PASS_STORE, 90, c, t, wgmma_fits, wgmma_launch, &wgmma_##c##x##t}, {        \
        "wgmma-" #c "x" #t "-again", PLAN_WGMMA, PASS_AGAIN, 90, c, t, wgmma_fits, wgmma_launch, &wgmma_##c##x##t    \
    }
#define SHORT(name, c, t, tile)                                                                                      \
    {"short-" name "-fused", PLAN_WGMMA, PASS_FUSED, 90, c, t, short_fits, short_launch, &tile}, {                   \
        "short-" name, PLAN_WGMMA, PASS_STORE, 90, c, t, short_fits, short_launch, &tile                             \
    }
static const units_tile units_128x256 = {2, 1, 256, 2}, units_128x128 = {2, 1, 128, 4}, units_64x256 = {1, 2, 128, 1},
                        units_64x128 = {1, 2, 64, 1}, units_64x64 = {1, 1, 64, 1};
#define UNITS(c, t)                                                                                                  \
    {"units-" #c "x" #t "-fused", PLAN_WGMMA, PASS_FUSED, 90, c, t, units_fits, units_launch, &units_##c##x##t},     \
        {"units-" #c "x" #t, PLAN_WGMMA, PASS_STORE, 90, c, t, units_fits, units_launch, &units_##c##x##t}, {        \
        "units-" #c "x" #t "-again", PLAN_WGMMA, PASS_AGAIN, 90, c, t, units_fits, units_launch, &units_##c##x##t    \
    }
static const resident_tile resident_256 = {256}, resident_128 = {128}, resident_64 = {64};
#define RESIDENT(t)                                                                                                  \
    {"resident-64x" #t "-fused", PLAN_WGMMA, PASS_FUSED, 90, 64, t, resident_fits, resident_launch, &resident_##t},  \
    {                                                                                                                \
        "resident-64x" #t, PLAN_WGMMA, PASS_STORE, 90, 64, t, resident_fits, resident_launch, &resident_##t          \
    }
#define THIN(c)                                                                                                      \
    {"thin-" #c "x64-fused", PLAN_WGMMA, PASS_FUSED, 90, c, 64, thin_fits, thin_launch}, {                           \
        "thin-" #c "x64", PLAN_WGMMA, PASS_STORE, 90, c, 64, thin_fits, thin_launch                                  \
    }
#define MMA(c, t, tile)                                                                                              \
    {"mma-" #c "x" #t, PLAN_MMA, PASS_STORE, 80, c, t, mma_fits, mma_launch, &tile}, {                               \
        "mma-" #c "x" #t "-again", PLAN_MMA, PASS_AGAIN, 80, c, t, mma_fits, mma_launch, &tile                       \
    }
#define MMA_F32(c, t, tile)                                                                                          \
    {"mma-" #c "x" #t "-3x", PLAN_MMA, PASS_STORE, 80, c, t, mma_fits, mma_launch, &tile}, {                         \
        "mma-" #c "x" #t "-3x-again", PLAN_MMA, PASS_AGAIN, 80, c, t, mma_fits, mma_launch, &tile                    \
    }
#define TURNED(name, c, t, tile)                                                                                     \
    {"turned-" name "-fused", PLAN_MMA, PASS_FUSED, 80, c, t, turned_fits, turned_launch, &tile}, {                  \
        "turned-" name, PLAN_MMA, PASS_STORE, 80, c, t, turned_fits, turned_launch, &tile                            \
    }
#define SIMT(r, t)                                                                                                   \
    {"simt-" #r "x" #t, PLAN_SIMT, PASS_STORE, 75, 8 * r, t, simt_fits, simt_launch, &simt_##r##x##t}, {             \
        "simt-" #r "x" #t "-again", PLAN_SIMT, PASS_AGAIN, 75, 8 * r, t, simt_fits, simt_launch, &simt_##r##x##t     \
    }

static const row ROWS[] = {
    {"wgmma", PLAN_WGMMA, PASS_ANY, 90},
    RESIDENT(256),
    RESIDENT(128),
    RESIDENT(64),
    UNITS(128, 256),
    UNITS(128, 128),
    UNITS(64, 256),
    UNITS(64, 128),
    UNITS(64, 64),
    WGMMA(128, 256),
    WGMMA(128, 128),
    WGMMA(64, 64),
    WGMMA(32, 256),
    SHORT("64x128", 64, 128, short_64x128),
    SHORT("128x128", 128, 128, short_128x128),
    THIN(16),
    THIN(32),
    {"mma", PLAN_MMA, PASS_ANY, 80},
    TURNED("128x256", 128, 256, turned_128x256),
    TURNED("128x128", 128, 128, turned_128x128),
    TURNED("64x128", 64, 128, turned_64x128),
    TURNED("32x256", 32, 256, turned_32x256),
    TURNED("64x64", 64, 64, turned_64x64),
    TURNED("128x128-3x", 128, 128, turned_128x128_3x),
    {"mma-split", PLAN_MMA, PASS_SPLIT, 80, 64, 64, mma_fits, mma_launch, &mma_64x64},
    MMA(128, 128, mma_128x128),
    MMA(64, 128, mma_64x128),
    MMA(32, 256, mma_32x256),
    MMA(64, 64, mma_64x64),
    MMA_F32(64, 128, mma_64x128_f32),
    {"long", PLAN_LONG, PASS_AGAIN, 90, 16, NARROW_LEAF, long_fits, long_launch},
    {"long-fused", PLAN_LONG, PASS_FUSED, 90, 16, NARROW_LEAF, long_fits, long_launch},
    {"narrow", PLAN_NARROW, PASS_AGAIN, 80, 32, NARROW_LEAF, narrow_fits, narrow_launch},
    {"narrow-fused", PLAN_NARROW, PASS_FUSED, 90, 32, NARROW_LEAF, narrow_fits, narrow_launch},
    {"depth", PLAN_DEPTH, PASS_AGAIN, 75, 1, NARROW_LEAF, depth_fits, depth_launch},
    {"depth-fused", PLAN_DEPTH, PASS_FUSED, 90, 1, NARROW_LEAF, depth_fits, depth_launch},
    {"simt", PLAN_SIMT, PASS_ANY, 75},
    SIMT(8, 256),
    SIMT(4, 256),
    SIMT(1, 256),
    SIMT(8, 64),
    SIMT(4, 64),
    SIMT(1, 64),
};

const row *cuda_row(int32_t i) {
    return i >= 0 && i < (int32_t)(sizeof ROWS / sizeof *ROWS) ? &ROWS[i] : NULL;
}
