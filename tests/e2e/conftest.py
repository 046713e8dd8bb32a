"""The real daemon for every story: started in a folder of its own, stopped and read at the end."""
import itertools
import os
import re
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

sys.path.insert(0, os.path.dirname(__file__))
import stfile  # noqa: E402
import wire  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("NCT_BUILD", os.path.join(ROOT, "build"))
NCTD = os.environ.get("NCTD", os.path.join(BUILD, "nctd"))
NCT = os.environ.get("NCT", os.path.join(BUILD, "nct"))
ENGINE = os.environ.get("NCT_ENGINE", "cpu")  # the same stories on a GPU
SANITIZE = os.environ.get("NCT_SANITIZE", "")
SLOW = 5 if SANITIZE else 1  # time limits stretch under a sanitizer; nothing asserts that something is fast


def pytest_configure(config):
    config.addinivalue_line("markers", "sanitize: runs in the builds with sanitizers too")
    config.addinivalue_line("markers", "xdist_group(name): where stories run beside each other, these stay in one process")


class Daemon:
    """nctd with a conf made from `sections` ({"batch": {"max_frames": 4}, "model x": {...}})."""

    def __init__(self, folder, sections=None, tcp=False, wait=True, env=None, args=(), curve=None):
        self.folder = str(folder)
        self.curve = curve or {}  # pyzmq's curve_* options of the client that waits for READY and reads the ledger
        self.conf = os.path.join(self.folder, "nctd.conf")
        base = {"ingest": {"endpoint": f"ipc://{self.folder}/ingest.sock"},
                "publish": {"endpoint": f"ipc://{self.folder}/publish.sock"},
                "http": {"enabled": "no"},
                "engine": {"engine": ENGINE, "precision": "f32", "slot_bytes": "32M"},
                "limits": {"queue_bytes": "64M", "arena_bytes": "64M"}}
        for name, keys in (sections or {}).items():
            base.setdefault(name, {}).update(keys)
        if base["engine"]["engine"] == "cuda":  # these say how the CPU is shared
            base["engine"] = {k: v for k, v in base["engine"].items() if k not in ("instances", "cpu_variant")}
            base["engine"]["slots"] = max(2, base["engine"].get("slots", 3))
        if tcp:
            base["ingest"]["endpoint"] = f"tcp://127.0.0.1:{free_port()}"
            base["publish"]["endpoint"] = f"tcp://127.0.0.1:{free_port()}"
        self.sections = base
        self.write_conf()
        self.ingest = base["ingest"]["endpoint"].split()[0]
        self.publish = base["publish"].get("endpoint", "").split(" ")[0]
        self.env = {**os.environ, **(env or {})}
        self.args = list(args)
        self.start(wait)

    def write_conf(self):
        with open(self.conf, "w") as f:
            for name, keys in self.sections.items():
                print(f"[{name}]", *(f"{k} = {v}" for k, v in keys.items() if v is not None), sep="\n", file=f)

    def start(self, wait=True):
        self.log = []
        self.process = subprocess.Popen([NCTD, "-c", self.conf, *self.args], stderr=subprocess.PIPE, env=self.env,
                                        stdout=subprocess.DEVNULL, text=True, errors="replace")
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        if wait:
            self.client(timeout_s=60 * SLOW).close()  # WELCOME comes at READY

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))

    def client(self, **options):
        try:
            return wire.Client(self.ingest, **{"timeout_s": 20 * SLOW, **self.curve, **options})
        except AssertionError:
            raise AssertionError("no WELCOME; the daemon's log:\n" + "\n".join(self.log)) from None

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, seconds=30):
        code = self.process.wait(seconds * SLOW)
        self.reader.join(10)
        return code

    def stop(self, number=15, seconds=30):
        if self.process.poll() is None:
            self.signal(number)
        return self.wait(seconds)

    def text(self):
        return "\n".join(self.log)

    def ledger(self):
        """The books, as a fresh HELLO sees them; they must add up at any moment."""
        with self.client() as c:
            assert_adds_up(c.welcome)
            return c.welcome["ledger"]

    def rss_kb(self):
        assert self.process.poll() is None, f"it is gone: {self.process.poll()}\n{self.text()}"
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))

    def cpu_s(self):
        with open(f"/proc/{self.process.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ports():
    """Numbers below those that the kernel gives out by itself; workers beside this one draw others."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 16
    for k in itertools.count(os.getpid()):
        yield 10000 + 2 * worker + 32 * (k % 600)  # the next number is its too


PORTS = ports()


def free_port():
    for port in PORTS:
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def assert_adds_up(welcome):
    """received = ok + failed + refused + expired + orphaned + in_flight, in all and per model; handed = let_go + cut + held."""
    rows = [("all", welcome["ledger"])] + [(m["name"], m["ledger"]) for m in welcome["models"]]
    for name, row in rows:
        total = sum(row[k] for k in ("ok", "failed", "refused", "expired", "orphaned", "in_flight"))
        assert row["received"] == total, (name, row)
    row = welcome["ledger"]
    assert row["handed"] == row["let_go"] + row["cut"] + row["held"], row
    assert row["refused"] == sum(row["refused_by"].values()), row


@pytest.fixture
def start(tmp_path):
    """start(sections, ...) -> Daemon; every one is stopped at the end, must exit 0 and its books must add up."""
    started = []

    def run(sections=None, **options):
        folder = tmp_path / f"d{len(started)}"
        folder.mkdir()
        d = Daemon(folder, sections, **options)
        started.append(d)
        return d

    yield run
    for d in started:
        if d.process.poll() is None:
            code = d.stop()
            assert code == 0, f"exit {code}\n{d.text()}"
        assert not re.search(r"Sanitizer|runtime error:|Assertion", d.text()), d.text()


@pytest.fixture
def small_model(tmp_path):
    """A (2 -> 4, kernel 3, 2 groups) layer's file."""
    path = tmp_path / "small.safetensors"
    subprocess.run([NCT, "model", "new", path, "--in-channels", "2", "--out-channels", "4", "--kernel-size", "3",
                    "--num-groups", "2", "--seed", "7"], check=True, capture_output=True)
    return str(path)


@pytest.fixture
def model(tmp_path):
    """A (2 -> 4, kernel 3, 2 groups, not affine) layer's file, made without our programs."""
    path = tmp_path / "m.safetensors"
    stfile.write(path, {"conv.weight": np.ones((4, 2, 3), np.float32)}, {"num_groups": 2, "affine": "False"})
    return str(path)


def until(true, seconds=20):
    end = time.monotonic() + seconds * SLOW
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.02)
    return bool(true())
