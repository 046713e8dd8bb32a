/* audio_header.h: what a RIFF header announces. Internal to audio.c. */
#ifndef NCT_CLI_AUDIO_HEADER_H
#define NCT_CLI_AUDIO_HEADER_H
#include <stdint.h>
/* Steps that the `data` chunk of the WAV file at fd promises; -1: not a WAV file, no data chunk was found, or the size
 * is one of those that streaming writers put there (0, 0x7ffff000 and up, 0xfffff000 and up). Reads by pread. */
int64_t audio_header_steps(int fd);
#endif
