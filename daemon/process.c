/* process.c: see process.h. Called by metrics.c for each scrape; reads /proc/self. */
#include "process.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static uint64_t count_fds(void) {
    uint64_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
    closedir(d);
    return n ? n - 1 : 0; /* but the folder's own */
}

static double seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* proc(5): the fields after the command's closing bracket are 3, 4, ...; 20 threads, 22 start in ticks after boot,
 * 23 bytes of virtual memory, 24 resident pages. */
static void read_stat(process_facts *f) {
    char text[1024];
    FILE *file = fopen("/proc/self/stat", "re");
    size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    text[n] = 0;
    char *at = strrchr(text, ')'), *rest;
    if (!at) return;
    uint64_t fields[25] = {0};
    at = strtok_r(at + 1, " ", &rest);
    for (int i = 3; at && i < 25; i++, at = strtok_r(NULL, " ", &rest)) fields[i] = strtoull(at, NULL, 10);
    f->threads = fields[20];
    f->virtual_bytes = fields[23];
    f->rss_bytes = fields[24] * (uint64_t)sysconf(_SC_PAGESIZE);
    double age_s = seconds(CLOCK_BOOTTIME) - (double)fields[22] / (double)sysconf(_SC_CLK_TCK);
    f->started_s = (double)(int64_t)((seconds(CLOCK_REALTIME) - age_s) * 100 + 0.5) / 100; /* a tick's precision */
}

void process_read(process_facts *ret) {
    struct timespec t;
    struct rlimit limit;
    *ret = (process_facts){0};
    read_stat(ret);
    if (!clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t))
        ret->cpu_ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    ret->fds = count_fds();
    if (!getrlimit(RLIMIT_NOFILE, &limit)) ret->max_fds = limit.rlim_cur;
}
