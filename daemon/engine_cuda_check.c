/* engine_cuda_check.c: model_check_cuda: before a model is served its packed layer runs one small frame on its GPU, and
 * every kernel that it may choose is loaded. Called by models.c on the helper thread; the memory is its own and goes
 * back. */
#include "engine_cuda.h"
#include "models.h"
#include "rows.h"

/* Of the largest output, in the coarsest precision that a plan may have (bf16): far above its error, far below any
 * mistake. */
#define TOLERANCE_GPU 0.2

/* One block of the device: x, then y, then the workspace. */
static int run_there(
    nct_layer *l, int32_t device, const nct_job *job, char *base, size_t x_room, size_t y_room, nct_why *why) {
    nct_job there = *job;
    size_t x_bytes = (size_t)job->x_count * sizeof(float), y_bytes = (size_t)job->y_count * sizeof(float);
    nct_limits limits = {
        .max_frames = 1, .n_workers = 1, .max_t_out = job->frames->t_out, .sum_t_out = job->frames->t_out};
    there.x = base;
    there.y = base + x_room;
    there.workspace = base + x_room + y_room;
    cudaError_t err = CU(cudaMemcpy, base, job->x, x_bytes, cudaMemcpyHostToDevice);
    if (!err) err = CU(cudaMemcpy, there.y, job->y, y_bytes, cudaMemcpyHostToDevice); /* poisoned */
    if (err) return cuda_say(why, device, "copying a trial frame in", err);
    int error = nct_warm(&l, 1, &limits, there.workspace, there.workspace_bytes, NULL, why);
    if (!error) error = nct_launch(&l, 1, &there, why);
    if (error) return error;
    err = CU(cudaDeviceSynchronize);
    if (!err) err = CU(cudaMemcpy, job->y, there.y, y_bytes, cudaMemcpyDeviceToHost);
    return err ? cuda_say(why, device, "a trial frame", err) : 0;
}

static int on_gpu(nct_layer *l, int32_t device, const nct_job *job, nct_why *why) {
    char *base = NULL;
    size_t x_room = rows_round((size_t)job->x_count * sizeof(float), ROWS_ALIGN);
    size_t y_room = rows_round((size_t)job->y_count * sizeof(float), ROWS_ALIGN);
    cudaError_t err = CU(cudaSetDevice, device);
    if (!err) err = CU(cudaMalloc, (void **)&base, x_room + y_room + job->workspace_bytes + ROWS_ALIGN);
    if (err) return cuda_say(why, device, "memory for a trial frame", err);
    int error = run_there(l, device, job, base, x_room, y_room, why);
    cudaFree(base);
    return error;
}

int model_check_cuda(nct_layer *l, const model *m, int32_t device, nct_why *why) {
    return model_check_with(l, m, device, TOLERANCE_GPU, on_gpu, why);
}
