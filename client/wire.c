/* wire.c: the one reader and writer of version 1's header and topic.
 *
 * Called by the daemon's ingest and publisher and by libnct, on any thread: nothing here has state,
 * allocates, or knows a socket. Message memory stands at any address (5, 6 and 7 modulo 8 were seen), so
 * every field goes through bytes. It does not judge what a model wants; wire_frame_check() only looks at what
 * a frame says of itself. */
#include "wire.h"
#include "error.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const uint8_t magic[4] = {'N', 'C', 'T', '1'};

static int why_set(wire_why *why, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int why_set(wire_why *why, int error, const char *format, ...) {
    if (why) {
        va_list args;
        va_start(args, format);
        vsnprintf(why->text, sizeof why->text, format, args);
        va_end(args);
    }
    return error;
}

static void put_u32(uint8_t *at, uint32_t v) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(v >> (8 * i));
}

static void put_u64(uint8_t *at, uint64_t v) {
    for (int i = 0; i < 8; i++) at[i] = (uint8_t)(v >> (8 * i));
}

static uint32_t get_u32(const uint8_t *at) {
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) v |= (uint32_t)at[i] << (8 * i);
    return v;
}

static uint64_t get_u64(const uint8_t *at) {
    uint64_t v = 0;
    for (int i = 0; i < 8; i++) v |= (uint64_t)at[i] << (8 * i);
    return v;
}

void wire_write(void *out, const wire_header *h) {
    uint8_t *o = out;
    memcpy(o, magic, sizeof magic);
    o[4] = h->kind;
    o[5] = h->dtype;
    o[6] = h->want;
    o[7] = WIRE_HEADER_BYTES / 8;
    put_u32(o + 8, h->flags);
    put_u32(o + 12, (uint32_t)h->status);
    put_u64(o + 16, h->session);
    put_u64(o + 24, h->request_id);
    put_u64(o + 32, h->seq);
    put_u64(o + 40, h->pos);
    put_u64(o + 48, (uint64_t)h->t_capture_ns);
    put_u32(o + 56, h->channels);
    put_u32(o + 60, h->steps);
    put_u32(o + 64, h->ttl_us);
    put_u32(o + 68, h->window);
    put_u32(o + 72, h->epoch);
    put_u32(o + 76, h->generation);
    put_u32(o + 80, h->queue_us);
    put_u32(o + 84, h->compute_us);
    put_u64(o + 88, (uint64_t)h->t_answer_ns);
}

static void read_fields(wire_header *h, const uint8_t *b) {
    h->kind = b[4];
    h->dtype = b[5];
    h->want = b[6];
    h->header_words = b[7];
    h->flags = get_u32(b + 8);
    h->status = (int32_t)get_u32(b + 12);
    h->session = get_u64(b + 16);
    h->request_id = get_u64(b + 24);
    h->seq = get_u64(b + 32);
    h->pos = get_u64(b + 40);
    h->t_capture_ns = (int64_t)get_u64(b + 48);
    h->channels = get_u32(b + 56);
    h->steps = get_u32(b + 60);
    h->ttl_us = get_u32(b + 64);
    h->window = get_u32(b + 68);
    h->epoch = get_u32(b + 72);
    h->generation = get_u32(b + 76);
    h->queue_us = get_u32(b + 80);
    h->compute_us = get_u32(b + 84);
    h->t_answer_ns = (int64_t)get_u64(b + 88);
}

int wire_read(wire_header *ret, const void *bytes, size_t len, wire_why *why) {
    const uint8_t *b = bytes;
    memset(ret, 0, sizeof *ret);
    if (len >= 32) { /* enough to address the refusal */
        ret->session = get_u64(b + 16);
        ret->request_id = get_u64(b + 24);
    }
    if (len < WIRE_HEADER_BYTES)
        return why_set(
            why, -EPROTO, "the header part has %zu bytes, a header has at least %d", len, WIRE_HEADER_BYTES);
    if (memcmp(b, magic, sizeof magic))
        return why_set(why, -EPROTO, "the header begins with %02x %02x %02x %02x, not with 4e 43 54 31 (\"NCT1\")",
            b[0], b[1], b[2], b[3]);
    if (b[7] < WIRE_HEADER_BYTES / 8)
        return why_set(why, -EPROTO, "header_words is %u, the least is %d", b[7], WIRE_HEADER_BYTES / 8);
    if (len != (size_t)b[7] * 8)
        return why_set(
            why, -EPROTO, "the header part has %zu bytes, its header_words %u mean %u", len, b[7], b[7] * 8u);
    if (b[4] < WIRE_HELLO || b[4] > WIRE_RESUMED)
        return why_set(why, -EPROTO, "kind is %u, the kinds are %d..%d", b[4], WIRE_HELLO, WIRE_RESUMED);
    read_fields(ret, b);
    return 0;
}

static int flags_check(uint32_t flags, wire_why *why) {
    uint32_t unknown = flags & WIRE_MUST_UNDERSTAND & ~WIRE_UNDERSTOOD;
    if (!unknown) return 0;
    int bit = 16;
    while (!(unknown >> bit & 1)) bit++;
    return why_set(why, -ENOTSUP, "flag %d%s is set (flags 0x%08" PRIx32 "): this version does not know it", bit,
        1u << bit == WIRE_SHM ? " (SHM)" : "", flags);
}

static int size_check(
    const wire_header *h, uint64_t payload_bytes, uint64_t stat_bytes, uint64_t max_frame_bytes, wire_why *why) {
    uint64_t size = wire_dtype_bytes(h->dtype), samples = (uint64_t)h->channels * h->steps;
    /* samples fits 64 bits, samples * 8 may not: compare before multiplying. */
    if (samples > max_frame_bytes / size || samples * size + stat_bytes > max_frame_bytes)
        return why_set(why, -EMSGSIZE,
            "%" PRIu32 " channels x %" PRIu32 " steps of %s are more than max_frame_bytes %" PRIu64, h->channels,
            h->steps, wire_dtype_name(h->dtype), max_frame_bytes);
    if (payload_bytes > max_frame_bytes)
        return why_set(why, -EMSGSIZE, "the payload has %" PRIu64 " bytes, max_frame_bytes is %" PRIu64,
            payload_bytes, max_frame_bytes);
    if (payload_bytes != samples * size + stat_bytes)
        return why_set(why, -EINVAL,
            "the payload has %" PRIu64 " bytes; %" PRIu32 " channels x %" PRIu32 " steps of %s%s are %" PRIu64,
            payload_bytes, h->channels, h->steps, wire_dtype_name(h->dtype),
            stat_bytes ? " and the given statistics" : "", samples * size + stat_bytes);
    return 0;
}

int wire_frame_check(
    const wire_header *h, uint64_t payload_bytes, uint32_t n_groups, uint64_t max_frame_bytes, wire_why *why) {
    int error = flags_check(h->flags, why);
    if (error) return error;
    if (!wire_dtype_bytes(h->dtype))
        return why_set(
            why, -EINVAL, "dtype is %u, a frame has 1 f32, 2 f16, 3 bf16, 4 i16, 5 i32 or 6 f64", h->dtype);
    if (h->want > 3) return why_set(why, -EINVAL, "want is %u, results come as 0 or 1 f32, 2 f16, 3 bf16", h->want);
    if ((h->flags & WIRE_OBSERVE) && (h->flags & WIRE_GIVEN))
        return why_set(why, -EINVAL, "OBSERVE and GIVEN are both set: statistics are either taken or given");
    if (h->channels < 1 || h->steps < 1)
        return why_set(why, -EINVAL, "the frame is %" PRIu32 " channels x %" PRIu32 " steps, both must be 1 or more",
            h->channels, h->steps);
    uint64_t stat_bytes = h->flags & WIRE_GIVEN ? (uint64_t)WIRE_STAT_BYTES * n_groups : 0;
    return size_check(h, payload_bytes, stat_bytes, max_frame_bytes, why);
}

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
#define XX(number, name, bytes) [number] = {#name, bytes},
    WIRE_DTYPES(XX)
#undef XX
};
#define N_DTYPES (sizeof dtypes / sizeof dtypes[0])

size_t wire_dtype_bytes(uint8_t dtype) {
    return dtype < N_DTYPES ? dtypes[dtype].bytes : 0;
}

const char *wire_dtype_name(uint8_t dtype) {
    return dtype < N_DTYPES ? dtypes[dtype].name : NULL;
}

int wire_dtype_number(const char *name) {
    for (size_t i = 1; i < N_DTYPES; i++)
        if (!strcmp(name, dtypes[i].name)) return (int)i;
    return -EINVAL;
}

const char *wire_kind_name(uint8_t kind) {
    switch (kind) {
#define XX(number, name, from_client, from_daemon)                                                                   \
    case number: return #name;
        WIRE_KINDS(XX)
#undef XX
    default: return "?";
    }
}

/* Not isalnum(): the locale has no say in the protocol. */
static int is_alnum(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

int wire_name_ok(const char *name, size_t len) {
    if (len < 1 || len > WIRE_NAME_MAX || !is_alnum(name[0])) return 0;
    for (size_t i = 1; i < len; i++)
        if (!is_alnum(name[i]) && name[i] != '.' && name[i] != '_' && name[i] != '-') return 0;
    return 1;
}

int wire_topic_read(const void *topic, size_t len, char ret_model[WIRE_NAME_MAX + 1],
    char ret_stream[WIRE_NAME_MAX + 1], wire_why *why) {
    const char *t = topic;
    const char *slash = len ? memchr(t, '/', len) : NULL;
    if (!slash || t[len - 1] != '/' || slash == t + len - 1)
        return why_set(why, -EINVAL, "a topic of %zu bytes is not \"model/stream/\"", len);
    size_t model_len = (size_t)(slash - t), stream_len = len - model_len - 2;
    const char *bad = !wire_name_ok(t, model_len) ? "model" : !wire_name_ok(slash + 1, stream_len) ? "stream" : NULL;
    if (bad)
        return why_set(why, -EINVAL,
            "the topic's %s name (%zu bytes) is not 1..%d of A-Z a-z 0-9 . _ - beginning with a letter or "
            "digit",
            bad, *bad == 'm' ? model_len : stream_len, WIRE_NAME_MAX);
    memcpy(ret_model, t, model_len);
    ret_model[model_len] = 0;
    memcpy(ret_stream, slash + 1, stream_len);
    ret_stream[stream_len] = 0;
    return 0;
}

size_t wire_topic_write(char *out, const char *model, const char *stream) {
    return (size_t)snprintf(out, WIRE_TOPIC_MAX + 1, "%.*s/%.*s/", WIRE_NAME_MAX, model, WIRE_NAME_MAX, stream);
}
