/* keys.h: --server-key and --key, which every command that connects has (CLI_OPTION_KEYS). cli_next() takes them, so that no
 * command has to; nct_options get them here. A process reads one command line: its keys are kept in one place. */
#ifndef NCT_CLI_KEYS_H
#define NCT_CLI_KEYS_H
#include <stdbool.h>
#include "nct.h"

bool keys_option(const char *name); /* "server-key" or "key" */
/* 0, or CLI_USAGE after a sentence. A file is read at once. */
int keys_take(const char *name, const char *value);
/* Into o, borrowed for the process's life; without any, o is left alone. 0, or CLI_USAGE after a sentence: one of the two
 * is missing. */
int keys_apply(nct_options *o);
#endif
