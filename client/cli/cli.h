/* cli.h: what nct's subcommands share: the table of subcommands, option tables and their parser, exit codes.
 *
 * A subcommand is one row of CLI_COMMANDS and one file client/cli/NAME.c that defines
 *
 *     const cli_option options_NAME[] = {{...}, {0}};     // makes help, completion and man synopsis
 *     int cmd_NAME(int argc, char **argv);                // argv[0] is NAME; returns an exit code
 *
 * Single-threaded. Everything here writes only to stderr unless it says otherwise. No locale is ever set:
 * numbers are read and written with a dot, file names are bytes. */
#ifndef NCT_CLI_H
#define NCT_CLI_H
#include <stddef.h>
#include <stdint.h>
#include "nct_layer.h"

/* XX(name, operands, one-line help) */
#define CLI_COMMANDS(XX)                                                                                             \
    XX(run, "IN... -o OUT | -O DIR", "Sound files in, result files out.")                                            \
    XX(send, "FILE|-", "Send frames of a file or pipe to a stream of a running daemon.")                             \
    XX(sub, "[MODEL/[STREAM]]", "Show or record results as they are published.")                                     \
    XX(info, "", "What a daemon serves: models, parameters, limits, ledger.")                                        \
    XX(top, "", "What a running daemon does: rates, latency, streams; refreshed, or --once.")                        \
    XX(ping, "", "Time of an answer from a daemon.")                                                                 \
    XX(bench, "", "Open-loop load: latency from the scheduled send, rates, ledger.")                                 \
    XX(model, "new|show|check FILE", "Make, look at and check model files.")                                         \
    XX(keygen, "NAME", "Make a CURVE key pair: NAME.key and NAME.key_secret.")

/* Exit codes: XX(name, number, meaning). The numbers above 2 are those of sysexits.h. */
#define CLI_EXITS(XX)                                                                                                \
    XX(OK, 0, "everything asked for was done")                                                                       \
    XX(FAILED, 1, "some input failed; the others were done")                                                         \
    XX(USAGE, 2, "the command line is wrong; nothing was done")                                                      \
    XX(NO_DAEMON, 69, "no daemon answers, or a private one cannot start")                                            \
    XX(TRY_AGAIN, 75,                                                                                                \
        "the daemon is full or shutting down, or the machine too busy to measure; the same command may work later")  \
    XX(CONFIG, 78, "the model file or its parameters are wrong")
typedef enum {
#define XX(name, number, help) CLI_##name = number,
    CLI_EXITS(XX)
#undef XX
} cli_exit;

typedef struct {
    const char *name;     /* "connect" for --connect; NULL ends the table */
    char letter;          /* 'o' for -o; 0: none */
    const char *arg;      /* metavariable "FILE"; NULL: a switch without a value */
    const char *standard; /* the default with its unit as help shows it ("2000 ms"); NULL: none worth a word */
    const char *help;     /* one sentence */
} cli_option;

#define XX(name, operands, help)                                                                                     \
    extern const cli_option options_##name[];                                                                        \
    int cmd_##name(int argc, char **argv);
CLI_COMMANDS(XX)
#undef XX

/* Rows that several commands have. */
#define CLI_OPTION_CONNECT(standard)                                                                                 \
    { "connect", 'c', "ENDPOINT", standard, "The daemon's ingest endpoint: ipc://PATH or tcp://HOST:PORT." }
#define CLI_OPTION_KEYS                                                                                              \
    {"server-key", 0, "KEY|FILE", NULL, "The daemon's public CURVE key, or its NAME.key file; with --key."}, {       \
        "key", 0, "FILE", NULL, "Your own CURVE key pair, NAME.key_secret of `nct keygen`; with --server-key."       \
    }
#define CLI_OPTION_JSON                                                                                              \
    { "json", 0, NULL, NULL, "Write JSON, one object a line." }
#define CLI_INGEST  "ipc:///run/nctd/ingest.sock"
#define CLI_PUBLISH "ipc:///run/nctd/publish.sock"

/* ---- reading a command line
 * -------------------------------------------------------------------------------- */
#define CLI_END     (-1) /* nothing is left */
#define CLI_OPERAND (-2) /* *ret_value is an operand ("-" too, and everything after "--") */
#define CLI_WRONG   (-3) /* a sentence was written; return CLI_USAGE */
typedef struct {
    const cli_option *options;
    int argc, at, only_operands;
    char **argv;
    const char *letters; /* rest of a cluster such as -rj, or NULL */
} cli_args;
void cli_args_init(cli_args *a, const cli_option *options, int argc, char **argv);
/* The next option's row number in the table (its value, if it takes one, in *ret_value), CLI_OPERAND, CLI_END
 * or CLI_WRONG. --name VALUE, --name=VALUE, -o VALUE, -oVALUE; options and operands in any order. An unknown
 * option is named with its nearest relative. --server-key and --key are taken here (keys.h). `--help` writes the
 * command's help to stdout and exits 0. */
int cli_next(cli_args *a, const char **ret_value);
/* The row number of `name`, for a switch () over rows; asserts that it is there. */
int cli_row(const cli_option *options, const char *name);

/* Whole text -> number within [min, max]; 0, or -EINVAL after a sentence that names `what`, the text and the
 * bounds. */
int cli_u64(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *ret);
int cli_double(const char *what, const char *text, double min, double max, double *ret);
/* "1s", "500ms", "20us" -> seconds; "480" alone or "480steps" -> steps. Exactly one of both is > 0. */
int cli_span(const char *what, const char *text, double *ret_seconds, uint64_t *ret_steps);
/* "a|b|c": 0.. for the word found, or -EINVAL after a sentence that lists the words. */
int cli_word(const char *what, const char *text, const char *words);

/* ---- saying things
 * ----------------------------------------------------------------------------------------- */
/* "nct: ..." and a newline on stderr, below or instead of a progress line. */
void cli_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same, then returns CLI_USAGE. */
int cli_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A sentence into *why (NULL: nowhere), then returns `error`. */
int cli_why(nct_why *why, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* `name` as it may stand in a line: control characters, quotes and backslashes escaped (\n, \x1b), everything
 * else as it is. One of four rotating static buffers of 1 KiB; a longer name ends in "...". */
const char *cli_quote(const char *name);
/* Called by cli_say before a line is written, so that a progress line can make room. */
void cli_set_line_break(void (*fn)(void *ctx), void *ctx);
/* A negative errno of libnct as an exit code: 69 (nobody answers), 75 (try again), 78, else 1. */
int cli_exit_of(int error);

double cli_now_s(void); /* CLOCK_MONOTONIC */
/* Set by SIGINT, SIGTERM and SIGHUP once cli_catch_signals() was called: the signal's number. */
extern volatile int cli_stopped;
void cli_catch_signals(void);
int cli_write_all(int fd, const void *bytes, size_t len); /* 0 or -errno; a short write is gone on with */

void cli_help(const char *command); /* NULL: the overview. To stdout */
#endif
