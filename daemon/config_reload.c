/* config_reload.c: what a reload may change in a configuration, and the exchange itself. Called by reload.c (compare, on the
 * helper thread) and swap.c (exchange, on the loop). No state. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "config_table.h"

int config_may_reload(const config *now, const config *next, config_why *why) {
    char a[512], b[512];
    for (int i = 0; i < config_options_count; i++) {
        const option *o = &config_options[i];
        if (o->when != OPTION_RESTART) continue;
        config_value_text(now, o, a, sizeof a);
        config_value_text(next, o, b, sizeof b);
        if (strcmp(a, b)) {
            snprintf(why->text, sizeof why->text, "%s.%s changed from %.400s to %.400s: that needs a restart",
                o->section, o->key, a, b);
            return -EPERM;
        }
    }
    return 0;
}

bool config_differs(const config *now, const config *next) {
    char a[512], b[512];
    for (int i = 0; i < config_options_count; i++) {
        const option *o = &config_options[i];
        if (o->when != OPTION_RELOAD) continue;
        config_value_text(now, o, a, sizeof a);
        config_value_text(next, o, b, sizeof b);
        if (strcmp(a, b)) return true;
    }
    return false;
}

static void swap_bytes(void *a, void *b, size_t n) {
    unsigned char kept[sizeof(uint64_t)];
    memcpy(kept, a, n);
    memcpy(a, b, n);
    memcpy(b, kept, n);
}

void config_swap(config *now, config *next) {
    static const size_t bytes[] = {[OPTION_U32] = sizeof(C_U32),
        [OPTION_BYTES] = sizeof(C_BYTES),
        [OPTION_BOOL] = sizeof(C_BOOL),
        [OPTION_ENUM] = sizeof(C_ENUM)};
    for (int i = 0; i < config_options_count; i++) {
        const option *o = &config_options[i];
        if (o->when != OPTION_RELOAD) continue;
        assert(o->type != OPTION_STR);
        swap_bytes((char *)now + o->offset, (char *)next + o->offset, bytes[o->type]);
    }
    swap_bytes(&now->models, &next->models, sizeof now->models);
    swap_bytes(&now->n_models, &next->n_models, sizeof now->n_models);
    swap_bytes(&now->origins, &next->origins, sizeof now->origins);
}
