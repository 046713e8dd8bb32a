"""nct run on what does not fit one frame: cut into pieces, equal to PyTorch on the whole, in bounded memory."""
import json
import os
import subprocess
import threading
import time

import numpy as np
import pytest

from nct_tools import (B0, ENV, MODEL, NCT, close, data, load_model, nct, objects, ok, oracle, save_model, wav, write_wav)

LENGTHS = [*range(1, 17), 100, 128, 256, 1002, 1003, 1004, 4096]
NOISE = data("C_noise_1003f.wav")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    """One daemon with a model for every padding mode, stride and dilation that is tried."""
    from conftest import Daemon
    sections = {}
    for mode in ("zeros", "reflect", "replicate", "circular"):
        for stride in (1, 2, 4, 7):
            for dilation in (1, 5):
                for padding in (0, 1, 9):
                    sections[f"model {mode}-{stride}-{dilation}-{padding}"] = {
                        "file": B0, "num_groups": 2, "padding_mode": mode, "stride": stride, "dilation": dilation, "padding": padding}
    sections["limits"] = {"max_models": 128}
    d = Daemon(tmp_path_factory.mktemp("pieces"), sections)
    yield d
    assert d.stop() == 0, d.text()


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("stride", [1, 2, 4, 7])
def test_pieces_of_every_length_are_the_whole(daemon, mode, stride, tmp_path):
    x = wav(NOISE)[1]
    for dilation in (1, 5):
        for padding in (0, 1, 9):
            want, bound = oracle(x, B0, stride=stride, padding=padding, dilation=dilation, padding_mode=mode)
            if padding == 0:
                assert want.shape[1] == (1003 - 2 * dilation - 1) // stride + 1
            name = f"{mode}-{stride}-{dilation}-{padding}"
            run = ["run", "--connect", daemon.ingest, "--name", name, NOISE, "-o", tmp_path / "o.npy", "--json"]
            ok(nct(*run))
            close(np.load(tmp_path / "o.npy"), want, bound)
            # All frame lengths for one layer of the mode and stride, a few for the others.
            for n in LENGTHS if (dilation, padding) == (1, 1) else (1, 7, 100, 1003):
                r = ok(nct(*run, "--piece-steps", n))
                outs = max(1, n // stride)
                assert objects(r)[0]["pieces"] == -(-want.shape[1] // outs)
                close(np.load(tmp_path / "o.npy"), want, bound)


def test_one_byte_at_a_time(daemon, tmp_path):
    with open(NOISE, "rb") as f:
        raw = f.read()
    run = [NCT, "run", "--connect", daemon.ingest, "--name", "zeros-1-1-0", "-", "-o", tmp_path / "o.npy", "--piece-steps", "100"]
    p = subprocess.Popen(run, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV, bufsize=0)
    for i in range(len(raw)):
        p.stdin.write(raw[i:i + 1])
    p.stdin.close()
    assert p.wait(60) == 0, p.stderr.read()
    close(np.load(tmp_path / "o.npy"), *oracle(wav(NOISE)[1], B0))


def test_a_nan_reaches_all_of_its_file_and_no_other(tmp_path):
    """As PyTorch: the statistics of the whole file are NaN, however it is cut."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(2, 1000)).astype("<f4")
    x[1, 700] = np.nan
    bad, good = write_wav(tmp_path / "bad.wav", x), write_wav(tmp_path / "good.wav", np.nan_to_num(x))
    r = ok(nct("run", *MODEL, bad, good, "-O", tmp_path / "out", "--piece-steps", "64", "--template", "{stem}.npy", "--json"))
    assert np.isnan(np.load(tmp_path / "out" / "bad.npy")).all()
    assert objects(r)[0]["not_finite"] == 4 * 998
    close(np.load(tmp_path / "out" / "good.npy"), *oracle(np.nan_to_num(x), B0))


# ---- long recordings --------------------------------------------------------------------------------------------------
def peak_kb(pid):
    try:
        with open(f"/proc/{pid}/status") as f:
            return int(next(line for line in f if line.startswith("VmHWM")).split()[1])
    except (OSError, StopIteration, ValueError):
        return 0


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            return [int(c) for c in f.read().split()]
    except OSError:
        return []


def run_measured(args):
    """(exit code, stderr, sum of the peaks of nct and its nctd in MB)."""
    p = subprocess.Popen([NCT, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV)
    peaks, over = {}, threading.Event()

    def watch():
        while not over.is_set():
            for pid in [p.pid, *children(p.pid)]:
                peaks[pid] = max(peaks.get(pid, 0), peak_kb(pid))
            time.sleep(0.02)

    t = threading.Thread(target=watch)
    t.start()
    out, err = p.communicate(timeout=1800)
    over.set()
    t.join()
    assert len(peaks) == 2
    return p.returncode, out, err, sum(peaks.values()) / 1024


def long_wav(path, channels, steps, rate, seed):
    """Noise with a drift and a loud start, written in blocks as 16-bit WAV; returns a reader of (C, n) float64 blocks."""
    import struct
    rng = np.random.default_rng(seed)
    with open(path, "wb") as f:
        size = steps * channels * 2
        f.write(b"RIFF" + struct.pack("<I", 36 + size) + b"WAVEfmt " +
                struct.pack("<IHHIIHH", 16, 1, channels, rate, rate * channels * 2, channels * 2, 16) + b"data" + struct.pack("<I", size))
        for at in range(0, steps, 1 << 20):
            n = min(1 << 20, steps - at)
            t = (at + np.arange(n)) / steps
            x = rng.normal(size=(n, channels)).astype(np.float32) * (3000 * (2 - t))[:, None].astype(np.float32) + (2000 * t)[:, None]
            f.write(np.clip(np.rint(x), -32768, 32767).astype("<i2").tobytes())
    return np.memmap(path, "<i2", "r", 44, (steps, channels))


def check_long(x, y, model, groups):
    """y (C_out, T) against float64 on the whole, block by block, the statistics over everything."""
    import torch
    m, block = load_model(model), 1 << 18
    steps, taps = x.shape[0], m["conv.weight"].shape[2]
    t_out = steps - taps + 1
    assert y.shape == (m["conv.weight"].shape[0], t_out)

    def conv(at):
        part = torch.from_numpy(x[at:min(at + block, t_out) + taps - 1].astype(np.float64).T / 32768)
        n = part.shape[1] - taps + 1
        return sum(m["conv.weight"][:, :, k] @ part[:, k:k + n] for k in range(taps))  # BLAS, as conv1d has no fast float64

    # Around the mean of the first block, which is near enough for float64 to lose nothing in one pass.
    near, total, squares, count = None, 0, 0, t_out * y.shape[0] // groups
    for at in range(0, t_out, block):
        c = conv(at).reshape(groups, -1)
        near = c.mean(1) if near is None else near
        total = total + (c - near[:, None]).sum(1)
        squares = squares + ((c - near[:, None])**2).sum(1)
    mean = near + total / count
    squares = squares - total**2 / count
    rstd = (squares / count + 1e-5).rsqrt()
    bound = 5e-6 * max(1, m["norm.weight"].abs().max().item()) * max(1, (mean.abs() * rstd).max().item()) * 1.13
    for at in range(0, t_out, block):
        c = conv(at)
        z = ((c.reshape(groups, -1) - mean[:, None]) * rstd[:, None]).reshape(c.shape)
        close(np.asarray(y[:, at:at + c.shape[1]]), (z * m["norm.weight"][:, None] + m["norm.bias"][:, None]).numpy(), bound)


def test_a_flac_of_16_million_samples(tmp_path):
    """a13: 26 kB on disk, all of it arrives, and neither process holds it whole."""
    import soundfile
    name, model = data("A14_flac_3ch_5592406f.flac"), data("B0_good_in3.safetensors")
    code, out, err, peak_mb = run_measured(["run", "--model", model, "-p", "num_groups=2", name, "-o", tmp_path / "o.npy", "--json"])
    assert code == 0, err
    first = json.loads(out.splitlines()[0])
    assert first["steps_in"] == 5592406 and first["pieces"] > 1 and peak_mb < 500
    x = soundfile.read(name, dtype="int16")[0]
    assert x[0].tolist() == [1, 2, 3] and x[-1].tolist() == [11, 22, 33]
    check_long(x, np.load(tmp_path / "o.npy", mmap_mode="r"), model, 2)


LONG = os.environ.get("NCT_LONG") == "1"  # the whole 40 minutes and the whole hour


@pytest.mark.parametrize("channels, rate, seconds", [(2, 48000, 2400 if LONG else 60), (64, 1000, 3600 if LONG else 75)])
def test_long_recordings(channels, rate, seconds, tmp_path):
    rng = np.random.default_rng(channels)
    outs, groups = (4, 2) if channels == 2 else (64, 8)
    model = save_model(tmp_path / "m.safetensors", rng.normal(size=(outs, channels, 3)) * 0.3, rng.normal(size=outs), rng.normal(size=outs),
                       num_groups=groups)
    x = long_wav(tmp_path / "in.wav", channels, rate * seconds, rate, channels)
    code, out, err, peak_mb = run_measured(["run", "--model", model, tmp_path / "in.wav", "-o", tmp_path / "o.npy", "--json",
                                            "--progress", "json"])
    assert code == 0, err
    print(f"\n{seconds} s of {channels} channels: peak {peak_mb:.0f} MB, {err.splitlines()[-1].decode()}")
    assert peak_mb < 500
    check_long(x, np.load(tmp_path / "o.npy", mmap_mode="r"), model, groups)
    if LONG:
        lines = [json.loads(line) for line in err.splitlines() if line.startswith(b"{")]
        shares = [line["fraction"] for line in lines if line["fraction"] is not None]
        assert len(shares) > 3 and shares == sorted(shares) and 0 <= shares[0] and shares[-1] <= 1
