/* ledger.c: the counters' names and sums. Called by every stage on the loop thread; knows none of them. */
#include "ledger.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define XX(name, help) #name,
static const char *const outcome_names[] = {LEDGER_OUTCOMES(XX)};
static const char *const malformed_names[] = {LEDGER_MALFORMED(XX)};
static const char *const cut_names[] = {LEDGER_CUTS(XX)};
static const char *const handshake_names[] = {LEDGER_HANDSHAKES(XX)};
static const char *const counter_names[] = {LEDGER_OTHERS(XX)};
#undef XX
#define XX(name, number, text) #name,
static const char *const refused_names[] = {NCT_ERROR_MAP(XX)};
#undef XX

const char *cut_name(cut_reason r) {
    return cut_names[r];
}
const char *malformed_name(malformed_cause c) {
    return malformed_names[c];
}

const char *handshake_name(handshake_cause c) {
    return handshake_names[c];
}

void ledger_received(ledger *l, frame_counts *of) {
    l->all.received++;
    if (of) of->received++;
}

void ledger_outcome(ledger *l, frame_counts *of, outcome o) {
    l->all.outcomes[o]++;
    if (of) of->outcomes[o]++;
}

static refused_reason reason_of(int error) {
    switch (-error) {
#define XX(name, number, text)                                                                                       \
    case name: return REFUSED_##name;
        NCT_ERROR_MAP(XX)
#undef XX
    }
    return REFUSED_EIO; /* as error_to_wire says it */
}

void ledger_refused(ledger *l, frame_counts *of, int error) {
    ledger_outcome(l, of, OUTCOME_refused);
    l->refused[reason_of(error)]++;
}

bool counts_balanced(const frame_counts *c, uint64_t in_flight) {
    uint64_t sum = in_flight;
    for (int i = 0; i < OUTCOMES; i++) sum += c->outcomes[i];
    return sum == c->received;
}

bool ledger_check(const ledger *l, uint64_t in_flight, uint64_t held) {
    const uint64_t *c = l->counts;
    return counts_balanced(&l->all, in_flight) && c[COUNT_handed] == c[COUNT_let_go] + c[COUNT_cut] + held;
}

static void put(json_t *o, const char *name, uint64_t value) {
    json_object_set_new(o, name, json_integer((json_int_t)value));
}

static json_t *rows(const char *const *names, const uint64_t *values, int n) {
    json_t *o = json_object();
    for (int i = 0; o && i < n; i++) put(o, names[i], values[i]);
    return o;
}

json_t *counts_json(const frame_counts *c, uint64_t in_flight) {
    json_t *o = json_object();
    if (!o) return NULL;
    put(o, "received", c->received);
    for (int i = 0; i < OUTCOMES; i++) put(o, outcome_names[i], c->outcomes[i]);
    put(o, "in_flight", in_flight);
    return o;
}

json_t *ledger_json(const ledger *l, uint64_t in_flight, uint64_t held) {
    json_t *o = counts_json(&l->all, in_flight);
    if (!o) return NULL;
    for (int i = 0; i < COUNTERS; i++) put(o, counter_names[i], l->counts[i]);
    put(o, "held", held);
    /* Nested under names that no flat row has: "refused" is the sum, "refused_by" says why. */
    json_object_set_new(o, "refused_by", rows(refused_names, l->refused, REFUSED_REASONS));
    json_object_set_new(o, "malformed", rows(malformed_names, l->malformed, MALFORMED_CAUSES));
    json_object_set_new(o, "cuts", rows(cut_names, l->cuts, CUT_REASONS));
    json_object_set_new(o, "handshakes", rows(handshake_names, l->handshakes, HANDSHAKES));
    return o;
}

/* A text that grows in a fixed room; what does not fit is left out. */
typedef struct {
    char *at;
    size_t room;
} line;

__attribute__((format(printf, 2, 3))) static void add(line *l, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(l->at, l->room, format, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= l->room) n = (int)l->room - 1;
    l->at += n;
    l->room -= (size_t)n;
}

static void add_nonzero(line *t, const char *group, const char *const *names, const uint64_t *v, int n) {
    for (int i = 0; i < n; i++)
        if (v[i]) add(t, " %s.%s=%llu", group, names[i], (unsigned long long)v[i]);
}

char *ledger_line(const ledger *l, uint64_t in_flight, uint64_t held, char *out, size_t size) {
    line t = {out, size};
    add(&t, "received=%llu", (unsigned long long)l->all.received);
    for (int i = 0; i < OUTCOMES; i++) add(&t, " %s=%llu", outcome_names[i], (unsigned long long)l->all.outcomes[i]);
    add(&t, " in_flight=%llu", (unsigned long long)in_flight);
    for (int i = 0; i < COUNTERS; i++) add(&t, " %s=%llu", counter_names[i], (unsigned long long)l->counts[i]);
    add(&t, " held=%llu", (unsigned long long)held);
    add_nonzero(&t, "refused", refused_names, l->refused, REFUSED_REASONS);
    add_nonzero(&t, "malformed", malformed_names, l->malformed, MALFORMED_CAUSES);
    add_nonzero(&t, "cuts", cut_names, l->cuts, CUT_REASONS);
    add_nonzero(&t, "handshakes", handshake_names, l->handshakes, HANDSHAKES);
    return out;
}
