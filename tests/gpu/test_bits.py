"""A frame's bits: whatever the batch, the row, neighbours, pitches, alignment, schedule and run."""

import pytest
import torch

import gpu
from gpu import Batch, Layer, Spec

PRECISIONS = ["f32", "tf32", "bf16"]
LAYERS = {
    "simt": Spec(3, 24, 5, 3, pad=(2, 2), act="gelu"),
    "simt-long": Spec(7, 20, 60, 4, act="silu"),
    "depthwise": Spec(16, 16, 3, 4, pad=(1, 1), groups=16),
    "mma": Spec(40, 72, 3, 3, pad=(1, 1), act="mish"),
    "mma-wide": Spec(128, 256, 3, 32, pad=(1, 1)),
    "mma-deep": Spec(256, 160, 5, 8, pad=(2, 2), act="silu"),
    "mma-strided": Spec(64, 32, 8, 4, stride=4, act="gelu"),
    "mma-narrow": Spec(64, 16, 3, 1, pad=(2, 2), dil=2),
    "mma-groups": Spec(64, 96, 3, 6, groups=2, pad=(1, 1)),
    "mma-reach": Spec(32, 48, 9, 4, dil=16, act="silu"),
    "one-channel": Spec(1, 64, 10, 64, stride=5, act="gelu", bias=False),
    "two-channels": Spec(2, 32, 7, 1),
    "depthwise-reach": Spec(64, 64, 3, 1, pad=(16, 16), dil=16, groups=64, eps=1e-8),
    "many-weights": Spec(512, 1024, 5, 8, pad=(2, 2), act="mish"),
    "one-tap": Spec(256, 128, 1, 1),
}
WALKED = {}  # what test_every_row_of_a_plan ran


def randn(spec, t, seed=0, dtype=torch.float32):
    return torch.randn(spec.ci, t, device="cuda", generator=torch.Generator("cuda").manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("t", [70, 16, 333, 1040])
def test_any_batch_row_and_layout(name, precision, t):
    spec = LAYERS[name]
    t = max(t, spec.dil * (spec.k - 1) + 1)
    layer = Layer(spec, spec.weights(), precision)
    x = randn(spec, t)
    alone = gpu.run(layer, Batch([x])).ys[0]
    assert torch.equal(gpu.run(layer, Batch([x])).ys[0], alone), "two runs"
    for n in (16, 64):
        r = gpu.run(layer, Batch([x] * n))
        assert all(torch.equal(y, alone) for y in r.ys), f"batch of {n}"
    others = [randn(spec, u, u) for u in (t + 1, max(t - 3, spec.dil * (spec.k - 1) + 1), 900, t)]
    for at in range(len(others) + 1):
        xs = others[:at] + [x] + others[at:]
        r = gpu.run(layer, Batch(xs, order=list(reversed(range(len(xs))))))
        assert torch.equal(r.ys[at], alone), f"ragged, row {at}"
    for gap, shift in ((0, 1), (1, 0), (3, 2), (4, 4), (7, 3)):
        r = gpu.run(layer, Batch([x, x], x_gap=gap, y_gap=gap, x_shift=shift, y_shift=shift))
        assert torch.equal(r.ys[0], alone) and torch.equal(r.ys[1], alone), f"pitch + {gap}, offset {shift}"
    assert torch.equal(gpu.run(layer, Batch([x], ragged=True)).ys[0], alone), "frames_dev"


@pytest.mark.xdist_group("rows")  # in one process, for the test behind it
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_every_row_of_a_plan(name, precision):
    """Each row that nct_variant lists, on its plan's layers: y, statistics and conv have the same bits."""
    spec = LAYERS[name]
    w = spec.weights()
    ran = {}
    for row in gpu.variants():
        try:
            layer = Layer(spec, w, precision, force=row)
        except gpu.nt.LayerError as e:
            assert e.code == -95, e
            continue
        for kind, ts in (("short", [16]), ("few", [9, 14, 3]), ("64", [64, 30]), ("long", [700, 131])):
            ts = [max(t, spec.dil * (spec.k - 1) + 1) for t in ts]
            for y_dtype in ("f32", "bf16"):
                xs = [randn(spec, t, t) for t in ts]
                stats = torch.zeros(len(ts), spec.G, 3, dtype=torch.float64, device="cuda")
                try:
                    r = gpu.run(layer, Batch(xs, stat_out=list(range(len(ts)))), y_dtype=y_dtype, stats=stats)
                    conv = gpu.run(layer, Batch(xs), flags=gpu.CONV_ONLY)
                except gpu.nt.LayerError as e:
                    assert e.code == -95, e
                    continue
                ran.setdefault((r.plan, kind, y_dtype), []).append((row, r.ys + conv.ys + [stats]))
    assert ran
    WALKED.setdefault("cases", set()).add((name, precision))
    WALKED.setdefault("rows", set()).update(row for rows in ran.values() for row, _ in rows)
    for key, rows in ran.items():
        for row, tensors in rows[1:]:
            for a, b in zip(rows[0][1], tensors):
                assert torch.equal(a, b), f"{key}: {row} differs from {rows[0][0]}"
    print(name, precision, {k: [r[0] for r in v] for k, v in ran.items()})


@pytest.mark.xdist_group("rows")
def test_no_row_was_left_out():
    """A row that no layer above can take is one that nothing compares."""
    if len(WALKED.get("cases", ())) < len(LAYERS) * len(PRECISIONS):
        pytest.skip("not all of test_every_row_of_a_plan ran in this process")
    left = [row for row in gpu.variants() if row not in WALKED["rows"]]
    assert not left, left


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("ci, co, k", [(40, 200, 3), (3, 100, 7), (128, 256, 3), (512, 130, 5)])
def test_one_dot_product_everywhere(ci, co, k, precision):
    spec = Spec(ci, co, k, 1, bias=False)
    w = spec.weights()
    w["weight"] = w["weight"][:1].expand(co, ci, k).contiguous()
    column = randn(spec, 1)
    for row in gpu.variants():
        for t in (16 + k - 1, 700):
            try:
                layer = Layer(spec, w, precision, force=row)
                r = gpu.run(layer, Batch([column.expand(ci, t).contiguous()] * 3), flags=gpu.CONV_ONLY)
            except gpu.nt.LayerError as e:
                assert e.code == -95, e
                continue
            y = torch.stack(r.ys)
            assert bool((y == y[0, 0, 0]).all()), (row, t)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_cuttable_conv_has_the_bits_of_the_whole(precision):
    for spec in (Spec(64, 48, 16 + 1, 4), Spec(3, 16, 5, 4)):
        layer = Layer(spec, spec.weights(), precision, flags=gpu.CUTTABLE)
        x = randn(spec, 400)
        whole = gpu.run(layer, Batch([x]), flags=gpu.CONV_ONLY).ys[0]
        cuts = [0, 3, 10, 90, 91, 250, whole.shape[1]]
        parts = [gpu.run(layer, Batch([x[:, a: b + spec.k - 1].contiguous()]), flags=gpu.CONV_ONLY).ys[0] for a, b in zip(cuts, cuts[1:])]
        assert torch.equal(torch.cat(parts, 1), whole)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name, forced", [("mma-wide", "mma"), ("mma-deep", "mma"), ("depthwise", "depth"), ("one-channel", "narrow")])
def test_rows_of_an_older_card(name, forced, precision):
    """Forced "sm80": the plan that such a card has, and its bits."""
    spec = LAYERS[name]
    forced = "simt" if precision == "f32" and forced in ("depth", "narrow") else forced
    xs = [randn(spec, 300)]
    want = gpu.run(Layer(spec, spec.weights(), precision, force=forced), Batch(xs))
    got = gpu.run(Layer(spec, spec.weights(), precision, force="sm80"), Batch(xs))
    assert "fused" not in got.schedule or "turned" in got.schedule, got.schedule
    assert got.plan == want.plan and torch.equal(got.ys[0], want.ys[0])


def test_graph_and_streams():
    spec = LAYERS["mma-wide"]
    module = gpu.nt.FusedConv1dGroupNorm(spec.ci, spec.co, spec.k, spec.G, padding=1, bias=False, activation="silu").cuda()
    x = torch.randn(4, spec.ci, 500, device="cuda")
    with torch.no_grad():
        want = module(x)
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            again = module(x)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            y = module(x)
        y.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
    assert torch.equal(again, want) and torch.equal(y, want)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_warm_then_capture(name, precision):
    """After nct_warm a ragged job is captured at once and replays to the same bits."""
    import ctypes as c

    spec = LAYERS[name]
    layer = Layer(spec, spec.weights(), precision)
    low = spec.dil * (spec.k - 1) + 1
    batch = Batch([randn(spec, t, t) for t in (low + 200, low + 5, low + 130)])
    limits, need, why = gpu.nt.Limits(3, 1, 400, 1200), c.c_size_t(), gpu.nt.Why()
    gpu.nt.check(gpu.lib().nct_workspace(c.byref(layer.handle), 1, limits, need, why), why)
    room = torch.empty(need.value + 256, dtype=torch.uint8, device="cuda")
    at = (room.data_ptr() + 255) // 256 * 256
    with pytest.raises(gpu.nt.LayerError, match="these limits need"):
        gpu.nt.check(gpu.lib().nct_warm(c.byref(layer.handle), 1, limits, at, need.value - 256, None, why), why)
    gpu.nt.check(gpu.lib().nct_warm(c.byref(layer.handle), 1, limits, at, need.value, None, why), why)
    r = gpu.run(layer, batch)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    want = [y.clone() for y in r.ys]
    with torch.cuda.graph(graph, stream=side):
        r.job.stream = torch.cuda.current_stream().cuda_stream
        gpu.nt.check(gpu.lib().nct_launch(c.byref(layer.handle), 1, r.job, why), why)
    r.keep[1].fill_(7.0)
    graph.replay()
    torch.cuda.synchronize()
    for i, y in enumerate(want):
        f = r.keep[3][i]
        assert torch.equal(r.keep[1].as_strided(tuple(y.shape), (f.y_pitch, 1), f.y_off), y), i


def test_torch_module():
    conv = torch.nn.Conv1d(24, 32, 3, padding="same", device="cuda")
    norm = torch.nn.GroupNorm(4, 32, device="cuda")
    module = gpu.nt.FusedConv1dGroupNorm.from_modules(conv, norm, "gelu", precision="f32")
    assert set(module.state_dict()) == {"conv.weight", "conv.bias", "norm.weight", "norm.bias"}
    x = torch.randn(3, 24, 200, device="cuda")
    with pytest.raises(RuntimeError, match="forward only"):
        module(x)
    with torch.no_grad():
        want = torch.nn.functional.gelu(norm.double()(conv.double()(x.double())))
        conv.float(), norm.float()
        assert float((module(x).double() - want).abs().max()) <= 5e-6 * 8
        big = torch.randn(7, 48, 260, device="cuda")
        view = big[::2, 12:36, 30:230]
        assert torch.equal(module(view), module(view.contiguous()))
        conv.weight.mul_(2)
        norm.bias.add_(1)
        want = torch.nn.functional.gelu(norm.double()(conv.double()(x.double())))
        conv.float(), norm.float()
        assert float((module(x).double() - want).abs().max()) <= 5e-6 * 8
        assert module(x[0]).shape == (32, 200)
        with pytest.raises(ValueError, match="consecutive"):
            module(x.transpose(1, 2).contiguous().transpose(1, 2))
