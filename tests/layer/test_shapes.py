"""Problem sizes that other projects test 1-D convolutions and group norms with, judged by PyTorch in float64.

The sizes are those of oneDNN's benchdnn (inputs/conv/shapes_1d and shapes_dilated_1d_1st_strided_padding,
inputs/gnorm/shapes_ci) and of CUTLASS (test/unit/conv/device_3x/conv_problem_sizes.hpp, 1-D fprop).
"""
import math

import numpy as np
import pytest

import layerlib as nct
import torchref
from random_layers import pytorch_init

f32 = np.float32

# groups, N, C_in, T, C_out, K, stride, (pad left, right), dilation
ONEDNN_1D = [
    (128, 1, 128, 16, 128, 3, 1, (1, 1), 1), (2, 2, 32, 27, 32, 2, 1, (0, 0), 1), (8, 2, 64, 9, 64, 2, 1, (0, 0), 1),
    (6, 2, 24, 11, 24, 3, 1, (0, 0), 1), (1, 2, 3, 224, 64, 7, 1, (0, 0), 1), (1, 2, 3, 224, 64, 7, 2, (3, 3), 1),
    (1, 2, 256, 56, 512, 1, 2, (0, 0), 1), (1, 2, 256, 56, 128, 1, 2, (0, 0), 1), (1, 1, 32, 32, 32, 2, 1, (0, 0), 1),
    (1, 1, 32, 100, 32, 3, 1, (0, 0), 1), (1, 1, 32, 121, 32, 3, 1, (0, 0), 1), (1, 1, 512, 300, 512, 3, 1, (0, 0), 1),
    (1, 1, 32, 32, 32, 5, 1, (0, 0), 1), (1, 1, 32, 100, 32, 2, 1, (0, 0), 1), (1, 1, 32, 121, 32, 6, 1, (0, 0), 1),
    (1, 1, 512, 300, 512, 1, 1, (0, 0), 1), (1, 1, 32, 32, 32, 5, 2, (0, 0), 1), (1, 1, 32, 100, 32, 2, 3, (0, 0), 1),
    (1, 1, 32, 121, 32, 6, 4, (0, 0), 1), (1, 1, 32, 32, 32, 5, 1, (1, 1), 1), (1, 1, 32, 100, 32, 2, 1, (2, 2), 1),
    (1, 1, 32, 121, 32, 6, 1, (3, 3), 1), (1, 1, 512, 32, 512, 5, 1, (1, 1), 1), (1, 1, 512, 100, 512, 2, 1, (2, 2), 1),
    (1, 1, 512, 121, 512, 6, 1, (3, 3), 1), (1, 2, 8, 5, 8, 3, 1, (3, 0), 3), (1, 2, 32, 8, 8, 3, 1, (0, 0), 3),
    (1, 2, 512, 19, 1024, 3, 1, (6, 6), 6), (1, 2, 256, 15, 512, 3, 1, (6, 6), 6),
]
CUTLASS_1D = [
    (1, 1, 64, 8, 64, 1, 1, (0, 0), 1), (1, 1, 64, 8, 16, 1, 1, (0, 0), 1), (1, 2, 64, 8, 96, 1, 1, (0, 0), 1),
    (1, 7, 64, 8, 256, 1, 1, (0, 0), 1), (1, 2, 64, 8, 256, 3, 1, (0, 0), 1), (1, 2, 32, 8, 256, 3, 1, (1, 1), 1),
    (1, 2, 64, 8, 256, 4, 1, (0, 1), 1), (1, 2, 64, 8, 256, 3, 2, (0, 1), 1), (1, 2, 64, 8, 256, 3, 1, (0, 1), 2),
]


def dilated():
    """The right pad is what one output needs, or the left one where that is more."""
    for k in (3, 5, 7):
        for t in (1, 2, 3, 4, 11, 13, 27, 31, 33, 55, 101, 111):
            for stride in (2, 3, 5):
                for pad in (1, 2, 3):
                    for dilation in (4, 5, 6):
                        yield 1, 1, 1, t, 16, k, stride, (pad, max(pad, dilation * (k - 1) + 1 - t - pad)), dilation


def judged(engine, size, seed):
    groups, n, ci, t, co, k, stride, padding, dilation = size
    rng = np.random.default_rng(seed)
    layer = nct.Layer(pytorch_init(rng, co, ci // groups, k).astype(f32), None, rng.standard_normal(co).astype(f32),
                      rng.standard_normal(co).astype(f32), stride=stride, padding=padding, dilation=dilation,
                      groups=groups, num_groups=math.gcd(co, 8), activation=nct.ACTIVATIONS[seed % 7])
    job = engine(nct.Job(layer, [rng.standard_normal((ci, t)) for _ in range(n)], y_dtype=engine.y_dtype))
    for x, got in zip(job.xs, job.values()):
        conv, want = torchref.forward(layer, x)
        nct.first_bad(got, want, nct.bound(layer, conv, want, b=engine.b), f"{size}: {layer}")


@pytest.mark.parametrize("size", ONEDNN_1D + CUTLASS_1D, ids=str)
def test_published_conv_sizes(engine, size):
    groups, n, ci, t, co, k = size[:6]
    if engine.exact and n * t * co * ci // groups * k > 5_000_000:
        size = (groups, 1, ci, min(t, 24), co, k) + size[6:]  # plain loops: fewer steps, the same channels
    judged(engine, size, sum(size[:7]))


def test_dilated_strided_padded_conv_sizes(engine):
    for seed, size in enumerate(dilated()):
        judged(engine, size, seed)


@pytest.mark.parametrize("num_groups, n, channels, steps", [
    (2, 2, 2, 4), (7, 2, 7, 12), (5, 2, 5, 90), (1, 2, 2, 4), (2, 2, 8, 12), (5, 2, 10, 90), (5, 2, 40, 10), (5, 2, 80, 10),
    (1, 1, 128, 4)], ids=str)
def test_published_group_norm_sizes(engine, num_groups, n, channels, steps):
    rng = np.random.default_rng(channels)
    layer = nct.Layer(np.eye(channels, dtype=f32)[:, :, None], num_groups=num_groups)
    job = engine(nct.Job(layer, [rng.standard_normal((channels, steps)) for _ in range(n)], y_dtype=engine.y_dtype))
    for x, got in zip(job.xs, job.values()):
        conv, want = torchref.forward(layer, x)
        nct.first_bad(got, want, nct.bound(layer, conv, want, b=engine.b))
