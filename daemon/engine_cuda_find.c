/* engine_cuda_find.c: see engine_cuda_find.h. Called by choose.c before there are threads. The child calls CUDA and
 * writes one answer to a pipe; the parent waits, reads and explains, and runs a kernel of ours on each device. */
#include "engine_cuda_find.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "cu_call.h"
#include "log.h"

enum { ANSWER_MS = 30000, PAUSE_MS = 250 }; /* a driver may take seconds to wake many cards */

typedef struct {
    cudaError_t error;
    gpu_list list;
} answer;

/* ---- the child ---- */
static void ask(answer *a) {
    int n = 0;
    a->error = CU(cudaGetDeviceCount, &n);
    for (int32_t i = 0; i < n && i < GPUS_MAX && !a->error; i++) {
        struct cudaDeviceProp prop;
        a->error = CU(cudaGetDeviceProperties, &prop, i);
        if (a->error) return;
        snprintf(a->list.at[i].name, sizeof a->list.at[i].name, "%.60s", prop.name);
        a->list.at[i].cc = prop.major * 10 + prop.minor;
        a->list.at[i].bytes = prop.totalGlobalMem;
        a->list.n = i + 1;
    }
}

static void child(int fd) {
    answer a = {.list = {.n = 0}};
    ask(&a);
    ssize_t n = write(fd, &a, sizeof a);
    _exit(n == sizeof a ? 0 : 1);
}

/* ---- the parent ---- */
static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* 0 with the answer; -ETIMEDOUT; -EPIPE: the child died. A child that does not die of SIGKILL is left behind. */
static int ask_child(answer *ret, int ms) {
    int fds[2], error = 0, status;
    size_t got = 0;
    if (pipe(fds)) return -errno;
    pid_t pid = fork();
    if (pid < 0) {
        error = -errno;
        close(fds[0]);
        close(fds[1]);
        return error;
    }
    if (pid == 0) {
        close(fds[0]);
        child(fds[1]);
    }
    close(fds[1]);
    uint64_t end = now_ms() + (uint64_t)ms;
    while (got < sizeof *ret && !error) {
        struct pollfd p = {.fd = fds[0], .events = POLLIN};
        uint64_t now = now_ms();
        int ready = now < end ? poll(&p, 1, (int)(end - now)) : 0;
        if (ready < 0 && errno == EINTR) continue;
        ssize_t n = ready > 0 ? read(fds[0], (char *)ret + got, sizeof *ret - got) : 0;
        if (n <= 0)
            error = ready > 0 ? -EPIPE : -ETIMEDOUT;
        else
            got += (size_t)n;
    }
    close(fds[0]);
    if (error) kill(pid, SIGKILL);
    for (int i = 0; i < 200 && waitpid(pid, &status, error ? WNOHANG : 0) == 0; i++) usleep(1000);
    return error;
}

/* The driver is loaded, but a device file of it cannot be opened here: a sandbox, a container or the file's mode. */
static bool hidden_file(char *at, size_t room) {
    static const char *const files[] = {"/dev/nvidiactl", "/dev/nvidia-uvm"};
    if (access("/proc/driver/nvidia/version", F_OK) && access("/sys/module/nvidia", F_OK)) return false;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int fd = open(files[i], O_RDWR | O_CLOEXEC), error = fd < 0 ? errno : 0;
        if (fd >= 0) close(fd);
        if (!error) continue;
        snprintf(at, room,
            ": %s cannot be opened: %s; a unit needs PrivateDevices=no and DeviceAllow= for it (nctd-gpu.conf), a "
            "container the device",
            files[i], strerror(error));
        return true;
    }
    return false;
}

/* What a user can do about it, where the number alone does not say. */
static void explain(cudaError_t err, nct_why *why) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES"), *mps = getenv("CUDA_MPS_PIPE_DIRECTORY");
    int n = snprintf(why->text, sizeof why->text, "no usable GPU: error %d, %s", (int)err, cudaGetErrorString(err));
    char *at = why->text + n;
    size_t room = sizeof why->text - (size_t)n;
    if (err == cudaErrorMpsConnectionFailed)
        snprintf(at, room, ": the MPS server at CUDA_MPS_PIPE_DIRECTORY = \"%.100s\" does not answer user id %u",
            mps ? mps : "(its default)", (unsigned)getuid());
    else if (hidden_file(at, room))
        return;
    else if (visible && (err == cudaErrorNoDevice || err == cudaErrorInvalidDevice))
        snprintf(at, room, ": CUDA_VISIBLE_DEVICES = \"%.100s\" leaves none", visible);
    else if (err == cudaErrorInsufficientDriver)
        snprintf(at, room, ": no NVIDIA driver is installed here, or it is older than CUDA %d.%d%s%.100s%s",
            CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, visible ? "; CUDA_VISIBLE_DEVICES = \"" : "",
            visible ? visible : "", visible ? "\"" : "");
}

static int judge(const answer *a, bool *ret_again, nct_why *why) {
    bool hidden = getenv("CUDA_VISIBLE_DEVICES") != NULL;
    *ret_again = (a->error == cudaErrorNoDevice && !hidden) || a->error == cudaErrorInsufficientDriver ||
                 a->error == cudaErrorInitializationError || a->error == cudaErrorSystemNotReady ||
                 a->error == cudaErrorDevicesUnavailable;
    if (a->error || !a->list.n) {
        explain(a->error ? a->error : cudaErrorNoDevice, why);
        return -ENODEV;
    }
    return 0;
}

/* A layer is packed by a kernel: no code for the card, and the like, show here and not at the first frame. */
static int try_kernel(int32_t device, nct_why *why) {
    static const float weight[2 * 2 * 3];
    nct_params p = {.in_channels = 2,
        .out_channels = 2,
        .kernel_size = 3,
        .stride = 1,
        .dilation = 1,
        .groups = 1,
        .num_groups = 1,
        .eps = 1e-5};
    nct_weights w = {.weight = {weight, NCT_F32, 0}};
    nct_where at = {.device = device, .precision = NCT_PREC_F32};
    nct_layer *l;
    int error = nct_layer_new(&l, &p, &w, &at, NULL, why);
    if (error) return error;
    cudaError_t err = CU(cudaSetDevice, device);
    if (!err) err = CU(cudaDeviceSynchronize);
    nct_layer_free(l);
    if (!err) return 0;
    snprintf(why->text, sizeof why->text, "a first kernel: error %d, %s", (int)err, cudaGetErrorString(err));
    return -EIO;
}

static int try_kernels(const gpu_list *list, nct_why *why) {
    nct_why inner = {""};
    for (int32_t i = 0; i < list->n; i++) {
        size_t free_bytes, total;
        int error = try_kernel(i, &inner);
        if (!error) continue;
        if (error == -ENOMEM && !cudaMemGetInfo(&free_bytes, &total)) {
            snprintf(why->text, sizeof why->text,
                "GPU %d has %zu of %zu bytes of device memory free, too few for a first kernel: free the GPU", i,
                free_bytes, total);
            return error;
        }
        if (error == -ENOMEM) {
            snprintf(why->text, sizeof why->text,
                "GPU %d has %llu bytes of device memory, and too few of them are free for a context: free the GPU", i,
                (unsigned long long)list->at[i].bytes);
            return error;
        }
        snprintf(why->text, sizeof why->text, "GPU %d (%s, sm_%d) cannot run this nctd's kernels: %.300s", i,
            list->at[i].name, list->at[i].cc, inner.text);
        return -ENODEV;
    }
    return 0;
}

int gpus_find(gpu_list *ret, uint32_t wait_ms, nct_why *why) {
    uint64_t end = now_ms() + wait_ms;
    for (bool said = false;; said = true) {
        answer a;
        bool again = false;
        int error = ask_child(&a, ANSWER_MS);
        if (error == -ETIMEDOUT)
            snprintf(why->text, sizeof why->text, "the NVIDIA driver did not answer within %d s", ANSWER_MS / 1000);
        else if (error)
            snprintf(why->text, sizeof why->text, "asking the NVIDIA driver ended a process: %s", strerror(-error));
        else
            error = judge(&a, &again, why);
        if (!error) error = try_kernels(&a.list, why);
        if (!error) *ret = a.list;
        if (!error || !again || now_ms() + PAUSE_MS > end) return error;
        if (!said) log_warning("waiting up to %u ms for a GPU (%.300s)", wait_ms, why->text);
        usleep(PAUSE_MS * 1000);
    }
}
