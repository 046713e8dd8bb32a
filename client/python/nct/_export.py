"""nct.export: a PyTorch Conv1d + GroupNorm (+ activation) as a model file of nctd. It needs no PyTorch import of its own
and no safetensors package: the modules are read through their attributes."""

import json
import os
import struct
import tempfile

CONV = ("stride", "padding", "dilation", "groups", "padding_mode")
ACTIVATIONS = {"Identity": "none", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "Mish": "mish", "ELU": "elu"}


def _kind(module):
    return type(module).__name__


def _split(module):
    """-> conv, norm, activation module or None."""
    if all(hasattr(module, name) for name in ("conv", "norm")):
        parts = [module.conv, module.norm]
    else:
        try:
            parts = list(module)
        except TypeError:
            parts = []
    if len(parts) not in (2, 3) or _kind(parts[0]) != "Conv1d" or _kind(parts[1]) != "GroupNorm":
        raise TypeError(f"{_kind(module)} of {[_kind(p) for p in parts]}: export takes a sequence Conv1d, GroupNorm and perhaps "
                        "an activation, or a module with .conv and .norm")
    return parts[0], parts[1], parts[2] if len(parts) == 3 else None


def _activation(module):
    if module is None:
        return "none"
    name = ACTIVATIONS.get(_kind(module))
    if name == "gelu" and module.approximate == "tanh":
        name = "gelu_tanh"
    if name is None or name == "elu" and module.alpha != 1:
        raise TypeError(f"the activation {module} is not one of {', '.join(ACTIVATIONS)} (ELU: alpha 1)")
    return name


def export(module, path, *, activation=None, sample_rate=None):
    """Writes `path` (safetensors, f32; to a temporary name, renamed when whole). module: nn.Sequential(conv, norm[, act]), a
    tuple of them, or a module with .conv and .norm. activation: by name, where the module has none. sample_rate: Hz."""
    conv, norm, act = _split(module)
    if act is not None and activation is not None:
        raise ValueError(f"the module ends with {act} and activation={activation!r} is given too")
    if norm.num_channels != conv.out_channels:
        raise ValueError(f"GroupNorm has {norm.num_channels} channels, Conv1d gives {conv.out_channels}")
    if conv.transposed:
        raise TypeError("a transposed convolution is another layer")
    facts = {name: getattr(conv, name) for name in CONV}
    facts.update(num_groups=norm.num_groups, eps=repr(float(norm.eps)), affine=norm.weight is not None,
                 activation=activation or _activation(act))
    if sample_rate is not None:
        facts["sample_rate"] = sample_rate
    tensors = {"conv.weight": conv.weight, "conv.bias": conv.bias, "norm.weight": norm.weight, "norm.bias": norm.bias}
    _write(path, {k: v for k, v in tensors.items() if v is not None}, {k: str(v) for k, v in facts.items()})


def _write(path, tensors, metadata):
    header, blobs, at = {"__metadata__": metadata}, [], 0
    for name, tensor in tensors.items():
        array = tensor.detach().cpu().float().contiguous().numpy().astype("<f4")
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        blobs.append(array.tobytes())
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = os.fspath(path)
    fd, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".nct-")
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))
            f.flush()
            os.fsync(f.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
