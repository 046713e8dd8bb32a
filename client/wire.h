/* wire.h: version 1 of nctd's message format. Linked by the daemon and by libnct; knows no socket.
 *
 *     message  = topic header payload                  ; exactly three ZeroMQ parts, both directions
 *     topic    = "" / model "/" stream "/"             ; the last slash ends the name: "m/ch1/" never matches ch10
 *     model    = name
 *     stream   = name
 *     name     = 1*64( ALPHA / DIGIT / "." / "_" / "-" ) beginning with ALPHA or DIGIT
 *     header   = 96 octets, the table below; a longer one (header_words > 12) is read and its tail skipped
 *     payload  = channels * steps samples of dtype [ G * { count mean M2 : f64 } with GIVEN ] / JSON / sentence / ""
 *
 * Little-endian. struct.pack('<4sBBBBIiQQQQqIIIIIIIIq', ...). A field that a kind does not use is 0.
 *
 *     off size type  name          FRAME (client)                       RESULT / ERROR (daemon)
 *       0    4 bytes magic         "NCT1"                               same
 *       4    1 u8    kind          5                                    6 / 7
 *       5    1 u8    dtype         of the payload, 0 = no samples       same
 *       6    1 u8    want          dtype of the result, 0 = f32         0
 *       7    1 u8    header_words  12                                   same
 *       8    4 u32   flags         bits 0-15 may be ignored, bits 16-31 must be understood
 *      12    4 i32   status        0                                    0, or minus a number of the wire's table
 *      16    8 u64   session       from WELCOME; 0 in HELLO             echoed
 *      24    8 u64   request_id    unique in the session in flight      echoed (0 if unreadable)
 *      32    8 u64   seq           of the stream's epoch                echoed; with EILSEQ the expected one
 *      40    8 u64   pos           first input step, 0 = unknown        first output step on the output axis
 *      48    8 i64   t_capture_ns  Unix time of the first step          echoed
 *      56    4 u32   channels      C_in                                 C_out
 *      60    4 u32   steps         T                                    T_out (0 is legal)
 *      64    4 u32   ttl_us        0 = none; from reading by ingest     0
 *      68    4 u32   window        0                                    frames to have in flight from now on (>= 1)
 *      72    4 u32   epoch         0 = current or open; else must match of the stream
 *      76    4 u32   generation    0                                    of the model that computed
 *      80    4 u32   queue_us      0                                    admission to launch (saturates)
 *      84    4 u32   compute_us    0                                    launch to copy-out done
 *      88    8 i64   t_answer_ns   0                                    daemon's Unix time at publishing
 */
#ifndef NCT_WIRE_H
#define NCT_WIRE_H
#include <stddef.h>
#include <stdint.h>

#define WIRE_VERSION      1
#define WIRE_HEADER_BYTES 96
#define WIRE_NAME_MAX     64
#define WIRE_TOPIC_MAX    (2 * WIRE_NAME_MAX + 2) /* "model/stream/", without the terminating 0 */
#define WIRE_JSON_MAX     65536
#define WIRE_STAT_BYTES   24 /* {count, mean, M2} of one group, f64 each */

/* Kinds: number, name, from client, from daemon. RESUME and RESUMED are kept and refused in version 1. */
#define WIRE_KINDS(XX)                                                                                               \
    XX(1, HELLO, 1, 0)                                                                                               \
    XX(2, WELCOME, 0, 1)                                                                                             \
    XX(3, OPEN, 1, 0)                                                                                                \
    XX(4, OPENED, 0, 1)                                                                                              \
    XX(5, FRAME, 1, 0)                                                                                               \
    XX(6, RESULT, 0, 1)                                                                                              \
    XX(7, ERROR, 0, 1)                                                                                               \
    XX(8, CLOSE, 1, 0)                                                                                               \
    XX(9, CLOSED, 0, 1)                                                                                              \
    XX(10, PING, 1, 0)                                                                                               \
    XX(11, PONG, 0, 1)                                                                                               \
    XX(12, GOAWAY, 0, 1)                                                                                             \
    XX(13, RESUME, 0, 0)                                                                                             \
    XX(14, RESUMED, 0, 0)
typedef enum {
#define XX(number, name, c, d) WIRE_##name = number,
    WIRE_KINDS(XX)
#undef XX
} wire_kind;

/* dtypes: number, name, bytes. The numbers are nct_dtype's (kernels/nct_layer.h). */
#define WIRE_DTYPES(XX) XX(1, f32, 4) XX(2, f16, 2) XX(3, bf16, 2) XX(4, i16, 2) XX(5, i32, 4) XX(6, f64, 8)

#define WIRE_NO_REPLY        (1u << 0) /* the sender's RESULT comes without its payload */
#define WIRE_RESENT          (1u << 1)
#define WIRE_GAP_SEEN        (1u << 2) /* result: seqs are missing before it */
#define WIRE_CPU_FALLBACK    (1u << 3)
#define WIRE_LAST            (1u << 4)  /* result after CLOSE */
#define WIRE_INTERLEAVED     (1u << 16) /* payload is (T, C); results are always (C_out, T_out) */
#define WIRE_NO_PUBLISH      (1u << 17)
#define WIRE_GAP             (1u << 18) /* stream state restarts here */
#define WIRE_INNER_LEFT      (1u << 19) /* no padding of the layer on this side */
#define WIRE_INNER_RIGHT     (1u << 20)
#define WIRE_OBSERVE         (1u << 21) /* result: G x {count, mean, M2} f64, channels = G, steps = 3 */
#define WIRE_GIVEN           (1u << 22) /* payload is followed by G x {count, mean, M2} f64 */
#define WIRE_SHM             (1u << 23) /* kept */
#define WIRE_MUST_UNDERSTAND 0xffff0000u
#define WIRE_UNDERSTOOD                                                                                              \
    (WIRE_INTERLEAVED | WIRE_NO_PUBLISH | WIRE_GAP | WIRE_INNER_LEFT | WIRE_INNER_RIGHT | WIRE_OBSERVE | WIRE_GIVEN)

typedef struct {
    uint8_t kind, dtype, want, header_words;
    uint32_t flags;
    int32_t status;
    uint64_t session, request_id, seq, pos;
    int64_t t_capture_ns;
    uint32_t channels, steps, ttl_us, window, epoch, generation, queue_us, compute_us;
    int64_t t_answer_ns;
} wire_header;

typedef struct {
    char text[256];
} wire_why;

/* Write h as 96 octets at `out` (any alignment); header_words is written as 12 whatever h says. */
void wire_write(void *out, const wire_header *h);
/* Read a header part of `len` bytes at `bytes` (any alignment). 0, or -EPROTO (length, magic, header_words, kind out
 * of 1..14), with a sentence in *why (may be NULL). On failure *ret is all 0 but request_id and session, when the
 * length lets them be read. dtype, want and flags are not judged here: wire_frame_check does. */
int wire_read(wire_header *ret, const void *bytes, size_t len, wire_why *why);
/* What a FRAME says of itself, without a model: dtype, want, flags, channels and steps >= 1, and the payload's size
 * (channels*steps*size in 64 bits, + 24*n_groups with GIVEN) against `payload_bytes`. 0, -EINVAL, -ENOTSUP (flags
 * 16-31, named) or -EMSGSIZE (more than max_frame_bytes); *why names the numbers. n_groups is the model's. */
int wire_frame_check(
    const wire_header *h, uint64_t payload_bytes, uint32_t n_groups, uint64_t max_frame_bytes, wire_why *why);
size_t wire_dtype_bytes(uint8_t dtype);     /* 0: unknown or no samples */
const char *wire_dtype_name(uint8_t dtype); /* "f32" ..., NULL: unknown */
int wire_dtype_number(const char *name);    /* 1..6, or -EINVAL */
const char *wire_kind_name(uint8_t kind);   /* "FRAME" ..., "?" */
/* A name of 1..64 of A-Z a-z 0-9 . _ - that begins with a letter or digit. */
int wire_name_ok(const char *name, size_t len);
/* "model/stream/" -> both names, NUL-terminated. 0, or -EINVAL with a sentence. */
int wire_topic_read(const void *topic, size_t len, char ret_model[WIRE_NAME_MAX + 1],
    char ret_stream[WIRE_NAME_MAX + 1], wire_why *why);
/* Writes "model/stream/" and a 0 into out[WIRE_TOPIC_MAX + 1]; returns its length without the 0. */
size_t wire_topic_write(char *out, const char *model, const char *stream);
#endif
