"""What must hold numerically, each rule by name, on the reference and on every CPU variant."""
import mmap

import numpy as np
import pytest

import layerlib as nct
import torchref
from random_layers import pytorch_init

f32 = np.float32


def identity(channels, **options):
    """A 1x1 conv that passes x through: statistics and activation alone."""
    return nct.Layer(np.eye(channels, dtype=f32)[:, :, None], **options)


def judged(engine, layer, xs, **options):
    """Runs and compares with PyTorch in float64."""
    job = engine(nct.Job(layer, xs, **{"y_dtype": engine.y_dtype, **options}))
    for n, got in enumerate(job.values()):
        conv, want = torchref.forward(layer, nct.value(job.xs[n], job.x_dtype))
        nct.first_bad(got, want, nct.bound(layer, conv, want, job.y_dtype, engine.b), f"frame {n}, {layer}")
    return job


# ---- statistics ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("steps", [257, 4096, 100_003])
def test_mean_a_million_times_the_deviation(engine, steps):
    rng = np.random.default_rng(3)
    layer = identity(8, num_groups=2)
    x = (1e6 + rng.standard_normal((8, steps))).astype(f32)
    got, = engine(nct.Job(layer, [x])).values()
    nct.first_bad(got, torchref.norm_act(layer, x.astype(np.float64)), 1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, -3.3, 1e6 + 0.3, 1e-20, 3e15, -7e-5])
def test_constant_group_is_exactly_beta(engine, value):
    rng = np.random.default_rng(4)
    beta, gamma = rng.standard_normal(16).astype(f32), rng.standard_normal(16).astype(f32)
    row = pytorch_init(rng, 4, 6, 3).astype(f32)
    layer = nct.Layer(np.repeat(row, 4, 0), gamma=gamma, beta=beta, num_groups=4)  # four channels a group, alike
    xs = [np.full((6, t), value) for t in (3, 4, 5, 18, 70, 129, 1000, 4097)]
    for got in engine(nct.Job(layer, xs)).values():
        nct.first_bad(got, np.broadcast_to(beta[:, None].astype(float), got.shape), 0, f"value {value}")


def test_one_value_a_group_is_exactly_beta(engine):
    rng = np.random.default_rng(5)
    beta = rng.standard_normal(12).astype(f32)
    layer = nct.Layer(pytorch_init(rng, 12, 5, 7).astype(f32), rng.standard_normal(12).astype(f32),
                      rng.standard_normal(12).astype(f32), beta, num_groups=12)
    for scale in (1e-3, 1, 1e6):
        got, = engine(nct.Job(layer, [scale * rng.standard_normal((5, 7))])).values()
        nct.first_bad(got, beta[:, None].astype(float), 0)


def test_statistics_are_not_taken_from_the_16_bit_result(engine):
    rng = np.random.default_rng(6)
    for dtype in ("bf16", "f16"):
        judged(engine, identity(6, num_groups=2), [300 + rng.standard_normal((6, 700))], y_dtype=dtype)


def test_long_groups(variant):
    """4e7 values in one group, with an offset of ten deviations."""
    rng = np.random.default_rng(7)
    layer = nct.Layer(rng.standard_normal((32, 1, 1)).astype(f32), rng.uniform(-1, 1, 32).astype(f32))
    x = (10 + rng.standard_normal((1, 1_250_000))).astype(f32)
    job = nct.Job(layer, [x]).cpu(variant, n_workers=2)
    conv = torchref.conv(layer, x)
    ratio = nct.offset_ratio(layer, conv)
    want = torchref.norm_act(layer, conv)
    del conv
    got, = job.bits()
    for channel in range(32):
        nct.first_bad(got[channel], want[channel], 5e-6 * 1.13 * np.maximum(1, ratio[channel]), f"channel {channel}")


def test_statistics_are_handed_out(engine):
    rng = np.random.default_rng(8)
    layer = nct.Layer(pytorch_init(rng, 12, 5, 3).astype(f32), num_groups=3)
    xs = [rng.standard_normal((5, t)) for t in (900, 3, 77)]
    job = nct.Job(layer, xs, stats=np.full((4, 3, 3), np.nan), stat_out=[2, 0, 3])
    engine(job)
    assert np.isnan(job.stats[1]).all(), "a slot that no frame names was written"
    for slot, x in zip((2, 0, 3), job.xs):
        groups = torchref.conv(layer, x).reshape(3, -1)
        n, deviation = groups.shape[1], groups.std(1)
        rough = 1e-12 if engine.exact else 2e-6
        assert (job.stats[slot, :, 0] == n).all()
        nct.first_bad(job.stats[slot, :, 1], groups.mean(1), rough * np.maximum(deviation, 1), "mean")
        nct.first_bad(job.stats[slot, :, 2], n * groups.var(1), rough * n * deviation * np.maximum(deviation, 1), "m2")


# ---- the f32 bound at every C_in*K -----------------------------------------------------------------------------------

@pytest.mark.parametrize("ci, k", [(1, 1), (1, 10), (2, 7), (64, 3), (96, 3), (86, 3), (128, 3), (257, 1), (1, 600),
                                   (3, 300), (512, 5), (1024, 5)])
def test_f32_bound_holds_for_every_number_of_products(engine, ci, k):
    rng = np.random.default_rng(ci * 31 + k)
    layer = nct.Layer(pytorch_init(rng, 64, ci, k).astype(f32), num_groups=2, padding=k // 2)
    judged(engine, layer, [rng.standard_normal((ci, t)) for t in (150, 33)])


# ---- NaN and Inf -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("activation", nct.ACTIVATIONS)
def test_nan_and_inf_stay_in_their_group(engine, bad, activation):
    """Conv groups 2, norm groups 4: a bad x in conv group 1 of frame 1 spoils norm groups 2 and 3 of that frame only."""
    rng = np.random.default_rng(9)
    layer = nct.Layer(pytorch_init(rng, 16, 3, 3).astype(f32), groups=2, num_groups=4, padding=1, activation=activation)
    xs = [rng.standard_normal((6, t)) for t in (40, 50, 33)]
    clean = engine(nct.Job(layer, xs, gap=2))
    assert not clean.flags.any()
    spoilt = [x.copy() for x in xs]
    spoilt[1][4, 20] = bad
    job = engine(nct.Job(layer, spoilt, gap=2))
    assert list(job.flags) == [0, nct.SAW_NONFINITE, 0]
    for n, (got, want) in enumerate(zip(job.bits(), clean.bits())):
        if n == 1:
            assert np.isnan(got[8:]).all()
            got, want = got[:8], want[:8]
        assert (got.view(np.uint32) == want.view(np.uint32)).all(), f"frame {n}"


@pytest.mark.parametrize("ci, co, steps", [(3, 8, 40), (64, 64, 300), (32, 96, 17)])
@pytest.mark.parametrize("activation", nct.ACTIVATIONS)
def test_with_given_statistics_a_nan_spoils_its_own_outputs_only(engine, activation, ci, co, steps):
    rng = np.random.default_rng(10)
    layer = nct.Layer(pytorch_init(rng, co, ci, 3).astype(f32), num_groups=2, padding=1, activation=activation)
    x = rng.standard_normal((ci, steps))
    stats = np.array([[[100, 0.1, 30], [50, -0.2, 20]]], float)
    given = dict(norm=nct.GIVEN, stat_in=[0], stats=stats)
    job = engine(nct.Job(layer, [x], **given))
    clean, = job.bits()
    assert list(job.flags) == [0]
    for at, bad in ((8, np.nan), (13, np.inf)):
        spoilt = x.copy()
        spoilt[1, at] = bad
        job = engine(nct.Job(layer, [spoilt], **given))
        got, = job.bits()
        touched = np.zeros(steps, bool)
        touched[at - 1:at + 2] = True
        assert np.isnan(got[:, touched]).all()
        assert (got[:, ~touched].view(np.uint32) == clean[:, ~touched].view(np.uint32)).all()
        assert list(job.flags) == [nct.SAW_NONFINITE]


@pytest.mark.parametrize("stat", [(10, 0, np.inf), (10, 0, np.nan), (10, np.nan, 1), (10, np.inf, 1), (0, 0, 0)], ids=str)
def test_given_statistics_without_a_variance_give_nan_not_beta(engine, stat):
    layer = identity(4, num_groups=2, beta=np.ones(4, f32))
    stats = np.array([[stat, (10, 0.5, 20)]], float)
    job = engine(nct.Job(layer, [np.random.default_rng(1).standard_normal((4, 50))], norm=nct.GIVEN, stat_in=[0], stats=stats))
    got, = job.bits()
    assert np.isnan(got[:2]).all() and np.isfinite(got[2:]).all()
    assert list(job.flags) == [nct.SAW_NONFINITE]


def test_values_whose_squares_overflow_f32(engine):
    """Deviations of 1e38 are finite; their variance is not in f32. NaN or the right answer, never beta."""
    rng = np.random.default_rng(11)
    layer = identity(2, num_groups=2, beta=np.full(2, 5, f32))
    x = np.clip(rng.standard_normal((2, 300)), -3, 3) * 1e38
    got, = engine(nct.Job(layer, [x])).values()
    want = torchref.norm_act(layer, x.astype(f32).astype(float))
    for channel in range(2):
        if not np.isnan(got[channel]).all():
            nct.first_bad(got[channel], want[channel], 2e-5)


@pytest.mark.parametrize("scale, bad", [(1, np.nan), (1, np.inf), (1e30, None)], ids=str)
def test_statistics_of_a_group_that_is_not_finite_are_nan(engine, scale, bad):
    """Both or neither: a finite mean beside an infinite m2 would be merged into something that looks sound."""
    x = np.random.default_rng(30).standard_normal((4, 100)) * scale
    if bad is not None:
        x[0, 50] = bad
    layer = nct.Layer(np.ones((4, 1, 1), f32), groups=4, num_groups=2)
    job = engine(nct.Job(layer, [x], stat_out=[0], stats=np.zeros((1, 2, 3))))
    got, = job.bits()
    assert (job.stats[0, :, 0] == 200).all()
    for group in range(2):
        lost = np.isnan(got[2 * group])
        assert (np.isnan(job.stats[0, group, 1:]) == lost.all()).all() and lost.all() == lost.any()
        assert np.isfinite(job.stats[0, group, 1:]).all() or lost.all()
    if bad is not None:
        assert np.isnan(got[:2]).all() and np.isfinite(got[2:]).all()


def test_a_running_mean_that_was_nan_stays_nan(engine):
    layer = identity(2, num_groups=1)
    stats = np.array([[[10, np.nan, np.nan]], [[7, 7, 7]]], float)
    job = engine(nct.Job(layer, [np.ones((2, 5))], norm=nct.RUNNING, stat_in=[0], stat_out=[1], stats=stats))
    assert np.isnan(job.bits()[0]).all() and job.stats[1, 0, 0] == 20 and np.isnan(job.stats[1, 0, 1:]).all()


def test_an_empty_slot_is_empty_whatever_else_it_holds(engine):
    layer = identity(2, num_groups=1)
    x = np.random.default_rng(32).standard_normal((2, 50))
    own, = engine(nct.Job(layer, [x])).bits()
    stats = np.array([[[0, np.nan, np.inf]]])
    job = engine(nct.Job(layer, [x], norm=nct.RUNNING, stat_in=[0], stat_out=[0], stats=stats))
    assert (job.bits()[0].view(np.uint32) == own.view(np.uint32)).all() and job.stats[0, 0, 0] == 100


def test_negative_variance_counts_as_zero(engine):
    layer = identity(1, eps=0.25)
    job = engine(nct.Job(layer, [np.arange(8.0)[None]], norm=nct.GIVEN, stat_in=[0], stats=np.array([[[4, 1, -1e-3]]])))
    nct.first_bad(job.values()[0], (np.arange(8.0)[None] - 1) * 2, 1e-6)


def test_zero_weights_do_not_let_the_neighbours_in(engine):
    """What lies before, between and behind the rows is NaN here (see Job); weights of 0 must not multiply it."""
    rng = np.random.default_rng(12)
    for k, padding, dilation in ((3, 1, 1), (5, 4, 2), (10, 9, 1), (1, 1, 1)):
        weight = pytorch_init(rng, 9, 5, k).astype(f32)
        weight[:, :, 0] = weight[:, :, -1] = 0
        layer = nct.Layer(weight, np.ones(9, f32), num_groups=3, padding=padding, dilation=dilation)
        for gap in (1, 2, 7):
            job = nct.Job(layer, [rng.standard_normal((5, t)) for t in (11, 64, 9, 130)], gap=gap, shift=1)
            for got in engine(job).bits():
                assert np.isfinite(got).all(), f"K {k}, gap {gap}"


# ---- offsets ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("ratio, flag", [(8.5e3, 0), (9.6e3, nct.SAW_OFFSET), (-2e4, nct.SAW_OFFSET)])
def test_offset_is_reported(engine, ratio, flag):
    rng = np.random.default_rng(13)
    x = rng.standard_normal((4, 5000))
    x[2:] += ratio  # the second group alone
    still = rng.standard_normal((4, 60))
    job = engine(nct.Job(identity(4, num_groups=2), [still, x, still]))
    assert list(job.flags) == [0, flag, 0]


def big_buffer(elements):
    """Address space without memory behind it: pages come as they are touched."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE, which Python names from 3.12 on
    return np.frombuffer(mmap.mmap(-1, elements * 4, flags=flags), f32)


def test_offsets_beyond_2_to_the_31(engine):
    """Frames and channels that lie more than 2^31 and 2^32 elements apart, in both x and y."""
    rng = np.random.default_rng(14)
    layer = nct.Layer(pytorch_init(rng, 3, 2, 3).astype(f32), num_groups=3, padding=1)
    xs = [rng.standard_normal((2, t)) for t in (50, 17)]
    small = engine(nct.Job(layer, xs)).bits()
    pitch, far = 2**31 + 5, 3 * 2**31 + 11
    x, y = big_buffer(2 * far), big_buffer(4 * far)
    job = nct.Job(layer, xs)
    for n, f in enumerate(job.frames):
        f.x_off, f.x_pitch, f.y_off, f.y_pitch = n * far, pitch, n * 2 * far, pitch
        for c in range(2):
            x[f.x_off + c * pitch:][:f.t_in] = xs[n][c]
    job.c.x, job.c.x_count, job.c.y, job.c.y_count = x.ctypes.data, x.size, y.ctypes.data, y.size
    job.y = np.empty(0, f32)
    engine(job)
    for f, want in zip(job.frames, small):
        for c in range(3):
            assert (y[f.y_off + c * pitch:][:f.t_out] == want[c]).all()


# ---- activations -----------------------------------------------------------------------------------------------------

def activation_alone(engine, activation, z):
    """act(z): identity conv, given mean 0 and variance 1 - eps."""
    layer = identity(1, activation=activation, eps=2.0**-10)
    stats = np.array([[[1, 0, 1 - 2.0**-10]]])
    return engine(nct.Job(layer, [z[None]], norm=nct.GIVEN, stat_in=[0], stats=stats)).values()[0][0]


@pytest.mark.parametrize("activation", nct.ACTIVATIONS)
def test_activation_error(engine, activation):
    rng = np.random.default_rng(15)
    z = np.concatenate([np.linspace(-12, 12, 60_001), rng.uniform(-100, 100, 5000), np.geomspace(1e-30, 1e30, 3000),
                        -np.geomspace(1e-30, 1e30, 3000), [0.0, -0.0, 88.8, -88.8, 710, -710, 104, -104]]).astype(f32)
    import torch
    want = torchref.ACT[activation](torch.from_numpy(z.astype(float))).numpy()
    nct.first_bad(activation_alone(engine, activation, z), want, 3e-7 * np.maximum(1, np.abs(z)), activation)


def test_nothing_to_do(engine):
    job = nct.Job(identity(2), [])
    engine(job)
    assert job.c.n_frames == 0
