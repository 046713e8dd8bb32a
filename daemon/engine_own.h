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

/* HELD: its rows are not copied yet. LOST: a device that failed may still touch it. */
typedef enum { SLOT_FREE, SLOT_FILLING, SLOT_RUNNING, SLOT_HELD, SLOT_LOST } slot_state;

/* Arena pages of a batch that failed while its device may still write to them. */
typedef struct lost_run {
    struct lost_run *next;
    const slot *s;
    uint32_t first, pages;
} lost_run;

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
    int32_t n_slots, n_workers; /* n_workers: the backend's, for workspaces; 1 on a GPU */
    slot *slots, *filling;
    struct pool *copiers; /* the backend's: they copy large rows in beside the loop thread; NULL: it does it alone */
    uint32_t in_flight;
    uint64_t n_turns, n_finished;
    batch *launched, **launched_end; /* in order of launch, until handed over */
    batch *spare;
    _Atomic(slot *) done;
    uv_async_t *async; /* freed by its close callback */
    void *backend;
    engine_facts facts; /* the backend's to fill */
    /* After a fault: engine_fault.c */
    bool latched, told, fallback; /* told: setup.failed was called */
    char latch_why[200];
    lost_run *lost;
    const engine_ops *failed_ops; /* of the backend that was taken over from */
    void *failed_backend;
};

size_t slot_in_bytes(const engine *e);
size_t slot_out_bytes(const engine *e);
/* Lays the batch out in its slot: table, x and stats, flags, job. 0, or an error with a sentence; nothing is held. */
int fill_begin(slot *s, nct_why *why);
/* Payload bytes that a turn may copy in. */
size_t fill_budget(const engine *e);
/* Copies rows in until `budget` payload bytes are spent; *budget is what is left. True: all rows are in. */
bool fill_step(slot *s, size_t *budget);
/* Where the results go: an arena run, else one run per row, else the slot's own out buffer (flow.md 14). Completes the
 * table's and the job's y. */
void fill_place(slot *s);
/* Gives back the arena pages of a batch that has no results. */
void fill_unplace(batch *b, arena *a);
int workspace_ensure(engine *e, slot *s, size_t bytes, nct_why *why);

/* engine.c, for engine_fault.c */
void slot_memory(slot *s);                              /* x, y and flags in `in` and `out` */
void batch_fail(engine *e, batch *b, const char *text); /* every frame -EIO; results given up */
/* Ends a batch that was not launched: rows from `row` on are still to be given back. */
void batch_abandon(engine *e, batch *b, int32_t row, const char *text);
batch *batch_next(
    engine *e, bool busy, uint64_t now_ns, slot *s); /* what is due, in the list of the launched; or NULL */
void batches_hand_over(engine *e);
/* engine_fault.c */
void fault_keep(
    engine *e, slot *s); /* the failed batch's pages, if the device may still write them; the slot then is LOST */
void fault_turn(engine *e, uint64_t now_ns);
void fault_done(engine *e); /* engine_free's part */
#endif
