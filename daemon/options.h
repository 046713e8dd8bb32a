/* options.h: nctd's command line. */
#ifndef NCTD_OPTIONS_H
#define NCTD_OPTIONS_H
#include <stdbool.h>

typedef enum { DO_SERVE, DO_CHECK, DO_DUMP, DO_HELP, DO_VERSION, DO_MAN, DO_DEFAULTS } options_verb;
typedef struct {
    options_verb verb;
    const char *conf;             /* -c; NULL: none */
    int private_fd;               /* -1: not private */
    const char *const *overrides; /* "section.key=value" */
    int n_overrides;
} options;

/* 0, or -EINVAL after a line on stderr. */
int options_read(options *ret, int argc, char **argv);
void options_usage(void); /* --help, on stdout: options, then every key */
#endif
