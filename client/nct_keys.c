/* nct_keys.c: the public calls for CURVE keys. Any thread; no state. */
#include <stdio.h>
#include <string.h>
#include "keyfile.h"
#include "nct.h"
#include "zsock_link.h"

int nct_keys_make(char ret_public[41], char ret_secret[41]) {
    return zlink_keypair(ret_public, ret_secret);
}

int nct_keys_read(const char *path, char ret_public[41], char ret_secret[41], char ret_reason[512]) {
    keyfile k;
    keyfile_why why = {""};
    int error = keyfile_read(&k, path, ret_secret != NULL, &why);
    if (error) {
        if (ret_reason) snprintf(ret_reason, 512, "%s", why.text);
        return error;
    }
    memcpy(ret_public, k.public_key, sizeof k.public_key);
    if (ret_secret) memcpy(ret_secret, k.secret_key, sizeof k.secret_key);
    explicit_bzero(&k, sizeof k);
    return 0;
}
