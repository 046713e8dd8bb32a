/* help.c: everything nct says about itself, generated from the tables of subcommands and options, so that
 * help, completion and the man page cannot drift from what the parser takes. Called by main.c and by the
 * option parser. */
#include "help.h"
#include "nct.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const cli_command *table;

void help_init(const cli_command *commands) {
    table = commands;
}

static const cli_command *find(const char *name) {
    for (const cli_command *c = table; c->name; c++)
        if (!strcmp(name, c->name)) return c;
    return NULL;
}

void help_overview(FILE *to) {
    fprintf(to, "nct %s: Conv1d + GroupNorm over sound files and streams, by the daemon nctd.\n\n", nct_version());
    fprintf(to, "  nct COMMAND [OPTION...] ...\n\n");
    for (const cli_command *c = table; c->name; c++) fprintf(to, "  %-10s %s\n", c->name, c->help);
    fprintf(to, "  %-10s %s\n", "help", "This page, or `nct help COMMAND`.");
    fprintf(to, "  %-10s %s\n", "version", "The version.");
    fprintf(to, "  %-10s %s\n\n", "completion", "A completion script for bash, on stdout.");
    fprintf(to, "Exit codes:\n");
#define XX(name, number, text) fprintf(to, "  %-3d %s\n", number, text);
    CLI_EXITS(XX)
#undef XX
}

static void option_line(FILE *to, const cli_option *o) {
    char left[96];
    const char *dash = o->letter ? "-" : " ";
    char letter[2] = {o->letter ? o->letter : ' ', 0};
    snprintf(left, sizeof left, "  %s%s%s --%s%s%s", dash, letter, o->letter ? "," : " ", o->name, o->arg ? " " : "",
        o->arg ? o->arg : "");
    if (strlen(left) > 30)
        fprintf(to, "%s\n%-31s", left, "");
    else
        fprintf(to, "%-31s", left);
    fprintf(to, "%s", o->help);
    if (o->standard) fprintf(to, " [%s]", o->standard);
    fprintf(to, "\n");
}

static void help_command(FILE *to, const cli_command *c) {
    fprintf(to, "nct %s [OPTION...]%s%s\n\n%s\n\n", c->name, *c->operands ? " " : "", c->operands, c->help);
    for (const cli_option *o = c->options; o->name; o++) option_line(to, o);
    fprintf(to, "      --help                   This page.\n\nExit codes:\n");
#define XX(name, number, text) fprintf(to, "  %-3d %s\n", number, text);
    CLI_EXITS(XX)
#undef XX
}

void cli_help(const char *command) {
    const cli_command *c = command ? find(command) : NULL;
    if (c)
        help_command(stdout, c);
    else
        help_overview(stdout);
}

/* Levenshtein's distance, two rows. Words longer than 63 are never near. */
static int distance(const char *a, const char *b) {
    size_t la = strlen(a), lb = strlen(b);
    if (la > 63 || lb > 63) return 64;
    int row[64], next[64];
    for (size_t j = 0; j <= lb; j++) row[j] = (int)j;
    for (size_t i = 1; i <= la; i++) {
        next[0] = (int)i;
        for (size_t j = 1; j <= lb; j++) {
            int swap = row[j - 1] + (a[i - 1] != b[j - 1]);
            int drop = row[j] + 1, add = next[j - 1] + 1;
            next[j] = swap < drop ? (swap < add ? swap : add) : (drop < add ? drop : add);
        }
        memcpy(row, next, sizeof row);
    }
    return row[lb];
}

const char *help_nearest(const char *word, const char *const *words, int n) {
    const char *best = NULL;
    int least = 3;
    for (int i = 0; i < n; i++) {
        size_t len = strlen(word);
        int d = len > 2 && !strncmp(word, words[i], len) ? 1 : distance(word, words[i]);
        if (d < least) {
            least = d;
            best = words[i];
        }
    }
    return best;
}

static void synopsis(FILE *to) {
    for (const cli_command *c = table; c->name; c++) {
        fprintf(to, "nct %s", c->name);
        for (const cli_option *o = c->options; o->name; o++) {
            fprintf(to, " [");
            if (o->letter) fprintf(to, "-%c|", o->letter);
            fprintf(to, "--%s%s%s]", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
        }
        fprintf(to, "%s%s\n", *c->operands ? " " : "", c->operands);
    }
}

static void completion(FILE *to) {
    fprintf(to, "_nct() {\n    local cur=${COMP_WORDS[COMP_CWORD]} words=\n    case ${COMP_WORDS[1]} in\n");
    for (const cli_command *c = table; c->name; c++) {
        fprintf(to, "    %s) words=\"--help", c->name);
        for (const cli_option *o = c->options; o->name; o++) fprintf(to, " --%s", o->name);
        fprintf(to, "\" ;;\n");
    }
    fprintf(to, "    esac\n    if [ \"$COMP_CWORD\" = 1 ]; then\n        words=\"help version completion");
    for (const cli_command *c = table; c->name; c++) fprintf(to, " %s", c->name);
    fprintf(to, "\"\n    elif [ \"${cur#-}\" = \"$cur\" ]; then\n        COMPREPLY=($(compgen -f -- \"$cur\"))\n"
                "        return\n    fi\n    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\n"
                "complete -o filenames -F _nct nct\n");
}

static int unknown(const char *word) {
    const char *words[32];
    int n = 0;
    for (const cli_command *c = table; c->name && n < 32; c++) words[n++] = c->name;
    const char *near = help_nearest(word, words, n);
    if (near) return cli_usage("there is no command '%s'; did you mean '%s'?", cli_quote(word), near);
    return cli_usage("there is no command '%s'; `nct help` lists them", cli_quote(word));
}

int help_word(int argc, char **argv) {
    const char *word = argv[0], *next = argc > 1 ? argv[1] : NULL;
    if (!strcmp(word, "help") || !strcmp(word, "--help") || !strcmp(word, "-h")) {
        if (next && !find(next)) return unknown(next);
        cli_help(next);
    } else if (!strcmp(word, "version") || !strcmp(word, "--version")) {
        printf("nct %s\n", nct_version());
    } else if (!strcmp(word, "completion")) {
        if (next && strcmp(next, "bash") != 0)
            return cli_usage("completion is there for bash, not for '%s'", cli_quote(next));
        completion(stdout);
    } else if (!strcmp(word, "synopsis")) {
        synopsis(stdout);
    } else if (!strcmp(word, "man")) {
        help_man(stdout, table);
    } else {
        return unknown(word);
    }
    return CLI_OK;
}

int help_flush(int code) {
    int now = fflush(stdout) ? errno : 0;
    if (!now && !ferror(stdout)) return code;
    cli_say("writing to stdout failed%s%s", now ? ": " : "", now ? strerror(now) : "");
    return code ? code : CLI_FAILED;
}
