/* names.c: see names.h. The key is written once at start and read on the loop thread. */
#include "names.h"
#include <errno.h>
#include <sodium.h>
#include <string.h>

static unsigned char key[crypto_shorthash_siphashx24_KEYBYTES];

int names_init(void) {
    if (sodium_init() < 0) return -EIO;
    randombytes_buf(key, sizeof key);
    return 0;
}

name_key name_hash(const void *text, size_t len) {
    unsigned char h[crypto_shorthash_siphashx24_BYTES];
    name_key k;
    crypto_shorthash_siphashx24(h, text, len, key);
    memcpy(&k, h, sizeof k);
    return k;
}
