/* output_wav.c: the header of an endless WAV stream; libsndfile writes one only where it can seek. Called by output.c. */
#include "output_wav.h"
#include <stdint.h>
#include <string.h>

static unsigned char *put(unsigned char *p, uint32_t v, int bytes) {
    for (int i = 0; i < bytes; i++) *p++ = (unsigned char)(v >> (8 * i));
    return p;
}

size_t output_wav_stream(unsigned char out[64], int channels, int rate, int bits, int is_float) {
    unsigned char *p = out;
    uint32_t step = (uint32_t)channels * (uint32_t)bits / 8;
    static const unsigned char riff[16] = {
        'R', 'I', 'F', 'F', 255, 255, 255, 255, 'W', 'A', 'V', 'E', 'f', 'm', 't', ' '};
    static const unsigned char data[8] = {'d', 'a', 't', 'a', 255, 255, 255, 255};
    memcpy(p, riff, 16);
    p = put(p + 16, 18, 4);
    p = put(p, is_float ? 3 : 1, 2);
    p = put(p, (uint32_t)channels, 2);
    p = put(p, (uint32_t)rate, 4);
    p = put(p, (uint32_t)rate * step, 4);
    p = put(p, step, 2);
    p = put(p, (uint32_t)bits, 2);
    p = put(p, 0, 2); /* no extension */
    memcpy(p, data, 8);
    return (size_t)(p + 8 - out);
}
