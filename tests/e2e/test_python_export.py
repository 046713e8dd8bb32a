"""nct.export: what PyTorch computes with the modules is what the daemon computes from the file."""
import os
import stat
import sys

import numpy as np
import pytest

import conftest

sys.path.insert(0, os.path.join(conftest.ROOT, "client", "python"))
import nct  # noqa: E402

torch = pytest.importorskip("torch")
nn = torch.nn

LAYERS = {
    "plain": lambda: nn.Sequential(nn.Conv1d(2, 4, 3, bias=False), nn.GroupNorm(2, 4)),
    "all of it": lambda: nn.Sequential(nn.Conv1d(4, 8, 5, stride=3, padding=4, dilation=2, groups=2, padding_mode="reflect"),
                                       nn.GroupNorm(4, 8, eps=1e-3), nn.GELU(approximate="tanh")),
    "same": lambda: (nn.Conv1d(3, 6, 4, padding="same"), nn.GroupNorm(3, 6, affine=False), nn.SiLU()),
    "half": lambda: nn.Sequential(nn.Conv1d(2, 4, 3).half(), nn.GroupNorm(1, 4).half(), nn.ELU()),
}


def trained(make):
    torch.manual_seed(5)
    layer = make()
    with torch.no_grad():
        for module in layer:
            for p in module.parameters():
                p.copy_(torch.randn_like(p.float()) * 0.5)
    return layer


@pytest.mark.parametrize("name", LAYERS)
def test_file_is_the_module(start, tmp_path, name):
    layer = trained(LAYERS[name])
    path = tmp_path / "m.safetensors"
    nct.export(layer, path)
    assert stat.S_IMODE(path.stat().st_mode) & 0o444 and list(tmp_path.iterdir()) == [path]
    d = start({"model m": {"file": str(path)}})
    x = np.random.default_rng(3).standard_normal((layer[0].in_channels, 500)).astype(np.float32)
    y = torch.from_numpy(x).double()[None]
    with torch.no_grad():
        for module in layer:
            y = module.double()(y)
    with nct.Client(d.ingest, timeout=20 * conftest.SLOW) as c:
        got = c.call(x, "m", layout="CT")
    want = y[0].numpy()
    worst = np.abs(got - want).max()
    assert got.shape == want.shape and worst <= 2e-5, worst


def test_what_is_no_such_layer(tmp_path):
    conv, norm = nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4)
    path = tmp_path / "m.safetensors"
    for bad, error in ((nn.Sequential(norm, conv), TypeError), (conv, TypeError), ([conv], TypeError),
                       ((nn.ConvTranspose1d(2, 4, 3), norm), TypeError), ((conv, norm, nn.Tanh()), TypeError),
                       ((conv, norm, nn.ELU(alpha=2)), TypeError), ((conv, nn.GroupNorm(2, 6)), ValueError)):
        with pytest.raises(error):
            nct.export(bad, path)
    with pytest.raises(ValueError, match="given too"):
        nct.export((conv, norm, nn.ReLU()), path, activation="relu")
    assert not path.exists()


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        nct.export((nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4)), path)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
