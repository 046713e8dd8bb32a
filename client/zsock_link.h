/* zsock_link.h: the client's one wall to ZeroMQ: a DEALER or a SUB, its context and monitor. No ZeroMQ type leaves it.
 *
 * A zlink belongs to one thread at a time. Parts may be released on any thread. Errors: 0 or negative errno. */
#ifndef NCT_ZLINK_H
#define NCT_ZLINK_H
#include <stddef.h>
#include <stdint.h>

typedef struct zlink zlink;

/* One message part; released with zlink_part_done. All zero: nothing there. */
typedef struct {
    void *room[8];
    int held;
} zlink_part;

/* What came: `parts` counts all of them, the first three are kept. */
typedef struct {
    zlink_part part[3];
    int parts;
} zlink_message;

typedef enum { ZLINK_DEALER, ZLINK_SUB } zlink_type;

#define ZLINK_IN  1
#define ZLINK_OUT 2

/* Why no handshake succeeds. */
typedef enum {
    ZLINK_NO_CAUSE,
    ZLINK_KEY_UNKNOWN,   /* the daemon does not admit our public key */
    ZLINK_WANTS_KEYS,    /* it speaks CURVE, we do not */
    ZLINK_TAKES_NO_KEYS, /* the other way round */
    ZLINK_HANGS_UP,      /* it says nothing: with keys, the server key is another's; without, it may ask for them */
    ZLINK_NOT_ZMTP
} zlink_cause;

/* What the monitor saw of the present socket since the last question. */
typedef struct {
    int connected; /* a handshake was completed, ever */
    int cut;       /* the connection was lost after that */
    int refused;   /* 0, -EACCES or -EPROTO: the last handshake that failed */
    zlink_cause cause;
} zlink_news;

/* Everything is borrowed. Keys: all three or none, the last two a pair. -EINVAL: endpoint or keys; -EMFILE; -ENOMEM; -ENOTSUP: no CURVE in
 * this libzmq. Nothing is connected yet: zlink_renew does. */
int zlink_new(zlink **ret, zlink_type type, const char *endpoint, const char *const keys[3]);
/* Drop the socket there is, unsent bytes with it, and connect a new one. Connecting goes on in the background. */
int zlink_renew(zlink *l);
/* Close and wait until what was sent is written, linger_ms at most. NULL is fine. */
void zlink_free(zlink *l, int linger_ms);
/* In a forked child: free the memory, leave the parent's sockets and threads alone. */
void zlink_abandon(zlink *l);
int zlink_subscribe(zlink *l, const void *prefix, size_t len);

/* Send topic, header, payload without waiting. `payload` (may be NULL: empty) is shared, not taken. 0, or -EAGAIN: no
 * connection (ZMQ_IMMEDIATE). 0 is also the answer when the connection died in the middle of the message. */
int zlink_send(
    zlink *l, const void *topic, size_t topic_len, const void *header, size_t header_len, zlink_part *payload);
/* The next message without waiting: 0 and *ret owned (zlink_message_done), or -EAGAIN. */
int zlink_recv(zlink *l, zlink_message *ret);
/* Wait for a message, a piece of news, or with want_out for a writable connection; timeout_ms -1: no limit. 0 or
 * -EINTR. */
int zlink_wait(zlink *l, int timeout_ms, int want_out);
/* ZLINK_IN | ZLINK_OUT as they are now; also clears the edges of zlink_fds. */
int zlink_events(zlink *l);
zlink_news zlink_ask(zlink *l);
/* The sentence for news.cause, with the endpoint and the key at fault. */
void zlink_refusal(const zlink *l, char *out, size_t size);
/* Edge-like fds (readable: ask zlink_events) of the present socket and of its monitor. They change with zlink_renew. */
void zlink_fds(zlink *l, int ret_fds[2]);

/* ---- CURVE keys, Z85 texts of 40 characters (zsock_keys.c) ---- */
int zlink_keypair(char ret_public[41], char ret_secret[41]); /* 0, or -ENOTSUP: no CURVE in this libzmq */
/* 0 when the public key is the secret one's; -EINVAL when not, or when one is no key; -ENOTSUP. */
int zlink_keys_fit(const char public_key[41], const char secret_key[41]);

int zlink_part_init(zlink_part *ret, size_t bytes); /* 0 or -ENOMEM; contents undefined */
void *zlink_part_data(zlink_part *p);
size_t zlink_part_bytes(zlink_part *p);
void zlink_part_move(zlink_part *to, zlink_part *from); /* `to` must be empty */
void zlink_part_done(zlink_part *p);                    /* fine on an empty one */
void zlink_message_done(zlink_message *m);
#endif
