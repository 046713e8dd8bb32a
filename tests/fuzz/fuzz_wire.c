/* fuzz_wire.c: libFuzzer target for everything a peer's bytes reach in client/wire.c. The first byte chooses:
 * even, a header part of 96 bytes (or what is left) and the rest as payload; odd, the same with GIVEN's
 * groups taken from the byte; 2 modulo 4 also reads the rest as a topic. What was read must come back the
 * same when written again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds) {
    if (!holds) abort();
}

static void topic(const uint8_t *data, size_t size) {
    char model[WIRE_NAME_MAX + 1], stream[WIRE_NAME_MAX + 1], out[WIRE_TOPIC_MAX + 1];
    wire_why why;
    if (wire_topic_read(data, size, model, stream, &why)) {
        require(memchr(why.text, 0, sizeof why.text) != NULL);
        return;
    }
    require(wire_topic_write(out, model, stream) == size && !memcmp(out, data, size));
}

static void frame(const wire_header *h, uint64_t payload_bytes, uint32_t n_groups) {
    const uint64_t max_frame_bytes = 1 << 20;
    wire_why why;
    if (wire_frame_check(h, payload_bytes, n_groups, max_frame_bytes, &why)) return;
    unsigned __int128 bytes = (unsigned __int128)h->channels * h->steps * wire_dtype_bytes(h->dtype);
    if (h->flags & WIRE_GIVEN) bytes += (unsigned __int128)WIRE_STAT_BYTES * n_groups;
    require(bytes == payload_bytes && bytes <= max_frame_bytes && bytes > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    uint8_t choice = data[0];
    data++, size--;
    if (choice % 4 == 2) topic(data, size);
    size_t header_bytes = size > 7 && data[7] >= 12 && size >= (size_t)data[7] * 8 ? (size_t)data[7] * 8
                          : size < WIRE_HEADER_BYTES                               ? size
                                                                                   : WIRE_HEADER_BYTES;
    wire_header h, again;
    if (wire_read(&h, data, header_bytes, NULL)) return 0;
    uint8_t out[WIRE_HEADER_BYTES];
    wire_write(out, &h);
    require(!memcmp(out, data, 7) && !memcmp(out + 8, data + 8, WIRE_HEADER_BYTES - 8));
    require(!wire_read(&again, out, sizeof out, NULL));
    require(wire_kind_name(h.kind)[0] != '?');
    frame(&h, size - header_bytes, choice & 1 ? choice >> 1 : 0);
    return 0;
}
