/* watchdog.h: WATCHDOG=1 to the service manager, fed by progress: only when the loop turned, and every engine and the
 * publisher moved or had nothing to do. A loop that merely turns feeds nothing. Loop thread. */
#ifndef NCTD_WATCHDOG_H
#define NCTD_WATCHDOG_H
#include <uv.h>
#include "spine.h"

typedef struct {
    uint64_t turns, answered; /* answered: frames with an outcome */
    bool publishing;          /* results wait for the publisher */
    int32_t n_engines;
    struct {
        uint64_t finished; /* batches */
        bool computing;
    } engines[SPINE_ENGINES_MAX];
} watchdog_view;

typedef struct {
    const spine *s;
    uv_timer_t timer;
    watchdog_view seen;
} watchdog;

/* Who had work at both looks and finished nothing between them is stuck; so is a loop that did not turn. */
bool watchdog_moved(const watchdog_view *before, const watchdog_view *now);
/* Looks twice per WatchdogSec; without one, never. The timer closes with the loop. */
void watchdog_start(watchdog *w, const spine *s);
#endif
