/* keygen.c: `nct keygen NAME`: a CURVE key pair in two files, NAME.key to give away and NAME.key_secret to keep. Asks no
 * daemon. */
#include "cli.h"
#include "keyfile.h"
#include "nct.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const cli_option options_keygen[] = {{"name", 'n', "TEXT", "the last part of NAME", "Stands in the daemon's logs."},
    {"rights", 0, "LIST", "send,subscribe", "What the daemon lets the key do: send, subscribe, or both."},
    {"topics", 0, "LIST", "everything",
        "On which streams: patterns MODEL/STREAM, separated by commas, with * and ?, as default/mic-*."},
    CLI_OPTION_JSON, {0}};

typedef struct {
    const char *base;
    keyfile k;
    int json;
} keygen_options;

/* Commas become blanks: the file separates by blanks. */
static int take_list(const char *what, const char *value, char *to, size_t size) {
    if (!*value || strlen(value) >= size || strpbrk(value, "\"'\n"))
        return cli_usage(
            "--%s is '%s'; it must be 1 to %zu characters without quotes", what, cli_quote(value), size - 1);
    snprintf(to, size, "%s", value);
    for (char *at = to; *at; at++)
        if (*at == ',') *at = ' ';
    return 0;
}

static int take_rights(keyfile *k, const char *value) {
    char copy[sizeof k->rights], *rest = copy, *word;
    int bad = take_list("rights", value, k->rights, sizeof k->rights);
    if (bad) return bad;
    memcpy(copy, k->rights, sizeof copy);
    while ((word = strsep(&rest, " ")) != NULL)
        if (*word && strcmp(word, "send") != 0 && strcmp(word, "subscribe") != 0)
            return cli_usage("--rights is '%s'; the words are send and subscribe", cli_quote(value));
    k->has_rights = true;
    return 0;
}

static int read_options(keygen_options *o, int argc, char **argv) {
    const char *value;
    int row, bad = 0;
    cli_args a;
    *o = (keygen_options){.base = NULL};
    cli_args_init(&a, options_keygen, argc, argv);
    while (!bad && (row = cli_next(&a, &value)) != CLI_END) {
        if (row == CLI_WRONG) return CLI_USAGE;
        if (row == CLI_OPERAND && o->base)
            return cli_usage("keygen takes one NAME; '%s' is another", cli_quote(value));
        if (row == CLI_OPERAND)
            o->base = value;
        else if (row == cli_row(options_keygen, "name"))
            bad = take_list("name", value, o->k.name, sizeof o->k.name);
        else if (row == cli_row(options_keygen, "rights"))
            bad = take_rights(&o->k, value);
        else if (row == cli_row(options_keygen, "topics"))
            bad = take_list("topics", value, o->k.topics, sizeof o->k.topics), o->k.has_topics = true;
        else
            o->json = 1;
    }
    if (bad) return CLI_USAGE;
    if (!o->base || !*o->base || strlen(o->base) > 4000)
        return cli_usage("keygen needs a NAME: the pair goes to NAME.key and NAME.key_secret");
    const char *slash = strrchr(o->base, '/'), *last = slash ? slash + 1 : o->base;
    if (!*last) return cli_usage("'%s' is a folder; name the files in it", cli_quote(o->base));
    if (!o->k.name[0]) snprintf(o->k.name, sizeof o->k.name, "%.64s", last);
    return strpbrk(o->k.name, "\"'\n") ? cli_usage("--name: without quotes, please") : CLI_OK;
}

static int write_pair(const keygen_options *o, const char *public_path, const char *secret_path) {
    keyfile_why why;
    int r = keyfile_write(&o->k, secret_path, true, &why);
    if (!r && (r = keyfile_write(&o->k, public_path, false, &why)) != 0) unlink(secret_path);
    if (r) cli_say("%s", why.text);
    return r ? CLI_FAILED : CLI_OK;
}

int cmd_keygen(int argc, char **argv) {
    keygen_options o;
    char public_path[4096], secret_path[4096];
    int code = read_options(&o, argc, argv);
    if (code) return code;
    if (nct_keys_make(o.k.public_key, o.k.secret_key)) {
        cli_say("no keys: the ZeroMQ on this machine was built without CURVE");
        return CLI_FAILED;
    }
    snprintf(public_path, sizeof public_path, "%s.key", o.base);
    snprintf(secret_path, sizeof secret_path, "%s.key_secret", o.base);
    code = write_pair(&o, public_path, secret_path);
    explicit_bzero(o.k.secret_key, sizeof o.k.secret_key);
    if (code) return code;
    if (o.json) { /* Z85 has no character that JSON escapes; the names may */
        printf("{\"public_key\":\"%s\"}\n", o.k.public_key);
        return CLI_OK;
    }
    printf("%s\n", o.k.public_key);
    cli_say("%s is the public key, to be given to the other side (a daemon: into its auth.client_keys; a client:"
            " --server-key)",
        cli_quote(public_path));
    cli_say("%s holds the secret key and stays here (a daemon: auth.secret_key_file; a client: --key)",
        cli_quote(secret_path));
    return CLI_OK;
}
