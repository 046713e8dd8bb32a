/* sizes.c: see sizes.h. Called by main, before anything is made. */
#include "sizes.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "arena.h"
#include "rows.h"

#define DESCRIPTORS_OWN 128 /* sockets, eventfds, timers, logs, model files */
/* Connections beyond max_clients, on their way to HELLO or to a refusal with a sentence: as many as the descriptors allow,
 * between these. Those beyond are cut as they come. */
#define CROWD_MIN 64
#define CROWD_MAX 1024

static uint64_t sockets(const config *c) {
    return c->publish.enabled ? 2 : 1;
}

/* Each connection and our duplicate. */
static uint64_t descriptors(const config *c, uint64_t crowd) {
    return DESCRIPTORS_OWN + 2 * sockets(c) * (c->limits.max_clients + crowd);
}

uint32_t sizes_crowd(const config *c) {
    struct rlimit n;
    if (getrlimit(RLIMIT_NOFILE, &n)) return CROWD_MIN;
    uint64_t least = descriptors(c, 0), room = n.rlim_cur > least ? (n.rlim_cur - least) / (2 * sockets(c)) : 0;
    return room < CROWD_MIN ? CROWD_MIN : room > CROWD_MAX ? CROWD_MAX : (uint32_t)room;
}

void sizes_of(const config *c, sizes *ret) {
    uint64_t per_engine = 2 * c->engine.slots * c->engine.slot_bytes;
    *ret = (sizes){.queue = c->limits.queue_bytes,
        .arena = c->limits.arena_bytes,
        .slots = c->engine.instances * per_engine,
        .publish = c->publish.enabled ? c->publish.publish_bytes : 0,
        .descriptors = descriptors(c, CROWD_MIN),
        .descriptors_wanted = descriptors(c, CROWD_MAX)};
    ret->total = ret->queue + ret->arena + ret->slots + ret->publish;
}

/* The smaller of the host's memory and the cgroup's limit; UINT64_MAX: unknown. */
static uint64_t memory_there(const char **ret_what) {
    uint64_t host = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE), limit = UINT64_MAX;
    char line[300] = "", path[400];
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof line, f) && strncmp(line, "0::", 3)) line[0] = 0;
    if (f) fclose(f);
    line[strcspn(line, "\n")] = 0;
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", line[0] ? line + 3 : "");
    f = fopen(path, "re");
    if (f && fscanf(f, "%" SCNu64, &limit) != 1) limit = UINT64_MAX; /* "max" */
    if (f) fclose(f);
    *ret_what = limit < host ? "the cgroup's memory.max" : "the host's memory";
    return limit < host ? limit : host;
}

static int no(config_why *why, int error, const char *key, uint64_t have, uint64_t need) {
    snprintf(why->text, sizeof why->text,
        "%s = %" PRIu64 " cannot hold one frame of limits.max_frame_bytes: it needs at least %" PRIu64, key, have,
        need);
    return error;
}

static int check_one_frame(const config *c, config_why *why) {
    uint64_t one = c->limits.max_frame_bytes;
    uint64_t pages = (one + ARENA_PAGE - 1) / ARENA_PAGE * ARENA_PAGE;
    uint64_t slot = rows_slot_bytes_min((size_t)one);
    if (c->engine.slot_bytes < slot) return no(why, -EINVAL, "engine.slot_bytes", c->engine.slot_bytes, slot);
    if (c->limits.queue_bytes < one) return no(why, -EINVAL, "limits.queue_bytes", c->limits.queue_bytes, one);
    if (c->limits.arena_bytes < pages) return no(why, -EINVAL, "limits.arena_bytes", c->limits.arena_bytes, pages);
    return 0;
}

static int check_descriptors(const sizes *s, config_why *why) {
    struct rlimit n;
    if (getrlimit(RLIMIT_NOFILE, &n)) return 0;
    if (n.rlim_cur < s->descriptors_wanted && n.rlim_max > n.rlim_cur) {
        n.rlim_cur = n.rlim_max < s->descriptors_wanted ? n.rlim_max : s->descriptors_wanted;
        setrlimit(RLIMIT_NOFILE, &n);
    }
    if (n.rlim_cur >= s->descriptors) return 0;
    snprintf(why->text, sizeof why->text,
        "limits.max_clients needs %" PRIu64
        " file descriptors, and RLIMIT_NOFILE allows %llu: lower it, or raise ulimit -n "
        "(LimitNOFILE= of a unit)",
        s->descriptors, (unsigned long long)n.rlim_max);
    return -EMFILE;
}

int sizes_check(const config *c, config_why *why) {
    const char *what;
    sizes s;
    sizes_of(c, &s);
    int error = check_one_frame(c, why);
    if (!error) error = check_descriptors(&s, why);
    if (error) return error;
    uint64_t there = memory_there(&what), touched = s.arena + s.slots;
    if (touched <= there) return 0;
    snprintf(why->text, sizeof why->text,
        "engine.instances x slots x 2 x slot_bytes (%" PRIu64 ") + limits.arena_bytes (%" PRIu64
        ") are made at start, and %s is %" PRIu64 " bytes",
        s.slots, s.arena, what, there);
    return -ENOMEM;
}

void sizes_print(const config *c, int32_t n_gpus, size_t workspace, FILE *to) {
    sizes s;
    sizes_of(c, &s);
    uint64_t gpus = (uint64_t)n_gpus, per_gpu = c->engine.slots * (2 * c->engine.slot_bytes + workspace);
    if (gpus) {
        s.total -= s.slots;
        s.slots = gpus * 2 * c->engine.slots * c->engine.slot_bytes;
        s.total += s.slots;
    }
    fprintf(to, "memory, at most (bytes):\n");
    fprintf(to, "  queue    %14" PRIu64 "  limits.queue_bytes: inputs that wait for a slot\n", s.queue);
    fprintf(to, "  arena    %14" PRIu64 "  limits.arena_bytes: results not yet taken; made at start\n", s.arena);
    fprintf(to, "  slots    %14" PRIu64 "  engine.instances x slots x 2 x slot_bytes; made at start\n", s.slots);
    fprintf(
        to, "  publish  %14" PRIu64 "  publish.publish_bytes, for each subscriber that stops reading\n", s.publish);
    fprintf(to, "  pinned   %14" PRIu64 "  of these: arena and slots, registered with CUDA\n",
        gpus ? s.arena + s.slots : UINT64_C(0));
    fprintf(to, "  device   %14" PRIu64 "  GPU memory: slots' twins and workspaces, %d GPUs; weights beside it\n",
        gpus * per_gpu, n_gpus);
    fprintf(to, "  sum      %14" PRIu64 "  with one such subscriber\n", s.total);
    fprintf(to,
        "file descriptors: at least %" PRIu64 ", and up to %" PRIu64 " for refusing clients beyond max_clients\n",
        s.descriptors, s.descriptors_wanted);
}
