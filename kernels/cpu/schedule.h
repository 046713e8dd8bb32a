/* schedule.h: a job as the worker that runs a phase of it sees it; shared by schedule.c, unit.c and stats.c. */
#ifndef NCT_CPU_SCHEDULE_H
#define NCT_CPU_SCHEDULE_H
#include "cpu.h"

/* What a group is normalised with, and its NCT_SAW_* bits. */
typedef struct {
    float mean_hi, mean_lo, rstd;
    uint32_t saw;
} cpu_norm;

typedef enum { IN_UNITS, IN_BLOCKS, IN_FRAMES } frame_kind;

typedef struct {
    const nct_layer *l;
    const cpu_layer *c;
    const nct_job *job;
    int32_t n_workers;
    int32_t group_co; /* channels of a norm group */
    int stats;        /* outputs are counted: norm OWN or RUNNING */
    int leaves;       /* leaves are kept: stats, or frame_flags want to know what is not finite */
    int stream;       /* y is written once, and too large to be found in a cache by who reads it */
    int in_place;     /* blocks: y holds the raw outputs between the phases; else they are computed twice */
    int32_t splits;   /* blocks: parts that the channels are cut into */
    int any_blocks;
    int dealt; /* frames are dealt out while they are worked on */
    int whole; /* frames of blocks are dealt out whole */
    int64_t raw_floats;
    cpu_leaf *leaf;             /* of all frames: [frame][channel][block] */
    cpu_norm *norm;             /* [frame][group] */
    float *raw, *x_tile, *part; /* this worker's */
} cpu_run;

/* One frame of a run. */
typedef struct {
    int32_t index;
    const nct_frame *f;
    frame_kind kind;
    int32_t blocks; /* of CPU_LEAF steps */
    cpu_leaf *leaf;
    cpu_source src;
} cpu_frame;

/* unit.c: whole groups, all steps: convolve, count, normalise while they are in L2. */
void cpu_unit(const cpu_run *r, const cpu_frame *f, int32_t g0, int32_t g1);
/* unit.c: the same groups of up to CPU_SHORT_FRAMES short frames, together. */
void cpu_unit_short(const cpu_run *r, const cpu_frame *frames, int32_t n, int32_t g0, int32_t g1);
/* unit.c: one block of parts s0 .. s1-1 of the channels; first: convolve and count (with no statistics to wait for, all);
 * second: normalise. */
void cpu_block_first(const cpu_run *r, const cpu_frame *f, int32_t block, int32_t s0, int32_t s1);
void cpu_block_second(const cpu_run *r, const cpu_frame *f, int32_t block, int32_t s0, int32_t s1);
/* unit.c: a whole frame in blocks: convolve and count all, merge, normalise. */
void cpu_unit_frame(const cpu_run *r, const cpu_frame *f);

/* stats.c: merge a group's leaves, choose by job.norm, write stat_out. */
cpu_norm cpu_norm_merge(const cpu_run *r, const cpu_frame *f, int32_t group);
/* stats.c: norm GIVEN: of stat_in alone; looks at no leaf. */
cpu_norm cpu_norm_given(const cpu_run *r, const cpu_frame *f, int32_t group);
#endif
