"""FusedConv1dGroupNorm: act(GroupNorm(Conv1d(x))) in one call, a drop-in for PyTorch's two modules.

    fused = FusedConv1dGroupNorm.from_modules(conv, norm, activation="gelu")
    with torch.no_grad():
        y = fused(x)                                  # x (N, C_in, T) or (C_in, T), CUDA or CPU

It calls the kernels library (libnct_layer.so.0) through ctypes on PyTorch's current stream; x is read where it
lies (any batch and channel stride, steps consecutive) and nothing is copied. Forward only. After one call with the
same shapes it can be captured in a CUDA graph. The library is looked for in NCT_LAYER_LIBRARY, beside this file,
in the build folder of a checkout, then by the loader.
"""

import ctypes as c
import os
import threading
from pathlib import Path

import torch
from torch import nn

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu", "mish", "elu")
PADDING_MODES = ("zeros", "reflect", "replicate", "circular")
PRECISIONS = ("f32", "tf32", "bf16")
DTYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3, torch.int16: 4, torch.float64: 6}
NORM_OWN = 0


class Params(c.Structure):
    _fields_ = [(n, c.c_int32) for n in (
        "in_channels", "out_channels", "kernel_size", "stride", "dilation", "groups", "num_groups", "pad_left",
        "pad_right", "padding_mode", "activation", "pre_activation")] + [("eps", c.c_double), ("reserved", c.c_int32 * 8)]


class Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("dtype", c.c_int32), ("on_device", c.c_int32)]


class Weights(c.Structure):
    _fields_ = [(n, Tensor) for n in ("weight", "bias", "gamma", "beta")]


class Where(c.Structure):
    _fields_ = [("device", c.c_int32), ("precision", c.c_int32), ("flags", c.c_uint32), ("force", c.c_char_p),
                ("alloc", c.c_void_p), ("release", c.c_void_p), ("ctx", c.c_void_p)]


class Frame(c.Structure):
    _fields_ = [(n, c.c_int64) for n in ("x_off", "y_off", "x_pitch", "y_pitch")] + [(n, c.c_int32) for n in (
        "t_in", "t_out", "pad_left", "pad_right", "stat_in", "stat_out", "t_skip", "reserved")]


class Job(c.Structure):
    _fields_ = [("n_frames", c.c_int32), ("x_dtype", c.c_int32), ("y_dtype", c.c_int32), ("norm", c.c_int32),
                ("frames", c.POINTER(Frame)), ("frames_dev", c.c_void_p), ("x", c.c_void_p), ("x_count", c.c_int64),
                ("y", c.c_void_p), ("y_count", c.c_int64), ("stats", c.c_void_p), ("n_stats", c.c_int32),
                ("flags", c.c_uint32), ("frame_flags", c.c_void_p), ("workspace", c.c_void_p),
                ("workspace_bytes", c.c_size_t), ("stream", c.c_void_p)]


class Limits(c.Structure):
    _fields_ = [("max_frames", c.c_int32), ("n_workers", c.c_int32), ("max_t_out", c.c_int64), ("sum_t_out", c.c_int64)]


class Report(c.Structure):
    _fields_ = [("plan", c.c_char * 48), ("schedule", c.c_char * 96), ("reason", c.c_char * 96), ("flop", c.c_double),
                ("bytes", c.c_int64)]


class Why(c.Structure):
    _fields_ = [("text", c.c_char * 512)]


class LayerError(RuntimeError):
    """The kernels library refused; `code` is its negative errno."""

    def __init__(self, code, text):
        super().__init__(f"{text} ({os.strerror(-code)})")
        self.code = code


_library = None
_library_lock = threading.Lock()


def library():
    """The kernels library, loaded once. OSError says where it was looked for."""
    global _library
    with _library_lock:
        if _library is None:
            _library = _load()
    return _library


def _load():
    here = Path(__file__).resolve()
    tried = [os.environ["NCT_LAYER_LIBRARY"]] if os.environ.get("NCT_LAYER_LIBRARY") else [
        str(here.parent / "libnct_layer.so.0"), str(here.parents[3] / "build" / "libnct_layer.so.0"), "libnct_layer.so.0"]
    errors = []
    for name in tried:
        if "/" in name and not os.path.exists(name):
            errors.append(f"{name}: not there")
            continue
        try:
            lib = c.CDLL(name)
            break
        except OSError as e:
            errors.append(str(e))
    else:
        raise OSError("the kernels library was not found; set NCT_LAYER_LIBRARY to libnct_layer.so.0. Tried: " + "; ".join(errors))
    if lib.nct_layer_abi() != 1:
        raise OSError(f"the kernels library {name} has ABI {lib.nct_layer_abi()}, this module speaks 1")
    layers = c.POINTER(c.c_void_p)
    why, p = c.POINTER(Why), c.c_void_p
    lib.nct_variant.restype = c.c_char_p
    lib.nct_layer_free.restype = None
    lib.nct_layer_free.argtypes = [p]
    lib.nct_layer_new.argtypes = [layers, c.POINTER(Params), c.POINTER(Weights), c.POINTER(Where), p, why]
    lib.nct_layer_repack.argtypes = [p, c.POINTER(Weights), p, why]
    lib.nct_padding.argtypes = [c.POINTER(Params), c.c_int, c.POINTER(c.c_int32), c.POINTER(c.c_int32), why]
    lib.nct_out_steps.argtypes = [c.POINTER(Params), c.c_int64, c.c_int32, c.c_int32, c.POINTER(c.c_int64), why]
    lib.nct_workspace.argtypes = [layers, c.c_int32, c.POINTER(Limits), c.POINTER(c.c_size_t), why]
    lib.nct_warm.argtypes = [layers, c.c_int32, c.POINTER(Limits), p, c.c_size_t, p, why]
    lib.nct_launch.argtypes = [layers, c.c_int32, c.POINTER(Job), why]
    lib.nct_phases.argtypes = [layers, c.c_int32, c.POINTER(Job), c.c_int32, why]
    lib.nct_phase.argtypes = [layers, c.c_int32, c.POINTER(Job), c.c_int32, c.c_int32, c.c_int32]
    lib.nct_explain.argtypes = [layers, c.c_int32, c.POINTER(Job), c.c_int32, c.POINTER(Report), why]
    lib.nct_reference.argtypes = [c.POINTER(Params), c.POINTER(Weights), c.POINTER(Job), why]
    return lib


def check(code, why):
    """Raise LayerError for a negative code."""
    if code < 0:
        raise LayerError(code, why.text.decode())
    return code


class FusedConv1dGroupNorm(nn.Module):
    """y = activation(norm(conv(x))), named and initialised as nn.Conv1d and nn.GroupNorm; state_dict has `conv.` and
    `norm.`. padding: int, 'same' or 'valid'. precision of the products: 'f32', 'tf32', 'bf16'; None: bf16 for bfloat16
    weights, else tf32 (as PyTorch's convolutions), f32 on the CPU. y has x's dtype (int16 x: float32)."""

    def __init__(self, in_channels, out_channels, kernel_size, num_groups, stride=1, padding=0, dilation=1, groups=1,
                 bias=True, padding_mode="zeros", eps=1e-5, affine=True, activation="none", precision=None, device=None,
                 dtype=None):
        conv = nn.Conv1d(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode,
                         device=device, dtype=dtype)
        norm = nn.GroupNorm(num_groups, out_channels, eps, affine, device=device, dtype=dtype)
        self._adopt(conv, norm, activation, precision)

    @classmethod
    def from_modules(cls, conv, norm, activation="none", precision=None):
        """The two modules themselves (their parameters are shared, not copied)."""
        self = cls.__new__(cls)
        self._adopt(conv, norm, activation, precision)
        return self

    def _adopt(self, conv, norm, activation, precision):
        nn.Module.__init__(self)
        if not isinstance(conv, nn.Conv1d) or not isinstance(norm, nn.GroupNorm):
            raise TypeError(f"an nn.Conv1d and an nn.GroupNorm are needed, not {type(conv).__name__} and {type(norm).__name__}")
        if norm.num_channels != conv.out_channels:
            raise ValueError(f"the norm has {norm.num_channels} channels, the conv makes {conv.out_channels}")
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation {activation!r} is not one of {', '.join(ACTIVATIONS)}")
        if precision is not None and precision not in PRECISIONS:
            raise ValueError(f"precision {precision!r} is not one of {', '.join(PRECISIONS)}")
        self.conv, self.norm = conv, norm
        self.activation, self.precision = activation, precision
        self.force = None  # a row of nct_variant() by name: tests and benches
        self._layer, self._made_for, self._packed = None, None, None

    def extra_repr(self):
        return f"activation={self.activation}, precision={self.precision}"

    def __getstate__(self):
        state = self.__dict__.copy()
        state.update(_layer=None, _made_for=None, _packed=None)
        return state

    def __deepcopy__(self, memo):
        import copy
        return type(self).from_modules(copy.deepcopy(self.conv, memo), copy.deepcopy(self.norm, memo), self.activation,
                                       self.precision)

    # ---- the layer of the library ----

    def params(self):
        """The nct_params of this module."""
        conv, norm = self.conv, self.norm
        p = Params(conv.in_channels, conv.out_channels, conv.kernel_size[0], conv.stride[0], conv.dilation[0],
                   conv.groups, norm.num_groups)
        p.padding_mode = PADDING_MODES.index(conv.padding_mode)
        p.activation = ACTIVATIONS.index(self.activation)
        p.eps = norm.eps
        if conv.padding == "same":
            left, right, why = c.c_int32(), c.c_int32(), Why()
            check(library().nct_padding(p, 1, left, right, why), why)
            p.pad_left, p.pad_right = left.value, right.value
        elif conv.padding != "valid":
            p.pad_left = p.pad_right = conv.padding[0]
        return p

    def _tensors(self):
        return (self.conv.weight, self.conv.bias, self.norm.weight, self.norm.bias)

    def _weights(self):
        w, keep = Weights(), []
        for name, t in zip(("weight", "bias", "gamma", "beta"), self._tensors()):
            if t is None:
                continue
            if t.dtype not in DTYPES or t.dtype == torch.int16:
                raise TypeError(f"{name} has dtype {t.dtype}, it must be a float tensor")
            keep.append(t.detach().contiguous())
            setattr(w, name, Tensor(keep[-1].data_ptr(), DTYPES[t.dtype], int(t.is_cuda)))
        return w, keep

    def _precision(self, device):
        if self.precision is not None:
            return self.precision
        if device.type == "cpu":
            return "f32"
        return "bf16" if self.conv.weight.dtype == torch.bfloat16 else "tf32"

    def _ready(self, device, stream):
        """The packed layer for `device`, made or repacked if parameters changed since the last call."""
        made_for = (device, self._precision(device), self.force, self.activation)
        packed = tuple((t.data_ptr(), t._version) if t is not None else None for t in self._tensors())
        if self._made_for == made_for and self._packed == packed:
            return self._layer
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("FusedConv1dGroupNorm must pack its weights first: call it once before the capture")
        w, keep = self._weights()
        lib, why = library(), Why()
        if self._layer is None or self._made_for != made_for:
            self._free()
            at = Where(device.index if device.type == "cuda" else -1, PRECISIONS.index(made_for[1]), 0,
                       self.force.encode() if self.force else None)
            layer = c.c_void_p()
            check(lib.nct_layer_new(c.byref(layer), self.params(), w, at, stream, why), why)
            self._layer, self._made_for = layer, made_for
        else:
            check(lib.nct_layer_repack(self._layer, w, stream, why), why)
        if device.type == "cuda":
            for t in keep:
                t.record_stream(torch.cuda.current_stream(device)) if t.is_cuda else None
        self._packed = packed
        return self._layer

    def _free(self):
        if self._layer is not None and self._made_for is not None:
            if self._made_for[0].type == "cuda":
                torch.cuda.synchronize(self._made_for[0])
            library().nct_layer_free(self._layer)
        self._layer = self._made_for = self._packed = None

    def __del__(self):
        try:
            self._free()
        except Exception:
            pass  # the interpreter or the driver is going down

    # ---- forward ----

    def forward(self, x):
        if torch.is_grad_enabled() and (x.requires_grad or any(t is not None and t.requires_grad for t in self._tensors())):
            raise RuntimeError("FusedConv1dGroupNorm is forward only: call it under torch.no_grad() or torch.inference_mode()")
        if x.dim() == 2:
            return self.forward(x.unsqueeze(0)).squeeze(0)
        if x.dim() != 3 or x.shape[1] != self.conv.in_channels:
            raise ValueError(f"x has shape {tuple(x.shape)}, it must be (N, {self.conv.in_channels}, T) or ({self.conv.in_channels}, T)")
        if x.dtype not in DTYPES or x.dtype == torch.float64:
            raise TypeError(f"x has dtype {x.dtype}, it must be float32, float16, bfloat16 or int16")
        if x.shape[2] > 1 and x.stride(2) != 1:
            raise ValueError(f"x has strides {x.stride()}: its steps must be consecutive; call x.contiguous()")
        if self.conv.weight.device != x.device:
            raise ValueError(f"x is on {x.device}, the weights are on {self.conv.weight.device}")
        if x.is_cuda:
            with torch.cuda.device(x.device):
                return self._run(x)
        return self._run(x)

    def _run(self, x):
        lib, why = library(), Why()
        stream = torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else None
        layer = self._ready(x.device, stream)
        job, y, keep = self._job(x, stream)
        if job.n_frames == 0:
            return y
        chain = c.byref(layer)
        if x.is_cuda:
            check(lib.nct_launch(chain, 1, job, why), why)
        else:
            for phase in range(check(lib.nct_phases(chain, 1, job, 1, why), why)):
                check(lib.nct_phase(chain, 1, job, phase, 0, 1), why)
        return y

    def _job(self, x, stream):
        lib, why, p = library(), Why(), self.params()
        n, _, t = x.shape
        t_out = c.c_int64()
        check(lib.nct_out_steps(p, t, p.pad_left, p.pad_right, t_out, why), why)
        t_out = t_out.value
        y = torch.empty(n, p.out_channels, t_out, device=x.device, dtype=torch.float32 if x.dtype == torch.int16 else x.dtype)
        need = c.c_size_t()
        if n:
            check(lib.nct_workspace(c.byref(self._layer), 1, Limits(n, 1, t_out, n * t_out), need, why), why)
        room = torch.empty(need.value + 256, dtype=torch.uint8, device=x.device)
        pitch = x.stride(1) if p.in_channels > 1 else max(x.stride(1), t)
        step = x.stride(0)
        frames = (Frame * max(n, 1))()
        for i in range(n):
            frames[i] = Frame(i * step, i * p.out_channels * t_out, pitch, t_out, t, t_out, p.pad_left, p.pad_right, -1, -1)
        job = Job(n, DTYPES[x.dtype], DTYPES[y.dtype], NORM_OWN, frames)
        job.x, job.x_count = x.data_ptr(), (n - 1) * step + (p.in_channels - 1) * pitch + t if n else 0
        job.y, job.y_count = y.data_ptr(), y.numel()
        job.workspace, job.workspace_bytes = (room.data_ptr() + 255) // 256 * 256, need.value
        job.stream = stream
        return job, y, (room, frames)

    def explain(self, x):
        """What would run for x: a dict with plan, schedule, reason, flop, bytes."""
        with torch.no_grad():
            self._ready(x.device, torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else None)
            job, _, keep = self._job(x, None)
            report, why = Report(), Why()
            check(library().nct_explain(c.byref(self._layer), 1, job, 0, report, why), why)
        return {"plan": report.plan.decode(), "schedule": report.schedule.decode(), "reason": report.reason.decode(),
                "flop": report.flop, "bytes": report.bytes}
