"""Plans whose leaves are long (narrow, depth, long): frames of several leaves, alone and in batches that take several
turns, every row, layout, type and norm against the float64 oracle and against each other."""

import pytest
import torch

import gpu
from gpu import Batch, Layer, Spec

LAYERS = {
    "narrow-local": Spec(1, 48, 10, 48, stride=5, act="gelu"),
    "narrow-grid": Spec(2, 32, 7, 1, pad=(3, 3)),
    "narrow-groups": Spec(3, 40, 9, 4, stride=2, dil=2, pad=(4, 0), act="silu"),
    "narrow-reflect": Spec(4, 24, 5, 3, pad=(2, 2), mode="reflect", act="gelu"),
    "depth-one": Spec(48, 48, 3, 1, pad=(16, 16), dil=16, groups=48),
    "depth-groups": Spec(20, 40, 5, 8, pad=(2, 2), stride=2, groups=20, act="gelu"),
    "depth-circular": Spec(12, 12, 3, 3, pad=(1, 1), groups=12, mode="circular", act="mish"),
    "long-one": Spec(64, 16, 3, 1, pad=(2, 2), dil=2, act="gelu"),
    "long-groups": Spec(21, 12, 4, 3, pad=(1, 2), act="silu"),
    "long-replicate": Spec(40, 16, 5, 16, pad=(2, 2), mode="replicate"),
}
PRECISIONS = ["tf32", "bf16"]


def randn(spec, t, seed=0, dtype=torch.float32):
    return torch.randn(spec.ci, t, device="cuda", generator=torch.Generator("cuda").manual_seed(seed)).to(dtype)


def rows_of(spec, w, precision):
    out = []
    for row in gpu.variants():
        if row.split("-")[0] not in ("narrow", "depth", "long"):
            continue
        try:
            out.append((row, Layer(spec, w, precision, force=row)))
        except gpu.nt.LayerError as e:
            assert e.code == -95, e
    return out


def run(layer, *args, **kw):
    """None where the row cannot take the job."""
    try:
        return gpu.run(layer, *args, **kw)
    except gpu.nt.LayerError as e:
        assert e.code == -95, e
        return None


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_long_frames_against_the_oracle(name, precision):
    spec = LAYERS[name]
    w = spec.weights()
    layer = Layer(spec, w, precision)
    assert name.split("-")[0] in gpu.run(layer, Batch([randn(spec, 300)])).plan
    for t, x_dtype, y_dtype in ((4500, torch.float32, "f32"), (6001, torch.bfloat16, "bf16"), (2100, torch.float16, "f16"), (777, torch.bfloat16, "f32")):
        xs = [randn(spec, t, 1, x_dtype), randn(spec, t + 5, 2, x_dtype)]
        if precision == "bf16":
            w16 = {k: (v.bfloat16().float() if k == "weight" else v) for k, v in w.items()}
            xs = [x.bfloat16().to(x_dtype) for x in xs]
            layer, wo = Layer(spec, w16, precision), w16
        else:
            wo = w
        r = gpu.run(layer, Batch(xs), y_dtype=y_dtype)
        for x, y in zip(xs, r.ys):
            want, scale, z = gpu.oracle(spec, wo, x)
            ratio, worst, rms = gpu.error(y, want, scale, z, precision, y_dtype, spec.act)
            assert ratio <= 1 and rms <= gpu.BOUNDS[precision][1], (t, y_dtype, ratio, worst, rms)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_long_frames_have_the_same_bits_everywhere(name, precision):
    spec = LAYERS[name]
    w = spec.weights()
    for x_dtype, y_dtype in ((torch.float32, "f32"), (torch.bfloat16, "bf16"), (torch.float16, "f32")):
        x, other = randn(spec, 4500, 3, x_dtype), randn(spec, 4601, 4, x_dtype)
        alone, ran = None, []
        for row, layer in rows_of(spec, w, precision):
            stats = torch.zeros(1, spec.G, 3, dtype=torch.float64, device="cuda")
            r = run(layer, Batch([x], stat_out=[0]), y_dtype=y_dtype, stats=stats)
            if r is None:
                continue
            ran.append(row)
            if alone is None:
                alone, stat = r.ys[0], stats
            assert torch.equal(r.ys[0], alone) and torch.equal(stats, stat), row
            for batch, at in ((Batch([x] * 9), 8), (Batch([x] * 70), 69), (Batch([other, x, other], order=[2, 1, 0]), 1),
                              (Batch([x, x], x_gap=1, y_gap=3, x_shift=1, y_shift=2), 1), (Batch([x, x], x_gap=8, y_gap=8), 0),
                              (Batch([x, x], x_gap=2, y_gap=6, x_shift=2, y_shift=6), 1)):
                r = run(layer, batch, y_dtype=y_dtype)
                assert r is None or torch.equal(r.ys[at], alone), (row, at, batch.x_gap)
        assert ran
        print(name, precision, y_dtype, ran)


@pytest.mark.parametrize("name", LAYERS)
def test_nan_stays_in_its_group_and_given_in_its_step(name):
    spec = LAYERS[name]
    w = spec.weights()
    t = 4400
    for row, layer in rows_of(spec, w, "tf32"):
        clean, odd = randn(spec, t, 5), randn(spec, t, 6)
        odd[0, 3000] = float("nan")
        base = run(layer, Batch([clean, clean]))
        if base is None:
            continue
        r = run(layer, Batch([clean, odd]), want_flags=True)
        assert torch.equal(r.ys[0], base.ys[0]), row
        bad = torch.isnan(gpu.oracle_conv(spec, w, odd)).view(spec.G, -1).any(1).repeat_interleave(spec.co // spec.G)
        assert bool(torch.isnan(r.ys[1][bad]).all()) and bool(torch.isfinite(r.ys[1][~bad]).all()), row
        assert r.flags.tolist() == [0, gpu.NONFINITE], row
        stats = torch.tensor([[[10.0, 0.25, 40.0]] * spec.G], dtype=torch.float64, device="cuda")
        r = run(layer, Batch([odd], stat_in=[0]), norm=gpu.GIVEN, stats=stats, want_flags=True)
        bad = torch.isnan(gpu.oracle_conv(spec, w, odd))
        assert torch.equal(torch.isnan(r.ys[0]), bad) and r.flags.tolist() == [gpu.NONFINITE], row


@pytest.mark.parametrize("name", LAYERS)
def test_running_statistics_and_conv_only(name):
    spec = LAYERS[name]
    w = spec.weights()
    x = randn(spec, 4300, 7)
    want = gpu.oracle_conv(spec, w, x)
    for row, layer in rows_of(spec, w, "tf32"):
        conv = run(layer, Batch([x]), flags=gpu.CONV_ONLY)
        if conv is None:
            continue
        assert float((conv.ys[0].double() - want).abs().max()) <= 5e-3 * float(want.std()), row
        stats = torch.zeros(1, spec.G, 3, dtype=torch.float64, device="cuda")
        stats[0, :, 0], stats[0, :, 1], stats[0, :, 2] = 1000, 0.5, 700
        r = run(layer, Batch([x], stat_in=[0], stat_out=[0]), norm=gpu.RUNNING, stats=stats)
        v = want.view(spec.G, -1)
        n = v.shape[1]
        mean = (1000 * 0.5 + v.sum(1)) / (1000 + n)
        m2 = 700 + ((v - v.mean(1, keepdim=True)) ** 2).sum(1) + (v.mean(1) - 0.5) ** 2 * 1000 * n / (1000 + n)
        assert bool(((stats[0, :, 1] - mean).abs() <= 1e-3).all()) and bool(((stats[0, :, 2] / m2 - 1).abs() <= 2e-3).all()), row
        y, _, z = gpu.oracle(spec, w, x, stat=stats[0])
        assert bool(((r.ys[0].double() - y).abs() <= 1e-2 * z.abs().clamp(min=1)).all()), row


def test_one_impulse_at_the_first_step():
    """The worst case of leaves about their first output: everything but it is constant."""
    for name in ("narrow-local", "narrow-grid", "depth-one"):
        spec = LAYERS[name]
        w = spec.weights()
        x = torch.zeros(spec.ci, 4096, device="cuda")
        x[:, 0] = 1.0
        y = gpu.run(Layer(spec, w, "tf32"), Batch([x])).ys[0]
        want, _, z = gpu.oracle(spec, w, x)
        assert bool(((y.double() - want).abs() <= 2e-3 * z.abs().clamp(min=1)).all()), name
