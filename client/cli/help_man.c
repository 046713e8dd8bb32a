/* help_man.c: the tables of subcommands, options and exit codes as roff, for nct(1). Called by help.c for the word
 * `man`; conf/manual.py puts the sections into the page. The page's other words stand in client/nct.1.in. */
#include "help.h"

/* roff: a backslash and a leading dot or quote would be read as requests, a hyphen as a break. */
static void text(FILE *to, const char *s) {
    if (*s == '.' || *s == '\'') fputs("\\&", to);
    for (; *s; s++) {
        if (*s == '\\')
            fputs("\\e", to);
        else if (*s == '-')
            fputs("\\-", to);
        else
            fputc(*s, to);
    }
}

static void synopsis(FILE *to, const cli_command *c) {
    fprintf(to, ".B nct %s\n.RI [ OPTION ...]\n", c->name);
    if (*c->operands) {
        text(to, c->operands);
        fputs("\n", to);
    }
    fputs(".br\n", to);
}

static void option(FILE *to, const cli_option *o) {
    fputs(".TP\n.BR ", to);
    if (o->letter) fprintf(to, "\\-%c \", \" ", o->letter);
    fputs("\\-\\-", to);
    text(to, o->name);
    if (o->arg) {
        fputs(" \" \\fI", to);
        text(to, o->arg);
        fputs("\\fR\"", to);
    }
    fputs("\n", to);
    text(to, o->help);
    if (o->standard) {
        fputs("\nDefault: ", to);
        text(to, o->standard);
        fputs(".", to);
    }
    fputs("\n", to);
}

void help_man(FILE *to, const cli_command *commands) {
    fputs(".SH SYNOPSIS\n", to);
    for (const cli_command *c = commands; c->name; c++) synopsis(to, c);
    fputs(".B nct help\n.RI [ COMMAND ]\n.br\n.B nct version\n.br\n.B nct completion bash\n.SH COMMANDS\n", to);
    for (const cli_command *c = commands; c->name; c++) {
        fprintf(to, ".SS nct %s ", c->name);
        text(to, c->operands);
        fputs("\n", to);
        text(to, c->help);
        fputs("\n", to);
        for (const cli_option *o = c->options; o->name; o++) option(to, o);
    }
    fputs(".SH EXIT STATUS\n", to);
#define XX(name, number, meaning)                                                                                    \
    fprintf(to, ".TP\n.B %d\n", number);                                                                             \
    text(to, meaning);                                                                                               \
    fputs(".\n", to);
    CLI_EXITS(XX)
#undef XX
}
