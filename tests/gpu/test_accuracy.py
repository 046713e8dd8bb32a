"""Every bench shape and 300 random layers against the float64 oracle, in every precision; the oracle itself against
the host reference on small layers."""

import ctypes as c
import random

import pytest
import torch

import gpu
from gpu import Batch, DTYPE, Layer, Spec, nt


def frames_of(spec, ts, dtype, seed, mean=0.0):
    g = torch.Generator(device="cuda").manual_seed(seed)
    out = []
    for t in ts:
        x = torch.randn(spec.ci, t, generator=g, device="cuda") + mean
        out.append((x * 3000).round().clamp(-32768, 32767).to(torch.int16) if dtype == "i16" else x.to(DTYPE[dtype]))
    return out


@pytest.mark.parametrize("precision", ["f32", "tf32", "bf16"])
@pytest.mark.parametrize("name", gpu.SHAPES)
def test_bench_shape(name, precision, table):
    n, spec, t = gpu.SHAPES[name]
    dtype = "bf16" if precision == "bf16" else "f32"
    w = spec.weights(random_affine=False)
    layer = Layer(spec, w, precision)
    few = min(n, 4 if spec.ci * t < 4e6 else 2)  # the oracle's time; batch size changes no bit (test_bits)
    xs = frames_of(spec, [t] * few, dtype, 1)
    r = gpu.run(layer, Batch(xs), y_dtype=dtype)
    worst, top, square = 0.0, 0.0, 0.0
    for x, y in zip(xs, r.ys):
        want, scale, z = gpu.oracle(spec, w, x)
        ratio, high, rms = gpu.error(y, want, scale, z, precision, dtype, spec.act)
        worst, top, square = max(worst, ratio), max(top, high), max(square, rms)
    table.append({"shape": name, "precision": precision, "plan": r.plan, "schedule": r.schedule, "max": top, "rms": square})
    print(name, precision, r.plan, "|", r.schedule, f"max {top:.2e} rms {square:.2e} ratio {worst:.2f}")
    assert worst <= 1, f"{worst:.2f} times the bound"
    assert square <= gpu.BOUNDS[precision][1]


def random_case(seed):
    r = random.Random(seed)
    groups = r.choice([1, 1, 1, 1, 2, 3, 4, 8])
    shape = r.choice(["small", "mid", "big", "depthwise"])
    if shape == "depthwise":
        ci = co = groups = r.choice([3, 16, 33, 64])
        co *= r.choice([1, 2])
    else:
        top = {"small": 6, "mid": 40, "big": 160}[shape]
        ci, co = groups * r.randint(1, max(1, top // groups)), groups * r.randint(1, max(1, top // groups))
    g = r.choice([d for d in range(1, co + 1) if co % d == 0])
    k = r.choice([1, 2, 3, 3, 5, 7, 8, 10, 25])
    dil = r.choice([1, 1, 1, 2, 3, 16]) if k < 10 else 1
    stride = r.choice([1, 1, 1, 2, 3, 4, 5])
    pad = (r.randint(0, dil * (k - 1)), r.randint(0, dil * (k - 1))) if r.random() < 0.7 else (0, 0)
    mode = r.choice(["zeros", "zeros", "zeros", "reflect", "replicate", "circular"])
    low = max(dil * (k - 1) + 1, max(pad) + 1)
    spec = Spec(ci, co, k, g, stride=stride, pad=pad, dil=dil, groups=groups, mode=mode,
                act=r.choice(nt.ACTIVATIONS), bias=r.random() < 0.6, affine=r.random() < 0.8, seed=seed)
    long = r.choice([20, 150, 900])
    ts = [low + r.randint(0, long) for _ in range(r.randint(1, 6))]
    if r.random() < 0.3:
        ts = [ts[0]] * len(ts)
    pads = None
    if mode == "zeros" and r.random() < 0.3:
        pads = [(pad[0] if r.random() < 0.5 else 0, pad[1] if r.random() < 0.5 else 0) for _ in ts]
    x_dtype, y_dtype = r.choice(["f32", "f32", "f16", "bf16", "i16"]), r.choice(["f32", "f32", "f16", "bf16"])
    layout = dict(x_gap=r.choice([0, 0, 1, 3, 8]), y_gap=r.choice([0, 0, 1, 5, 8]), x_shift=r.randint(0, 5), y_shift=r.randint(0, 5))
    return spec, ts, pads, x_dtype, y_dtype, layout


def check_random(seed, precisions=("f32", "tf32", "bf16")):
    spec, ts, pads, x_dtype, y_dtype, layout = random_case(seed)
    w = spec.weights()
    xs = frames_of(spec, ts, x_dtype, seed)
    rows = []
    for precision in precisions:
        layer = Layer(spec, w, precision)
        r = gpu.run(layer, Batch(xs, pads=pads, **layout), y_dtype=y_dtype)
        for i, (x, y) in enumerate(zip(xs, r.ys)):
            want, scale, z = gpu.oracle(spec, w, x, pads[i] if pads else None)
            ratio, high, rms = gpu.error(y, want, scale, z, precision, y_dtype, spec.act)
            # Few values a group: one product's rounding is a large part of their spread.
            few = spec.co // spec.G * y.shape[1] < 32 or x_dtype == "i16"
            rows.append((precision, ratio, high, rms, few, r.plan, r.schedule, i))
    return spec, ts, x_dtype, y_dtype, layout, rows


@pytest.mark.parametrize("block", range(15))
def test_random_layers(block, table):
    bad, top = [], {}
    for seed in range(block * 20, block * 20 + 20):
        spec, ts, x_dtype, y_dtype, layout, rows = check_random(seed)
        for precision, ratio, high, rms, few, plan, schedule, i in rows:
            if not few:
                top[precision] = max(top.get(precision, 0), high)
            if not (ratio <= 1) and not (few and ratio < 1e4 and precision != "f32"):
                bad.append(f"seed {seed} frame {i} {precision}: {ratio:.3g} x bound, {plan} | {schedule} | {spec} T {ts} {x_dtype}->{y_dtype} {layout}")
    for precision, high in top.items():
        table.append({"shape": f"random {block * 20}..{block * 20 + 19}", "precision": precision, "max": high})
    assert not bad, f"{len(bad)} bad:\n" + "\n".join(bad[:12])


@pytest.mark.parametrize("seed", range(5000, 5020))
def test_oracle_is_the_references(seed):
    """The oracle kernel + PyTorch's float64 norm against nct_reference on the host."""
    spec, ts, pads, x_dtype, _, _ = random_case(seed)
    ts = [min(t, 40 + spec.dil * (spec.k - 1) + max(spec.pad)) for t in ts[:2]]
    if spec.ci * spec.co * spec.k * max(ts) > 3e7:
        pytest.skip("too long for the host")
    w = spec.weights()
    host = {k: v.cpu().contiguous() for k, v in w.items()}
    packed = nt.Weights()
    for name, t in host.items():
        setattr(packed, name, nt.Tensor(t.data_ptr(), nt.DTYPES[t.dtype], 0))
    for i, x in enumerate(frames_of(spec, ts, x_dtype, seed)):
        p = pads[i] if pads else spec.pad
        t, t_out = x.shape[1], spec.t_out(x.shape[1], p)
        xh, y = x.cpu().contiguous(), torch.full((spec.co, t_out), float("nan"), dtype=torch.float64)
        frames = (nt.Frame * 1)(nt.Frame(0, 0, t, t_out, t, t_out, *p, -1, -1))
        job = nt.Job(1, nt.DTYPES[x.dtype], nt.DTYPES[torch.float64], 0, frames)
        job.x, job.x_count, job.y, job.y_count = xh.data_ptr(), xh.numel(), y.data_ptr(), y.numel()
        why = nt.Why()
        nt.check(gpu.lib().nct_reference(spec.params(), packed, job, why), why)
        want, scale, _ = gpu.oracle(spec, w, x, p)
        worst = float(((want.cpu() - y).abs() / scale.cpu()).max())
        assert worst <= 1e-9, (spec, t, worst)
