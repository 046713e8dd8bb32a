/* npy.h: numpy's .npy files, version 1.0, float32 little-endian, C order. Writing only; any thread. */
#ifndef NCT_CLI_NPY_H
#define NCT_CLI_NPY_H
#include <stdint.h>
#define NPY_HEADER_BYTES 128
/* The header of an array (rows, columns); the data follow it at once, 64-byte aligned in the file. */
void npy_header(unsigned char out[NPY_HEADER_BYTES], int64_t rows, int64_t columns);
/* Place `n` columns from `column` on, (rows, n) row-major f32 at `data` (any alignment), into the array (rows, columns)
 * at fd. 0 or -errno. */
int npy_write(int fd, int64_t rows, int64_t columns, int64_t column, int64_t n, const void *data);
#endif
