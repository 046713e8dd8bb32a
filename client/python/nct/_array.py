"""numpy arrays to payloads and back. What would lose information, or could mean two things, is refused by name."""

import numpy as np

from . import _wire as wire

SENT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int16": "i16", "int32": "i32", "float64": "f64"}
READ = {"f32": "<f4", "f16": "<f2", "i16": "<i2", "i32": "<i4", "f64": "<f8"}
NAMES = {number: name for name, number in wire.DTYPES.items()}


def dtype_name(dtype):
    """"f32", "float32", np.float32, "bf16" ... -> the wire's name."""
    if isinstance(dtype, str) and dtype in wire.DTYPES:
        return dtype
    try:
        name = SENT.get(np.dtype(dtype).name)
    except TypeError:
        name = None
    if name is None:
        raise TypeError(f"{dtype!r} is no dtype of the wire; they are {', '.join(SENT)}")
    return name


def _check_kind(x):
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError("a masked array: say what stands in the masked places, e.g. x.filled(0)")
    x = np.asarray(x)
    if x.dtype.name not in SENT:
        raise TypeError(f"dtype {x.dtype} is not sent as it is, and not cast in silence; send one of "
                        f"{', '.join(SENT)} (integers count as x/2^15 and x/2^31), e.g. x.astype('float32')")
    return x


def _is_interleaved(shape, channels, layout):
    """Whether axis 1 is the channels. The order is never guessed from numbers that fit both ways, or the other way."""
    if layout is not None:
        if layout not in ("CT", "TC"):
            raise ValueError(f"layout is {layout!r}, it is 'CT' (channels, steps) or 'TC' (steps, channels)")
        axis = layout.index("C")
        if channels is not None and shape[axis] != channels:
            raise ValueError(f"the array is {shape} in layout {layout}: {shape[axis]} channels, the model has {channels}")
        return layout == "TC"
    if channels is None:
        raise ValueError(f"the array is {shape}, and the daemon does not say the model's channels: give layout='CT' or 'TC'")
    if shape == (channels, channels):
        raise ValueError(f"the array is {shape} and the model has {channels} channels: which axis is the channels? Give "
                         "layout='CT' or layout='TC'")
    if shape[0] == channels:
        return False
    hint = "; for (steps, channels) say layout='TC'" if shape[1] == channels else ""
    raise ValueError(f"the array is {shape}, the model has {channels} channels and takes ({channels}, T){hint}")


def to_payload(x, channels, layout=None):
    """-> (bytes, dtype number, channels, steps, interleaved). The bytes are a copy: x may change at once. A 1-D array is
    one channel."""
    x = _check_kind(x)
    if x.ndim == 1 and channels == 1 and layout is None:
        x, layout = x[None, :], "CT"
    if x.ndim != 2:
        raise ValueError(f"the array has {x.ndim} axes {x.shape}, a frame has 2: (channels, steps)")
    interleaved = _is_interleaved(x.shape, channels, layout)
    c, t = x.shape[::-1] if interleaved else x.shape
    if not c or not t:
        raise ValueError(f"the array is {x.shape}: a frame has at least 1 channel and 1 step")
    number = wire.DTYPES[SENT[x.dtype.name]]
    if x.dtype.name != "bfloat16":  # ml_dtypes' own: native, and knows no other order
        x = x.astype(x.dtype.newbyteorder("<"), copy=False)
    return x.tobytes(order="C"), number, c, t, interleaved


def from_payload(payload, h):
    """The samples of an answer, (channels, steps), own memory; bf16 widened to float32 (exact). None: no samples."""
    if not h.dtype:
        return None
    size = wire.DTYPE_BYTES.get(h.dtype, 0)
    if not size or len(payload) != h.channels * h.steps * size:
        raise wire.NctError("EPROTO", f"a payload of {len(payload)} bytes for {h.channels} x {h.steps} of dtype {h.dtype}")
    if NAMES[h.dtype] == "bf16":
        y = (np.frombuffer(payload, "<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        y = np.frombuffer(payload, READ[NAMES[h.dtype]]).astype(READ[NAMES[h.dtype]][1:], copy=True)
    return y.reshape(h.channels, h.steps)
