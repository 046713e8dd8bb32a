/* drain.h: how the daemon stops (flow.md 23): GOAWAY and -ESHUTDOWN, queues flushed, wait until clients took their
 * answers or 60 % of drain_ms, cut who still holds some, end. Loop thread. */
#ifndef NCTD_DRAIN_H
#define NCTD_DRAIN_H
#include "spine.h"

typedef enum { DRAIN_OFF, DRAIN_WAITING, DRAIN_CUTTING, DRAIN_OVER } drain_state;
typedef struct {
    spine *s;
    drain_state state;
    uint64_t begin_ns, drain_ns;
    uint64_t full_ns; /* some client's kernel had no room */
    bool hurried;
    uv_timer_t tick;
} drain;

void drain_init(drain *d, spine *s);
void drain_begin(drain *d, const char *why); /* a second call hurries: who holds answers is cut now */
/* Of the time, what is left for sockets to flush when the loop has stopped. */
int drain_linger_ms(const drain *d);
/* After spine_close: waits for clients to read the last of their answers, until the cut or a signal that hurries. */
void drain_part(drain *d);
#endif
