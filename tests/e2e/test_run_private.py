"""The private daemon of nct run: whatever ends nct ends it, and nothing is left behind."""
import os
import signal
import subprocess
import time

import pytest

from conftest import SLOW
from nct_tools import ENV, MODEL, NCT, NCTD, ST, fails, nct, ok


@pytest.fixture
def place(tmp_path):
    """A folder of its own for sockets and spools, so that what is left is seen."""
    (tmp_path / "t").mkdir()
    os.chmod(tmp_path / "t", 0o700)
    short = f"/tmp/np{os.getpid()}"  # a socket's path has 107 bytes at most
    if os.path.islink(short):
        os.unlink(short)
    os.symlink(tmp_path / "t", short)
    yield short
    os.unlink(short)


def daemons(place):
    """Command lines of daemons started from there."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                line = f.read()
        except OSError:
            continue
        if place.encode() in line and b"--private" in line:
            found.append((int(pid), line))
    return found


def until(true, seconds=15):
    end = time.monotonic() + seconds * SLOW
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def start_endless(place, out):
    """nct in the middle of an endless pipe, its daemon running."""
    env = {**ENV, "TMPDIR": place, "XDG_RUNTIME_DIR": place}
    p = subprocess.Popen([NCT, "run", *MODEL, "--raw", "f32", "--rate", "1000", "--channels", "2", "--window", "10ms", "-", "-o",
                          str(out)], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=env, start_new_session=True)
    p.stdin.write(b"\0" * 80000)
    p.stdin.flush()
    until(lambda: daemons(place) and any(f.endswith(".sock") for _, _, fs in os.walk(place, followlinks=True) for f in fs))
    return p


def feed(p):
    """More sound for an endless run, which may have ended already."""
    try:
        p.stdin.write(b"\0" * 80000)
        p.stdin.flush()
    except BrokenPipeError:
        pass


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("group", [False, True])
def test_no_death_of_nct_leaves_a_daemon(how, group, place, tmp_path):
    out = tmp_path / "o.wav"
    out.write_bytes(b"precious")
    p = start_endless(place, out)
    (os.killpg if group else os.kill)(p.pid, how)
    p.wait(20 * SLOW)
    assert p.returncode == (-9 if how == signal.SIGKILL else 1), p.stderr.read()
    until(lambda: not daemons(place))
    until(lambda: not os.listdir(place))
    assert out.read_bytes() == b"precious" and sorted(os.listdir(tmp_path)) == ["o.wav", "t"]


def test_nothing_is_left_after_ordinary_runs(place, tmp_path):
    env = {"TMPDIR": place, "XDG_RUNTIME_DIR": place}
    ok(nct("run", *MODEL, ST, "-o", tmp_path / "o.wav", env=env))
    fails(nct("run", *MODEL, "-p", "stride=0", ST, "-o", tmp_path / "o.wav", env=env), 78)
    assert not os.listdir(place) and not daemons(place)


@pytest.mark.parametrize("number, words", [(signal.SIGKILL, "was ended by signal 9 (Killed) while it worked; is memory short"),
                                           (signal.SIGTERM, "the private daemon ended with code 0 while it worked; lines above, if any")])
def test_a_private_daemon_that_dies_is_an_error(place, tmp_path, number, words):
    out = tmp_path / "o.wav"
    p = start_endless(place, out)
    pid = daemons(place)[0][0]
    os.kill(pid, number)
    until(lambda: not os.path.exists(f"/proc/{pid}/cmdline") or not open(f"/proc/{pid}/cmdline", "rb").read())
    feed(p)
    assert p.wait(30 * SLOW) == 69
    assert words in p.stderr.read().decode()
    assert not out.exists() and not os.listdir(place)


def test_a_named_daemon_that_dies_is_an_error(start, tmp_path):
    from nct_tools import B0
    d = start({"model main": {"file": B0, "num_groups": 2}})
    out = tmp_path / "o.wav"
    out.write_bytes(b"precious")
    p = subprocess.Popen([NCT, "run", "--connect", d.ingest, "--timeout", "2", "--raw", "f32", "--rate", "1000", "--channels", "2",
                          "--window", "10ms", "-", "-o", str(out)], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV)
    p.stdin.write(b"\0" * 80000)
    p.stdin.flush()
    until(lambda: d.ledger()["ok"] > 0)
    d.process.kill()
    d.wait()
    feed(p)
    assert p.wait(30 * SLOW) == 69
    assert out.read_bytes() == b"precious"
    d.start()  # the fixture stops it


def test_no_nctd_is_said(tmp_path):
    """A copy of nct without nctd beside it or on PATH."""
    import shutil
    shutil.copy(NCT, tmp_path / "nct")
    r = subprocess.run([tmp_path / "nct", "run", *MODEL, ST, "-o", tmp_path / "o.wav"], capture_output=True,
                       env={**os.environ, "PATH": "/nonexistent"}, timeout=60)
    fails(r, 69, "nctd cannot be started")
    os.symlink(NCTD, tmp_path / "nctd")
    r = subprocess.run([tmp_path / "nct", "run", *MODEL, ST, "-o", tmp_path / "o.wav"], capture_output=True, timeout=60)
    ok(r)


@pytest.mark.parametrize("end, words", [("exit 3", "ended with code 3"), ("kill -9 $$", "ended by signal 9")])
def test_an_nctd_that_ends_in_silence(tmp_path, end, words):
    """What stands beside nct as nctd says nothing: the sentence tells how it ended, and points at no words."""
    import shutil
    shutil.copy(NCT, tmp_path / "nct")
    (tmp_path / "nctd").write_text(f"#!/bin/sh\n{end}\n")
    os.chmod(tmp_path / "nctd", 0o755)
    r = subprocess.run([tmp_path / "nct", "run", *MODEL, ST, "-o", tmp_path / "o.wav"], capture_output=True, timeout=60 * SLOW)
    fails(r, 69, words, "before it was ready")
    assert b"are above" not in r.stderr and b"No child" not in r.stderr


def test_precision(start, tmp_path):
    from nct_tools import B0
    d = start({"model main": {"file": B0, "num_groups": 2}})
    fails(nct("run", "--connect", d.ingest, "--precision", "tf32", ST, "-o", tmp_path / "o.wav"), 78, "tf32", "f32")
    r = ok(nct("run", "--connect", d.ingest, "--precision", "f32", ST, "-o", tmp_path / "o.wav"))
    assert b"f32 on cpu" in r.stderr and b"x real time" in r.stderr and b"frames/s" in r.stderr
    fails(nct("run", "--connect", d.ingest, "--name", "other", ST, "-o", tmp_path / "o.wav"), 2, "no model 'other'", "main")


def test_it_listens_on_no_port(place, tmp_path):
    """No TCP, no HTTP: any number of them run at once, whoever has the daemon's usual ports."""
    p = start_endless(place, tmp_path / "o.wav")
    pid = daemons(place)[0][0]
    sockets = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    listening = set()
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}") as f:
            listening |= {f"socket:[{line.split()[9]}]" for line in f.readlines()[1:] if line.split()[3] == "0A"}
    p.send_signal(signal.SIGTERM)
    p.wait(20 * SLOW)
    assert not sockets & listening
