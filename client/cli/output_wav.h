/* output_wav.h: the header of a WAV stream whose length nobody knows. Internal to output.c. */
#ifndef NCT_CLI_OUTPUT_WAV_H
#define NCT_CLI_OUTPUT_WAV_H
#include <stddef.h>
/* At most 64 bytes; returns how many. Sizes are 0xffffffff, as other streaming writers put it. bits: 16..64. */
size_t output_wav_stream(unsigned char out[64], int channels, int rate, int bits, int is_float);
#endif
