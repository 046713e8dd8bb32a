"""What must hold of the numbers: offsets, constants, NaN and Inf, long groups, statistics in and out, flags."""

import pytest
import torch

import gpu
from gpu import Batch, Layer, Spec

NAN, INF = float("nan"), float("inf")
SIMT = Spec(6, 12, 1, 3, bias=False)
MMA = Spec(32, 32, 1, 4, bias=False)
PRECISIONS = ["f32", "tf32", "bf16"]


def identity(spec):
    w = spec.weights()
    w["weight"] = torch.eye(spec.co, spec.ci, device="cuda").repeat(1, 1)[:, :, None].contiguous()
    return w


def randn(spec, t, seed=0):
    return torch.randn(spec.ci, t, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))


@pytest.mark.parametrize("spec", [SIMT, MMA], ids=["simt", "mma"])
@pytest.mark.parametrize("t", [77, 4096, 30001])
def test_offset_of_a_million(spec, t):
    spec = Spec(spec.ci, spec.ci, 1, 2, bias=False, affine=False)
    layer = Layer(spec, identity(spec), "f32")
    batch = Batch([randn(spec, t) + 1e6])
    conv = gpu.run(layer, batch, flags=gpu.CONV_ONLY).ys[0].double()
    v = conv.view(2, -1)
    want = ((v - v.mean(1, keepdim=True)) / torch.sqrt(v.var(1, unbiased=False, keepdim=True) + spec.eps)).view(spec.co, -1)
    got = gpu.run(layer, batch).ys[0].double()
    worst = float((got - want).abs().max())
    assert worst <= 1e-6 * max(1.0, float(want.abs().max())), worst


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("spec", [SIMT, MMA], ids=["simt", "mma"])
@pytest.mark.parametrize("t", [1, 2, 50, 63, 64, 65, 200, 257, 1000])
def test_a_constant_group_is_beta(spec, precision, t):
    w = spec.weights()
    layer = Layer(spec, w, precision)
    for value in (0.0, 0.1, -3.7, 12345.678):
        y = gpu.run(layer, Batch([torch.full((spec.ci, t), value, device="cuda")])).ys[0]
        if spec.co // spec.G == 1 or value == 0.0:
            assert torch.equal(y, w["beta"][:, None].expand_as(y)), (t, value)
    one = Spec(spec.ci, spec.co, 1, spec.co, bias=True)
    w = one.weights()
    for value in (0.1, -3.7, 12345.678):
        y = gpu.run(Layer(one, w, precision), Batch([torch.full((one.ci, t), value, device="cuda")])).ys[0]
        assert torch.equal(y, w["beta"][:, None].expand_as(y)), (t, value)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("spec", [Spec(6, 12, 3, 3, pad=(1, 1)), Spec(32, 64, 3, 4, pad=(1, 1)), Spec(32, 64, 3, 4, pad=(1, 1), act="relu"),
                                  Spec(32, 32, 3, 8, pad=(1, 1), groups=2, act="gelu")], ids=["simt", "mma", "relu", "groups"])
@pytest.mark.parametrize("t", [9, 300])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_nan_stays_in_its_groups(spec, precision, t, bad):
    layer = Layer(spec, spec.weights(), precision)
    xs = [randn(spec, t, i) for i in range(3)]
    clean = gpu.run(layer, Batch(xs), want_flags=True)
    assert clean.flags.tolist() == [0, 0, 0]
    dirty = [x.clone() for x in xs]
    dirty[1][1, t // 2] = bad
    r = gpu.run(layer, Batch(dirty), want_flags=True)
    assert torch.equal(r.ys[0], clean.ys[0]) and torch.equal(r.ys[2], clean.ys[2])
    first = spec.co // spec.groups  # channel 1 feeds the first conv group
    touched = max(1, spec.G // spec.groups) if spec.groups > 1 else spec.G
    rows = touched * (spec.co // spec.G)
    assert bool(torch.isnan(r.ys[1][:rows]).all()), first
    assert torch.equal(r.ys[1][rows:], clean.ys[1][rows:])
    assert r.flags.tolist() == [0, gpu.NONFINITE, 0]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("spec", [Spec(6, 12, 3, 3, pad=(1, 1)), Spec(32, 64, 3, 4, pad=(1, 1), act="relu")], ids=["simt", "mma"])
@pytest.mark.parametrize("t", [9, 300])
def test_given_statistics(spec, precision, t):
    layer, w = Layer(spec, spec.weights(), precision), spec.weights()
    x = randn(spec, t, 3)
    stats = torch.zeros(2, spec.G, 3, dtype=torch.float64, device="cuda")
    stats[1, :, 0], stats[1, :, 1], stats[1, :, 2] = 100, 0.2, 64.0
    r = gpu.run(layer, Batch([x], stat_in=[1]), norm=gpu.GIVEN, stats=stats, want_flags=True)
    want, scale, z = gpu.oracle(spec, w, x, stat=stats[1])
    ratio, *_ = gpu.error(r.ys[0], want, scale, z, precision, "f32", spec.act)
    assert ratio <= 1 and r.flags.tolist() == [0]
    x[0, t // 2] = INF
    y = gpu.run(layer, Batch([x], stat_in=[1]), norm=gpu.GIVEN, stats=stats, want_flags=True)
    bad = torch.isnan(y.ys[0])
    near = torch.zeros(t, dtype=torch.bool, device="cuda")
    near[t // 2 - 1: t // 2 + 2] = True
    assert torch.equal(bad, near.expand_as(bad)) and torch.equal(y.ys[0][:, ~near], r.ys[0][:, ~near])
    assert y.flags.tolist() == [gpu.NONFINITE]
    stats[0] = 0
    empty = gpu.run(layer, Batch([x], stat_in=[0]), norm=gpu.GIVEN, stats=stats)
    assert bool(torch.isnan(empty.ys[0]).all())


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("spec", [Spec(6, 12, 3, 3), Spec(32, 64, 3, 4)], ids=["simt", "mma"])
def test_observe_and_running(spec, precision):
    layer, w = Layer(spec, spec.weights(), precision), spec.weights()
    ts = [40, 700, 130]
    xs = [randn(spec, t, t) for t in ts]
    stats = torch.full((4, spec.G, 3), NAN, dtype=torch.float64, device="cuda")
    stats[3] = 0
    gpu.run(layer, Batch(xs, stat_out=[2, 0, 1]), stats=stats, want_y=False)
    observed = stats.clone()
    kept = gpu.run(layer, Batch(xs, stat_out=[2, 0, 1]), stats=stats)
    assert torch.equal(stats, observed)
    for x, slot in zip(xs, [2, 0, 1]):
        conv = gpu.oracle_conv(spec, w, x).view(spec.G, -1)
        assert torch.equal(stats[slot, :, 0], torch.full((spec.G,), float(conv.shape[1]), device="cuda", dtype=torch.float64))
        tol = {"f32": 2e-6, "tf32": 2e-3, "bf16": 1e-2}[precision]
        assert float((stats[slot, :, 1] - conv.mean(1)).abs().max()) <= tol
        assert float((stats[slot, :, 2] / conv.shape[1] - conv.var(1, unbiased=False)).abs().max()) <= tol
    # running: the first merge is with an empty slot and gives the frame's own bits
    run = torch.zeros(1, spec.G, 3, dtype=torch.float64, device="cuda")
    first = gpu.run(layer, Batch(xs[:1], stat_in=[0], stat_out=[0]), norm=gpu.RUNNING, stats=run)
    assert torch.equal(first.ys[0], kept.ys[0]) and torch.equal(run[0], stats[2])
    second = gpu.run(layer, Batch(xs[1:2], stat_in=[0], stat_out=[0]), norm=gpu.RUNNING, stats=run)
    both = torch.cat([gpu.oracle_conv(spec, w, x).view(spec.G, -1) for x in xs[:2]], 1)
    assert run[0, :, 0].tolist() == [both.shape[1]] * spec.G
    assert float((run[0, :, 1] - both.mean(1)).abs().max()) <= 1e-2
    given = torch.stack([torch.full((spec.G,), float(both.shape[1]), device="cuda", dtype=torch.float64), both.mean(1),
                         both.var(1, unbiased=False) * both.shape[1]], 1)
    want, scale, z = gpu.oracle(spec, w, xs[1], stat=given)
    assert gpu.error(second.ys[0], want, scale, z, precision, "f32", spec.act)[0] <= 1
    # a group that is not finite writes NaN
    xs[0][0, 3] = NAN
    gpu.run(layer, Batch(xs[:1], stat_out=[1]), stats=stats, want_y=False)
    assert bool(torch.isnan(stats[1, :, 1:]).all()) and not bool(torch.isnan(stats[1, :, 0]).any())


@pytest.mark.parametrize("precision, low, high", [("f32", 5000, 20000), ("tf32", 20, 50), ("bf16", 3, 6)])
def test_offset_flag(precision, low, high):
    spec = Spec(32, 32, 1, 1, bias=False, affine=False)
    w = identity(spec)
    for mean, want in ((low, 0), (high, gpu.OFFSET)):
        x = randn(spec, 500) + mean
        r = gpu.run(Layer(spec, w, precision), Batch([x, randn(spec, 500)]), want_flags=True)
        assert r.flags.tolist() == [want, 0], mean


@pytest.mark.parametrize("y_dtype", ["f16", "bf16"])
@pytest.mark.parametrize("spec", [Spec(6, 12, 3, 3), Spec(32, 64, 3, 4)], ids=["simt", "mma"])
def test_statistics_see_f32_not_the_output_dtype(spec, y_dtype):
    w = spec.weights()
    x = randn(spec, 900) + 40
    y = gpu.run(Layer(spec, w, "f32"), Batch([x]), y_dtype=y_dtype).ys[0]
    want, scale, z = gpu.oracle(spec, w, x)
    assert gpu.error(y, want, scale, z, "f32", y_dtype, "none")[0] <= 1


def test_long_group():
    for spec, t in ((Spec(2, 16, 3, 1), 2_500_000), (Spec(32, 16, 3, 1), 2_500_000)):
        w, x = spec.weights(), None
        x = randn(spec, t) + 3
        y = gpu.run(Layer(spec, w, "f32"), Batch([x])).ys[0]
        want, scale, z = gpu.oracle(spec, w, x)
        assert gpu.error(y, want, scale, z, "f32", "f32", "none")[0] <= 1


def test_offsets_beyond_2_31():
    spec, t = Spec(32, 32, 3, 4), 24_000_000
    if torch.cuda.mem_get_info()[0] < 45e9:
        pytest.skip("needs 45 GB of device memory")
    layer = Layer(spec, spec.weights(), "tf32")
    x = torch.randn(32, t, device="cuda", dtype=torch.float16)
    alone = gpu.run(layer, Batch([x[:, :70000].contiguous()]), y_dtype="f16").ys[0]
    r = gpu.run(layer, Batch([x, x, x, x[:, :70000].contiguous()]), y_dtype="f16")
    assert torch.equal(r.ys[3], alone)
    assert torch.equal(r.ys[0], r.ys[2])


def test_one_value_a_group_is_beta():
    for spec in (Spec(3, 8, 5, 8), Spec(32, 64, 5, 64)):
        w = spec.weights()
        y = gpu.run(Layer(spec, w, "tf32"), Batch([randn(spec, 5)])).ys[0]
        assert torch.equal(y, w["beta"][:, None])


@pytest.mark.parametrize("act", gpu.nt.ACTIVATIONS[1:])
def test_activation_error(act):
    spec = Spec(1, 1, 1, 1, bias=False, affine=False, act=act)
    w = identity(spec)
    x = torch.linspace(-30, 30, 200_000, device="cuda")[None]
    stats = torch.tensor([[[1.0, 0.0, 1.0 - 1e-5]]], dtype=torch.float64, device="cuda")  # rstd 1, mean 0
    y = gpu.run(Layer(spec, w, "f32"), Batch([x], stat_in=[0]), norm=gpu.GIVEN, stats=stats).ys[0].double()
    z = x.double()
    err = float(((y - gpu.activate(act, z)).abs() / z.abs().clamp(min=1)).max())
    assert err <= 3e-7, err


def test_refusals():
    spec = Spec(32, 64, 3, 4)
    with pytest.raises(gpu.nt.LayerError, match="no CUDA row"):
        Layer(spec, spec.weights(), force="nonsense")
    with pytest.raises(gpu.nt.LayerError, match="8 input and output"):
        Layer(Spec(1, 64, 3, 4), Spec(1, 64, 3, 4).weights(), force="mma")
    layer = Layer(spec, spec.weights())
    real, layer.workspace = layer.workspace, lambda *a: real(*a) - 256
    with pytest.raises(gpu.nt.LayerError, match="workspace has"):
        gpu.run(layer, Batch([randn(spec, 90)]))
