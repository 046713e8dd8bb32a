"""nct run over many inputs: a bad one does not hide, a second run does what is missing, names never collide."""
import json
import os
import shutil

import numpy as np
import pytest

from nct_tools import B0, MODEL, ST, close, data, fails, nct, objects, ok, oracle, wav, write_wav


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """200 files in three folders; 3 of them are broken."""
    root = tmp_path_factory.mktemp("many") / "in"
    rng = np.random.default_rng(7)
    for i in range(200):
        sub = root / ["", "a", "a/b"][i % 3]
        sub.mkdir(parents=True, exist_ok=True)
        write_wav(sub / f"f{i:03}.wav", rng.normal(size=(2, 50 + i)))
    (root / "f060.wav").write_bytes(b"RIFF\0\0\0\0not a sound")
    shutil.copy(data("A12_zero_byte.wav"), root / "a" / "f070.wav")
    shutil.copy(data("A11_mono.wav"), root / "a" / "b" / "f080.wav")
    (root / "notes.txt").write_text("no sound")
    return root


def results(out):
    return sorted(os.path.relpath(os.path.join(d, f), out) for d, _, files in os.walk(out) for f in files)


def test_three_broken_ones_in_200(folder, tmp_path):
    out = tmp_path / "out"
    r = nct("run", *MODEL, "-r", folder, "-O", out, "--template", "{dir}{stem}.npy", "--json")
    fails(r, 1)
    lines = r.stderr.decode().splitlines()
    assert lines[-4] == "nct: failed:"
    bad = ["f060.wav", "a/f070.wav", "a/b/f080.wav"]
    assert sorted(line.split(": ")[0].strip() for line in lines[-3:]) == sorted(str(folder / b) for b in bad)
    assert len(results(out)) == 197
    summary = objects(r)[-1]
    assert (summary["done"], summary["failed"], summary["skipped"], summary["exit_code"]) == (197, 3, 0, 1)
    for name in ("f000.wav", "a/f100.wav", "a/b/f197.wav"):
        close(np.load(out / name.replace(".wav", ".npy")), *oracle(wav(folder / name)[1], B0))

    # Again: only the three, and they fail again.
    before = {f: os.stat(out / f).st_mtime_ns for f in results(out)}
    r = nct("run", *MODEL, "-r", folder, "-O", out, "--template", "{dir}{stem}.npy", "--json", "--skip-existing")
    fails(r, 1)
    assert len(objects(r)) == 4
    summary = objects(r)[-1]
    assert (summary["done"], summary["failed"], summary["skipped"]) == (0, 3, 197)
    assert {f: os.stat(out / f).st_mtime_ns for f in results(out)} == before

    # Mended: only the three, and all is well.
    mended = tmp_path / "in"
    shutil.copytree(folder, mended)
    for b in bad:
        shutil.copy(ST, mended / b)
    r = ok(nct("run", *MODEL, "-r", mended, "-O", out, "--template", "{dir}{stem}.npy", "--json", "--skip-existing"))
    assert sorted(o["input"] for o in objects(r)[:-1]) == sorted(str(mended / b) for b in bad)
    assert len(results(out)) == 200


def test_shards_share_the_work(folder, tmp_path):
    for i in (1, 2, 3):
        nct("run", *MODEL, "-r", folder, "-O", tmp_path / str(i), "--shard", f"{i}/3")
    parts = [set(results(tmp_path / str(i))) for i in (1, 2, 3)]
    assert sum(map(len, parts)) == 197 and len(set.union(*parts)) == 197
    assert min(map(len, parts)) >= 63


def test_lists_of_files(folder, tmp_path):
    names = [str(folder / "f000.wav"), str(folder / "a" / "f001.wav"), str(tmp_path / "none.wav")]
    r = nct("run", *MODEL, "--files-from", "-", "-O", tmp_path / "out", input="\n".join(names).encode())
    fails(r, 1, "none.wav: No such file", "2 done, 1 failed")
    ok(nct("run", *MODEL, "--files-from", "-", "-O", tmp_path / "out0", input=b"\0".join(n.encode() for n in names[:2])))
    assert results(tmp_path / "out0") == ["f000.wav", "f001.wav"]


def test_names_that_would_collide_are_refused_before_any_work(folder, tmp_path):
    shutil.copy(ST, tmp_path / "f000.wav")
    r = nct("run", *MODEL, folder / "f000.wav", tmp_path / "f000.wav", "-O", tmp_path / "out")
    fails(r, 2, "would both become")
    assert not (tmp_path / "out").exists()


def test_an_input_named_twice_is_called_that(tmp_path):
    """No --template could keep these apart."""
    shutil.copy(ST, tmp_path / "in.wav")
    for second, words in (("in.wav", "'in.wav' is named twice"), ("./in.wav", "'in.wav' and './in.wav' are the same file")):
        r = nct("run", *MODEL, "in.wav", second, "-O", tmp_path / "out", cwd=tmp_path)
        fails(r, 2, words, "name it once")
        assert b"--template" not in r.stderr and not (tmp_path / "out").exists()


def test_results_in_the_folder_that_is_read(folder, tmp_path):
    """Results below the input folder are not taken for inputs by the next run, and never replace one."""
    shutil.copytree(folder / "a" / "b", tmp_path / "in")
    (tmp_path / "in" / "f080.wav").unlink()
    n = len(os.listdir(tmp_path / "in"))
    for _ in range(2):
        r = ok(nct("run", *MODEL, "-r", tmp_path / "in", "-O", tmp_path / "in" / "results", "--json"))
        assert objects(r)[-1]["done"] == n
    fails(nct("run", *MODEL, "-r", tmp_path / "in", "-O", tmp_path / "in"), 1, "is the input itself")


def test_progress_of_many(folder, tmp_path):
    r = nct("run", *MODEL, "-r", folder, "-O", tmp_path / "out", "--progress", "json")
    lines = [json.loads(line) for line in r.stderr.decode().splitlines() if line.startswith("{")]
    assert lines and lines[-1]["files"] == 200 and lines[-1]["fraction"] == 1
    assert all(line["fraction"] is None or 0 <= line["fraction"] <= 1 for line in lines)


def test_progress_of_an_endless_pipe_is_unknown(tmp_path):
    with open(ST, "rb") as f:
        r = ok(nct("run", *MODEL, "--window", "10ms", "-", "-o", tmp_path / "o.wav", "--progress", "json", input=f.read()))
    lines = [json.loads(line) for line in r.stderr.decode().splitlines() if line.startswith("{")]
    assert lines and all(line["fraction"] is None and line["left_s"] is None for line in lines)
    import pty
    import subprocess
    from nct_tools import ENV, NCT
    master, slave = pty.openpty()
    p = subprocess.run([NCT, "run", *MODEL, "--window", "10ms", "-", "-o", str(tmp_path / "o.wav"), "--progress", "bar"],
                       input=open(ST, "rb").read(), stderr=slave, env=ENV, timeout=60)
    os.close(slave)
    shown = os.read(master, 65536)
    assert p.returncode == 0 and b"unknown" in shown and b"0.0 %" not in shown
