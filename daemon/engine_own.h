/* engine_own.h: what engine.c, engine_fill.c and the backends share of an engine and its slots. Loop thread, but for
 * the fields that engine_done() sets.
 *
 *     in:  | .. table, n rows of 64 bytes | x: rows at 256 bytes, then the frames' GIVEN statistics |
 *     out: | flags: 4 bytes a row ......... | y: rows on pages, then small ones at 256 bytes          |
 *
 * The table ends where x begins, so one copy takes both to a device. With OBSERVE the statistics stand side by side in
 * the place of small rows, and no y is computed. */
#ifndef NCTD_ENGINE_OWN_H
#define NCTD_ENGINE_OWN_H
#include <stdatomic.h>
#include "config.h"
#include "engine.h"

#define TABLE_BYTES ((size_t)BATCH_FRAMES_MAX * sizeof(nct_frame))
#define FLAGS_BYTES ((size_t)BATCH_FRAMES_MAX * sizeof(uint32_t))

typedef enum { SLOT_FREE, SLOT_FILLING, SLOT_RUNNING, SLOT_HELD } slot_state; /* HELD: its rows are not copied yet */

struct slot {
    engine *e;
    slot_state state;
    unsigned char *in, *out; /* ops->alloc; sizes are slot_in_bytes(), slot_out_bytes() */
    unsigned char *x, *y;    /* in them */
    uint32_t *flags;
    nct_frame *table; /* of the batch, before x */
    batch *b;
    nct_layer *layer;
    nct_job job;
    size_t x_bytes, y_bytes; /* of the batch, table and flags not counted */
    int32_t row;             /* being filled */
    int64_t sample;          /* of it, in the payload's order */
    void *workspace;
    size_t workspace_bytes;
    uint64_t t_launch_ns;
    int32_t n_phases, n_workers; /* the CPU backend's */
    void *backend;
    /* set by engine_done(), any thread */
    slot *next_done;
    int error;
    uint64_t t_done_ns;
};

struct engine {
    const engine_ops *ops;
    engine_setup setup;
    size_t slot_bytes, max_frame_bytes;
    int32_t max_frames;         /* at start: engine_reserve's guess, a larger batch makes its slot's workspace grow */
    int32_t n_slots, n_workers; /* n_workers: the backend's, for workspaces; 1 on a GPU */
    slot *slots, *filling;
    uint32_t in_flight;
    uint64_t n_turns;
    batch *launched, **launched_end; /* in order of launch, until handed over */
    batch *spare;
    _Atomic(slot *) done;
    uv_async_t *async; /* freed by its close callback */
    void *backend;
};

size_t slot_in_bytes(const engine *e);
size_t slot_out_bytes(const engine *e);
/* Lays the batch out in its slot: table, x and stats, flags, job. 0, or an error with a sentence; nothing is held. */
int fill_begin(slot *s, nct_why *why);
/* Copies rows in until `budget` payload bytes are spent; *budget is what is left. True: all rows are in. */
bool fill_step(slot *s, size_t *budget);
/* Where the results go: an arena run, else one run per row, else the slot's own out buffer (flow.md 14). Completes the
 * table's and the job's y. */
void fill_place(slot *s);
/* Gives back the arena pages of a batch that has no results. */
void fill_unplace(batch *b, arena *a);
int workspace_ensure(engine *e, slot *s, size_t bytes);
#endif
