/* ledger.h: what happened to every frame, and everything else the daemon counts. One row a counter; it appears in
 * WELCOME's JSON, in the log line at exit and on /metrics by itself. Loop thread only (flow.md 24).
 *
 *     received = ok + failed + refused + expired + orphaned + in_flight        per model and in all
 *     handed   = let_go + cut + held                                           answers to frames
 *
 * in_flight is the frame table's own count, held the answers' own: ledger_check compares, it does not subtract. */
#ifndef NCTD_LEDGER_H
#define NCTD_LEDGER_H
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "error.h"

/* A frame's way: received, then exactly one of the others. XX(name, help) */
#define LEDGER_OUTCOMES(XX)                                                                                          \
    XX(ok, "answered with a RESULT")                                                                                 \
    XX(failed, "answered with an ERROR of the engine")                                                               \
    XX(refused, "answered with an ERROR instead of being admitted")                                                  \
    XX(expired, "its ttl ran out in the queue")                                                                      \
    XX(orphaned, "its client was gone")

/* Messages that never became frames, by cause. XX(name, help) */
#define LEDGER_MALFORMED(XX)                                                                                         \
    XX(parts, "not three parts")                                                                                     \
    XX(header, "no readable header")                                                                                 \
    XX(kind, "a kind that no client sends")                                                                          \
    XX(session, "no session, or another's")                                                                          \
    XX(topic, "a topic that is no model/stream/, or one where none belongs")                                         \
    XX(json, "JSON that cannot be read")                                                                             \
    XX(identity, "a self-chosen routing id")                                                                         \
    XX(version, "from a ZeroMQ before 4.0 (ZMTP 1 or 2)")                                                            \
    XX(gone, "from a connection that had ended")

/* Connections the daemon ended, by reason. XX(name, help) */
#define LEDGER_CUTS(XX)                                                                                              \
    XX(stall, "took none of its answers for stall_ms")                                                               \
    XX(full, "no room to send it an answer")                                                                         \
    XX(faults, "1000 refusals in a row for its own faults")                                                          \
    XX(identity, "chose its own routing id")                                                                         \
    XX(hello, "no session within hello_ms: no HELLO, or a refused one")                                              \
    XX(crowd, "more connections than are answered with a refusal")                                                   \
    XX(drain, "held answers when the daemon stopped")                                                                \
    XX(protocol, "ended by ZeroMQ: a part above the size limit, or not ZMTP")                                        \
    XX(key, "its key was taken off auth.client_keys, or has other rights now")

/* Connections that never got through their handshake, on both sockets, by cause. XX(name, help) */
#define LEDGER_HANDSHAKES(XX)                                                                                        \
    XX(key, "a key that auth.client_keys does not list")                                                             \
    XX(server_key, "a client that has another daemon's public key")                                                  \
    XX(mechanism, "no keys where there must be, or keys where there are none")                                       \
    XX(protocol, "not ZMTP, or broken off")

/* Everything else that is counted. XX(name, help) */
#define LEDGER_OTHERS(XX)                                                                                            \
    XX(handed, "answers to frames given to ZeroMQ")                                                                  \
    XX(let_go, "of these, taken by their client")                                                                    \
    XX(cut, "of these, thrown away with their connection")                                                           \
    XX(connections, "connections accepted")                                                                          \
    XX(disconnects, "connections ended")                                                                             \
    XX(sessions, "HELLOs welcomed")                                                                                  \
    XX(streams, "streams opened")                                                                                    \
    XX(published, "results given to PUB")                                                                            \
    XX(publish_stale, "results not published: their seq did not rise")                                               \
    XX(subscribe_refused, "subscriptions that the key's rights do not allow")                                        \
    XX(in_place, "result rows that left from the out arena")                                                         \
    XX(copied, "result rows that left as copies")                                                                    \
    XX(batches, "batches computed")                                                                                  \
    XX(batch_frames, "frames in them")                                                                               \
    XX(batch_full, "batches closed because full")                                                                    \
    XX(batch_deadline, "batches closed at max_delay_us")                                                             \
    XX(batch_idle, "batches closed because the engine was idle")                                                     \
    XX(batch_flush, "batches closed by a flush")                                                                     \
    XX(nonfinite, "frames with a group that is not finite")                                                          \
    XX(offset, "frames whose mean drowns their deviation")

#define XX(name, help) OUTCOME_##name,
typedef enum { LEDGER_OUTCOMES(XX) OUTCOMES } outcome;
#undef XX
#define XX(name, help) MALFORMED_##name,
typedef enum { LEDGER_MALFORMED(XX) MALFORMED_CAUSES } malformed_cause;
#undef XX
#define XX(name, help) CUT_##name,
typedef enum { LEDGER_CUTS(XX) CUT_REASONS } cut_reason;
#undef XX
#define XX(name, help) HANDSHAKE_##name,
typedef enum { LEDGER_HANDSHAKES(XX) HANDSHAKES } handshake_cause;
#undef XX
#define XX(name, help) COUNT_##name,
typedef enum { LEDGER_OTHERS(XX) COUNTERS } counter;
#undef XX
#define XX(name, number, text) REFUSED_##name,
typedef enum { NCT_ERROR_MAP(XX) REFUSED_REASONS } refused_reason;
#undef XX

typedef struct {
    uint64_t received, outcomes[OUTCOMES];
} frame_counts;

typedef struct {
    frame_counts all;
    uint64_t refused[REFUSED_REASONS], malformed[MALFORMED_CAUSES], cuts[CUT_REASONS], counts[COUNTERS];
    uint64_t handshakes[HANDSHAKES];
} ledger;

/* `of` is the model's own counts, NULL when the frame named none. */
void ledger_received(ledger *l, frame_counts *of);
void ledger_outcome(ledger *l, frame_counts *of, outcome o);
void ledger_refused(ledger *l, frame_counts *of, int error); /* outcome refused, reason by errno */
static inline void ledger_count(ledger *l, counter c) {
    l->counts[c]++;
}
bool counts_balanced(const frame_counts *c, uint64_t in_flight);
/* True when both identities hold. */
bool ledger_check(const ledger *l, uint64_t in_flight, uint64_t held);
/* Every row by name; nested refused, malformed, cuts, handshakes (rows that are 0 too). NULL without memory. */
json_t *ledger_json(const ledger *l, uint64_t in_flight, uint64_t held);
json_t *counts_json(const frame_counts *c, uint64_t in_flight);
/* "received=.. ok=.. ... " with nested rows only where not 0: the line at exit. Returns out. */
char *ledger_line(const ledger *l, uint64_t in_flight, uint64_t held, char *out, size_t size);
const char *cut_name(cut_reason r);
const char *malformed_name(malformed_cause c);
const char *handshake_name(handshake_cause c);
#endif
