/* private.c: starts and ends a private nctd. Called by run.c. The folder holds the conf and the ipc socket; it is removed
 * here, and by the daemon when nct was killed. */
#include "private.h"
#include "cli.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The whole start: a GPU's context and the model's warm-up are seconds, not minutes. */
enum { READY_MS = 120000, END_MS = 10000 };

static int refuse(nct_why *why, int error, const char *what) {
    snprintf(why->text, sizeof why->text, "%s: %s", what, strerror(error));
    return -error;
}

/* ---- the folder and the conf ------------------------------------------------------------------------------- */
static int make_folder(private_daemon *d, nct_why *why) {
    const char *places[] = {getenv("XDG_RUNTIME_DIR"), getenv("TMPDIR"), "/tmp"};
    int error = ENOENT;
    for (int i = 0; i < 3; i++) {
        /* 107 bytes is all that a socket's path may have. */
        if (!places[i] || places[i][0] != '/' || strlen(places[i]) > 40) continue;
        snprintf(d->folder, sizeof d->folder, "%s/nct-XXXXXX", places[i]);
        if (mkdtemp(d->folder)) {
            snprintf(d->conf, sizeof d->conf, "%s/nctd.conf", d->folder);
            snprintf(d->socket, sizeof d->socket, "%s/nctd.sock", d->folder);
            snprintf(d->endpoint, sizeof d->endpoint, "ipc://%s", d->socket);
            return 0;
        }
        error = errno;
    }
    d->folder[0] = 0;
    return refuse(why, error, "no folder for a private daemon's socket; set TMPDIR");
}

/* The conf's grammar has no quotes: a path that it could not hold goes through a symbolic link in the folder. */
static int model_path(const private_daemon *d, const char *file, char out[PATH_MAX], nct_why *why) {
    char real[PATH_MAX];
    if (!realpath(file, real)) return refuse(why, errno, cli_quote(file));
    int plain = 1;
    for (const unsigned char *p = (unsigned char *)real; *p; p++)
        plain = plain && *p > ' ' && *p != '#' && *p != ';' && *p != 0x7f;
    snprintf(out, PATH_MAX, "%s", real);
    if (plain) return 0;
    snprintf(out, PATH_MAX, "%s/model.safetensors", d->folder);
    return symlink(real, out) ? refuse(why, errno, "a link to the model") : 0;
}

static int write_conf(const private_daemon *d, const private_wish *w, nct_why *why) {
    char path[PATH_MAX];
    int r = model_path(d, w->model_file, path, why);
    if (r) return r;
    FILE *f = fopen(d->conf, "we");
    if (!f) return refuse(why, errno, "a private daemon's conf");
    /* A slot holds one frame with its row and paddings. A client that is alone may take half of a pool (queue, arena): so
     * twice the window. */
    uint64_t slot = w->max_frame_bytes + (w->max_frame_bytes >> 3) + (1 << 20);
    uint64_t pool = w->max_frame_bytes * (2 * w->window) + (1 << 20);
    fprintf(f, "[daemon]\nlog_level = warning\nstall_ms = 600000\n");
    fprintf(f, "[ingest]\nendpoint = %s\nsocket_mode = 0600\n", d->endpoint);
    fprintf(f, "[publish]\nenabled = no\n[http]\nenabled = no\n");
    fprintf(f, "[engine]\nengine = %s\nprecision = %s\nslots = 2\nslot_bytes = %llu\nthreads = %u\n", w->engine,
        w->precision, (unsigned long long)slot, w->threads);
    fprintf(f, "[limits]\nmax_frame_bytes = %llu\nwindow = %u\nqueue_bytes = %llu\narena_bytes = %llu\n",
        (unsigned long long)w->max_frame_bytes, w->window, (unsigned long long)pool, (unsigned long long)pool);
    fprintf(f, "max_clients = 4\nmax_models = 1\nmax_streams = 64\nmax_streams_client = 64\nstream_idle_s = 86400\n");
    fprintf(f, "[model main]\nfile = %s\npublish = no\n", path);
    for (int i = 0; i < w->n_params; i++) {
        const char *equals = strchr(w->params[i], '=');
        fprintf(f, "%.*s = %s\n", (int)(equals - w->params[i]), w->params[i], equals + 1);
    }
    if (ferror(f) | fclose(f)) return refuse(why, errno, "a private daemon's conf");
    return 0;
}

/* ---- the process ------------------------------------------------------------------------------------------- */
static void own_nctd(char out[PATH_MAX]) {
    ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 8);
    char *slash = n > 0 ? (out[n] = 0, strrchr(out, '/')) : NULL;
    if (slash) strcpy(slash + 1, "nctd");
    if (!slash || access(out, X_OK)) strcpy(out, "nctd");
}

static void child(int fd, const private_daemon *d) {
    char exe[PATH_MAX], number[16];
    snprintf(number, sizeof number, "%d", fd);
    own_nctd(exe);
    fcntl(fd, F_SETFD, 0);
    /* Ctrl-C reaches the whole foreground group; the daemon is to end when nct has taken what it needs. */
    setpgid(0, 0);
    signal(SIGPIPE, SIG_DFL);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
    execlp(exe, exe, "--private", number, "-c", d->conf, (char *)NULL);
    char line[256];
    int n = snprintf(line, sizeof line,
        "{\"ready\":false,\"missing\":true,\"error\":\"nctd cannot be started: %s\"}\n", strerror(errno));
    if (write(fd, line, (size_t)n) < 0) _exit(126);
    _exit(127);
}

int private_ended(const private_daemon *d, const char *when, nct_why *why) {
    siginfo_t info = {0};
    for (int i = 0; i < 200 && !info.si_pid; i++) {
        if (d->pid <= 0 || waitid(P_PID, (id_t)d->pid, &info, WEXITED | WNOHANG | WNOWAIT)) break;
        if (!info.si_pid) nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    if (!info.si_pid)
        snprintf(why->text, sizeof why->text, "the private daemon left its connection %s", when);
    else if (info.si_code == CLD_EXITED)
        snprintf(why->text, sizeof why->text,
            "the private daemon ended with code %d %s; lines above, if any, are its own", info.si_status, when);
    else
        snprintf(why->text, sizeof why->text, "the private daemon was ended by signal %d (%s) %s%s", info.si_status,
            strsignal(info.si_status), when,
            info.si_status == SIGTERM || info.si_status == SIGINT ? "" : "; is memory short or limited (ulimit -v)?");
    return -ECHILD;
}

/* One line from the daemon: READY, or why not. */
static int read_line(private_daemon *d, char *line, size_t size, nct_why *why) {
    size_t have = 0;
    double end = cli_now_s() + READY_MS * 1e-3;
    while (have < size - 1 && !memchr(line, '\n', have)) {
        struct pollfd p = {.fd = d->fd, .events = POLLIN};
        int left = (int)((end - cli_now_s()) * 1000);
        if (cli_stopped) return refuse(why, EINTR, "stopped");
        if (left <= 0) return refuse(why, ETIMEDOUT, "the private daemon does not become ready");
        if (poll(&p, 1, left < 500 ? left : 500) <= 0) continue;
        ssize_t n = read(d->fd, line + have, size - 1 - have);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return private_ended(d, "before it was ready", why);
        have += (size_t)n;
    }
    line[have] = 0;
    return 0;
}

static int await_ready(private_daemon *d, nct_why *why) {
    char line[4096];
    int r = read_line(d, line, sizeof line, why);
    if (r) return r;
    json_t *j = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL);
    const char *endpoint = json_string_value(json_object_get(j, "endpoint"));
    const char *error = json_string_value(json_object_get(j, "error"));
    if (json_is_true(json_object_get(j, "ready"))) {
        if (endpoint) snprintf(d->endpoint, sizeof d->endpoint, "%s", endpoint);
    } else {
        r = json_object_get(j, "missing") ? -ENOENT : -EINVAL;
        snprintf(why->text, sizeof why->text, "%s", error ? error : "the private daemon's READY cannot be read");
    }
    json_decref(j);
    return r;
}

int private_start(private_daemon *d, const private_wish *wish, nct_why *why) {
    int pair[2];
    *d = (private_daemon){.fd = -1};
    int r = make_folder(d, why);
    if (!r) r = write_conf(d, wish, why);
    if (!r && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) r = refuse(why, errno, "a socket pair");
    if (r) {
        private_stop(d);
        return r;
    }
    d->pid = fork();
    if (d->pid == 0) {
        close(pair[0]);
        child(pair[1], d);
    }
    close(pair[1]);
    d->fd = pair[0];
    r = d->pid < 0 ? refuse(why, errno, "starting nctd") : await_ready(d, why);
    if (r) private_stop(d);
    return r;
}

int private_alive(const private_daemon *d) {
    siginfo_t info = {0};
    if (d->pid <= 0) return 0;
    return !waitid(P_PID, (id_t)d->pid, &info, WEXITED | WNOHANG | WNOWAIT) && info.si_pid == 0;
}

void private_stop(private_daemon *d) {
    if (d->fd >= 0 && d->pid > 0) shutdown(d->fd, SHUT_RDWR);
    if (d->pid > 0) {
        if (d->fd >= 0) close(d->fd);
        d->fd = -1;
        double end = cli_now_s() + END_MS * 1e-3;
        int gone = 0;
        while (!(gone = waitpid(d->pid, NULL, WNOHANG) != 0) && cli_now_s() < end)
            nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        if (!gone) {
            kill(d->pid, SIGKILL);
            waitpid(d->pid, NULL, 0);
        }
    }
    if (d->folder[0]) {
        static const char *const names[] = {"nctd.conf", "nctd.sock", "nctd.sock.lock", "model.safetensors"};
        char path[128];
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            snprintf(path, sizeof path, "%s/%s", d->folder, names[i]);
            unlink(path);
        }
        rmdir(d->folder);
    }
    *d = (private_daemon){.fd = -1};
}
