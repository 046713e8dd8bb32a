/* engine_slots.h: what may be seen of an engine from outside: for metrics and status. Loop thread. */
#ifndef NCTD_ENGINE_SLOTS_H
#define NCTD_ENGINE_SLOTS_H
#include "engine.h"

int32_t engine_slots(const engine *e);
int32_t engine_slots_in_use(const engine *e); /* filled, computing, or with rows not copied yet */
#endif
