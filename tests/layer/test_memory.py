"""Loads and stores stay inside x_count and y_count: both buffers lie against pages that may not be touched."""
import ctypes as C
import mmap

import numpy as np
import pytest

import layerlib as nct
from random_layers import random_case

PAGE = mmap.PAGESIZE
libc = C.CDLL(None, use_errno=True)


class Fenced:
    """`n_bytes` that end (or begin) at a page whose every access is a SIGSEGV."""

    def __init__(self, n_bytes, at_end):
        pages = -(-n_bytes // PAGE)
        self.map = mmap.mmap(-1, (pages + 2) * PAGE)
        self.bytes = np.frombuffer(self.map, np.uint8)
        base = self.bytes.ctypes.data
        for fence in (base, base + (pages + 1) * PAGE):
            assert libc.mprotect(C.c_void_p(fence), C.c_size_t(PAGE), 0) == 0
        begin = PAGE + pages * PAGE - n_bytes if at_end else PAGE
        self.data = self.bytes[begin:begin + n_bytes]

    def open(self):
        libc.mprotect(C.c_void_p(self.bytes.ctypes.data), C.c_size_t(self.bytes.size), mmap.PROT_READ | mmap.PROT_WRITE)


@pytest.mark.parametrize("at_end", [True, False], ids=["fence behind", "fence in front"])
def test_nothing_outside_x_and_y_is_touched(engine, at_end):
    for seed in range(2000, 2020 if engine.exact else 2080):
        layer, case = random_case(seed)
        case.update(gap=0, shift=0)
        job = nct.Job(layer, **case)
        want = engine(job).bits()
        x, y = Fenced(job.x.nbytes, at_end), Fenced(job.y.nbytes, at_end)
        x.data[:] = job.x.view(np.uint8)
        job.x, job.y = x.data.view(job.x.dtype), y.data.view(job.y.dtype)
        job.c.x, job.c.y = job.x.ctypes.data, job.y.ctypes.data
        got = engine(job).bits()
        assert all((a.view(np.uint8) == b.view(np.uint8)).all() for a, b in zip(got, want)), f"seed {seed}, {layer}"
        x.open(), y.open()
