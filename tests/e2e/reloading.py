"""What the stories of reloads share: a service manager that listens, a model that changes, a conf that is slow to read."""
import fcntl
import os
import queue
import re
import signal
import socket
import threading
import time

import numpy as np
import pytest

import stfile
from conftest import ROOT, SLOW, until

DATA = os.path.join(ROOT, "tests", "data")
X = np.arange(20, dtype=np.float32).reshape(2, 10) / 7
PARAMS = {"num_groups": 2}


def write_model(path, seed, c_in=2, c_out=4, k=3, meta=None):
    """Under another name, then renamed: nobody reads half of it."""
    rng = np.random.default_rng(seed)
    tensors = {"conv.weight": rng.standard_normal((c_out, c_in, k)).astype(np.float32),
               "norm.weight": rng.standard_normal(c_out).astype(np.float32), "norm.bias": rng.standard_normal(c_out).astype(np.float32)}
    stfile.write(f"{path}.new", tensors, meta)
    os.rename(f"{path}.new", path)
    return str(path)


class Manager:
    """The service manager's end of the notify socket. A thread reads it at once: Linux keeps 10 datagrams."""

    def __init__(self, folder):
        self.path = f"{folder}/notify.sock"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.got = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while message := self.socket.recv(4096):
            self.got.put(message.decode())

    def close(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(b"", self.path)

    def next(self, seconds=20):
        """The next datagram as a dict, WATCHDOG=1 and requests for more time left out; None when nothing comes."""
        for _, text in self.every(seconds * SLOW, stop=lambda text: not text.startswith(("WATCHDOG", "EXTEND"))):
            if not text.startswith(("WATCHDOG", "EXTEND")):
                return dict(line.split("=", 1) for line in text.strip().split("\n"))
        return None

    def every(self, seconds, stop=lambda text: False):
        """All datagrams of that time, or until one says stop, whole: (when, text)."""
        end, got = time.monotonic() + seconds, []
        while (left := end - time.monotonic()) > 0:
            try:
                got.append((time.monotonic(), self.got.get(timeout=left)))
            except queue.Empty:
                break
            if stop(got[-1][1]):
                break
        return got

    def reloaded(self):
        """One reload, as it must be told: its STATUS."""
        begins, ends = self.next(), self.next()
        assert begins and set(begins) == {"RELOADING", "MONOTONIC_USEC", "STATUS"} and begins["RELOADING"] == "1", begins
        assert 0 <= time.clock_gettime(time.CLOCK_MONOTONIC) - int(begins["MONOTONIC_USEC"]) / 1e6 < 60 * SLOW
        assert ends and set(ends) == {"READY", "STATUS"} and ends["READY"] == "1", ends
        return ends["STATUS"]


@pytest.fixture
def manager(tmp_path):
    m = Manager(tmp_path)
    yield m
    m.close()


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "m.safetensors", 1)


@pytest.fixture
def daemon(start, manager, model):
    d = start({"model m": {"file": model, **PARAMS}}, env={"NOTIFY_SOCKET": manager.path})
    ready = manager.next()
    assert ready["READY"] == "1" and "serving 1 models" in ready["STATUS"]
    return d


def reload(d, manager):
    d.signal(signal.SIGHUP)
    return manager.reloaded()


def facts(d):
    """What WELCOME says of models and reloads."""
    with d.client() as c:
        return {m["name"]: (m["generation"], m["digest"]) for m in c.welcome["models"]}, c.welcome["reload"]


def stays(d, before, why, status):
    """Refused: everything is as before, and the reason stands in STATUS, WELCOME and the log."""
    models, told = facts(d)
    assert models == before
    assert told["last"] == "refused" and re.search(why, told["why"]), told
    assert "; reload refused: " in status and told["why"][:200] in status, status
    assert until(lambda: any(line.startswith("<4>reload refused") and told["why"][:200] in line for line in d.log)), d.text()


class Slow:
    """A reload that waits in opening conf.d/slow.conf until let go: a lease (fcntl(2)) is held on the file. Every reload
    waits anew, as let_go puts another leased file in its place first."""

    def __init__(self, d):
        signal.signal(signal.SIGIO, signal.SIG_IGN)  # how the kernel says that somebody waits
        self.path = os.path.join(d.folder, "conf.d", "slow.conf")
        os.mkdir(os.path.dirname(self.path))
        self.fd = self.put()

    def put(self):
        fd = os.open(self.path + ".new", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        os.rename(self.path + ".new", self.path)
        return fd

    def waits(self):
        return fcntl.fcntl(self.fd, fcntl.F_GETLEASE) != fcntl.F_WRLCK

    def let_go(self):
        assert until(self.waits), "nobody reads conf.d"
        old, self.fd = self.fd, self.put()
        fcntl.fcntl(old, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        os.close(old)
