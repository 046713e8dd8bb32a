/* swap.c: the moment at which what was loaded becomes what is served, at start and at a reload. Called by reload.c on
 * the loop thread, between two turns. Nothing here reads, packs or waits: that was done on the helper thread. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "log.h"
#include "spine.h"

/* Workspaces for every layer, those that stay too: batch.max_frames may have grown. What an engine has is kept. */
static int reserve(spine *s, const model_set *set, nct_why *why) {
    for (int32_t i = 0; i < set->n; i++) {
        const generation *g = set->made[i] ? set->made[i] : models_find(s->models, set->names[i])->current;
        for (int32_t k = 0; k < s->n_engines; k++) {
            engine *e = s->engines[k];
            nct_layer *l = generation_layer(g, engine_device(e));
            if (engine_latched(e)) continue;
            if (!l) {
                snprintf(why->text, sizeof why->text, "engine %d went over to the CPU meanwhile", k);
                return -EAGAIN;
            }
            int error = engine_reserve(e, l, generation_params(g), why);
            if (error) return error;
        }
    }
    return 0;
}

/* Streams that cannot go on: their model is gone, or is for another rate now. */
static void drop_streams(spine *s, const served *of) {
    for (session *o = s->sessions.first; o; o = o->next)
        for (stream *st = o->streams, *after; st; st = after) {
            char sentence[200];
            after = st->next;
            if (st->of != of) continue;
            if (!of->current) {
                snprintf(sentence, sizeof sentence, "a reload took model %s out of service", of->name);
                streams_drop(&s->streams, st, -ENOENT, sentence);
            } else if (stream_facts_fit(st->facts, of, sentence, sizeof sentence)) {
                streams_drop(&s->streams, st, -EINVAL, sentence);
            }
        }
}

static void apply_keys(spine *s) {
    const config *c = s->cfg;
    batcher_limits queues = {
        .max_frames = c->batch.max_frames, .max_delay_us = c->batch.max_delay_us, .slot_bytes = c->engine.slot_bytes};
    batcher_set_limits(s->batcher, &queues);
    log_set_level((log_level)c->daemon.log_level);
}

int spine_swap(spine *s, config *now, config *next, model_set *set, auth **keys, nct_why *why) {
    if (next) config_swap(now, next);
    int error = reserve(s, set, why);
    if (!error && (error = models_adopt(s->models, set)) != 0)
        snprintf(why->text, sizeof why->text, "%s", strerror(-error));
    if (error) {
        if (next) config_swap(now, next);
        return error;
    }
    for (int32_t i = 0; i < set->n_left; i++) {
        batcher_flush(s->batcher, set->left[i]);
        drop_streams(s, set->left[i]->of);
    }
    if (next) apply_keys(s);
    if (keys && *keys) {
        guard_swap(&s->guard, *keys, s->router, s->pub);
        *keys = NULL;
    }
    welcome_learn(&s->facts);
    return 0;
}
