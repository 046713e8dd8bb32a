"""libnct_layer.so through ctypes: structures of nct_layer.h, jobs over numpy arrays, and what the tests compare.

A Layer holds PyTorch-named parameters and float64/float32 numpy weights. A Job packs frames (C, T) into one poisoned
buffer and reads the results back out of another, checking that nothing beside them was touched. Jobs run on the float64
reference, on a CPU variant, or are handed to another runner (the structures are the C ones).
"""
import ctypes as C
import os
import threading

import numpy as np

F32, F16, BF16, I16, I32, F64 = 1, 2, 3, 4, 5, 6
DTYPES = {"f32": F32, "f16": F16, "bf16": BF16, "i16": I16, "i32": I32, "f64": F64}
STORAGE = {F32: np.float32, F16: np.float16, BF16: np.uint16, I16: np.int16, I32: np.int32, F64: np.float64}
PADDING_MODES = ["zeros", "reflect", "replicate", "circular"]
ACTIVATIONS = ["none", "relu", "gelu", "gelu_tanh", "silu", "mish", "elu"]
OWN, RUNNING, GIVEN = 0, 1, 2
CONV_ONLY, CUTTABLE = 1, 1
SAW_NONFINITE, SAW_OFFSET = 1, 2


class Why(C.Structure):
    _fields_ = [("text", C.c_char * 512)]


class Params(C.Structure):
    _fields_ = [(n, C.c_int32) for n in (
        "in_channels out_channels kernel_size stride dilation groups num_groups pad_left pad_right "
        "padding_mode activation pre_activation").split()] + [("eps", C.c_double), ("reserved", C.c_int32 * 8)]


class Tensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("dtype", C.c_int32), ("on_device", C.c_int32)]


class Weights(C.Structure):
    _fields_ = [(n, Tensor) for n in ("weight", "bias", "gamma", "beta")]


class Where(C.Structure):
    _fields_ = [("device", C.c_int32), ("precision", C.c_int32), ("flags", C.c_uint32), ("force", C.c_char_p),
                ("alloc", C.c_void_p), ("release", C.c_void_p), ("ctx", C.c_void_p)]


class Frame(C.Structure):
    _fields_ = [(n, C.c_int64) for n in ("x_off", "y_off", "x_pitch", "y_pitch")] + [
        (n, C.c_int32) for n in "t_in t_out pad_left pad_right stat_in stat_out t_skip reserved".split()]


class JobC(C.Structure):
    _fields_ = [("n_frames", C.c_int32), ("x_dtype", C.c_int32), ("y_dtype", C.c_int32), ("norm", C.c_int32),
                ("frames", C.POINTER(Frame)), ("frames_dev", C.c_void_p),
                ("x", C.c_void_p), ("x_count", C.c_int64), ("y", C.c_void_p), ("y_count", C.c_int64),
                ("stats", C.c_void_p), ("n_stats", C.c_int32), ("flags", C.c_uint32),
                ("frame_flags", C.c_void_p), ("workspace", C.c_void_p), ("workspace_bytes", C.c_size_t),
                ("stream", C.c_void_p)]


class Limits(C.Structure):
    _fields_ = [("max_frames", C.c_int32), ("n_workers", C.c_int32), ("max_t_out", C.c_int64),
                ("sum_t_out", C.c_int64)]


class Report(C.Structure):
    _fields_ = [("plan", C.c_char * 48), ("schedule", C.c_char * 96), ("reason", C.c_char * 96),
                ("flop", C.c_double), ("bytes", C.c_int64)]


class NctError(Exception):
    def __init__(self, code, text):
        super().__init__(f"{os.strerror(-code)}: {text}")
        self.code, self.text = code, text


def load():
    here = os.path.dirname(os.path.abspath(__file__))
    build = os.environ.get("NCT_BUILD", os.path.join(here, "../../build"))
    so = C.CDLL(os.environ.get("NCT_LAYER_SO", os.path.join(build, "libnct_layer.so.0")))
    so.nct_variant.restype = C.c_char_p
    so.nct_layer_free.restype = None
    return so


lib = load()


def check(code, why):
    if code < 0:
        raise NctError(code, why.text.decode())
    return code


def variants(device=-1):
    """Names that nct_where.force takes on this machine, best first."""
    names = []
    while (name := lib.nct_variant(C.c_int32(device), C.c_int32(len(names)))) is not None:
        names.append(name.decode())
    return names


# ---- values --------------------------------------------------------------------------------------------------------

def bf16_bits(a):
    """float array -> uint16 of bfloat16, to nearest even."""
    u = np.asarray(a, np.float32).view(np.uint32)
    rounded = ((u.astype(np.uint64) + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(np.asarray(a, np.float32)), np.uint16(0x7FC0), rounded)


def store(a, dtype):
    """float array -> what lies in memory for this dtype."""
    if dtype == BF16:
        return bf16_bits(a)
    if dtype == I16:
        return np.clip(np.rint(np.asarray(a, np.float64) * 32768), -32768, 32767).astype(np.int16)
    if dtype == I32:
        return np.clip(np.rint(np.asarray(a, np.float64) * 2.0**31), -2**31, 2**31 - 1).astype(np.int32)
    return np.asarray(a).astype(STORAGE[dtype])


def value(a, dtype):
    """What lies in memory -> its value in float64."""
    if dtype == BF16:
        return (np.asarray(a, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype == I16:
        return a / 32768.0
    if dtype == I32:
        return a / 2.0**31
    return np.asarray(a).astype(np.float64)


def half_ulp(want, dtype):
    """Half the distance of the dtype's neighbours at `want`: what storing it there may add."""
    if dtype not in (F16, BF16):
        return 0.0
    mantissa, least = (10, -14) if dtype == F16 else (7, -126)
    exponent = np.maximum(np.frexp(np.abs(want))[1] - 1, least)
    return np.ldexp(0.5, exponent - mantissa) * 1.001


# ---- the layer -----------------------------------------------------------------------------------------------------

class Layer:
    def __init__(self, weight, bias=None, gamma=None, beta=None, stride=1, padding=0, dilation=1, groups=1,
                 padding_mode="zeros", num_groups=1, eps=1e-5, activation="none"):
        self.handles = {}
        self.weight, self.bias, self.gamma, self.beta = (
            None if a is None else np.ascontiguousarray(a) for a in (weight, bias, gamma, beta))
        co, cig, k = self.weight.shape
        p = self.p = Params(in_channels=cig * groups, out_channels=co, kernel_size=k, stride=stride,
                            dilation=dilation, groups=groups, num_groups=num_groups,
                            padding_mode=PADDING_MODES.index(padding_mode),
                            activation=ACTIVATIONS.index(activation), eps=eps)
        if isinstance(padding, int):
            p.pad_left = padding
        if isinstance(padding, tuple):
            p.pad_left, p.pad_right = padding
        else:
            left, right, why = C.c_int32(), C.c_int32(), Why()
            check(lib.nct_padding(C.byref(p), int(padding == "same"), C.byref(left), C.byref(right), C.byref(why)), why)
            p.pad_left, p.pad_right = left.value, right.value

    def __del__(self):
        for handle in self.handles.values():
            lib.nct_layer_free(handle)

    def __str__(self):
        p = self.p
        names = [n for n, _ in Params._fields_[:10]]
        given = "".join(n[0] if getattr(self, n) is not None else "-" for n in ("weight", "bias", "gamma", "beta"))
        return (", ".join(f"{n}={getattr(p, n)}" for n in names) +
                f", {ACTIVATIONS[p.activation]}, eps={p.eps}, tensors {given}")

    def weights(self):
        w = Weights()
        for name in ("weight", "bias", "gamma", "beta"):
            a = getattr(self, name)
            if a is not None:
                kinds = {"float32": F32, "float64": F64, "float16": F16, "uint16": BF16}
                setattr(w, name, Tensor(a.ctypes.data, kinds[a.dtype.name], 0))
        return w

    def f32(self, name, absent):
        """A tensor as the layer sees it: rounded to f32, in float64."""
        a = getattr(self, name)
        if a is None:
            return np.full(self.p.out_channels, absent, np.float64)
        return (value(a, BF16) if a.dtype == np.uint16 else a).astype(np.float32).astype(np.float64)

    def t_out(self, t, pad_left=None, pad_right=None):
        p, out, why = self.p, C.c_int64(), Why()
        left = p.pad_left if pad_left is None else pad_left
        right = p.pad_right if pad_right is None else pad_right
        check(lib.nct_out_steps(C.byref(p), C.c_int64(t), C.c_int32(left), C.c_int32(right), C.byref(out), C.byref(why)),
              why)
        return out.value

    def handle(self, force=None, flags=0):
        """The layer on the CPU, by variant name (None: the library's choice)."""
        key = (force, flags)
        if key not in self.handles:
            at = Where(device=-1, flags=flags, force=force.encode() if force else None)
            h, why, w = C.c_void_p(), Why(), self.weights()
            check(lib.nct_layer_new(C.byref(h), C.byref(self.p), C.byref(w), C.byref(at), None, C.byref(why)), why)
            self.handles[key] = h
        return self.handles[key]


# ---- jobs ----------------------------------------------------------------------------------------------------------

def aligned(n_bytes, offset=0, align=256):
    """A byte array whose first byte lies `offset` past a multiple of `align`."""
    raw = np.empty(n_bytes + offset + align, np.uint8)
    start = -raw.ctypes.data % align + offset
    return raw[start:start + n_bytes]


POISON = 0xA5  # as f32 -2.9e-16, as f16 -0.022; x's gaps are NaN instead, which nothing may read into a result


class Job:
    """Frames xs (list of (C_in, T) float arrays, or stored arrays with raw=True) as one job of `layer`.

    pads: (left, right) per frame, default the layer's. gap: elements between channels and frames. shift: elements that
    the buffers' bases lie past a 256-byte boundary. y_dtype None: statistics only.
    """

    def __init__(self, layer, xs, x_dtype="f32", y_dtype="f32", norm=OWN, pads=None, stat_in=None, stat_out=None,
                 stats=None, flags=0, gap=0, shift=0, raw=False, want_flags=True):
        self.layer, self.x_dtype = layer, DTYPES[x_dtype]
        self.y_dtype = DTYPES[y_dtype] if y_dtype else 0
        p, n = layer.p, len(xs)
        self.xs = [np.ascontiguousarray(x) if raw else store(x, self.x_dtype) for x in xs]
        pads = pads or [(p.pad_left, p.pad_right)] * n
        self.frames = (Frame * max(n, 1))()
        x_at = y_at = gap
        for i, x in enumerate(self.xs):
            t = x.shape[1]
            t_out = layer.t_out(t, *pads[i])
            self.frames[i] = Frame(x_at, y_at, t + gap, t_out + gap, t, t_out, pads[i][0], pads[i][1],
                                   -1 if stat_in is None else stat_in[i], -1 if stat_out is None else stat_out[i])
            x_at += (t + gap) * p.in_channels
            y_at += (t_out + gap) * p.out_channels
        item = np.dtype(STORAGE[self.x_dtype]).itemsize
        self.x = aligned(x_at * item, shift * item).view(STORAGE[self.x_dtype])
        self.x[:] = 0x7FC0 if self.x_dtype == BF16 else 0x7777 if self.x_dtype in (I16, I32) else np.nan
        for f, x in zip(self.frames, self.xs):
            self.channels(self.x, f.x_off, f.x_pitch, p.in_channels, f.t_in)[:] = x
        self.y = None
        if self.y_dtype:
            item = np.dtype(STORAGE[self.y_dtype]).itemsize
            self.y = aligned(y_at * item, shift * item).view(STORAGE[self.y_dtype])
        self.stats = None if stats is None else np.ascontiguousarray(stats, np.float64)
        self.flags = np.empty(n, np.uint32) if want_flags and not flags & CONV_ONLY else None
        self.c = JobC(n_frames=n, x_dtype=self.x_dtype, y_dtype=self.y_dtype, norm=norm, frames=self.frames,
                      x=self.x.ctypes.data, x_count=x_at, y=None if self.y is None else self.y.ctypes.data,
                      y_count=0 if self.y is None else y_at, flags=flags,
                      stats=None if stats is None else self.stats.ctypes.data,
                      n_stats=0 if stats is None else len(self.stats),
                      frame_flags=None if self.flags is None else self.flags.ctypes.data)

    @staticmethod
    def channels(buffer, off, pitch, channels, steps):
        item = buffer.itemsize
        return np.lib.stride_tricks.as_strided(buffer[off:], (channels, steps), (pitch * item, item))

    def poison(self):
        if self.y is not None:
            self.y.view(np.uint8)[:] = POISON
        if self.flags is not None:
            self.flags[:] = 0xDEADBEEF

    def bits(self):
        """The results, one (C_out, T_out) array a frame as stored; asserts that the gaps between them are untouched."""
        p, seen, rows = self.layer.p, np.zeros(self.y.size, bool), []
        for f in self.frames[:self.c.n_frames]:
            rows.append(self.channels(self.y, f.y_off, f.y_pitch, p.out_channels, f.t_out).copy())
            self.channels(seen, f.y_off, f.y_pitch, p.out_channels, f.t_out)[:] = True
        beside = self.y.view(np.uint8).reshape(self.y.size, -1)[~seen]
        assert (beside == POISON).all(), "the run wrote outside its frames' rows"
        return rows

    def values(self):
        return [value(b, self.y_dtype) for b in self.bits()]

    def reference(self):
        """The job on the float64 oracle."""
        self.poison()
        why, w = Why(), self.layer.weights()
        check(lib.nct_reference(C.byref(self.layer.p), C.byref(w), C.byref(self.c), C.byref(why)), why)
        return self

    def cpu(self, force=None, n_workers=1, flags=0, order=None, threads=False, spare=0):
        """The job on a CPU variant. Workers run one after the other (as `order` says), or as threads."""
        chain = (C.c_void_p * 1)(self.layer.handle(force, flags))
        t_outs = [f.t_out for f in self.frames[:self.c.n_frames]]
        lim = Limits(self.c.n_frames, n_workers, max(t_outs, default=0), sum(t_outs))
        need, why = C.c_size_t(), Why()
        check(lib.nct_workspace(chain, 1, C.byref(lim), C.byref(need), C.byref(why)), why)
        workspace = aligned(need.value + spare)
        workspace[:] = 0xFF  # no initial value: read before written it is NaN
        self.c.workspace, self.c.workspace_bytes = workspace.ctypes.data, need.value
        self.poison()
        phases = check(lib.nct_phases(chain, 1, C.byref(self.c), C.c_int32(n_workers), C.byref(why)), why)
        for phase in range(phases):
            def work(worker):
                check(lib.nct_phase(chain, 1, C.byref(self.c), C.c_int32(phase), C.c_int32(worker),
                                    C.c_int32(n_workers)), why)
            if threads:
                team = [threading.Thread(target=work, args=(i,)) for i in range(n_workers)]
                [t.start() for t in team]
                [t.join() for t in team]
            else:
                for worker in order or range(n_workers):
                    work(worker)
        return self


# ---- comparing -----------------------------------------------------------------------------------------------------

def first_bad(got, want, tolerance, what=""):
    """Asserts |got - want| <= tolerance everywhere (NaN only where both have it); names the first place that fails."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, wanted {want.shape}"
    tolerance = np.broadcast_to(tolerance, want.shape)
    with np.errstate(invalid="ignore"):
        good = (np.abs(got - want) <= tolerance) | (np.isnan(got) & np.isnan(want)) | (got == want)
    if not good.all():
        at = tuple(np.argwhere(~good)[0])
        raise AssertionError(f"{what}: {np.count_nonzero(~good)} of {good.size} wrong, first at {at}: got {got[at]!r}, "
                             f"wanted {want[at]!r} within {tolerance[at]:.3g}")


def offset_ratio(layer, conv):
    """|mean| * rstd of every output's group, as (C_out, 1), from float64 conv outputs (C_out, T_out)."""
    p = layer.p
    groups = conv.reshape(p.num_groups, -1)
    ratio = np.abs(groups.mean(1)) / np.sqrt(groups.var(1) + p.eps)
    return np.repeat(ratio, p.out_channels // p.num_groups)[:, None]


def bound(layer, conv, want, y_dtype=F32, b=5e-6):
    """The f32 bound: b * max(1,|gamma|) * max(1,|mean|*rstd) * 1.13, and half an ulp of a 16-bit result."""
    gamma = np.maximum(1, np.abs(layer.f32("gamma", 1)))[:, None]
    tolerance = b * gamma * np.maximum(1, offset_ratio(layer, conv)) * 1.13
    return np.broadcast_to(tolerance, want.shape) + half_ulp(np.abs(want) + tolerance, y_dtype)
