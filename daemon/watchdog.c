/* watchdog.c: see watchdog.h. Called by main, then by its timer. Reads the stages, changes nothing. A batch may run for
 * half of WatchdogSec without being taken for stuck. */
#include "watchdog.h"
#include "notify.h"

static void look(const spine *s, watchdog_view *ret) {
    *ret = (watchdog_view){
        .turns = s->n_turns, .publishing = publisher_pending(&s->publisher), .n_engines = s->n_engines};
    for (int o = 0; o < OUTCOMES; o++) ret->answered += s->counts.all.outcomes[o];
    for (int32_t i = 0; i < s->n_engines; i++) {
        ret->engines[i].finished = engine_finished(s->engines[i]);
        ret->engines[i].computing = engine_in_flight(s->engines[i]) > 0;
    }
}

bool watchdog_moved(const watchdog_view *before, const watchdog_view *now) {
    if (now->turns == before->turns) return false;
    if (before->publishing && now->publishing && now->answered == before->answered) return false;
    for (int32_t i = 0; i < now->n_engines; i++)
        if (before->engines[i].computing && now->engines[i].computing &&
            before->engines[i].finished == now->engines[i].finished)
            return false;
    return true;
}

static void on_timer(uv_timer_t *t) {
    watchdog *w = t->data;
    watchdog_view now;
    look(w->s, &now);
    if (watchdog_moved(&w->seen, &now)) notify_hint("WATCHDOG=1");
    w->seen = now;
}

void watchdog_start(watchdog *w, const spine *s) {
    uint64_t feed_ms = notify_watchdog_ms();
    w->s = s;
    uv_timer_init(s->loop, &w->timer);
    w->timer.data = w;
    look(s, &w->seen);
    if (feed_ms) uv_timer_start(&w->timer, on_timer, feed_ms, feed_ms);
}
