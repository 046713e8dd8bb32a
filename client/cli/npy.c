/* npy.c: .npy files. Called by output.c. Format: numpy.lib.format, version 1.0. */
#include "npy.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void npy_header(unsigned char out[NPY_HEADER_BYTES], int64_t rows, int64_t columns) {
    memset(out, ' ', NPY_HEADER_BYTES);
    memcpy(out, "\x93NUMPY\x01\x00", 8);
    out[8] = NPY_HEADER_BYTES - 10;
    out[9] = 0;
    char dict[NPY_HEADER_BYTES];
    int n = snprintf(dict, sizeof dict, "{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %lld), }",
        (long long)rows, (long long)columns);
    memcpy(out + 10, dict, (size_t)n);
    out[NPY_HEADER_BYTES - 1] = '\n';
}

static int put(int fd, const char *p, int64_t len, int64_t at) {
    while (len > 0) {
        ssize_t n = pwrite(fd, p, (size_t)len, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? -errno : -EIO;
        p += n, at += n, len -= n;
    }
    return 0;
}

int npy_write(int fd, int64_t rows, int64_t columns, int64_t column, int64_t n, const void *data) {
    const char *p = data;
    for (int64_t row = 0; row < rows; row++) {
        int r = put(fd, p + row * n * 4, n * 4, NPY_HEADER_BYTES + (row * columns + column) * 4);
        if (r) return r;
    }
    return 0;
}
