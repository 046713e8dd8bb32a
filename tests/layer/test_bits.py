"""A frame's bits depend on the layer, the variant and the frame, and on nothing else."""
import numpy as np
import pytest

import layerlib as nct
from random_layers import pytorch_init, random_case

f32 = np.float32

# name: C_in, C_out, K, stride, padding, dilation, groups, G, activation, T
SHAPES = {
    "default": (128, 256, 3, 1, 1, 1, 1, 32, "none", 150),
    "wav2vec2-l0": (1, 512, 10, 5, 0, 1, 1, 512, "gelu", 700),
    "diffpolicy": (256, 256, 5, 1, 2, 1, 1, 8, "mish", 16),
    "diffpolicy-n1": (512, 256, 5, 1, 2, 1, 1, 8, "mish", 4),
    "dconv": (64, 16, 3, 1, 2, 2, 1, 1, "gelu", 1500),
    "encodec48-l0": (2, 32, 7, 1, 0, 1, 1, 1, "none", 1003),
    "convtasnet-dw": (64, 64, 3, 1, 16, 16, 64, 1, "none", 320),
    "demucs-l4": (64, 128, 8, 4, 0, 1, 1, 4, "gelu", 344),
    "eeg64": (64, 128, 7, 1, 3, 1, 1, 16, "silu", 130),
    "matcha": (256, 256, 3, 1, 1, 1, 1, 8, "mish", 101),
    "odd, three taps": (37, 21, 3, 1, 2, 1, 1, 3, "relu", 203),
    "short, side by side": (48, 80, 3, 1, 2, 2, 2, 8, "silu", 15),
    "odd": (5, 21, 4, 3, 2, 3, 1, 7, "elu", 61),
}


def shape_layer(name):
    ci, co, k, s, p, d, groups, g, act, t = SHAPES[name]
    rng = np.random.default_rng(len(name) * 7 + ci)
    return nct.Layer(pytorch_init(rng, co, ci // groups, k).astype(f32), rng.uniform(-1, 1, co).astype(f32),
                     rng.standard_normal(co).astype(f32), rng.standard_normal(co).astype(f32), stride=s, padding=p,
                     dilation=d, groups=groups, num_groups=g, activation=act), t


def same_bits(got, want, what):
    bad = np.argwhere(got.view(np.uint8) != want.view(np.uint8))
    assert got.shape == want.shape and not len(bad), f"{what}: {len(bad)} bytes differ, first at {bad[0]}"


@pytest.mark.parametrize("name", SHAPES)
def test_batch_row_neighbours_pitch_and_workers(variant, name):
    layer, t = shape_layer(name)
    rng = np.random.default_rng(16)
    x = rng.standard_normal((layer.p.in_channels, t))
    alone, = nct.Job(layer, [x]).cpu(variant).bits()
    shorter = [rng.standard_normal((layer.p.in_channels, t - int(rng.integers(0, max(1, t // 3))))) for _ in range(4)]
    for n, row, gap, shift, workers in ((1, 0, 3, 1, 3), (16, 0, 0, 0, 2), (16, 15, 1, 3, 5), (64, 37, 0, 1, 1), (64, 5, 5, 0, 16)):
        xs = [shorter[i % 4] for i in range(n)]
        xs[row] = x
        got = nct.Job(layer, xs, gap=gap, shift=shift).cpu(variant, n_workers=workers).bits()
        same_bits(got[row], alone, f"{name}: N {n}, row {row}, gap {gap}, shift {shift}, {workers} workers")


@pytest.mark.parametrize("name", SHAPES)
def test_worker_counts_orders_and_threads(variant, name):
    layer, t = shape_layer(name)
    rng = np.random.default_rng(17)
    xs = [rng.standard_normal((layer.p.in_channels, n)) for n in (t, t // 2 + 20, t)]
    job = nct.Job(layer, xs)
    want = job.cpu(variant).bits()
    for workers, how in ((2, {}), (3, dict(order=[2, 0, 1])), (7, dict(order=list(range(6, -1, -1)))), (64, {}),
                         (4, dict(threads=True)), (1, dict(spare=4096))):
        for got, row in zip(job.cpu(variant, n_workers=workers, **how).bits(), want):
            same_bits(got, row, f"{name}: {workers} workers, {how}")


def test_random_layers_alone_and_in_a_batch(variant):
    for seed in range(1000, 1060):
        layer, case = random_case(seed)
        batch = nct.Job(layer, **case).cpu(variant, n_workers=1 + seed % 4).bits()
        kinds = {k: case[k] for k in ("x_dtype", "y_dtype")}
        for n, x in enumerate(case["xs"]):
            alone, = nct.Job(layer, [x], **kinds, gap=seed % 3, shift=seed % 5).cpu(variant).bits()
            same_bits(alone, batch[n], f"seed {seed}, frame {n}, {layer}")


@pytest.mark.parametrize("flags", [0, nct.CUTTABLE])
@pytest.mark.parametrize("ci, k, stride, dilation", [(7, 3, 1, 1), (1, 10, 5, 1), (128, 3, 1, 1), (3, 4, 2, 3), (300, 1, 1, 1),
                                                      (64, 7, 1, 1), (9, 5, 2, 1), (9, 8, 4, 2), (20, 4, 3, 3), (40, 5, 1, 4)])
def test_one_dot_product_everywhere(variant, ci, k, stride, dilation, flags):
    """Every output is the sum of the same products: every row, column and tile position must round it alike."""
    rng = np.random.default_rng(18)
    layer = nct.Layer(np.repeat(pytorch_init(rng, 1, ci, k), 37, 0).astype(f32), np.full(37, 0.3, f32), stride=stride,
                      dilation=dilation)
    column = rng.standard_normal((ci, 1))
    for t in ((k - 1) * dilation + 1, 40, 333, 300 * stride + (k - 1) * dilation):
        got, = nct.Job(layer, [np.repeat(column, t, 1)], flags=nct.CONV_ONLY).cpu(variant, flags=flags).bits()
        assert len(np.unique(got.view(np.uint32))) == 1, f"T {t}"


def test_repacked_weights_are_the_new_layer(variant):
    import ctypes as C
    layer, t = shape_layer("odd")
    x = np.random.default_rng(19).standard_normal((5, t))
    before, = nct.Job(layer, [x]).cpu(variant).bits()
    layer.weight, layer.bias = layer.weight[::-1].copy(), layer.bias * 2
    why, w = nct.Why(), layer.weights()
    nct.check(nct.lib.nct_layer_repack(layer.handle(variant), C.byref(w), None, C.byref(why)), why)
    after, = nct.Job(layer, [x]).cpu(variant).bits()
    layer.handles, old = {}, layer.handles
    fresh, = nct.Job(layer, [x]).cpu(variant).bits()
    [nct.lib.nct_layer_free(h) for h in old.values()]
    same_bits(after, fresh, "repacked")
    assert (after != before).any()


def test_a_job_too_large_for_the_caches_has_the_bits_of_its_frames(variant):
    """Results written once, of 16 MiB and more, take another way to memory; every row here has its own alignment."""
    rng = np.random.default_rng(20)
    layer = nct.Layer(pytorch_init(rng, 33, 2, 3).astype(f32), rng.standard_normal(33).astype(f32), num_groups=11,
                      activation="gelu")
    lengths = [30011, 40000, 21, 3, 70003]
    xs = [rng.standard_normal((2, t)) for t in lengths]
    for workers in 1, 3:
        got = nct.Job(layer, xs, gap=3, shift=1).cpu(variant, n_workers=workers).bits()
        assert sum(g.nbytes for g in got) >= 16 << 20
        for x, row in zip(xs, got):
            same_bits(row, nct.Job(layer, [x]).cpu(variant).bits()[0], f"{x.shape[1]} steps, {workers} workers")
