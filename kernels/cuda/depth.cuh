/* depth.cuh: what conv_depth.cu's rows take from conv_depth_sm90.cu: the conv in one launch, on Hopper. */
#ifndef NCT_CUDA_DEPTH_CUH
#define NCT_CUDA_DEPTH_CUH
#include "conv_narrow.cuh"

int keep_fits(const cuda_layer *l, const cuda_job *job);
/* A job with DO_MEET. */
cudaError_t keep_launch(const cuda_layer *l, const cuda_job *job, cudaStream_t s);
cudaError_t keep_load_code(void);
#endif
