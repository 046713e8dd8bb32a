"""Harness of the GPU tests: a layer through the C library, jobs of any layout, and the float64 oracle.

Memory of x and y is one flat buffer each with guard values around every row, so that a test sees a write outside its
rows and a result that read outside its frame. The oracle's conv is tests/gpu/oracle.cu, its norm and activation are
PyTorch's in float64."""

import ctypes as c
import importlib.util
import math
import os
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("nct_torch", ROOT / "client/python/nct/torch.py")
nt = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(nt)

DTYPE = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i16": torch.int16}
BOUNDS = {"f32": (5e-6, 1e-6), "tf32": (5e-3, 5e-4), "bf16": (3e-2, 3e-3)}  # kernels: max and rms before gamma
ACT_BOUND = {"f32": 3e-7, "tf32": 2e-5, "bf16": 1e-3}
OWN, RUNNING, GIVEN = 0, 1, 2
CONV_ONLY, CUTTABLE = 1, 1
NONFINITE, OFFSET = 1, 2
DEV = "cuda"


def lib():
    return nt.library()


def oracle_library():
    path = os.environ.get("NCT_GPU_ORACLE") or ROOT / "build/libnct_gpu_oracle.so"
    return c.CDLL(str(path))


def variants():
    out = []
    while (v := lib().nct_variant(0, len(out))) is not None:
        out.append(v.decode())
    return out


@dataclass
class Spec:
    """A layer's parameters under PyTorch's names."""
    ci: int
    co: int
    k: int
    G: int
    stride: int = 1
    pad: tuple = (0, 0)
    dil: int = 1
    groups: int = 1
    mode: str = "zeros"
    act: str = "none"
    bias: bool = True
    affine: bool = True
    eps: float = 1e-5
    seed: int = 0

    def t_out(self, t, pads=None):
        left, right = self.pad if pads is None else pads
        return (t + left + right - self.dil * (self.k - 1) - 1) // self.stride + 1

    def params(self):
        p = nt.Params(self.ci, self.co, self.k, self.stride, self.dil, self.groups, self.G, self.pad[0], self.pad[1],
                      nt.PADDING_MODES.index(self.mode), nt.ACTIVATIONS.index(self.act))
        p.eps = self.eps
        return p

    def weights(self, random_affine=True):
        """PyTorch's initialisation of the conv; gamma and beta drawn so that they matter."""
        g = torch.Generator().manual_seed(self.seed)
        bound = 1 / math.sqrt(self.ci // self.groups * self.k)
        w = {"weight": (torch.rand(self.co, self.ci // self.groups, self.k, generator=g) * 2 - 1) * bound}
        if self.bias:
            w["bias"] = (torch.rand(self.co, generator=g) * 2 - 1) * bound
        if self.affine:
            w["gamma"] = torch.randn(self.co, generator=g) * 0.5 + 1 if random_affine else torch.ones(self.co)
            w["beta"] = torch.randn(self.co, generator=g) * 0.5 if random_affine else torch.zeros(self.co)
        return {k: v.to(DEV) for k, v in w.items()}


class Layer:
    def __init__(self, spec, weights, precision="tf32", force=None, flags=0):
        self.spec, self.w, self.precision = spec, weights, precision
        why, layer = nt.Why(), c.c_void_p()
        packed = nt.Weights()
        for name, t in weights.items():
            assert t.is_contiguous()
            setattr(packed, name, nt.Tensor(t.data_ptr(), nt.DTYPES[t.dtype], int(t.is_cuda)))
        at = nt.Where(0, nt.PRECISIONS.index(precision), flags, force.encode() if force else None)
        nt.check(lib().nct_layer_new(c.byref(layer), spec.params(), packed, at, None, why), why)
        torch.cuda.synchronize()
        self.handle = layer

    def __del__(self):
        if getattr(self, "handle", None):
            torch.cuda.synchronize()
            lib().nct_layer_free(self.handle)

    def workspace(self, frames, max_t, sum_t):
        need, why = c.c_size_t(), nt.Why()
        nt.check(lib().nct_workspace(c.byref(self.handle), 1, nt.Limits(frames, 1, max_t, sum_t), need, why), why)
        return need.value


@dataclass
class Batch:
    """Frames as (C, T) tensors, laid into one flat buffer with odd offsets and pitches."""
    xs: list
    pads: list = None
    x_gap: int = 0       # extra elements of pitch
    y_gap: int = 0
    x_shift: int = 0     # elements before the first row
    y_shift: int = 0
    order: list = None   # rows in this order in memory
    stat_in: list = None
    stat_out: list = None
    ragged: bool = None  # pass frames_dev; None: if needed
    guard: float = float("nan")


class Result:
    pass


def run(layer, batch, y_dtype="f32", norm=OWN, flags=0, stats=None, want_y=True, want_flags=False, stream=None, launch=True):
    """One job; returns ys (list of (C_out, T_out)), stats, flags, report. Asserts that guards are untouched."""
    s, r = layer.spec, Result()
    n = len(batch.xs)
    pads = batch.pads or [s.pad] * n
    x_dt = batch.xs[0].dtype
    t_in = [x.shape[1] for x in batch.xs]
    t_out = [s.t_out(t, p) for t, p in zip(t_in, pads)]
    frames = (nt.Frame * n)()
    x_at, y_at = batch.x_shift, batch.y_shift
    for i in batch.order or range(n):
        frames[i] = nt.Frame(x_at, y_at, t_in[i] + batch.x_gap, t_out[i] + batch.y_gap, t_in[i], t_out[i], *pads[i],
                             batch.stat_in[i] if batch.stat_in else -1, batch.stat_out[i] if batch.stat_out else -1)
        x_at += s.ci * (t_in[i] + batch.x_gap) + batch.x_gap
        y_at += s.co * (t_out[i] + batch.y_gap) + batch.y_gap
    x_count, y_count = x_at + 8, y_at + 8
    guard = batch.guard if x_dt.is_floating_point else 31000
    xb = torch.full((x_count,), guard, device=DEV, dtype=x_dt)
    for i, x in enumerate(batch.xs):
        f = frames[i]
        xb.as_strided((s.ci, t_in[i]), (f.x_pitch, 1), f.x_off).copy_(x)
    ydt = DTYPE[y_dtype]
    poison = 1.2345e30 if ydt != torch.float16 else 12345.0
    yb = torch.full((y_count,), poison, device=DEV, dtype=ydt)
    job = nt.Job(n, nt.DTYPES[x_dt], nt.DTYPES[ydt], norm, frames)
    same = all((frames[i].t_in, frames[i].pad_left, frames[i].pad_right) == (frames[0].t_in, frames[0].pad_left, frames[0].pad_right)
               for i in range(n)) and not batch.order and not batch.stat_in and not batch.stat_out
    ragged = batch.ragged if batch.ragged is not None else not same
    if ragged:
        raw = bytes(frames)
        dev = torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(DEV)
        job.frames_dev = dev.data_ptr()
    job.x, job.x_count = xb.data_ptr(), x_count
    if want_y:
        job.y, job.y_count = yb.data_ptr(), y_count
    if stats is not None:
        job.stats, job.n_stats = stats.data_ptr(), stats.shape[0]
    fl = torch.full((n,), 77, dtype=torch.int32, device=DEV)
    if want_flags:
        job.frame_flags = fl.data_ptr()
    need = layer.workspace(n, max(t_out), sum(t_out))
    ws = torch.full((need + 512,), 0xFF, dtype=torch.uint8, device=DEV)  # NaN everywhere: no initial value is relied on
    base = (ws.data_ptr() + 255) // 256 * 256
    job.workspace, job.workspace_bytes, job.flags = base, need, flags
    job.stream = stream.cuda_stream if stream else torch.cuda.current_stream().cuda_stream
    why = nt.Why()
    rep = nt.Report()
    nt.check(lib().nct_explain(c.byref(layer.handle), 1, job, 0, rep, why), why)
    r.plan, r.schedule, r.reason = rep.plan.decode(), rep.schedule.decode(), rep.reason.decode()
    nt.check(lib().nct_launch(c.byref(layer.handle), 1, job, why), why)
    torch.cuda.synchronize()
    used = torch.zeros(y_count, dtype=torch.bool, device=DEV)
    r.ys = []
    for i in range(n):
        f = frames[i]
        view = yb.as_strided((s.co, t_out[i]), (f.y_pitch, 1), f.y_off)
        used.as_strided((s.co, t_out[i]), (f.y_pitch, 1), f.y_off).fill_(True)
        r.ys.append(view.clone())
    outside = yb[~used]
    assert bool((outside == torch.tensor(poison, dtype=ydt, device=DEV)).all()) or not want_y, "a write outside the frames' rows"
    tail = ws[base - ws.data_ptr() + need:]
    assert bool((tail == 0xFF).all()), "a write behind the workspace"
    r.flags, r.stats, r.job = fl.cpu(), stats, job
    r.keep = (xb, yb, ws, frames, fl, dev if ragged else None)
    return r


# ---- oracle ----

_oracle = None


def oracle_conv(spec, weights, x, pads=None):
    """(C_out, T_out) float64 of one frame (C_in, T)."""
    global _oracle
    _oracle = _oracle or oracle_library()
    pads = spec.pad if pads is None else pads
    x = x.contiguous()
    t_out = spec.t_out(x.shape[1], pads)
    out = torch.empty(spec.co, t_out, dtype=torch.float64, device=DEV)
    w = weights["weight"].float().contiguous()
    b = weights["bias"].float().contiguous() if "bias" in weights else None
    f = nt.Frame(0, 0, x.shape[1], t_out, x.shape[1], t_out, pads[0], pads[1], 0, 0)
    torch.cuda.synchronize()
    err = _oracle.gpu_oracle_conv(c.c_void_p(out.data_ptr()), c.c_void_p(x.data_ptr()), nt.DTYPES[x.dtype], c.byref(f),
                                  c.c_void_p(w.data_ptr()), c.c_void_p(b.data_ptr() if b is not None else 0), spec.ci, spec.co,
                                  spec.k, spec.stride, spec.dil, spec.groups, nt.PADDING_MODES.index(spec.mode))
    assert err == 0, f"oracle: CUDA error {err}"
    return out


def activate(name, z):
    return {"none": lambda v: v, "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda v: F.gelu(v, approximate="tanh"),
            "silu": F.silu, "mish": F.mish, "elu": F.elu}[name](z)


def oracle(spec, weights, x, pads=None, stat=None):
    """y in float64, and per-channel scale |mean| rstd of its group. stat: (G, 3) count, mean, m2 given."""
    conv = oracle_conv(spec, weights, x, pads)
    v = conv.view(spec.G, -1)
    mean = v.mean(1, keepdim=True) if stat is None else stat[:, 1:2]
    var = ((v - mean) ** 2).mean(1, keepdim=True) if stat is None else (stat[:, 2:3] / stat[:, 0:1])
    rstd = 1 / torch.sqrt(var + spec.eps)
    z = ((v - mean) * rstd).view(spec.co, -1)
    gamma = weights["gamma"].double()[:, None] if "gamma" in weights else torch.ones(spec.co, 1, device=DEV, dtype=torch.float64)
    beta = weights["beta"].double()[:, None] if "beta" in weights else 0.0
    z = z * gamma + beta
    scale = (mean.abs() * rstd).clamp(min=1).repeat_interleave(spec.co // spec.G, 0)
    return activate(spec.act, z), gamma.abs().clamp(min=1) * scale, z


def half_ulp(want, y_dtype):
    if y_dtype == "f32":
        return want.abs() * 2.0 ** -24
    m = 11 if y_dtype == "f16" else 8
    small = 2.0 ** -24 if y_dtype == "f16" else 0.0
    return want.abs() * 2.0 ** -m * 1.01 + small


def error(got, want, scale, z, precision, y_dtype, act):
    """(worst excess over the bound as a ratio, max and rms error before gamma). NaN counts as infinite."""
    bound = BOUNDS[precision][0]
    own = half_ulp(want, y_dtype)
    diff = (got.double() - want).abs()
    table = ((diff - own).clamp(min=0) / scale)
    extra = ACT_BOUND[precision] * z.abs().clamp(min=1) if act != "none" else 0.0
    ratio = (diff - own - extra) / (bound * scale * (1.13 if act != "none" else 1.0))
    ratio = torch.where(torch.isnan(ratio), torch.full_like(ratio, float("inf")), ratio)
    return float(ratio.max()), float(table.max()), float(table.pow(2).mean().sqrt())


SHAPES = {
    # name: (N, spec, T, {precision: ...})
    "default": (16, Spec(128, 256, 3, 32, pad=(1, 1), bias=False), 1024),
    "default-n1": (1, Spec(128, 256, 3, 32, pad=(1, 1), bias=False), 1024),
    "default-n64": (64, Spec(128, 256, 3, 32, pad=(1, 1), bias=False), 1024),
    "default-long": (16, Spec(128, 256, 3, 32, pad=(1, 1), bias=False), 16384),
    "wav2vec2-l0": (16, Spec(1, 512, 10, 512, stride=5, act="gelu", bias=False), 16000),
    "diffpolicy": (256, Spec(256, 256, 5, 8, pad=(2, 2), act="mish"), 16),
    "diffpolicy-n1": (1, Spec(1024, 2048, 5, 8, pad=(2, 2), act="mish"), 4),
    "matcha": (16, Spec(256, 256, 3, 8, pad=(1, 1), act="mish"), 500),
    "cosyvoice": (2, Spec(512, 256, 3, 8, pad=(1, 1), act="mish"), 500),
    "dconv": (4, Spec(64, 16, 3, 1, pad=(2, 2), dil=2, act="gelu"), 220500),
    "encodec48-l0": (16, Spec(2, 32, 7, 1), 48006),
    "convtasnet": (4, Spec(512, 128, 1, 1, eps=1e-8), 3200),
    "convtasnet-dw": (4, Spec(512, 512, 3, 1, pad=(16, 16), dil=16, groups=512, eps=1e-8), 3200),
    "demucs-l4": (4, Spec(512, 1024, 8, 4, stride=4, act="gelu"), 3444),
    "eeg64": (16, Spec(64, 128, 7, 16, pad=(3, 3), act="silu", bias=False), 512),
}
# The table of shapes says bias where it names one; default, wav2vec2-l0 and eeg64 have none.
