"""nct model new|show|check: files that torch modules save, files that torch reads back, and refusals with reasons."""
import hashlib
import json
import os
import struct
import subprocess

import numpy as np
import pytest
import torch
from torch import nn

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NCT = os.environ.get("NCT", os.path.join(os.environ.get("NCT_BUILD", os.path.join(ROOT, "build")), "nct"))
DATA = os.path.join(ROOT, "tests", "data")
DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64"}
NEW = {"in-channels": 128, "out-channels": 256, "kernel-size": 3, "padding": 1, "num-groups": 32}

pytestmark = pytest.mark.sanitize


def nct(*args, code=0):
    done = subprocess.run([NCT, "model", *map(str, args)], capture_output=True, text=True)
    assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
    return done


def options(values):
    return [word for key, value in values.items() for word in ((f"--{key}",) if value is True else (f"--{key}", value))]


def save(path, tensors, metadata=None):
    """The safetensors format from its description, not by the code under test."""
    header, blobs, at = {}, [], 0
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, t in tensors.items():
        t = t.detach().contiguous()
        raw = (t.view(torch.int16) if t.dtype == torch.bfloat16 else t).numpy().tobytes()
        header[name] = {"dtype": DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + len(raw)]}
        blobs.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def load(path):
    raw = open(path, "rb").read()
    n, = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + n])
    meta = header.pop("__metadata__")
    tensors = {}
    for name, t in header.items():
        begin, end = t["data_offsets"]
        assert t["dtype"] == "F32"
        values = np.frombuffer(raw[8 + n + begin:8 + n + end], "<f4").reshape(t["shape"])
        tensors[name] = torch.from_numpy(values.copy())
    assert max(t["data_offsets"][1] for t in header.values()) == len(raw) - 8 - n
    return tensors, meta


def digest(params, tensors):
    """SHA-256 as model.h tells it: "name=value" lines, then each tensor as count and f32 values."""
    h = hashlib.sha256("".join(f"{k}={v}\n" for k, v in params.items()).encode())
    for name in ("conv.weight", "conv.bias", "norm.weight", "norm.bias"):
        t = tensors.get(name)
        h.update(struct.pack("<Q", 0 if t is None else t.numel()))
        if t is not None:
            h.update(t.detach().float().contiguous().numpy().astype("<f4").tobytes())
    return h.hexdigest()


def pythons_own(conv, norm, activation="none"):
    """Parameters as str() of a module's attributes writes them: stride (1,), padding (1,) or same, bias True."""
    return {"in_channels": str(conv.in_channels), "out_channels": str(conv.out_channels),
            "kernel_size": str(conv.kernel_size), "stride": str(conv.stride), "padding": str(conv.padding),
            "dilation": str(conv.dilation), "groups": str(conv.groups), "bias": str(conv.bias is not None),
            "padding_mode": str(conv.padding_mode), "num_groups": str(norm.num_groups), "eps": str(norm.eps),
            "affine": str(norm.affine), "activation": activation}


# ---- new ------------------------------------------------------------------------------------------------------------

def test_new_file_is_a_torch_layer(tmp_path):
    path = tmp_path / "m.safetensors"
    nct("new", path, *options(NEW))
    tensors, meta = load(path)
    conv, norm = nn.Conv1d(128, 256, 3, padding=1, bias=False), nn.GroupNorm(32, 256)
    conv.load_state_dict({"weight": tensors["conv.weight"]})
    norm.load_state_dict({"weight": tensors["norm.weight"], "bias": tensors["norm.bias"]})
    assert set(tensors) == {"conv.weight", "norm.weight", "norm.bias"}
    bound = 1 / np.sqrt(128 * 3)
    w = tensors["conv.weight"].double()
    assert w.abs().max() <= bound and w.abs().max() > 0.999 * bound
    assert abs(float(w.std()) - bound / np.sqrt(3)) < 0.01 * bound
    assert torch.equal(tensors["norm.weight"], torch.ones(256)) and torch.equal(tensors["norm.bias"], torch.zeros(256))
    assert meta == {"format": "pt", "in_channels": "128", "out_channels": "256", "kernel_size": "3", "stride": "1",
                    "padding": "1", "dilation": "1", "groups": "1", "bias": "False", "padding_mode": "zeros",
                    "num_groups": "32", "eps": "1e-05", "affine": "True", "activation": "none"}
    y = norm(conv(torch.randn(1, 128, 50)))
    assert y.shape == (1, 256, 50)


def test_new_every_option(tmp_path):
    path = tmp_path / "m.safetensors"
    said = {"in-channels": 6, "out-channels": 8, "kernel-size": 5, "stride": 2, "padding": "valid", "dilation": 3,
            "groups": 2, "bias": True, "padding-mode": "reflect", "num-groups": 4, "eps": "1e-3", "activation": "mish",
            "no-affine": True, "sample-rate": 16000, "seed": 7}
    got = json.loads(nct("new", path, *options(said), "--json").stdout)
    assert {k: v for k, v in got.items() if k != "digest"} == {
        "in_channels": 6, "out_channels": 8, "kernel_size": 5, "stride": 2, "padding": "valid", "dilation": 3,
        "groups": 2, "bias": True, "padding_mode": "reflect", "num_groups": 4, "eps": 1e-3, "affine": False,
        "activation": "mish", "sample_rate": 16000, "conv": "conv", "norm": ""}
    tensors, meta = load(path)
    assert {k: tuple(t.shape) for k, t in tensors.items()} == {"conv.weight": (8, 3, 5), "conv.bias": (8,)}
    assert meta["affine"] == "False" and meta["sample_rate"] == "16000"
    assert json.loads(nct("check", path, "--json").stdout) == got


def test_seeds(tmp_path):
    names = [tmp_path / n for n in ("a", "b", "c")]
    for path, seed in zip(names, (5, 5, 6)):
        nct("new", path, *options(NEW), "--seed", seed)
    a, b, c = (path.read_bytes() for path in names)
    assert a == b and a != c


def test_an_existing_file_is_kept(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_text("mine")
    said = nct("new", path, *options(NEW), code=1).stderr
    assert "there already" in said and "--force" in said
    assert path.read_text() == "mine"
    nct("new", path, *options(NEW), "--force")
    load(path)
    link = tmp_path / "dangling"
    link.symlink_to(tmp_path / "nowhere")
    nct("new", link, *options(NEW), code=1)
    assert sorted(os.listdir(tmp_path)) == ["dangling", "m.safetensors"]


@pytest.mark.parametrize("change, code, says", [
    ({"num-groups": 31}, 78, "num_groups 31"),
    ({"groups": 3}, 78, "groups"),
    ({"padding": "same", "stride": 2}, 78, "stride 1"),
    ({"padding": "full"}, 78, "same or valid"),
    ({"kernel-size": 0}, 78, "kernel_size"),
    ({"activation": "swish"}, 78, "silu"),
    ({"eps": 0}, 78, "eps"),
    ({"out-channels": None, "num-groups": None}, 2, "--out-channels --num-groups"),
    ({"seed": "x"}, 2, "--seed"),
    ({"strides": 1}, 2, "--stride"),
    ({"param": "stride=1"}, 2, "--param"),
])
def test_new_refuses(tmp_path, change, code, says):
    values = {k: v for k, v in {**NEW, **change}.items() if v is not None}
    assert says in nct("new", tmp_path / "m", *options(values), code=code).stderr
    assert os.listdir(tmp_path) == []


def test_new_cannot_write(tmp_path):
    said = nct("new", tmp_path / "none" / "m", *options(NEW), code=1).stderr
    assert "No such file" in said


# ---- check: what torch saved ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("conv, norm", [
    (nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4)),
    (nn.Conv1d(6, 9, 4, stride=2, padding=3, dilation=2, groups=3, bias=False, padding_mode="circular"),
     nn.GroupNorm(3, 9, eps=1e-3)),
    (nn.Conv1d(4, 4, 5, padding="same"), nn.GroupNorm(1, 4)),
    (nn.Conv1d(4, 4, 1, padding="valid"), nn.GroupNorm(4, 4, affine=False)),
], ids=["plain", "all", "same", "no affine"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_torch_layer_loads(tmp_path, conv, norm, dtype):
    path = tmp_path / "m.safetensors"
    tensors = {f"conv.{k}": v.to(dtype) for k, v in conv.state_dict().items()}
    tensors |= {f"norm.{k}": v.to(dtype) for k, v in norm.state_dict().items()}
    save(path, tensors, pythons_own(conv, norm, "gelu"))
    got = json.loads(nct("check", path, "--json").stdout)
    one = {k: str(v[0] if isinstance(v, tuple) else v) for k, v in (
        ("in_channels", conv.in_channels), ("out_channels", conv.out_channels), ("kernel_size", conv.kernel_size),
        ("stride", conv.stride), ("padding", conv.padding), ("dilation", conv.dilation), ("groups", conv.groups),
        ("bias", conv.bias is not None), ("padding_mode", conv.padding_mode), ("num_groups", norm.num_groups),
        ("eps", norm.eps), ("affine", norm.affine), ("activation", "gelu"), ("sample_rate", ""))}
    assert got["digest"] == digest(one, tensors)
    assert got["bias"] == (conv.bias is not None) and got["affine"] == norm.affine and got["eps"] == norm.eps
    assert got["padding"] == (conv.padding if isinstance(conv.padding, str) else conv.padding[0])


def wav2vec2(layer):
    """One layer of HF wav2vec 2.0's feature extractor, by its names."""
    extractor, first = nn.Module(), nn.Module()
    first.conv, first.layer_norm = layer
    extractor.conv_layers = nn.ModuleList([first])
    root = nn.Module()
    root.feature_extractor = extractor
    return root


def fairseq(layer):
    root = nn.Module()
    root.feature_extractor = nn.Module()
    root.feature_extractor.conv_layers = nn.ModuleList([nn.Sequential(layer[0], nn.Dropout(0), layer[1], nn.GELU())])
    return root


def diffusion_policy(layer):
    root = nn.Module()
    root.block = nn.Sequential(layer[0], layer[1], nn.Mish())
    return root


@pytest.mark.parametrize("wrap, conv_key, norm_key", [
    (wav2vec2, "feature_extractor.conv_layers.0.conv", "feature_extractor.conv_layers.0.layer_norm"),
    (fairseq, "feature_extractor.conv_layers.0.0", "feature_extractor.conv_layers.0.2"),
    (diffusion_policy, "block.0", "block.1"),
])
def test_names_of_other_projects(tmp_path, wrap, conv_key, norm_key):
    path = tmp_path / "m.safetensors"
    state = wrap((nn.Conv1d(1, 8, 10, stride=5, bias=False), nn.GroupNorm(8, 8))).state_dict()
    save(path, state, {"format": "pt"})
    got = json.loads(nct("check", path, "-p", "num_groups=8", "--param", "stride=5", "--json").stdout)
    assert (got["conv"], got["norm"], got["kernel_size"], got["stride"]) == (conv_key, norm_key, 10, 5)


def test_a_checkpoint_of_many_layers(tmp_path):
    path = tmp_path / "m.safetensors"
    layers = nn.ModuleList([nn.Sequential(nn.Conv1d(c, 8, 3), nn.GroupNorm(2, 8)) for c in (1, 8, 8)])
    model = nn.ModuleDict({"down": layers, "head": nn.Linear(8, 8), "bn": nn.BatchNorm1d(8)})
    save(path, model.state_dict())
    said = nct("check", path, "-p", "num_groups=2", code=78).stderr
    assert "9 pairs fit" in said and "down.0.0.weight + down.0.1.weight" in said and "prefix = KEY" in said
    assert len(json.loads(nct("show", path, "--json").stdout)["pairs"]) == 9
    for choice in (["-p", "prefix=down.1"], ["-p", "conv=down.1.0", "-p", "norm=down.1.1"]):
        got = json.loads(nct("check", path, "-p", "num_groups=2", *choice, "--json").stdout)
        assert (got["conv"], got["norm"], got["in_channels"]) == ("down.1.0", "down.1.1", 8)


# ---- check: refusals -----------------------------------------------------------------------------------------------------

def test_every_wrong_case_file_is_78_with_a_reason():
    good = {"B0_good_f32", "B0_good_in1", "B0_good_in3", "B0_good_in64", "B6_unaligned_header_mod4_is_2",
            "B6_unaligned_header_mod4_is_3", "B6_u8_first_odd_offsets", "B8_space_padded_4k", "B8_metadata_empty",
            "B8_metadata_null", "B8_metadata_nested_tensorlike", "B9_scalar_and_empty_extra"}
    names = sorted(n[:-12] for n in os.listdir(DATA) if n.startswith("B") and n.endswith(".safetensors"))
    assert good < set(names) and len(names) > 40
    for name in names:
        path = os.path.join(DATA, f"{name}.safetensors")
        done = nct("check", path, "-p", "num_groups=2", code=0 if name in good else 78)
        if name not in good:
            assert done.stdout == "" and done.stderr.startswith(f"nct: {path}: ") and done.stderr.count("\n") == 1


@pytest.mark.skipif(bool(os.environ.get("NCT_SANITIZE")), reason="a sanitizer reserves address space by itself")
def test_a_length_that_is_announced_costs_no_memory():
    """b1: with 80 MB of address space, which a good file leaves half of, none of these asks for its 100 MB or 2^64."""
    for name in ["B0_good_f32", *sorted(n[:-12] for n in os.listdir(DATA) if n.startswith("B1_"))]:
        path = os.path.join(DATA, f"{name}.safetensors")
        done = subprocess.run(["bash", "-c", 'ulimit -v 80000; exec "$0" model check "$1" -p num_groups=2', NCT, path], capture_output=True,
                              text=True)
        assert done.returncode == (0 if name.startswith("B0") else 78) and "memory" not in done.stderr, (name, done.stderr)


def test_shards_through_their_index():
    index = os.path.join(DATA, "B10_model.safetensors.index.json")
    whole = os.path.join(DATA, "B0_good_f32.safetensors")
    digests = {json.loads(nct("check", p, "-p", "num_groups=2", "--json").stdout)["digest"] for p in (index, whole)}
    assert len(digests) == 1


@pytest.mark.parametrize("param, says", [
    ("stride=2", "the file's metadata said 1"),
    ("in_channels=3", "in_channels"),
    ("num_group=2", 'nearest is "num_groups"'),
    ("padding=x", "same or valid"),
])
def test_settings_against_the_file(tmp_path, param, says):
    path = tmp_path / "m.safetensors"
    nct("new", path, *options(NEW))
    assert says in nct("check", path, "-p", param, code=78).stderr


@pytest.mark.parametrize("args, says", [
    ([], "new, show and check"), (["make", "x"], "has no 'make'"), (["check"], "needs a file"),
    (["check", "a", "b"], "'b' is a second one"), (["check", "a", "--stride", "1"], "no --stride"),
    (["show", "a", "--force"], "no --force"), (["check", "a", "-p", "num_groups"], "KEY=VALUE"),
    (["check", "a", "-p", "=2"], "KEY=VALUE"),
])
def test_command_lines_that_are_wrong(args, says):
    assert says in nct(*args, code=2).stderr


def test_a_missing_file():
    assert "No such file" in nct("check", "/nonexistent/m.safetensors", code=78).stderr
    assert "No such file" in nct("show", "/nonexistent/m.safetensors", code=78).stderr


# ---- show ---------------------------------------------------------------------------------------------------------------

def test_show(tmp_path):
    path = tmp_path / "m.safetensors"
    nct("new", path, *options(NEW))
    got = json.loads(nct("show", path, "--json").stdout)
    assert got["model"] == json.loads(nct("check", path, "--json").stdout) and got["why"] is None
    assert got["file"] == str(path) and got["metadata"]["num_groups"] == "32"
    assert [t["shape"] for t in got["tensors"] if t["name"] == "conv.weight"] == [[256, 128, 3]]
    assert got["pairs"] == [{"conv": "conv", "norm": "norm", "in_channels_per_group": 128, "out_channels": 256,
                             "kernel_size": 3, "bias": False}]
    text = nct("show", path).stdout
    for line in ("num_groups    32", "conv=conv norm=norm", got["model"]["digest"]):
        assert line in text


def test_show_what_does_not_load():
    path = os.path.join(DATA, "B0_good_f32.safetensors")
    got = json.loads(nct("show", path, "--json").stdout)
    assert got["model"] is None and "num_groups is not said" in got["why"] and len(got["pairs"]) == 1
    assert "does not load as it stands" in nct("show", path).stdout
    assert json.loads(nct("show", path, "-p", "num_groups=2", "--json").stdout)["model"]["num_groups"] == 2


def test_names_cannot_forge_lines(tmp_path):
    path = tmp_path / "m.safetensors"
    save(path, {"a\nnct: forged\x1b[31m.weight": torch.zeros(4, 2, 3)}, {"k\n": "v\n"})
    out = nct("show", path).stdout
    assert "\x1b" not in out and not any(line.startswith("nct: forged") for line in out.splitlines())
