"""Random layers and ragged batches over every parameter, one per seed."""
import numpy as np

import layerlib as nct

WORK = 3_000_000  # multiply-adds of one case on the reference


def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]


def pytorch_init(rng, co, cig, k):
    limit = 1 / np.sqrt(cig * k)
    return rng.uniform(-limit, limit, (co, cig, k))


def random_layer(rng):
    groups = int(rng.choice([1, 1, 1, 2, 3, 4, 8, 16]))
    ci = groups * int(rng.integers(1, max(2, 41 // groups)))
    co = groups * int(rng.integers(1, max(2, 49 // groups)))
    if rng.random() < 0.1:  # depthwise
        groups = co = ci
    k = int(rng.choice([1, 2, 3, 3, 4, 5, 7, 8, 10, 16, 31]))
    stride = int(rng.choice([1, 1, 1, 2, 3, 4, 5, 7]))
    dilation = int(rng.choice([1, 1, 2, 3, 5, 16]))
    same = stride == 1 and rng.random() < 0.25
    padding = "same" if same else int(rng.choice([0, 0, 1, 2, (k - 1) * dilation // 2, (k - 1) * dilation, k + 3]))
    affine = rng.random() < 0.7
    dtype = [np.float32, np.float64][int(rng.integers(2))]
    return nct.Layer(
        pytorch_init(rng, co, ci // groups, k).astype(dtype),
        bias=rng.uniform(-0.5, 0.5, co).astype(np.float32) if rng.random() < 0.5 else None,
        gamma=rng.standard_normal(co).astype(dtype) if affine or rng.random() < 0.1 else None,
        beta=rng.standard_normal(co).astype(dtype) if affine or rng.random() < 0.1 else None,
        stride=stride, padding=padding, dilation=dilation, groups=groups,
        padding_mode=str(rng.choice(nct.PADDING_MODES)), num_groups=int(rng.choice(divisors(co))),
        eps=float(rng.choice([1e-5, 1e-5, 1e-8, 0.5])), activation=str(rng.choice(nct.ACTIVATIONS)))


def random_steps(layer, rng, budget):
    """A T in 1..5000 that the layer's geometry allows, log-uniform."""
    p = layer.p
    reach = p.dilation * (p.kernel_size - 1) + 1
    least = max(1, reach - p.pad_left - p.pad_right)
    pad = max(p.pad_left, p.pad_right)
    if p.padding_mode == 1:
        least = max(least, pad + 1)
    if p.padding_mode == 3:
        least = max(least, pad)
    per_step = p.out_channels * (p.in_channels // p.groups) * p.kernel_size / p.stride
    most = max(least, min(5000, int(budget / per_step)))
    return int(np.exp(rng.uniform(np.log(least), np.log(most + 0.999))))


def random_frames(layer, rng, dtype):
    """1 to 5 frames of different T, N(0, 1) with an offset now and then."""
    n = int(rng.choice([1, 2, 3, 5]))
    xs = []
    for _ in range(n):
        x = rng.standard_normal((layer.p.in_channels, random_steps(layer, rng, WORK / n)))
        if rng.random() < 0.1:
            x += rng.uniform(-3, 3)
        xs.append(x / 4 if dtype == "i16" else x)
    return xs


def random_case(seed):
    """-> (layer, keyword arguments of a Job)."""
    rng = np.random.default_rng(seed)
    layer = random_layer(rng)
    x_dtype = str(rng.choice(["f32", "f32", "f32", "f16", "bf16", "i16"]))
    y_dtype = str(rng.choice(["f32", "f32", "f32", "f16", "bf16"]))
    return layer, dict(xs=random_frames(layer, rng, x_dtype), x_dtype=x_dtype, y_dtype=y_dtype,
                       gap=int(rng.choice([0, 0, 1, 3])), shift=int(rng.choice([0, 0, 1, 5])))
