"""Numbers that nobody here made: ONNX's Conv1d vectors, PyTorch's sample cases, values published with the case files."""
import json
import os
import struct
import wave

import numpy as np
import pytest

import layerlib as nct
import torchref

HERE = os.path.dirname(os.path.abspath(__file__))
DATA, GOLDEN = os.path.join(HERE, "../data"), os.path.join(HERE, "../golden")


def conv_only(engine, layer, xs):
    job = engine(nct.Job(layer, xs, flags=nct.CONV_ONLY))
    return job.values()


def tolerance(engine, layer, x):
    """1e-6 of the largest sum of absolute products, more than f32 rounding adds; for the reference an ulp."""
    scale = np.abs(x).max() * np.abs(layer.f32("weight", None)).reshape(layer.p.out_channels, -1).sum(1).max()
    return (1e-7 if engine.exact else 1e-6) * max(1.0, scale)


# ---- ONNX ----------------------------------------------------------------------------------------------------------

with open(os.path.join(GOLDEN, "onnx_conv1d.json")) as file:
    ONNX = json.load(file)


def tensor(entry):
    return None if entry is None else np.array(entry["values"], np.float32).reshape(entry["shape"])


@pytest.mark.parametrize("name", ONNX)
def test_onnx_conv1d_vectors(engine, name):
    case = ONNX[name]
    layer = nct.Layer(tensor(case["weight"]), tensor(case["bias"]), stride=case["strides"], padding=tuple(case["pads"]),
                      dilation=case["dilations"], groups=case["group"])
    x, want = tensor(case["input"]), tensor(case["output"])
    for got, frame, row in zip(conv_only(engine, layer, list(x)), x, want):
        nct.first_bad(got, row, tolerance(engine, layer, frame), name)


# ---- PyTorch's sample cases: (x shape, weight shape, options) ------------------------------------------------------

CONV_SAMPLES = [
    ((1, 3, 4), (3, 3, 3), dict(bias=True, stride=2, padding=2)),
    ((2, 4, 8), (2, 2, 3), dict(bias=True, stride=3, padding=1, groups=2, dilation=2)),
    ((1, 4, 5), (1, 4, 3), dict(stride=2, padding="valid")),
    ((2, 2, 4), (2, 1, 4), dict(bias=True, padding="same", groups=2, dilation=2)),
    ((1, 4, 5), (3, 4, 3), dict()),
]


@pytest.mark.parametrize("x_shape, w_shape, options", CONV_SAMPLES, ids=[str(s[:2]) for s in CONV_SAMPLES])
def test_pytorch_conv1d_samples(engine, x_shape, w_shape, options):
    import torch
    rng = np.random.default_rng(1)
    options = dict(options)
    bias = rng.standard_normal(w_shape[0]).astype(np.float32) if options.pop("bias", False) else None
    w, x = rng.standard_normal(w_shape).astype(np.float32), rng.standard_normal(x_shape).astype(np.float32)
    layer = nct.Layer(w, bias, **options)
    want = torch.nn.functional.conv1d(torch.from_numpy(x).double(), torch.from_numpy(w).double(),
                                      None if bias is None else torch.from_numpy(bias).double(), **options).numpy()
    for got, frame, row in zip(conv_only(engine, layer, list(x)), x, want):
        nct.first_bad(got, row, tolerance(engine, layer, frame))


NORM_SAMPLES = [((1, 6, 3), 2, 0.5), ((2, 6, 3), 2, 1e-5), ((1, 3, 1), 1, 1e-5), ((5, 5, 5), 1, 0.5)]


@pytest.mark.parametrize("affine", ["both", "gamma", "beta", "none"])
@pytest.mark.parametrize("shape, num_groups, eps", NORM_SAMPLES, ids=[str(s[0]) for s in NORM_SAMPLES])
def test_pytorch_group_norm_samples(engine, shape, num_groups, eps, affine):
    rng = np.random.default_rng(2)
    c = shape[1]
    gamma, beta = rng.standard_normal(c).astype(np.float32), rng.standard_normal(c).astype(np.float32)
    layer = nct.Layer(np.eye(c, dtype=np.float32)[:, :, None], None, gamma if affine in ("both", "gamma") else None,
                      beta if affine in ("both", "beta") else None, num_groups=num_groups, eps=eps)
    x = rng.standard_normal(shape).astype(np.float32)
    for got, frame in zip(engine(nct.Job(layer, list(x), y_dtype=engine.y_dtype)).values(), x):
        conv, want = torchref.forward(layer, frame)
        nct.first_bad(got, want, nct.bound(layer, conv, want, b=engine.b))


def test_literal_conv(engine):
    layer = nct.Layer(np.arange(24, dtype=np.float32).reshape(4, 2, 3), np.ones(4, np.float32), stride=2)
    got, = conv_only(engine, layer, [np.arange(10).reshape(2, 5)])
    assert got.tolist() == [[80, 110], [206, 308], [332, 506], [458, 704]]


def test_same_with_an_even_kernel_puts_the_extra_zero_on_the_right(engine):
    layer = nct.Layer(np.ones((1, 1, 4), np.float32), padding="same")
    assert (layer.p.pad_left, layer.p.pad_right) == (1, 2)
    got, = conv_only(engine, layer, [np.arange(5.0)[None]])
    assert got.tolist() == [[3, 6, 10, 9, 7]]


# ---- the case files ------------------------------------------------------------------------------------------------

def read_safetensors(name):
    with open(os.path.join(DATA, name), "rb") as f:
        blob = f.read()
    n, = struct.unpack("<Q", blob[:8])
    out = {}
    for key, t in json.loads(blob[8:8 + n]).items():
        if key != "__metadata__":
            begin, end = (8 + n + at for at in t["data_offsets"])
            out[key] = np.frombuffer(blob[begin:end], {"F32": "<f4"}[t["dtype"]]).reshape(t["shape"])
    return out


def b0_layer():
    t = read_safetensors("B0_good_f32.safetensors")
    return nct.Layer(t["conv.weight"], None, t["norm.weight"], t["norm.bias"], num_groups=2)


def read_wav(name):
    with wave.open(os.path.join(DATA, name)) as w:
        assert w.getsampwidth() == 2
        return np.frombuffer(w.readframes(w.getnframes()), "<i2").reshape(-1, w.getnchannels()).T


# file, T_out, outputs at t = 0, peak of |out|
CASES = [
    ("A7_fmt18_cbsize0.wav", 998, (-1.020913, 1.277622, 2.814057, -2.242940), 8.7791),
    ("C_silence_2ch_1000.wav", 998, (-0.25, -0.125, 0, 0.125), 0.25),
    ("C_noise_1003f.wav", 1001, (-0.378921, 0.494873, -0.272538, 0.831006), 5.1014),
    ("C_quiet_lsb.wav", 998, (-0.252532, -0.135704, 0.016270, 0.133427), 0.2742),
]


@pytest.mark.parametrize("name, t_out, first, peak", CASES, ids=[c[0] for c in CASES])
def test_case_files(engine, name, t_out, first, peak):
    got, = engine(nct.Job(b0_layer(), [read_wav(name)], x_dtype="i16", raw=True)).values()
    assert got.shape == (4, t_out)
    nct.first_bad(got[:, 0], np.array(first), 0.6e-6 if engine.exact else 2e-6)
    nct.first_bad(np.abs(got).max(), peak, 0.51e-4)


def test_silence_is_exactly_beta(engine):
    got, = engine(nct.Job(b0_layer(), [read_wav("C_silence_2ch_1000.wav")], x_dtype="i16", raw=True)).values()
    assert (got == np.array([-0.25, -0.125, 0, 0.125])[:, None]).all()


def test_variance_is_biased(engine):
    """Two values a group: Bessel's correction would give -0.955736, 0.757169, 1.060367, -1.112095."""
    x = read_wav("A7_fmt18_cbsize0.wav")[:, :3]
    got, = engine(nct.Job(b0_layer(), [x], x_dtype="i16", raw=True)).values()
    nct.first_bad(got[:, 0], np.array([-1.246133, 1.120166, 1.499171, -1.624033]), 2e-6)


@pytest.mark.parametrize("unit", [50e-6, 50.0])
def test_eps_is_not_scaled_with_the_signal(engine, unit):
    """64 channels of EEG in volts and in microvolts: in volts eps 1e-5 swallows the deviation, as in PyTorch."""
    rng = np.random.default_rng(31)
    layer = nct.Layer(rng.uniform(-0.05, 0.05, (32, 64, 7)).astype(np.float32), padding=3, num_groups=8)
    job = engine(nct.Job(layer, [unit * rng.standard_normal((64, 512))], y_dtype=engine.y_dtype))
    conv, want = torchref.forward(layer, job.xs[0])
    nct.first_bad(job.values()[0], want, nct.bound(layer, conv, want, b=engine.b))
    assert (np.abs(want).max() < 0.1) == (unit < 1)
