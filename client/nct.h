/* nct.h: libnct, the C client of nctd. Link with `pkg-config --cflags --libs nct`.
 *
 *     nct *c;
 *     int r = nct_open(&c, "ipc:///run/nctd/ingest.sock", NULL);
 *     if (r < 0) return fprintf(stderr, "%s\n", nct_strerror(r)), 1;
 *     nct_request q = {.model = "default", .stream = "mic", .dtype = NCT_DTYPE_F32, .channels = 2, .steps = 480};
 *     nct_answer a;
 *     r = nct_call(c, &q, samples, 1000, &a); // samples: (2, 480) row-major f32
 *     if (!r && !a.status) use(a.payload, a.channels, a.steps);
 *     else fprintf(stderr, "%s\n", r ? nct_reason(c) : a.text);
 *     if (!r) nct_release(&a);
 *     nct_close(c);
 *
 * Words. A frame is one (C, T) block of samples, row-major, channel after channel (or (T, C) with
 * INTERLEAVED); a step is one time index. A stream is the ordered frames under one "model/stream" name. A
 * session is one connection to the daemon after its HELLO. Every frame sent gets exactly one answer: a
 * result, or an error with one English sentence.
 *
 * Errors. Every int function returns 0 (an fd, where it says so) or a negative errno. A negative return
 * concerns the call; nct_reason() then holds a sentence. What the daemon says of one frame stands in
 * nct_answer.status and .text: errors are answers.
 *
 * Window. The daemon says in every answer how many frames to keep in flight. nct_send() keeps it: at the
 * window it waits, or returns -EAGAIN, as `nonblock` says. The library never queues more than the window for
 * sending, and never more than NCT_READY_MAX answers that were read while nct_send() waited and that nobody
 * took yet (then -EAGAIN: take some with nct_recv()). Payloads are copied once, at nct_send(); the caller's
 * buffer is free when it returns.
 *
 * When the connection is cut, or the daemon restarts or falls silent while an answer is due (`ping_ms`, then
 * one more `ping_ms` for the PONG), the library makes a new connection and says HELLO again, naming the
 * previous session. Frames of frame-mode models that have no answer yet are sent again (unless `on_cut` is
 * NCT_DROP), each answer is handed out once, and an answer that comes for a frame already answered or
 * forgotten is dropped. Stream-mode frames are never sent again: each of them is answered -ESTALE locally,
 * with `last_seq` the last seq of the stream that was answered; the stream takes frames again after
 * nct_stream_open() or with NCT_FLAG_GAP set. All this happens inside nct_send(), nct_recv() and the other calls:
 * the library has no thread of its own.
 *
 * Frames refused because the daemon shuts down, or because it never saw this session (-ESHUTDOWN, -ESTALE),
 * are kept like unanswered ones and sent to the next daemon; all other refusals are handed out.
 *
 * Threads. A handle and its answers may be used by one thread at a time; handing it to another thread needs a
 * memory fence (a mutex does). Different handles are independent. nct_strerror(), nct_version() and
 * nct_release() may be called from any thread.
 *
 * fork(). A handle belongs to the process that opened it. In a child every call returns -EINVAL (nct_reason()
 * says why) and nct_close() frees the child's memory without touching the parent's connection. Open a new
 * handle there. Sockets are close-on-exec.
 *
 * Signals. A wait interrupted by a signal handler returns -EINTR; nothing is lost, call again.
 */
#ifndef NCT_H
#define NCT_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
    #define NCT_API __attribute__((visibility("default")))
#else
    #define NCT_API
#endif

typedef struct nct nct;         /* one session with a daemon */
typedef struct nct_sub nct_sub; /* one subscription to a daemon's published results */

/* dtypes of payloads. i16 counts as x/2^15, i32 as x/2^31. Results are f32, f16 or bf16; statistics are f64. */
#define NCT_DTYPE_NONE 0 /* no samples: empty or text */
#define NCT_DTYPE_F32  1
#define NCT_DTYPE_F16  2
#define NCT_DTYPE_BF16 3
#define NCT_DTYPE_I16  4
#define NCT_DTYPE_I32  5
#define NCT_DTYPE_F64  6

/* Flags of a request. */
#define NCT_FLAG_NO_REPLY    (1u << 0)  /* the answer comes without its payload; subscribers get it whole */
#define NCT_FLAG_INTERLEAVED (1u << 16) /* payload is (T, C); results are always (C_out, T_out) */
#define NCT_FLAG_NO_PUBLISH  (1u << 17) /* not to subscribers */
#define NCT_FLAG_GAP         (1u << 18) /* stream mode: state restarts at this frame */
#define NCT_FLAG_INNER_LEFT  (1u << 19) /* a piece: no padding of the layer on this side */
#define NCT_FLAG_INNER_RIGHT (1u << 20)
#define NCT_FLAG_OBSERVE     (1u << 21) /* answer: G x {count, mean, M2} f64; channels = G, steps = 3 */
/* GIVEN (bit 22) is set by the library when request.given is there. */

/* Flags of an answer. */
#define NCT_FLAG_RESENT       (1u << 1)
#define NCT_FLAG_GAP_SEEN     (1u << 2) /* seqs are missing before this one */
#define NCT_FLAG_CPU_FALLBACK (1u << 3) /* computed on the CPU after a GPU fault */
#define NCT_FLAG_LAST         (1u << 4) /* the rest of a stream after nct_stream_close() */

#define NCT_READY_MAX 64 /* answers read ahead of the caller, at most */

/* What to do with unanswered frames of frame-mode models after a cut. */
#define NCT_RESEND 0 /* send them again in the new session (a copy of each is kept until its answer) */
#define NCT_DROP   1 /* answer them -ESTALE locally */

typedef struct {
    /* 5000. nct_open(): all of connecting, HELLO and WELCOME. Blocking nct_send(), nct_stream_open() and
     * nct_stream_close(): the longest wait. 1..86400000 */
    int timeout_ms;
    int ping_ms;       /* 2000. Silence while waiting before a PING, and again until giving up. 10..3600000 */
    int linger_ms;     /* 1000. nct_close(): longest wait for bytes not written yet. 0..60000 */
    int nonblock;      /* 0. 1: nct_send() returns -EAGAIN where it would wait */
    int on_cut;        /* NCT_RESEND */
    int max_in_flight; /* 0: the daemon's window alone. Else also never more than this. 0..64 */
    const char *name;  /* NULL. For the daemon's logs: up to 64 printable ASCII characters, no " or \; borrowed */
    /* CURVE, all three or none: Z85 keys of 40 characters, borrowed in nct_open(). */
    const char *server_key, *public_key, *secret_key;
    uintptr_t reserved[8]; /* 0 */
} nct_options;

/* The defaults above. Any thread. */
NCT_API void nct_options_init(nct_options *ret);

/* A frame to send. Zero-initialise; every field's 0 means "none" or what it says. */
typedef struct {
    const char *model;  /* names: 1..64 of A-Z a-z 0-9 . _ - beginning with a letter or digit; borrowed in the call */
    const char *stream; /* the same */
    uint8_t dtype;      /* of the payload: NCT_DTYPE_F32 .. F64 */
    uint8_t want;       /* dtype of the result: 0 = f32, NCT_DTYPE_F32, _F16, _BF16 */
    uint32_t flags;     /* NCT_FLAG_* of a request */
    uint32_t channels;  /* C_in, as the model's */
    uint32_t steps;     /* T >= 1 */
    uint32_t ttl_us;    /* 0 = none. From the daemon's reading; a frame that waits longer is answered -ETIME */
    uint32_t epoch;     /* 0 = the stream's current one; else must match it. Such a frame ends with its session: a
                            * cut answers it -ESTALE */
    uint64_t seq;       /* frame mode: free, but subscribers get rising ones only; stream mode: the last one + 1 */
    uint64_t pos;       /* first step on the stream's axis; 0 = unknown or the start */
    int64_t t_capture_ns;  /* Unix time of the first step; 0 = unknown */
    const double *given;   /* NULL, or n_groups x {count, mean, M2} to normalise with; borrowed in the call */
    uint32_t n_groups;     /* of `given`; the model's num_groups */
    uint64_t tag;          /* the caller's own, handed back in the answer; not sent */
    uintptr_t reserved[4]; /* 0 */
} nct_request;

/* What an answer is. */
#define NCT_RESULT 6
#define NCT_ERROR  7
#define NCT_CLOSED 9 /* unasked: the daemon ended the stream (status, text say why); request_id 0 */

typedef struct {
    int kind;             /* NCT_RESULT, NCT_ERROR, NCT_CLOSED */
    int status;           /* 0, or a negative errno: the daemon's word, or -ESTALE made here after a cut */
    uint64_t request_id;  /* what nct_send() returned; 0 from nct_sub_recv() and with NCT_CLOSED */
    uint64_t tag;         /* the request's */
    uint8_t dtype;        /* of the payload; NCT_DTYPE_NONE: no samples */
    uint32_t flags;       /* NCT_FLAG_* of an answer */
    uint32_t channels;    /* C_out (OBSERVE: G) */
    uint32_t steps;       /* T_out, 0 is legal (OBSERVE: 3) */
    uint64_t seq;         /* the request's; with -EILSEQ the one the daemon expects */
    uint64_t last_seq;    /* stream mode, errors: last seq of the stream that was answered with a result (0: none) */
    uint64_t missed;      /* nct_sub_recv(): seqs of this stream's epoch missing right before this one */
    uint64_t pos;         /* first output step on the output axis */
    int64_t t_capture_ns; /* the request's */
    int64_t t_answer_ns;  /* daemon's Unix time at publishing */
    uint32_t epoch;       /* of the stream */
    uint32_t generation;  /* of the model that computed */
    uint32_t queue_us;    /* admission to launch */
    uint32_t compute_us;  /* launch to copy-out done */
    uint32_t window;      /* frames to keep in flight from now on */
    /* (channels, steps) row-major of dtype; NULL when empty. At ANY alignment: memcpy before typed loads. Borrowed until
     * nct_release() */
    const void *payload;
    size_t payload_bytes;
    const char *text;   /* the sentence of an error, NUL-terminated; "" with a result. Until nct_release() */
    const char *model;  /* of the topic; "" when the answer belongs to no stream. Until nct_release() */
    const char *stream; /* the same */
    void *owner;        /* the library's */
} nct_answer;

/* ---- a session ---- */

/* Connect to tcp://HOST:PORT, ipc://PATH or ipc://@NAME, say HELLO, wait for WELCOME. options NULL: the defaults.
 * 0 and *ret (returned owned: nct_close), or, with *ret untouched:
 *   -EINVAL     an endpoint or option out of its bounds
 *   -ETIMEDOUT  no daemon answered within timeout_ms: nobody listens (also where the system says "connection refused",
 *               for it may come up yet), or it does not become ready
 *   -EACCES     CURVE: the daemon asks for keys, or takes none, or does not admit this public key, or server_key is not
 *               its own; the sentence says which
 *   -EPROTO     the other side does not speak this protocol
 *   -EUSERS, -ESHUTDOWN, ...  the daemon's refusal of HELLO
 *   -ENOTSUP    keys, but a libzmq without CURVE
 *   -EMFILE, -ENOMEM, -EINTR
 * ret_reason (may be NULL): 256 characters for the sentence, as there is no handle to ask. */
NCT_API int nct_open_why(nct **ret, const char *endpoint, const nct_options *options, char ret_reason[256]);
NCT_API int nct_open(nct **ret, const char *endpoint, const nct_options *options);

/* End the session. Bytes not written yet are given up to linger_ms; unanswered frames are left (their answers go
 * nowhere). Answers taken and not released stay valid until nct_release(). NULL is fine. */
NCT_API void nct_close(nct *c);

/* WELCOME's JSON: version, models with their layer parameters and modes, backend, limits, ledger. Valid until the next
 * call on the handle (a new session brings a new one). ret_bytes may be NULL. */
NCT_API const char *nct_welcome(const nct *c, size_t *ret_bytes);
NCT_API uint64_t nct_session(const nct *c);
NCT_API uint32_t nct_window(const nct *c);     /* frames to keep in flight, as of the last answer (>= 1) */
NCT_API uint32_t nct_in_flight(const nct *c);  /* frames sent and not answered, forgotten ones included */
NCT_API uint32_t nct_ready(const nct *c);      /* answers read and not taken yet */
NCT_API uint64_t nct_reconnects(const nct *c); /* sessions after the first one */
/* The sentence of the last call that returned an error. Valid until the next call on the handle; never NULL. */
NCT_API const char *nct_reason(const nct *c);

/* An fd that is readable (level-triggered: poll, select, epoll, an event loop) when nct_recv(c, 0, ...) has something
 * to take or the session needs a turn (answers, timers, a reconnect). Each time it is readable, call
 * nct_recv(c, 0, ...) until it returns -EAGAIN. The fd stays the same over reconnects, belongs to the handle, and must
 * not be read or closed. >= 0, or -EMFILE, -ENOMEM, -EINVAL (a forked child). */
NCT_API int nct_fd(nct *c);

/* ---- frames ---- */

/* Send one frame. payload: channels*steps samples of q->dtype, any alignment, copied. ret_request_id (may be NULL) is
 * the answer's. 0, or, with nothing sent:
 *   -EAGAIN     nonblock: the window is full, or there is no session at the moment. In both modes: NCT_READY_MAX answers
 *               wait to be taken
 *   -ETIMEDOUT  blocking: still no place in the window, or no session, after timeout_ms
 *   -EINVAL     names, dtype, want, flags, channels or steps 0, `given` without n_groups
 *   -ENOTSUP    a flag of bits 16-31 that this version does not know
 *   -EMSGSIZE   channels*steps*size is above the daemon's max_frame_bytes (WELCOME)
 *   -ESTALE     the stream's state was lost in a cut (stream mode); nct_stream_open() or NCT_FLAG_GAP goes on
 *   -ENOMEM, -EINTR */
NCT_API int nct_send(nct *c, const nct_request *q, const void *payload, uint64_t *ret_request_id);

/* The next answer of any stream, in the order of arrival, within timeout_ms (0: only what is there, -1: no limit).
 * 0 and *ret (release it), or
 *   -EAGAIN     timeout_ms 0: nothing is there
 *   -ETIMEDOUT  nothing came; the frames stay in flight (nct_forget() drops one)
 *   -ENOENT     timeout_ms not 0, and nothing is in flight: nothing would come
 *   -EINTR, -EINVAL */
NCT_API int nct_recv(nct *c, int timeout_ms, nct_answer *ret);

/* nct_send() and the wait for its answer in one; answers of other frames stay for nct_recv(). timeout_ms (1..) holds for
 * both. 0 with *ret (look at ret->status, release it), or nct_send()'s errors, or -ETIMEDOUT: then the frame is
 * forgotten, a late answer is dropped, and the next call is not disturbed by it. */
NCT_API int nct_call(nct *c, const nct_request *q, const void *payload, int timeout_ms, nct_answer *ret);

/* The caller does not want this answer any more: dropped when it comes, never sent again. The place in the window comes
 * back with it. 0, or -ENOENT (not in flight, nor waiting to be taken). */
NCT_API int nct_forget(nct *c, uint64_t request_id);

/* Give an answer back. Safe after nct_close(), on a zeroed answer, and twice. Any thread. */
NCT_API void nct_release(nct_answer *a);

/* ---- streams ---- */

/* OPEN with a stream's facts: a JSON object such as {"sample_rate": 48000, "channels": ["l", "r"], "unit": "Pa"}, or
 * NULL. Optional in frame mode. Waits up to options.timeout_ms. The facts are sent again after a reconnect.
 * 0 and ret_epoch (may be NULL), or the daemon's refusal: -ENOENT model, -EBUSY owned by another session, -EINVAL facts,
 * -EUSERS; or -ETIMEDOUT. */
NCT_API int nct_stream_open(nct *c, const char *model, const char *stream, const char *facts, uint32_t *ret_epoch);

/* CLOSE: the daemon answers what is queued, in stream mode with a last result (NCT_FLAG_LAST, for nct_recv(), tag 0),
 * then ends the stream. Waits up to options.timeout_ms for CLOSED. 0, the daemon's refusal, -ESTALE (the connection was
 * cut: the stream has ended, without a last result), or -ETIMEDOUT. */
NCT_API int nct_stream_close(nct *c, const char *model, const char *stream);

/* PING to PONG. ret_ns (may be NULL): the round trip. 0 or -ETIMEDOUT. */
NCT_API int nct_ping(nct *c, int timeout_ms, int64_t *ret_ns);

/* ---- published results ---- */

/* Subscribe at the daemon's publish endpoint. topic: "model/stream" (that one stream: "m/ch1" never brings "m/ch10"),
 * "model/" (all streams of a model) or "" (everything). More topics by nct_sub_add(). Of the options, linger_ms and the
 * CURVE keys are used. Connecting goes on in the background: 0 does not mean that a daemon listens, and results
 * published before the subscription has arrived are not seen. 0 or -EINVAL, -EMFILE, -ENOMEM.
 *
 * A subscriber slower than its results loses some at the daemon, which cannot count them: `missed` shows them by seq.
 * ZMQ_CONFLATE is of no use with this protocol, for messages have three parts. */
NCT_API int nct_sub_open(nct_sub **ret, const char *endpoint, const char *topic, const nct_options *options);
NCT_API int nct_sub_add(nct_sub *s, const char *topic);

/* The next published result. ret->missed counts the seqs between this result and the previous one of the same stream
 * and epoch (a sender whose own seqs have holes shows them too). timeout_ms as in nct_recv(). 0, or -EAGAIN,
 * -ETIMEDOUT, -EINTR, -EPROTO (what came is not this protocol; call again), -EACCES (the CURVE handshake was refused, as in
 * nct_open(); it is not tried again), -EINVAL (a forked child). */
NCT_API int nct_sub_recv(nct_sub *s, int timeout_ms, nct_answer *ret);
NCT_API int nct_sub_fd(nct_sub *s); /* as nct_fd(), for nct_sub_recv(s, 0, ...) */
NCT_API const char *nct_sub_reason(const nct_sub *s);
NCT_API void nct_sub_close(nct_sub *s); /* NULL is fine */

/* ---- CURVE keys ---- */

/* A new pair, as Z85 texts. 0, or -ENOTSUP: a libzmq without CURVE. Any thread. */
NCT_API int nct_keys_make(char ret_public[41], char ret_secret[41]);

/* Keys from a file as `nct keygen` writes it (or czmq, or pyzmq's zmq.auth). ret_secret NULL: the public half is enough;
 * else the file must hold both, and be readable by its owner alone. 0, or, with nothing written but the sentence:
 *   -ENOENT, -EACCES, -EIO  the file
 *   -EPERM      its mode lets others read the secret key, or change it
 *   -EINVAL     it is no such file, or has no secret key
 * ret_reason (may be NULL): 512 characters for the sentence. Any thread. */
NCT_API int nct_keys_read(const char *path, char ret_public[41], char ret_secret[41], char ret_reason[512]);

/* ---- words ---- */

/* A short text for a negative errno of this library. Static. Any thread. */
NCT_API const char *nct_strerror(int error);
/* "EAGAIN" for -EAGAIN; "?" for what the library never returns. Static. Any thread. */
NCT_API const char *nct_errname(int error);
/* The library's version, "0.1.0". Static. Any thread. */
NCT_API const char *nct_version(void);

#ifdef __cplusplus
}
#endif
#endif
