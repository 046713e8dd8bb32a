/* zsock_keys.c: what libzmq knows of CURVE keys: new pairs, and which public key a secret one has. Called by nct.c,
 * keygen and the links, on any thread; no state. */
#include <errno.h>
#include <string.h>
#include <zmq.h>
#include "zsock_link.h"

int zlink_keypair(char ret_public[41], char ret_secret[41]) {
    char public_key[41], secret_key[41];
    if (zmq_curve_keypair(public_key, secret_key)) return -ENOTSUP;
    memcpy(ret_public, public_key, sizeof public_key);
    memcpy(ret_secret, secret_key, sizeof secret_key);
    return 0;
}

int zlink_keys_fit(const char public_key[41], const char secret_key[41]) {
    char derived[41];
    if (zmq_curve_public(derived, secret_key)) return errno == ENOTSUP ? -ENOTSUP : -EINVAL;
    return strcmp(derived, public_key) ? -EINVAL : 0;
}
