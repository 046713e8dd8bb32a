/* publisher.h: results on their way out.
 *
 *     engine --publisher_push: batches in launch order per (engine, model)--> queue --publisher_turn--> sender and PUB
 *
 * A row of 32 KiB or more leaves from its arena pages; every other row is copied into a pooled cell when its batch
 * arrives, so that the slot and the batch's memory are free at once, whoever reads slowly (flow.md 15-19). Loop
 * thread. */
#ifndef NCTD_PUBLISHER_H
#define NCTD_PUBLISHER_H
#include "answer.h"
#include "frame.h"
#include "frames.h"

typedef struct publisher {
    answers *answers;
    frames *frames;
    zxpub *pub; /* NULL: no PUB */
    cells *pool;
    ledger *counts;
    struct meters *meters;                         /* NULL: nothing is measured */
    void (*batch_end)(struct engine *e, batch *b); /* engine_batch_end */
    uint64_t publish_bytes;
    size_t largest; /* result published so far */
    frame *first, *last;
} publisher;

void publisher_init(publisher *p, answers *a, frames *f, zxpub *pub, uint64_t publish_bytes,
    void (*batch_end)(struct engine *e, batch *b));
void publisher_push(void *ctx, batch *b);           /* batch_sink: ctx is the publisher */
void publisher_turn(publisher *p, uint64_t now_ns); /* sends what was pushed */
bool publisher_pending(const publisher *p);
/* Ends a frame that never reached a batch: ERROR to its session, outcome by the error (-ETIME: expired). */
void publisher_refuse(publisher *p, frame *f, int error, const char *sentence, uint64_t now_ns);
/* Its session is gone: no answer. */
void publisher_orphan(publisher *p, frame *f);
/* flow.md 19: SNDHWM for results of up to `largest` bytes. */
int publisher_hwm(uint64_t publish_bytes, size_t largest);
#endif
