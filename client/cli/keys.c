/* keys.c: see keys.h. Called by cli.c (while a command line is read) and by the commands that connect. */
#include "keys.h"
#include <stdio.h>
#include <string.h>
#include "cli.h"
#include "keyfile.h"

static char server_key[KEY_TEXT + 1], public_key[KEY_TEXT + 1], secret_key[KEY_TEXT + 1];

bool keys_option(const char *name) {
    return !strcmp(name, "server-key") || !strcmp(name, "key");
}

int keys_take(const char *name, const char *value) {
    char reason[512];
    int error = 0;
    if (!strcmp(name, "key"))
        error = nct_keys_read(value, public_key, secret_key, reason);
    else if (key_ok(value))
        snprintf(server_key, sizeof server_key, "%s", value);
    else
        error = nct_keys_read(value, server_key, NULL, reason);
    if (!error) return 0;
    return cli_usage("--%s: %s", name, reason);
}

int keys_apply(nct_options *o) {
    if (!server_key[0] && !secret_key[0]) return 0;
    if (!server_key[0]) return cli_usage("--key needs --server-key KEY|FILE, the daemon's public key");
    if (!secret_key[0])
        return cli_usage("--server-key needs --key FILE, a key pair of your own; `nct keygen NAME` makes one");
    o->server_key = server_key;
    o->public_key = public_key;
    o->secret_key = secret_key;
    return 0;
}
