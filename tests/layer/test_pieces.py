"""A long sequence cut into frames: inner edges without pads, statistics observed, merged, given, or running."""
import numpy as np
import pytest

import layerlib as nct
import torchref
from random_layers import pytorch_init

f32 = np.float32


def make(seed, ci=6, co=12, k=5, num_groups=3, **options):
    rng = np.random.default_rng(seed)
    return nct.Layer(pytorch_init(rng, co, ci, k).astype(f32), rng.uniform(-1, 1, co).astype(f32),
                     rng.standard_normal(co).astype(f32), rng.standard_normal(co).astype(f32), num_groups=num_groups,
                     **options)


LAYERS = {
    "plain": dict(),
    "padded": dict(padding=2),
    "wide pad": dict(padding=4),
    "stride 3": dict(stride=3, padding=2),
    "stride 7": dict(stride=7),
    "dilated": dict(dilation=4, padding=8),
    "same, even": dict(k=4, padding="same"),
    "reflect": dict(padding=2, padding_mode="reflect", activation="gelu"),
    "replicate": dict(padding=3, padding_mode="replicate"),
    "one in": dict(ci=1, co=16, num_groups=16, k=10, stride=5, activation="gelu"),
    "wide": dict(ci=70, co=33, num_groups=11, padding=2),
    "wide, stride 2": dict(ci=60, co=33, num_groups=11, k=6, stride=2, padding=3),
    "wide, dilated": dict(ci=60, co=33, num_groups=11, dilation=3, padding=6),
}


def cuts(layer, t, ends):
    """Pieces whose outputs are [0, ends[0]), [ends[0], ends[1]) ...: (x from, x to, pads) of each."""
    p = layer.p
    reach = p.dilation * (p.kernel_size - 1) + 1
    t_out, begin, pieces = layer.t_out(t), 0, []
    for end in list(ends) + [t_out]:
        first, last = begin == 0, end == t_out
        x_from = 0 if first else begin * p.stride - p.pad_left
        x_to = t if last else (end - 1) * p.stride - p.pad_left + reach
        assert 0 <= x_from < x_to <= t
        pieces.append((x_from, x_to, (p.pad_left if first else 0, p.pad_right if last else 0)))
        begin = end
    return pieces


def some_ends(layer, t, rng):
    """Random cut points that leave each edge piece as long as its pad needs."""
    t_out = layer.t_out(t)
    inner = np.arange(8, t_out - 8)
    return sorted(rng.choice(inner, size=min(5, len(inner)), replace=False).tolist())


def merge(a, b):
    """Chan: statistics [count, mean, m2] of two sets together, per group."""
    n, delta = a[:, 0] + b[:, 0], b[:, 1] - a[:, 1]
    return np.stack([n, a[:, 1] + delta * b[:, 0] / n, a[:, 2] + b[:, 2] + delta**2 * a[:, 0] * b[:, 0] / n], 1)


@pytest.mark.parametrize("name", LAYERS)
def test_observed_and_given_pieces_are_the_whole(engine, name):
    layer = make(20, **LAYERS[name])
    rng = np.random.default_rng(21)
    x = rng.standard_normal((layer.p.in_channels, 400))
    pieces = cuts(layer, 400, some_ends(layer, 400, rng))
    xs, pads = [x[:, a:b] for a, b, _ in pieces], [q for _, _, q in pieces]
    n, groups = len(pieces), layer.p.num_groups
    observed = nct.Job(layer, xs, y_dtype=None, pads=pads, stat_out=list(range(n)), stats=np.full((n, groups, 3), np.nan))
    engine(observed)
    total = observed.stats[0]
    for stat in observed.stats[1:]:
        total = merge(total, stat)
    given = nct.Job(layer, xs, y_dtype=engine.y_dtype, norm=nct.GIVEN, pads=pads, stat_in=[0] * n,
                    stats=total[None])
    got = np.concatenate(engine(given).values(), 1)
    conv, want = torchref.forward(layer, x.astype(f32))
    nct.first_bad(got, want, nct.bound(layer, conv, want, b=engine.b), name)


def test_circular_pieces_with_the_wrapped_steps_in_front_and_behind(engine):
    layer = make(22, padding=4, padding_mode="circular")
    x = np.random.default_rng(23).standard_normal((6, 90))
    whole, = engine(nct.Job(layer, [x])).values()
    wrapped = np.concatenate([x[:, -4:], x, x[:, :4]], 1)
    got, = engine(nct.Job(layer, [wrapped], pads=[(0, 0)])).values()
    nct.first_bad(got, whole, 1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_running_statistics_are_those_of_all_outputs_so_far(engine, name):
    layer = make(24, **LAYERS[name])
    rng = np.random.default_rng(25)
    x = rng.standard_normal((layer.p.in_channels, 300)) + 0.5
    pieces = cuts(layer, 300, some_ends(layer, 300, rng))
    conv = torchref.conv(layer, x.astype(f32))
    stats, done = np.zeros((2, layer.p.num_groups, 3)), 0
    for i, (a, b, pads) in enumerate(pieces):
        in_place = i % 2
        job = nct.Job(layer, [x[:, a:b]], y_dtype=engine.y_dtype, norm=nct.RUNNING, pads=[pads], stat_in=[1],
                      stat_out=[1 if in_place else 0], stats=stats)
        got, = engine(job).values()
        stats = job.stats if in_place else job.stats[::-1].copy()
        so_far = conv[:, :done + got.shape[1]]
        want = torchref.norm_act(layer, so_far)[:, done:]
        nct.first_bad(got, want, nct.bound(layer, so_far, want, b=engine.b), f"{name}, cut {i}")
        done += got.shape[1]
    assert done == layer.t_out(300) and (stats[1, :, 0] == done * layer.p.out_channels // layer.p.num_groups).all()


@pytest.mark.parametrize("name", LAYERS)
def test_cuttable_conv_has_the_same_bits_however_it_is_cut(variant, name):
    layer = make(26, **LAYERS[name])
    rng = np.random.default_rng(27)
    x = rng.standard_normal((layer.p.in_channels, 700))

    def conv(xs, pads):
        job = nct.Job(layer, xs, pads=pads, flags=nct.CONV_ONLY)
        return np.concatenate(job.cpu(variant, flags=nct.CUTTABLE).bits(), 1)

    whole = conv([x], None)
    t_out = layer.t_out(700)
    for ends in (some_ends(layer, 700, rng), range(9, t_out - 9, 1 + t_out // 50), range(20, 75), [t_out - 9], [9]):
        pieces = cuts(layer, 700, ends)
        got = conv([x[:, a:b] for a, b, _ in pieces], [p for _, _, p in pieces])
        bad = np.argwhere(got.view(np.uint32) != whole.view(np.uint32))
        assert not len(bad), f"{name}: cut at {list(ends)}: {len(bad)} outputs differ, first at {bad[0]}"


def test_statistics_only_gives_the_bits_that_come_with_the_results(variant):
    layer = make(28, padding=2)
    x = np.random.default_rng(29).standard_normal((6, 333))
    with_y = nct.Job(layer, [x], stat_out=[0], stats=np.zeros((1, 3, 3))).cpu(variant)
    alone = nct.Job(layer, [x], y_dtype=None, stat_out=[0], stats=np.zeros((1, 3, 3))).cpu(variant)
    assert (with_y.stats.view(np.uint64) == alone.stats.view(np.uint64)).all()
