/* main.c: nct's entry. Owns the table of subcommands (made from CLI_COMMANDS) and what is made from it:
 * dispatch, help, shell completion and the man page's synopsis. Does no work itself: that is cmd_NAME's, one
 * file each. */
#include "cli.h"
#include "help.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define XX(name, operands, help) {#name, operands, help, options_##name, cmd_##name},
static const cli_command commands[] = {CLI_COMMANDS(XX){0}};
#undef XX

/* One that is closed would be the next file's, and what is said there would stand in a result. The wrong way round, so that
 * reading and writing fail as they would have. */
static void hold_standard_descriptors(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) != fd) return;
}

int main(int argc, char **argv) {
    hold_standard_descriptors();
    help_init(commands);
    if (argc < 2) {
        help_overview(stderr);
        return CLI_USAGE;
    }
    const char *word = argv[1];
    for (const cli_command *c = commands; c->name; c++)
        if (!strcmp(word, c->name)) return help_flush(c->run(argc - 1, argv + 1));
    return help_flush(help_word(argc - 1, argv + 1));
}
