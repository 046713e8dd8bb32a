"""safetensors in a few lines, independent of ours."""
import json
import struct

import numpy as np

DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "U8": np.uint8}


def read(path):
    with open(path, "rb") as f:
        blob = f.read()
    n = struct.unpack("<Q", blob[:8])[0]
    header = json.loads(blob[8:8 + n])
    meta = header.pop("__metadata__", None) or {}
    tensors = {}
    for name, t in header.items():
        a, b = t["data_offsets"]
        tensors[name] = np.frombuffer(blob[8 + n + a:8 + n + b], DTYPES[t["dtype"]]).reshape(t["shape"]).copy()
    return tensors, meta


def write(path, tensors, meta=None):
    header, at, chunks = {}, 0, []
    if meta:
        header["__metadata__"] = {k: str(v) for k, v in meta.items()}
    names = {np.dtype(v): k for k, v in DTYPES.items()}
    for name, a in tensors.items():
        a = np.ascontiguousarray(a)
        header[name] = {"dtype": names[a.dtype], "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
        chunks.append(a.tobytes())
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(chunks))
