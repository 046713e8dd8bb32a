/* gpu_meter.h: a GPU's memory and load as its driver sees them, all processes together, for /metrics. Through NVML
 * (libnvidia-ml.so.1, opened at run time, comes with the driver); without it there are no readings and no harm.
 *
 * A query can hang with the driver, so it runs on a thread of its own that nobody waits for: a scrape shows the reading
 * that the scrape before it asked for. While a query has no answer, and after one that failed, there is no reading. */
#ifndef NCTD_GPU_METER_H
#define NCTD_GPU_METER_H
#include <stdbool.h>
#include <stdint.h>

#define GPU_METERS_MAX 64

typedef struct {
    uint64_t used_bytes, total_bytes;
    int32_t load_percent; /* of the driver's last sample period some kernel ran; -1: not told (MIG) */
} gpu_reading;

/* From now on `index` (0 .. GPU_METERS_MAX - 1) is the GPU at this PCI address ("0000:1b:00.0"). All before the first
 * reading. Loop thread. */
void gpu_meter_open(int32_t index, const char *pci);
/* True: *ret is the last reading. Called for 0, 1, ... in turn; the last of them asks for the next readings, at most once
 * a second. Loop thread; microseconds. */
bool gpu_meter_read(int32_t index, gpu_reading *ret);
#endif
