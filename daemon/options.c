/* options.c: see options.h. Called by main first of all. */
#include "options.h"
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "config.h"

/* XX(long name, argument, letter, help) */
#define OPTIONS(XX)                                                                                                  \
    XX("conf", "FILE", 'c', "read FILE, then conf.d/*.conf beside it")                                               \
    XX("check", "", 'k', "read everything, load the models, print the sums of memory, and end")                      \
    XX("dump-config", "", 'd', "print every key, its value and where it was set, and end")                           \
    XX("print-conf", "", 'p', "print the shipped nctd.conf: every key with its default and help")                    \
    XX("print-man", "", 'm', "print the table of nctd.conf(5)")                                                      \
    XX("private", "FD", 'P', "serve the process at the other end of FD alone, and end with it")                      \
    XX("help", "", 'h', "this text")                                                                                 \
    XX("version", "", 'V', "the version")

void options_usage(void) {
    printf("usage: nctd [-c FILE] [--check | --dump-config] [section.key=value ...]\n\n");
#define XX(name, argument, letter, help) printf("  --%-12s %-5s %s\n", name, argument, help);
    OPTIONS(XX)
#undef XX
    printf("\nkeys of the configuration, with their defaults (-c FILE, or section.key=value):\n\n");
    config_help(stdout);
}

static int number(const char *text, int *ret) {
    char *end;
    long n = strtol(text, &end, 10);
    if (!*text || *end || n < 0 || n > 1 << 20) {
        fprintf(stderr, "nctd: --private %s: not a file descriptor\n", text);
        return -EINVAL;
    }
    *ret = (int)n;
    return 0;
}

int options_read(options *ret, int argc, char **argv) {
#define XX(name, argument, letter, help) {name, argument[0] != 0, NULL, letter},
    static const struct option rows[] = {OPTIONS(XX){NULL, 0, NULL, 0}};
#undef XX
    options o = {.private_fd = -1};
    for (int letter; (letter = getopt_long(argc, argv, "c:hV", rows, NULL)) != -1;) {
        switch (letter) {
        case 'c': o.conf = optarg; break;
        case 'k': o.verb = DO_CHECK; break;
        case 'd': o.verb = DO_DUMP; break;
        case 'p': o.verb = DO_DEFAULTS; break;
        case 'm': o.verb = DO_MAN; break;
        case 'h': o.verb = DO_HELP; break;
        case 'V': o.verb = DO_VERSION; break;
        case 'P':
            if (number(optarg, &o.private_fd)) return -EINVAL;
            break;
        default: return -EINVAL; /* getopt said why */
        }
    }
    for (int i = optind; i < argc; i++)
        if (!strchr(argv[i], '=') || !strchr(argv[i], '.')) {
            fprintf(stderr, "nctd: %s: not section.key=value\n", argv[i]);
            return -EINVAL;
        }
    o.overrides = (const char *const *)&argv[optind];
    o.n_overrides = argc - optind;
    *ret = o;
    return 0;
}
