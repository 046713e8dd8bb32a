/* auth.h: the allow-list: which CURVE keys may connect, and what each may do.
 *
 * Read from the certificates (keyfile.h) in a folder (every NAME.key of it) or from one file. Metadata of a certificate:
 *     rights = "send subscribe"    either or both; not there: both
 *     topics = "default/mic-?"     fnmatch patterns MODEL/STREAM, by blanks; not there: every stream
 * Immutable once read; pure: no socket, no logging. Any thread. */
#ifndef NCTD_AUTH_H
#define NCTD_AUTH_H
#include <stdbool.h>
#include <stddef.h>
#include "keyfile.h"

typedef struct auth_key {
    char key[KEY_TEXT + 1], name[65];
    bool send, subscribe;
    char *topics; /* NUL between patterns, two at the end; NULL: everything */
} auth_key;

typedef struct auth {
    auth_key *keys; /* by rising key */
    int n;
    keyfile server; /* the daemon's own pair */
} auth;

/* The daemon's pair from secret_path (mode 0600), the list from clients_path. 0; -ENOENT, -EACCES, -EIO, -EPERM, -EINVAL
 * (also for a list without any key: nobody could connect), -ENOMEM, each with a sentence. */
int auth_load(auth **ret, const char *secret_path, const char *clients_path, keyfile_why *why);
void auth_free(auth *a); /* NULL is fine */

const auth_key *auth_find(const auth *a, const char *key); /* NULL: not on the list */
/* topic: "model/stream/". */
bool auth_may_send(const auth_key *k, const char *topic);
/* A subscription's prefix: a whole topic "model/stream/", "model/", or "" for everything; it is allowed when every topic
 * that it can bring is. Any other prefix needs the right to everything. */
bool auth_may_subscribe(const auth_key *k, const void *prefix, size_t len);
bool auth_key_same(const auth_key *a, const auth_key *b); /* the same rights; NULL: no key */
bool auth_same(const auth *a, const auth *b);             /* the same keys and rights; NULL: none */
#endif
