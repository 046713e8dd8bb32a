/* test_gpu_meter.c: a driver that fails its queries, or never answers them, or is not there, costs the gauges and nothing
 * else. The driver's library is built here for each story and found on LD_LIBRARY_PATH; a library stays open, so each story
 * has a process of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "gpu_meter.h"

static char folder[64];

static const char source[] =
    "typedef struct { unsigned long long total, free, used; } memory;\n"
    "typedef struct { unsigned gpu, memory; } load;\n"
    "unsigned sleep(unsigned);\n"
    "int nvmlInit_v2(void) { return INIT; }\n"
    "int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **ret) { *ret = (void *)pci; return 0; }\n"
    "int nvmlDeviceGetMemoryInfo(void *d, memory *m) { HANG; m->total = 10; m->used = 7; return QUERY; }\n"
    "int nvmlDeviceGetUtilizationRates(void *d, load *l) { l->gpu = 42; return LOAD; }\n"
    "const char *nvmlErrorString(int e) { return \"as asked\"; }\n";

static void library(const char *defines) {
    char command[400], path[96];
    snprintf(path, sizeof path, "%s/nvml.c", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(source, f);
    fclose(f);
    snprintf(command, sizeof command, "cc -shared -fPIC %s -o %s/libnvidia-ml.so.1 %s", defines, folder, path);
    assert_int_equal(system(command), 0);
}

enum { READ = 10, NOTHING, OTHER };

/* In a process of its own: what three seconds of scrapes see. */
static int scrapes(bool end_at_first) {
    gpu_reading r = {0};
    gpu_meter_open(0, "0000:1b:00.0");
    for (int i = 0; i < 60; i++) {
        if (gpu_meter_read(0, &r)) {
            if (r.used_bytes != 7 || r.total_bytes != 10 || (r.load_percent != 42 && r.load_percent != -1))
                return OTHER;
            if (end_at_first) return READ + (r.load_percent == -1 ? 100 : 0);
        }
        nanosleep(&(struct timespec){0, 50000000}, NULL);
    }
    return r.total_bytes ? READ : NOTHING;
}

static int story(void) {
    int status;
    pid_t child = fork();
    if (!child) {
        alarm(60); /* a scrape that waits for the driver would hang */
        _exit(scrapes(true));
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void what_a_driver_says_is_read(void **state) {
    (void)state;
    library("-DINIT=0 -DQUERY=0 -DLOAD=0 '-DHANG='");
    assert_int_equal(story(), READ);
    library("-DINIT=0 -DQUERY=0 -DLOAD=3 '-DHANG='"); /* no utilisation under MIG */
    assert_int_equal(story(), READ + 100);
}

/* Error 999, "unknown", is what a container gets whose device cgroup was reset by daemon-reload on its host. */
static void failed_queries_leave_no_reading(void **state) {
    (void)state;
    library("-DINIT=0 -DQUERY=999 -DLOAD=999 '-DHANG='");
    assert_int_equal(story(), NOTHING);
    library("-DINIT=999 -DQUERY=0 -DLOAD=0 '-DHANG='");
    assert_int_equal(story(), NOTHING);
}

static void a_driver_that_never_answers_holds_up_nobody(void **state) {
    (void)state;
    library("-DINIT=0 -DQUERY=0 -DLOAD=0 '-DHANG=sleep(3600)'");
    assert_int_equal(story(), NOTHING);
}

static void no_driver_is_no_reading(void **state) {
    char path[96];
    (void)state;
    snprintf(path, sizeof path, "%s/libnvidia-ml.so.1", folder);
    FILE *f = fopen(path, "w"); /* before any other of that name */
    assert_non_null(f);
    fputs("no library\n", f);
    fclose(f);
    assert_int_equal(story(), NOTHING);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_a_driver_says_is_read),
        cmocka_unit_test(failed_queries_leave_no_reading),
        cmocka_unit_test(a_driver_that_never_answers_holds_up_nobody), cmocka_unit_test(no_driver_is_no_reading)};
    if (argc < 2) { /* the loader reads LD_LIBRARY_PATH when a program begins */
        snprintf(folder, sizeof folder, "/tmp/nct-nvml-XXXXXX");
        if (!mkdtemp(folder)) return 1;
        setenv("LD_LIBRARY_PATH", folder, 1);
        execl("/proc/self/exe", argv[0], folder, (char *)NULL);
        return 1;
    }
    snprintf(folder, sizeof folder, "%s", argv[1]);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) ? 1 : failed;
}
