/* gpu_meter.c: see gpu_meter.h. Called by engine_cuda.c (open) and metrics.c (read) on the loop thread. Owns the NVML
 * library, which stays open, and the threads that ask it: at most one at a time for all GPUs. */
#include "gpu_meter.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include "log.h"

/* NVML's own, by its manual: functions return 0 or a number above; a device is a pointer of the library's. */
typedef struct {
    unsigned long long total, free, used;
} nvml_memory;
typedef struct {
    unsigned int gpu, memory; /* percent */
} nvml_load;
static struct {
    int (*init)(void);
    int (*device)(const char *pci, void **ret);
    int (*memory)(void *device, nvml_memory *ret);
    int (*load)(void *device, nvml_load *ret);
    const char *(*text)(int error);
} nvml;

typedef struct {
    char pci[32]; /* empty: not opened */
    void *device;
    bool good; /* the last query of it */
    gpu_reading last;
} meter;
static meter meters[GPU_METERS_MAX];
static int32_t n_meters;
/* Who set it owns `meters` until it is false again: the asking thread, or the loop thread between queries. */
static atomic_bool asking;
static time_t t_asked_s; /* loop thread */
static bool broken;      /* no NVML here; owned as meters */

static void *symbol(void *library, const char *name) {
    void *at = dlsym(library, name);
    if (!at) log_info("NVML has no %s: no GPU gauges", name);
    return at;
}

static int load_library(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        log_info("no NVML here, so no GPU gauges: %s", dlerror());
        return -1;
    }
    *(void **)&nvml.init = symbol(library, "nvmlInit_v2");
    *(void **)&nvml.device = symbol(library, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)&nvml.memory = symbol(library, "nvmlDeviceGetMemoryInfo");
    *(void **)&nvml.load = symbol(library, "nvmlDeviceGetUtilizationRates");
    *(void **)&nvml.text = symbol(library, "nvmlErrorString");
    if (!nvml.init || !nvml.device || !nvml.memory || !nvml.load || !nvml.text) return -1;
    int error = nvml.init();
    if (error) log_info("NVML does not start, so no GPU gauges: %s", nvml.text(error));
    return error;
}

static void ask(meter *m) {
    nvml_memory memory;
    nvml_load load;
    m->good = false;
    if (!m->device && nvml.device(m->pci, &m->device)) return;
    if (nvml.memory(m->device, &memory)) return;
    m->last = (gpu_reading){.used_bytes = memory.used, .total_bytes = memory.total, .load_percent = -1};
    if (!nvml.load(m->device, &load)) m->last.load_percent = (int32_t)load.gpu;
    m->good = true;
}

static void *ask_all(void *ctx) {
    (void)ctx;
    if (!nvml.init && load_library()) broken = true;
    for (int32_t i = 0; i < n_meters && !broken; i++)
        if (meters[i].pci[0]) ask(&meters[i]);
    atomic_store(&asking, false);
    return NULL;
}

/* `asking` is ours. The daemon's signals are the loop thread's. */
static void begin(void) {
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &attr, ask_all, NULL)) atomic_store(&asking, false);
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void gpu_meter_open(int32_t index, const char *pci) {
    if (index < 0 || index >= GPU_METERS_MAX || atomic_exchange(&asking, true)) return;
    snprintf(meters[index].pci, sizeof meters[index].pci, "%s", pci);
    if (n_meters <= index) n_meters = index + 1;
    atomic_store(&asking, false);
}

bool gpu_meter_read(int32_t index, gpu_reading *ret) {
    struct timespec now;
    if (index < 0 || index >= n_meters || atomic_exchange(&asking, true)) return false;
    bool good = !broken && meters[index].good;
    if (good) *ret = meters[index].last;
    clock_gettime(CLOCK_MONOTONIC, &now);
    bool due = now.tv_sec > t_asked_s && index == n_meters - 1; /* the last of a scrape: all were read */
    if (due) t_asked_s = now.tv_sec;
    if (due && !broken)
        begin();
    else
        atomic_store(&asking, false);
    return good;
}
