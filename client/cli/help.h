/* help.h: texts made from the tables of subcommands and options: help, completion, man synopsis. Internal to
 * nct. */
#ifndef NCT_CLI_HELP_H
#define NCT_CLI_HELP_H
#include "cli.h"
#include <stdio.h>

typedef struct {
    const char *name, *operands, *help;
    const cli_option *options;
    int (*run)(int argc, char **argv);
} cli_command;

void help_init(const cli_command *commands); /* borrowed for the life of the process */
void help_overview(FILE *to);
/* The sections SYNOPSIS, COMMANDS and EXIT STATUS of nct(1), as roff. */
void help_man(FILE *to, const cli_command *commands);
/* `help [COMMAND]`, `--help`, `--version`, `completion bash`, `synopsis`, `man`; anything else is a usage error that
 * names the nearest command. Returns an exit code. */
int help_word(int argc, char **argv);
/* The nearest of `n` words, or NULL when none is near. */
const char *help_nearest(const char *word, const char *const *words, int n);
/* Flush stdout: a write that failed (a full disk) turns an exit code of 0 into 1. */
int help_flush(int code);
#endif
