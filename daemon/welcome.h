/* welcome.h: WELCOME's JSON, for people and programs: version, limits, what computes, every model with its parameters
 * and digest, open streams with their facts, what became of reloads, the ledger. Loop thread. */
#ifndef NCTD_WELCOME_H
#define NCTD_WELCOME_H
#include "config.h"
#include "frames.h"
#include "ledger.h"
#include "models.h"
#include "session.h"

struct answers;
struct engine;

typedef struct welcome {
    const config *cfg;
    models *models;
    sessions *ss;
    frames *frames;
    const ledger *counts;
    const struct meters *meters;
    const uint32_t *held;                   /* the answers' count */
    const char *backend, *precision;        /* "cpu", "f32" */
    char variant[32], device[64], plan[48]; /* plan: of the first model */
    struct engine **engines;                /* [n_engines] */
    int32_t n_engines, n_threads;           /* threads of one engine */
    uint64_t t_start_ns;
} welcome;

/* At most 64 KiB: facts of streams, then the models' own ledgers, are left out first. malloc'ed; NULL without memory. */
char *welcome_text(const welcome *w, const session *s);
/* Fills variant and device from the first model's layer and the host. */
void welcome_learn(welcome *w);
#endif
