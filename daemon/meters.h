/* meters.h: what is measured on a frame's way, beside the ledger's counts. Four stretches, one after the other:
 *
 *     read --queue--> taken into a batch --copy--> launched --compute--> results there --publish--> given to ZeroMQ
 *
 * queue + copy is the header's queue_us, compute its compute_us (wire.md). queue, copy and compute count every frame of
 * every batch; publish counts frames answered with a RESULT. Loop thread. */
#ifndef NCTD_METERS_H
#define NCTD_METERS_H
#include "frame.h"
#include "histogram.h"

typedef enum { RELOAD_RESULT_APPLIED, RELOAD_RESULT_UNCHANGED, RELOAD_RESULT_REFUSED, RELOAD_RESULTS } reload_result;

typedef struct meters {
    histogram queue, copy, compute, publish, batch_frames;
    int64_t t_result_ns; /* Unix time of the last RESULT, 0: none yet */
    struct {
        uint64_t asked;                   /* SIGHUPs; those that wait for one reload to end become one */
        bool pending;                     /* one was asked for and has not ended */
        uint64_t results[RELOAD_RESULTS]; /* what became of reloads */
        reload_result last;
        int64_t t_ns; /* Unix time of the last one, 0: none yet */
        char why[256];
    } reload;
    /* Sees every RESULT before its row goes; NULL: nobody looks. */
    void (*tap)(void *ctx, const frame *f);
    void *tap_ctx;
} meters;

void meters_init(meters *m);
/* A batch came back from its engine, its frames still have their times. */
void meters_batch(meters *m, const batch *b);
/* f was answered with a RESULT; its row is still there. */
void meters_result(meters *m, const frame *f, uint64_t now_ns);
/* A reload ended; why: a sentence, kept for the status page ("" when applied). */
void meters_reload(meters *m, reload_result r, const char *why);
const char *reload_result_name(reload_result r);
#endif
