"""How the daemon begins: what it refuses and why, whose socket it takes away, and when it says WELCOME."""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import stfile
import wire
from conftest import NCT, NCTD, SLOW, free_port, until

X = np.arange(20, dtype=np.float32).reshape(2, 10)


def conf(folder, text="", **sections):
    """A configuration file of sections, with `text` behind; -> its path."""
    base = {"ingest": {"endpoint": f"ipc://{folder}/ingest.sock"}, "publish": {"endpoint": f"ipc://{folder}/publish.sock"},
            "http": {"enabled": "no"}, "engine": {"engine": "cpu", "slot_bytes": "32M"},
            "limits": {"queue_bytes": "64M", "arena_bytes": "64M"}}
    for name, keys in sections.items():
        base.setdefault(name.replace("_", " "), {}).update(keys)
    path = os.path.join(folder, "c.conf")
    with open(path, "w") as f:
        for name, keys in base.items():
            print(f"[{name}]", *(f"{k} = {v}" for k, v in keys.items()), sep="\n", file=f)
        f.write(text)
    return path


def nctd(*args, timeout=60):
    """A start that must end by itself."""
    return subprocess.run([NCTD, *map(str, args)], capture_output=True, text=True, timeout=timeout * SLOW)


def refused(code, words, *args):
    r = nctd(*args)
    assert r.returncode == code, (r.returncode, r.stderr)
    for word in words:
        assert word in r.stderr, (word, r.stderr)
    assert "Sanitizer" not in r.stderr and "runtime error" not in r.stderr, r.stderr
    return r


# ---- sockets --------------------------------------------------------------------------------------------------------
@pytest.mark.sanitize
def test_a_second_daemon_on_the_same_path_is_refused_and_the_first_unharmed(start, model, tmp_path):
    d = start({"model m": {"file": model}})
    with d.client() as c:
        assert c.ask("m/a", X).h.status == 0
        for _ in range(3):
            refused(1, ["another nctd serves", d.ingest], "-c", d.conf)
        refused(1, ["another nctd serves", d.publish], "-c", d.conf, f"ingest.endpoint=ipc://{tmp_path}/other.sock")
        assert not os.path.exists(f"{tmp_path}/other.sock"), "a failed start left its socket"
        assert c.ask("m/a", X).h.status == 0
    with d.client() as c:  # a new connection reaches the first one
        assert c.ask("m/b", X).h.status == 0 and c.welcome["ledger"]["ok"] == 2
    assert d.stop() == 0
    assert not [name for name in os.listdir(d.folder) if "sock" in name], "a stopped daemon left something"


@pytest.mark.sanitize
def test_a_stale_socket_is_replaced(start, model):
    d = start({"model m": {"file": model}})
    for _ in range(3):
        d.process.kill()
        d.wait()
        assert os.path.exists(d.ingest.removeprefix("ipc://"))
        d.start()
        with d.client() as c:
            assert c.ask("m/a", X).h.status == 0


@pytest.mark.sanitize
@pytest.mark.parametrize("what", ["file", "folder", "link", "socket", "dead socket"])
def test_what_is_not_ours_is_never_deleted(what, tmp_path):
    path, s = tmp_path / "ingest.sock", None
    if what == "file":
        path.write_text("precious")
    elif what == "folder":
        path.mkdir()
    elif what == "link":
        (tmp_path / "target").write_text("precious")
        path.symlink_to(tmp_path / "target")
    else:
        s = socket.socket(socket.AF_UNIX)
        s.bind(str(path))
        s.listen() if what == "socket" else s.close()
    before = os.lstat(path)
    refused(1, [str(path)], "-c", conf(str(tmp_path)))
    after = os.lstat(path)
    assert (before.st_ino, before.st_mode, before.st_size) == (after.st_ino, after.st_mode, after.st_size)
    assert what != "file" or path.read_text() == "precious"
    assert what != "link" or (tmp_path / "target").read_text() == "precious"
    if what == "socket":
        with socket.socket(socket.AF_UNIX) as c:
            c.connect(str(path))
        s.close()
    refused(1, [str(path)], "-c", conf(str(tmp_path)))  # a second try does not take the first one's lock for a licence
    assert os.lstat(path).st_ino == before.st_ino


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:{}", "tcp://*:{}", "tcp://[::]:{}", "tcp://10.1.2.3:{}"])
@pytest.mark.parametrize("which", ["ingest", "publish"])
def test_a_bind_beyond_loopback_is_refused(endpoint, which, tmp_path):
    e = endpoint.format(free_port())
    refused(1, [f"{which}.endpoint", e, "insecure"], "-c", conf(str(tmp_path), **{which: {"endpoint": e}}))


def test_a_bind_beyond_loopback_that_was_asked_for_serves(start, model):
    port = free_port()
    d = start({"model m": {"file": model}, "ingest": {"endpoint": f"tcp://127.0.0.1:{port} tcp://0.0.0.0:{port + 1}", "insecure": "yes"}})
    for p in (port, port + 1):
        with wire.Client(f"tcp://127.0.0.1:{p}") as c:
            assert c.ask(f"m/p{p}", X).h.status == 0


@pytest.mark.parametrize("endpoint, word", [("udp://127.0.0.1:1", "udp"), ("ipc://", "ipc"), ("tcp://127.0.0.1", "127.0.0.1"),
                                            ("ipc:///nonexistent/folder/x.sock", "/nonexistent/folder"), ("tcp://nowhere.invalid:1", "nowhere"),
                                            ("ipc:///" + "x" * 120, "x" * 20)])
def test_endpoints_that_cannot_be(endpoint, word, tmp_path):
    r = refused(1, [word], "-c", conf(str(tmp_path), ingest={"endpoint": endpoint}))
    assert len(r.stderr.strip()) > 10


def test_sockets_have_the_mode_and_files_are_not_handed_to_children(start, model):
    d = start({"model m": {"file": model}, "ingest": {"socket_mode": "0640"}})
    assert os.stat(d.ingest.removeprefix("ipc://")).st_mode & 0o777 == 0o640
    folder = f"/proc/{d.process.pid}/fdinfo"
    with d.client():
        for fd in os.listdir(folder):  # d7: it never forks; were it to, nothing of ours would go along
            with open(f"{folder}/{fd}") as f:
                flags = int(re.search(r"flags:\s+(\d+)", f.read()).group(1), 8)
            assert int(fd) < 3 or flags & os.O_CLOEXEC, (fd, os.readlink(f"/proc/{d.process.pid}/fd/{fd}"))


# ---- configuration --------------------------------------------------------------------------------------------------
@pytest.mark.sanitize
@pytest.mark.parametrize("text, line, words", [
    ("[batch]\nmax_frams = 4\n", 2, ["max_frams", "max_frames"]),
    ("[bach]\nmax_frames = 4\n", 1, ["bach", "batch"]),
    ("[batch]\nmax_frames = 0\n", 2, ["max_frames", "0", "1"]),
    ("[batch]\nmax_frames = many\n", 2, ["max_frames", "many"]),
    ("[batch]\nmax_frames = 4\nmax_frames = 5\n", 3, ["twice", "line"]),
    ("[engine]\nengine = gpu\n", 2, ["gpu", "cuda"]),
    ("[batch\nmax_frames = 4\n", 1, []),
    ("[batch]\nmax_frames 4\n", 2, []),
    ("[model m]\nmode = stream\n", 2, ["stream", "not there yet"]),
    ("[model bad/name]\n", 1, ["bad/name"]),
    ("[model m]\nstride = 1\nstrid = 2\n", 3, ["strid", "stride"])])
def test_a_line_that_is_wrong_is_named_with_its_file(text, line, words, tmp_path):
    path = tmp_path / "x.conf"
    path.write_text("# first\n" + text)
    for verb in ([], ["--check"], ["--dump-config"]):
        refused(78, [f"{path}:{line + 1}:", *words], *verb, "-c", path)


def test_files_that_cannot_be_read(tmp_path):
    refused(78, [f"{tmp_path}/none.conf"], "-c", tmp_path / "none.conf")
    refused(78, [str(tmp_path)], "-c", tmp_path)
    refused(78, ["nothing.here"], "-c", conf(str(tmp_path)), "nothing.here=1")
    refused(2, ["garbage"], "garbage")
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "10-more.conf").write_text("[batch]\nmax_frames = x\n")
    refused(78, ["10-more.conf:2:"], "-c", conf(str(tmp_path)))


@pytest.mark.sanitize
@pytest.mark.parametrize("section, key, value, words", [
    ("engine", "slot_bytes", "1M", ["engine.slot_bytes", "1048576", "max_frame_bytes"]),
    ("limits", "queue_bytes", "1M", ["limits.queue_bytes", "1048576", "16777216"]),
    ("limits", "arena_bytes", "1M", ["limits.arena_bytes", "1048576", "16777216"]),
    ("publish", "publish_bytes", "8M", ["publish.publish_bytes", "8388608", "67108864"]),
    ("limits", "arena_bytes", "900G", ["limits.arena_bytes", "966367641600"]),
    ("engine", "precision", "bf16", ["precision", "f32"])])
def test_limits_that_cannot_work_are_named(section, key, value, words, tmp_path):
    path = conf(str(tmp_path), **{section: {key: value}})
    for verb in ([], ["--check"]):
        refused(78, words, *verb, "-c", path)


def test_check_prints_the_sums_and_starts_nothing(model, tmp_path):
    r = nctd("--check", "-c", conf(str(tmp_path), model_m={"file": model}))
    assert r.returncode == 0, r.stderr
    sums = {k: int(v) for k, v in re.findall(r"^  (\w+) +(\d+)", r.stdout, re.M)}
    assert sums["queue"] == sums["arena"] == 64 << 20 and sums["slots"] == 3 * 2 * (32 << 20)
    assert sums["sum"] == sum(sums[k] for k in ("queue", "arena", "slots", "publish"))
    assert "model m: 2 -> 4 channels" in r.stdout and r.stdout.endswith("ok\n")
    assert not [n for n in os.listdir(tmp_path) if n.endswith((".sock", ".lock"))]


def test_a_dumped_configuration_is_the_same_configuration(model, tmp_path):
    path = conf(str(tmp_path), batch={"max_frames": 7}, model_m={"file": model, "publish": "no", "padding": "0"})
    first = nctd("--dump-config", "-c", path)
    assert first.returncode == 0 and "max_frames = 7" in first.stdout, first.stderr
    again = tmp_path / "again.conf"
    again.write_text(first.stdout)
    second = nctd("--dump-config", "-c", again)
    assert second.returncode == 0, second.stderr

    def values(text):
        return [line.split("#")[0].strip() for line in text.splitlines() if line.split("#")[0].strip()]

    assert values(first.stdout) == values(second.stdout)
    assert nctd("--check", "-c", again).stdout == nctd("--check", "-c", path).stdout
    shipped = tmp_path / "shipped.conf"
    shipped.write_text(nctd("--print-conf").stdout)
    assert values(nctd("--dump-config", "-c", shipped).stdout) == values(nctd("--dump-config").stdout)


def test_no_model_at_all_serves_the_default_layer_and_says_so(start):
    d = start()
    assert until(lambda: "freshly initialised layer" in d.text() and "128->256" in d.text())


# ---- models ---------------------------------------------------------------------------------------------------------
@pytest.mark.sanitize
def test_models_that_cannot_be_loaded_end_the_start_with_a_reason(model, tmp_path):
    for file, words in ((tmp_path / "none.safetensors", ["none.safetensors"]), (tmp_path, [str(tmp_path)])):
        path = conf(str(tmp_path), model_other={"file": model}, model_mine={"file": file})
        with open(path) as f:
            line = f.read().splitlines().index("[model mine]") + 1
        for verb in (["--check"], []):
            refused(78, [f"{path}:{line}", "mine", *words], *verb, "-c", path)
    assert not [n for n in os.listdir(tmp_path) if n.endswith((".sock", ".lock"))], "a failed start left its sockets"


@pytest.mark.sanitize
def test_a_client_that_waits_through_the_start_gets_its_welcome_when_it_is_ready(start, tmp_path):
    rng = np.random.default_rng(9)
    big = tmp_path / "big.safetensors"
    stfile.write(big, {"conv.weight": rng.standard_normal((1024, 1024, 7)).astype(np.float32)}, {"num_groups": 1, "affine": "False"})
    d = start({"model big": {"file": big}}, wait=False)
    assert until(lambda: os.path.exists(d.ingest.removeprefix("ipc://")))
    c = wire.Client(d.ingest, hello=False, timeout_s=60 * SLOW)
    c.send(b"", wire.pack(kind=wire.HELLO, request_id=1), b"{}")
    c.send(b"", wire.pack(kind=wire.PING, request_id=2), b"early")
    c.send(b"big/s/", c.header(np.ones((1024, 7), np.float32)), np.ones((1024, 7), np.float32).tobytes())
    pong, stale, welcome = c.recv(), c.recv(), c.recv()
    assert (pong.h.kind, pong.payload) == (wire.PONG, b"early")
    assert (stale.h.kind, -stale.h.status) == (wire.ERROR, wire.ESTALE) and b"still starting" in stale.payload
    assert (welcome.h.kind, welcome.h.request_id) == (wire.WELCOME, 1)
    assert until(lambda: "ready version" in d.text())
    c.session = welcome.h.session
    assert c.ask("big/s", np.ones((1024, 7), np.float32)).h.status == 0
    c.close()


# ---- a private daemon -----------------------------------------------------------------------------------------------
PARENT = """
import os, socket, subprocess, sys, time
a, b = socket.socketpair()
p = subprocess.Popen([sys.argv[1], "--private", str(b.fileno()), "-c", sys.argv[2]], pass_fds=[b.fileno()], stderr=subprocess.DEVNULL)
b.close()
print(p.pid, flush=True)
print(a.makefile().readline().strip(), flush=True)
time.sleep(1000)
"""


def lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.sanitize
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_private_daemon_ends_with_the_process_it_serves(how, model, tmp_path):
    path = conf(str(tmp_path), publish={"enabled": "no"}, model_m={"file": model}).replace("\n", "")
    with open(path) as f:
        text = re.sub(r"endpoint = \S*publish\.sock\n", "", f.read())
    with open(path, "w") as f:
        f.write(text)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, NCTD, path], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    said = json.loads(parent.stdout.readline())
    assert said["ready"] is True and said["endpoint"] == f"ipc://{tmp_path}/ingest.sock"
    with wire.Client(said["endpoint"]) as c:
        assert c.ask("m/a", X).h.status == 0
        parent.send_signal(how)
        parent.wait()
        assert until(lambda: not lives(pid)), "it outlives its nct"
    assert not [n for n in os.listdir(tmp_path) if n.endswith((".sock", ".lock"))]
    parent.stdout.close()


@pytest.mark.sanitize
@pytest.mark.parametrize("change, words", [({"model_m": {"file": "/nonexistent.safetensors"}}, ["nonexistent"]),
                                           ({"engine": {"slot_bytes": "64K"}}, ["slot_bytes"]),
                                           ({"batch": {"max_frames": "x"}}, ["max_frames"])])
def test_a_private_daemon_that_cannot_start_says_why_on_its_descriptor(change, words, tmp_path):
    path = conf(str(tmp_path), **{"publish": {"enabled": "no"}, **change})
    with open(path) as f:
        text = re.sub(r"endpoint = \S*publish\.sock\n", "", f.read())
    with open(path, "w") as f:
        f.write(text)
    ours, theirs = socket.socketpair()
    p = subprocess.Popen([NCTD, "--private", str(theirs.fileno()), "-c", path], pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL)
    theirs.close()
    said = json.loads(ours.makefile().readline())
    assert said["ready"] is False
    for word in words:
        assert word in said["error"], said
    assert p.wait(60 * SLOW) == 78
    ours.close()


def test_what_is_printed_to_a_full_disk_is_a_failure():
    for option in ("--print-conf", "--help", "--version", "--check"):
        with open("/dev/full", "w") as full:
            r = subprocess.run([NCTD, option], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60 * SLOW)
        assert r.returncode == 1 and "writing to stdout failed" in r.stderr, (option, r)


@pytest.mark.sanitize
def test_closed_standard_descriptors_are_not_given_to_sockets(model, tmp_path):
    """The log would be written to whoever has number 2 then."""
    path = conf(tmp_path, model_m={"file": model})
    p = subprocess.Popen(["bash", "-c", f"exec '{NCTD}' -c '{path}' <&- >&- 2>&-"])
    try:
        with wire.Client(f"ipc://{tmp_path}/ingest.sock", timeout_s=30 * SLOW) as c:
            assert [os.readlink(f"/proc/{p.pid}/fd/{n}") for n in range(3)] == ["/dev/null"] * 3
            p.send_signal(signal.SIGHUP)  # it has something to say
            assert until(lambda: c.ledger() and c.welcome["reload"]["unchanged"] == 1)
            assert c.ask("m/a", X).h.status == 0
        p.terminate()
        assert p.wait(30 * SLOW) == 0
    finally:
        p.kill()
