"""Problem sizes that other projects test 1-D convolutions and group norms with, judged by PyTorch in float64.

The sizes are those of oneDNN's benchdnn (inputs/conv/shapes_1d and shapes_dilated_1d_1st_strided_padding,
inputs/gnorm/shapes_ci) and of CUTLASS (test/unit/conv/device_3x/conv_problem_sizes.hpp, 1-D fprop).
"""
import functools
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

# Tiles of 256 outputs in several slices, with and without an end that is none.
WHOLE_TILES = [
    (1, 1, 64, 1100, 40, 7, 1, (3, 3), 1), (1, 2, 48, 2100, 64, 8, 4, (0, 0), 1), (1, 1, 60, 700, 30, 5, 2, (2, 2), 1),
    (1, 1, 80, 900, 32, 4, 3, (1, 1), 1), (1, 1, 60, 600, 40, 5, 1, (8, 8), 4), (2, 1, 120, 517, 62, 6, 1, (3, 2), 1),
    (1, 1, 600, 1027, 31, 1, 1, (0, 0), 1), (1, 1, 3, 1500, 26, 300, 1, (9, 9), 1),
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


@pytest.mark.parametrize("size", ONEDNN_1D + CUTLASS_1D + WHOLE_TILES, ids=str)
def test_published_conv_sizes(engine, size):
    groups, n, ci, t, co, k = size[:6]
    if engine.exact and n * t * co * ci // groups * k > 5_000_000:
        size = (groups, 1, ci, min(t, 24 + (k - 1) * size[8]), co, k) + size[6:]  # plain loops: fewer steps, the same channels
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


# The shapes of the benches, one frame each, T cut where the whole would take PyTorch seconds in float64:
# C_in, C_out, K, stride, padding, dilation, groups, G, activation, bias, eps, T
BENCH = {
    "default": (128, 256, 3, 1, 1, 1, 1, 32, "none", False, 1e-5, 1024),
    "default-long": (128, 256, 3, 1, 1, 1, 1, 32, "none", False, 1e-5, 2500),
    "wav2vec2-l0": (1, 512, 10, 5, 0, 1, 1, 512, "gelu", False, 1e-5, 16000),
    "diffpolicy": (256, 256, 5, 1, 2, 1, 1, 8, "mish", True, 1e-5, 16),
    "diffpolicy-n1": (1024, 2048, 5, 1, 2, 1, 1, 8, "mish", True, 1e-5, 4),
    "matcha": (256, 256, 3, 1, 1, 1, 1, 8, "mish", True, 1e-5, 500),
    "cosyvoice": (512, 256, 3, 1, 1, 1, 1, 8, "mish", True, 1e-5, 500),
    "dconv": (64, 16, 3, 1, 2, 2, 1, 1, "gelu", True, 1e-5, 30000),
    "encodec48-l0": (2, 32, 7, 1, 0, 1, 1, 1, "none", True, 1e-5, 48006),
    "convtasnet": (512, 128, 1, 1, 0, 1, 1, 1, "none", True, 1e-8, 3200),
    "convtasnet-dw": (512, 512, 3, 1, 16, 16, 512, 1, "none", True, 1e-8, 3200),
    "demucs-l4": (512, 1024, 8, 4, 0, 1, 1, 4, "gelu", True, 1e-5, 344),
    "eeg64": (64, 128, 7, 1, 3, 1, 1, 16, "silu", False, 1e-5, 512),
}


@functools.lru_cache(maxsize=None)
def bench_case(name):
    """-> (layer, x, conv outputs, results), the last two by PyTorch."""
    ci, co, k, stride, padding, dilation, groups, num_groups, activation, bias, eps, t = BENCH[name]
    rng = np.random.default_rng(len(name) + ci)
    layer = nct.Layer(pytorch_init(rng, co, ci // groups, k).astype(f32),
                      pytorch_init(rng, co, ci // groups, k)[:, 0, 0].astype(f32) if bias else None,
                      stride=stride, padding=padding, dilation=dilation, groups=groups, num_groups=num_groups, eps=eps,
                      activation=activation)
    x = rng.standard_normal((ci, t)).astype(f32)
    return layer, x, *torchref.forward(layer, x)


@pytest.mark.parametrize("y_dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", BENCH)
def test_bench_shapes(variant, name, y_dtype):
    layer, x, conv, want = bench_case(name)
    for flags in (0, nct.CUTTABLE):
        job = nct.Job(layer, [x], y_dtype=y_dtype).cpu(variant, n_workers=2, flags=flags)
        nct.first_bad(job.values()[0], want, nct.bound(layer, conv, want, job.y_dtype), f"{name}, flags {flags}")
