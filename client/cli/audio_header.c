/* audio_header.c: walks the chunks of a RIFF, RIFX or RF64 file to learn how many steps its header announces, because
 * libsndfile silently takes the smaller of that and the file's size: only the comparison shows a truncated file. Called
 * by audio.c. Judges nothing else: libsndfile reads the samples. */
#include "audio_header.h"
#include <string.h>
#include <unistd.h>

#define CHUNKS_MAX 4096

typedef struct {
    int fd, big;
    int64_t at;
} walk;

static uint32_t u32(const walk *w, const unsigned char *p) {
    if (w->big) return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
}

static uint32_t u16(const walk *w, const unsigned char *p) {
    return w->big ? (uint32_t)p[0] << 8 | p[1] : (uint32_t)p[1] << 8 | p[0];
}

static int get(const walk *w, void *to, size_t len, int64_t at) {
    return pread(w->fd, to, len, at) == (ssize_t)len;
}

static int streamed(uint64_t bytes) {
    return bytes == 0 || (bytes >= 0x7ffff000u && bytes <= 0x7fffffffu) ||
           (bytes >= 0xfffff000u && bytes <= 0xffffffffu);
}

int64_t audio_header_steps(int fd) {
    unsigned char h[24];
    walk w = {.fd = fd, .at = 12};
    uint64_t ds64 = 0;
    int64_t step_bytes = 0;
    if (!get(&w, h, 12, 0) || memcmp(h + 8, "WAVE", 4) != 0) return -1;
    w.big = !memcmp(h, "RIFX", 4);
    int rf64 = !memcmp(h, "RF64", 4);
    if (!w.big && !rf64 && memcmp(h, "RIFF", 4) != 0) return -1;
    for (int i = 0; i < CHUNKS_MAX && get(&w, h, 8, w.at); i++) {
        uint64_t size = u32(&w, h + 4);
        if (!memcmp(h, "ds64", 4) && get(&w, h + 8, 16, w.at + 8))
            ds64 = (uint64_t)u32(&w, h + 16) | (uint64_t)u32(&w, h + 20) << 32;
        if (!memcmp(h, "fmt ", 4) && get(&w, h + 8, 16, w.at + 8))
            step_bytes = (int64_t)u16(&w, h + 10) * ((u16(&w, h + 22) + 7) / 8);
        if (!memcmp(h, "data", 4)) {
            if (rf64 && size == 0xffffffffu)
                size = ds64;
            else if (streamed(size))
                return -1;
            return step_bytes > 0 && size < (uint64_t)INT64_MAX ? (int64_t)size / step_bytes : -1;
        }
        w.at += 8 + (int64_t)size + (int64_t)(size & 1);
    }
    return -1;
}
