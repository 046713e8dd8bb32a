/* keyfile.h: CURVE keys in files, in the form that czmq's and pyzmq's certificates have (ZPL):
 *
 *     metadata                          # optional; nctd reads it in the files of its allow-list (nctd.conf(5), [auth])
 *         name = "lab-3"
 *         rights = "send subscribe"
 *         topics = "default/mic-* eeg/?"
 *     curve
 *         public-key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
 *         secret-key = "..."            # in the owner's file alone, mode 0600
 *
 * Read by nctd, libnct and nct; written by `nct keygen`. Knows no ZeroMQ. Any thread; no state. */
#ifndef NCT_KEYFILE_H
#define NCT_KEYFILE_H
#include <stdbool.h>

#define KEY_TEXT 40 /* characters of a key in Z85 */

typedef struct {
    char public_key[KEY_TEXT + 1], secret_key[KEY_TEXT + 1]; /* "": the file holds none */
    char name[65], rights[65], topics[1025];                 /* metadata, as written; "": not there */
    bool has_rights, has_topics;                             /* so that an empty value is not taken for none */
} keyfile;

typedef struct {
    char text[512];
} keyfile_why;

bool key_ok(const char *text); /* 40 characters of Z85 */
/* A sentence into *why (NULL: nowhere), then returns `error`. */
int keyfile_fail(keyfile_why *why, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* secret: the file must hold a secret key, and nobody but its owner may read it. 0; -ENOENT, -EACCES, -EIO (the file);
 * -EPERM (its mode is too open); -EINVAL (what is in it), each with a sentence that names the file and what to do. */
int keyfile_read(keyfile *ret, const char *path, bool secret, keyfile_why *why);
/* Makes the file, never over another one; without the secret key unless `secret` (then mode 0600, else 0644). 0, -EEXIST
 * or the system's error, with a sentence. */
int keyfile_write(const keyfile *k, const char *path, bool secret, keyfile_why *why);
#endif
