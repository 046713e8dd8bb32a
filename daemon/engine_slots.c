/* engine_slots.c: see engine_slots.h. */
#include "engine_slots.h"
#include "engine_own.h"

int32_t engine_slots(const engine *e) {
    return e->n_slots;
}

int32_t engine_slots_in_use(const engine *e) {
    int32_t n = 0;
    for (int32_t i = 0; i < e->n_slots; i++) n += e->slots[i].state != SLOT_FREE;
    return n;
}
