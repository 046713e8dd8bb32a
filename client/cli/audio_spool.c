/* audio_spool.c: pipes copied to disk, so that they can be read twice and their length is known. Called by audio.c, and
 * by output.c for results that go to stdout. */
#include "audio_spool.h"
#include "cli.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *folder(void) {
    const char *dir = getenv("TMPDIR");
    return dir && *dir ? dir : "/var/tmp";
}

int audio_spool_file(nct_why *why) {
    char name[4096];
    int fd = open(folder(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0) return fd;
    snprintf(name, sizeof name, "%s/nct-spool-XXXXXX", folder());
    fd = mkostemp(name, O_CLOEXEC);
    if (fd >= 0) {
        unlink(name);
        return fd;
    }
    int error = errno;
    snprintf(why->text, sizeof why->text, "no temporary file in '%s': %s; set TMPDIR", cli_quote(folder()),
        strerror(error));
    return -error;
}

int audio_spool(int from, int *ret_fd, int (*progress)(void *, int64_t), void *ctx, nct_why *why) {
    enum { BLOCK = 1 << 18 };
    char *block = malloc(BLOCK);
    int fd = block ? audio_spool_file(why) : -ENOMEM, r = fd < 0 ? fd : 0;
    int64_t total = 0;
    while (!r) {
        ssize_t n = read(from, block, BLOCK);
        if (n < 0 && errno == EINTR && !cli_stopped) continue;
        if (n < 0) {
            r = -errno;
            snprintf(why->text, sizeof why->text, "reading failed: %s", strerror(errno));
        } else if (n > 0 && (r = cli_write_all(fd, block, (size_t)n))) {
            snprintf(why->text, sizeof why->text,
                "copying the pipe to '%s' failed after %lld bytes: %s; set TMPDIR to a folder with room, or use "
                "--window",
                cli_quote(folder()), (long long)total, strerror(-r));
        }
        total += n > 0 ? n : 0;
        if (!r && progress && (r = progress(ctx, total))) snprintf(why->text, sizeof why->text, "stopped");
        if (n == 0) break;
    }
    free(block);
    if (!r && lseek(fd, 0, SEEK_SET) == 0) {
        *ret_fd = fd;
        return 0;
    }
    if (fd >= 0) close(fd);
    return r ? r : -EIO;
}
