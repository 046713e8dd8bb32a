"""What the stories about `nct` share: running it, sound files, and PyTorch in float64 as the oracle."""
import json
import os
import struct
import subprocess

import numpy as np
import torch
import torch.nn.functional as F

from conftest import NCT, NCTD, ROOT, SLOW

DATA = os.path.join(ROOT, "tests", "data")
B0 = os.path.join(DATA, "B0_good_f32.safetensors")
ST = os.path.join(DATA, "A7_fmt18_cbsize0.wav")
MODEL = ["--model", B0, "--param", "num_groups=2"]
HEAD = [-1.020913, 1.277622, 2.814057, -2.242940]  # of ST, channels 0..3 at step 0
ENV = {**os.environ, "PATH": os.path.dirname(NCTD) + ":" + os.environ["PATH"]}


def data(name):
    return os.path.join(DATA, name)


def nct(*args, input=None, env=None, timeout=120, cwd=None):
    """One run of nct to its end."""
    return subprocess.run([NCT, *map(str, args)], input=input, capture_output=True, env={**ENV, **(env or {})},
                          timeout=timeout * SLOW, cwd=cwd)


def ok(r):
    assert r.returncode == 0, (r.returncode, r.stderr.decode(errors="replace"))
    assert b"Sanitizer" not in r.stderr and b"runtime error" not in r.stderr, r.stderr
    return r


def fails(r, code, *words):
    text = r.stderr.decode(errors="replace")
    assert r.returncode == code, (r.returncode, text)
    for w in words:
        assert w in text, (w, text)
    assert "Sanitizer" not in text and "runtime error" not in text, text
    return r


def objects(r):
    """The JSON lines of --json."""
    return [json.loads(line) for line in r.stdout.decode().splitlines()]


# ---- sound ----------------------------------------------------------------------------------------------------------
def chunks(raw):
    """{id: bytes} of a RIFF or RF64 file, each size and pad byte checked against the file's length."""
    assert raw[:4] in (b"RIFF", b"RF64") and raw[8:12] == b"WAVE", raw[:16]
    at, found = 12, {}
    while at + 8 <= len(raw):
        name, size = raw[at:at + 4], struct.unpack("<I", raw[at + 4:at + 8])[0]
        if name == b"data" and raw[:4] == b"RF64":
            size = struct.unpack("<Q", found[b"ds64"][8:16])[0]
        assert at + 8 + size <= len(raw), (name, size, len(raw))
        found[name] = raw[at + 8:at + 8 + size]
        at += 8 + size + size % 2
    assert at == len(raw), "bytes behind the last chunk"
    if raw[:4] == b"RIFF":
        assert struct.unpack("<I", raw[4:8])[0] + 8 == len(raw)
    return found


def wav(path):
    """(rate, (C, T) float64) of a WAV file as nct writes it."""
    with open(path, "rb") as f:
        c = chunks(f.read())
    tag, channels, rate, _, step, bits = struct.unpack("<HHIIHH", c[b"fmt "][:16])
    if tag == 0xFFFE:
        tag = struct.unpack("<H", c[b"fmt "][24:26])[0]
    assert step == channels * bits // 8
    if tag == 3:
        x = np.frombuffer(c[b"data"], {32: "<f4", 64: "<f8"}[bits]).astype(np.float64)
    elif bits == 24:
        b = np.frombuffer(c[b"data"], np.uint8).reshape(-1, 3).astype(np.int32)
        x = (((b[:, 0] | b[:, 1] << 8 | b[:, 2] << 16) << 8) >> 8) / 2.0**23
    else:
        x = np.frombuffer(c[b"data"], {16: "<i2", 32: "<i4"}[bits]) / 2.0**(bits - 1)
    return rate, x.reshape(-1, channels).T


def write_wav(path, x, rate=16000):
    """(C, T) float32 -> a plain float WAV."""
    x = np.ascontiguousarray(np.asarray(x, "<f4").T)
    t, c = x.shape
    with open(path, "wb") as f:
        f.write(b"RIFF" + struct.pack("<I", 36 + x.nbytes) + b"WAVEfmt " +
                struct.pack("<IHHIIHH", 16, 3, c, rate, rate * c * 4, c * 4, 32) + b"data" + struct.pack("<I", x.nbytes))
        f.write(x.tobytes())
    return str(path)


def st():
    return wav(ST)[1]


# ---- models ---------------------------------------------------------------------------------------------------------
def save_model(path, weight, gamma=None, beta=None, bias=None, **metadata):
    """A safetensors file as safetensors.torch.save_file writes it."""
    tensors = {"conv.weight": weight, "conv.bias": bias, "norm.weight": gamma, "norm.bias": beta}
    header, blob = {"__metadata__": {k: str(v) for k, v in metadata.items()}}, b""
    for name, v in tensors.items():
        if v is None:
            continue
        v = np.ascontiguousarray(v, "<f4")
        header[name] = {"dtype": "F32", "shape": list(v.shape), "data_offsets": [len(blob), len(blob) + v.nbytes]}
        blob += v.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + blob)
    return str(path)


def load_model(path):
    """{name: float64 tensor}."""
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name != "__metadata__" and t["dtype"] == "F32":
            a, b = t["data_offsets"]
            out[name] = torch.from_numpy(np.frombuffer(raw[8 + n + a:8 + n + b], "<f4").reshape(t["shape"]).astype(np.float64))
    return out


def oracle(x, path, num_groups=2, stride=1, padding=0, dilation=1, padding_mode="zeros", groups=1, eps=1e-5):
    """PyTorch in float64 on the whole of x (C, T): (y, bound of a f32 result before the 1e-6 relative)."""
    m = load_model(path)
    z = torch.from_numpy(np.asarray(x, np.float64))[None]
    if padding:
        mode = {"zeros": "constant"}.get(padding_mode, padding_mode)
        z = F.pad(z, (padding, padding), mode=mode)
    c = F.conv1d(z, m["conv.weight"], m.get("conv.bias"), stride, 0, dilation, groups)
    y = F.group_norm(c, num_groups, m.get("norm.weight"), m.get("norm.bias"), eps)[0].numpy()
    by_group = c[0].reshape(num_groups, -1)
    offset = (by_group.mean(1).abs() / (by_group.var(1, unbiased=False) + eps).sqrt()).max().item()
    gamma = m["norm.weight"].abs().max().item() if "norm.weight" in m else 1
    return y, 5e-6 * max(1, gamma) * max(1, offset) * 1.13


def close(got, want, bound):
    assert got.shape == want.shape, (got.shape, want.shape)
    bad = ~(np.abs(got - want) <= bound + 1e-6 * np.abs(want))
    if bad.any():
        at = tuple(np.argwhere(bad)[0])
        raise AssertionError(f"first of {bad.sum()} wrong values at {at}: {got[at]}, not {want[at]} (bound {bound})")
