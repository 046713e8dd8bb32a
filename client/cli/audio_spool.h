/* audio_spool.h: temporary files without a name. */
#ifndef NCT_CLI_AUDIO_SPOOL_H
#define NCT_CLI_AUDIO_SPOOL_H
#include <stdint.h>
#include "nct_layer.h"
/* A new read-write file without a name in $TMPDIR, else /var/tmp (not /tmp, which may be memory): gone with its
 * descriptor, however the process ends. fd >= 0 or -errno with a sentence. */
int audio_spool_file(nct_why *why);
/* Copy all of `from` (a pipe) into one. *ret_fd stands at its start. 0; -ENOSPC and the like (the sentence says what to
 * do), -EINTR, or what `progress` returned. */
int audio_spool(int from, int *ret_fd, int (*progress)(void *ctx, int64_t bytes), void *ctx, nct_why *why);
#endif
