"""nct top: plain reports, JSON, and the screen in a terminal of its own, which is given back whatever ends it."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

from conftest import SLOW, free_port, until
from nct_tools import B0, ENV, NCT, fails, nct, objects, ok


@pytest.fixture
def daemon(start):
    port = free_port()
    d = start({"model main": {"file": B0, "num_groups": 2}, "http": {"enabled": "yes", "endpoint": f"127.0.0.1:{port}"}})
    d.http = f"127.0.0.1:{port}"
    return d


@pytest.fixture
def load(daemon):
    p = subprocess.Popen([NCT, "bench", "-c", daemon.ingest, "-s", "30", "-e", "100ms", "-d", "600", "--warmup", "0"], env=ENV,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert until(lambda: daemon.ledger()["ok"] > 50)
    yield p
    p.kill()
    p.wait()


def test_a_report(daemon, load):
    text = ok(nct("top", "--http", daemon.http, "--once", "-i", "0.5", "--streams", "7", env={"LC_ALL": "C"})).stdout.decode()
    lines = text.splitlines()
    assert lines[0].startswith("nctd 0.1.0  ready  cpu") and "30 streams" in lines[1], text
    assert float(re.search(r"a second +received ([\d.]+)", text).group(1)) > 0
    assert re.search(r"in all +received \d+ = ok \d+ \+ in flight \d+\n", text), text
    assert re.search(r"(?m)^main +1 +2>4 +3 ", text) and len(re.findall(r"(?m)^main/bench-1-\d+ +nct bench", text)) == 7, text
    for row in ("queue", "copy", "compute", "publish"):
        assert re.search(rf"(?m)^{row} +\d+\.\d+ +\d+\.\d+ ", text), (row, text)
    assert not re.search(r"[^\n\x20-\x7e]", text)  # plain: no sequence of a terminal, and no locale
    assert max(map(len, lines)) <= 100
    text = ok(nct("top", "-H", daemon.http, "-k", "3", "-i", "0.2", "-f", "bench-1-2", "-s", "name")).stdout.decode()
    assert text.count("nctd 0.1.0") == 3
    names = re.findall(r"(?m)^main/(bench-1-\d+) ", text)
    assert names == (["bench-1-2"] + [f"bench-1-2{i}" for i in range(10)]) * 3


def test_json(daemon, load):
    j = objects(ok(nct("top", "-H", daemon.http, "--json", "-k", "2", "-i", "0.3")))
    assert len(j) == 2 and j[0]["ready"] is True and j[1]["ledger"]["received"] > j[0]["ledger"]["received"]


def test_what_is_wrong_is_said(daemon, start):
    fails(nct("top", "-H", f"127.0.0.1:{free_port()}"), 69, "is nctd running", "http.endpoint", "--http HOST:PORT")
    fails(nct("top", "-H", "here"), 2, "HOST:PORT")
    fails(nct("top", "-H", "127.0.0.1:7x7"), 2, "127.0.0.1:7x7")
    fails(nct("top", "x"), 2, "no operand")
    fails(nct("top", "--sort", "size"), 2, "rate|age|gaps|name")
    daemon.signal(signal.SIGSTOP)
    try:
        fails(nct("top", "-H", daemon.http, "--timeout", "0.3", "--once"), 69, "no answer in time")
    finally:
        daemon.signal(signal.SIGCONT)


@pytest.mark.parametrize("answer,words", [
    (b"HTTP/1.1 200 OK\r\n\r\n{}", "not nctd's status"),
    (b"HTTP/1.1 404 Not Found\r\n\r\nno such \x1b[2J page", "404"),
    (b"SSH-2.0-OpenSSH\r\n", "no HTTP server"),
    (b"", "no HTTP server")])
def test_not_a_daemon(answer, words):
    import socket
    with socket.create_server(("127.0.0.1", 0)) as s:
        p = subprocess.Popen([NCT, "top", "-H", "127.0.0.1:%d" % s.getsockname()[1], "--once"], stderr=subprocess.PIPE, env=ENV)
        c, _ = s.accept()
        c.recv(4096)
        c.sendall(answer)
        c.close()
        err = p.communicate(timeout=20 * SLOW)[1].decode()
    assert p.returncode == 1 and words in err and "\x1b" not in err, (p.returncode, err)


# ---- in a terminal ----------------------------------------------------------------------------------------------------
class Terminal:
    """nct top in a pseudo-terminal; `screen()` is what a terminal would show: the last picture, line by line."""

    def __init__(self, daemon, rows=24, columns=80, args=()):
        self.main, self.side = pty.openpty()
        self.size(rows, columns)
        self.before = termios.tcgetattr(self.side)
        self.bytes = b""
        self.p = subprocess.Popen([NCT, "top", "-H", daemon.http, "-i", "0.2", *args], stdin=self.side, stdout=self.side,
                                  stderr=self.side, start_new_session=True, env={**ENV, "TERM": "xterm", "LC_ALL": "C.UTF-8"},
                                  preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def size(self, rows, columns):
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def read(self, seconds=0.05):
        while select.select([self.main], [], [], seconds)[0]:
            try:
                self.bytes += os.read(self.main, 65536)
            except OSError:
                break

    def screen(self):
        self.read()
        whole = self.bytes.split(b"\x1b[J")[:-1]
        if not whole:
            return []
        rows = re.split(r"\x1b\[\d+;1H", "\x1b[1;1H" + whole[-1].decode().rsplit("\x1b[1;1H", 1)[-1])[1:]
        return [re.sub(r"\x1b\[[\d;]*[A-Za-z]", "", row) for row in rows]

    def until(self, true):
        assert until(lambda: true("\n".join(self.screen()))), "\n".join(self.screen())

    def key(self, text):
        os.write(self.main, text.encode())

    def end(self):
        """Exit code; the terminal must be as it was."""
        until(lambda: self.read() or self.p.poll() is not None)
        code = self.p.wait(20 * SLOW)
        self.read()
        after = termios.tcgetattr(self.side)
        assert after == self.before
        assert self.bytes.count(b"\x1b[?1049h") == self.bytes.count(b"\x1b[?1049l") >= 1
        assert self.bytes.rstrip().endswith(b"\x1b[?1049l") and b"\x1b[?25h" in self.bytes[-40:], self.bytes[-200:]
        os.close(self.main)
        os.close(self.side)
        return code


def test_the_screen(daemon, load):
    t = Terminal(daemon)
    t.until(lambda s: "main/bench-1-" in s and "ok/s" in s)
    lines = t.screen()
    assert len(lines) == 24 and max(map(len, lines)) <= 80 and "q quit" in lines[-1], lines
    assert termios.tcgetattr(t.side)[3] & (termios.ICANON | termios.ECHO) == 0
    t.key("sss")  # rate, age, gaps, name
    t.until(lambda s: "sort by name" in s and "main/bench-1-0 " in s)
    for _ in range(3):
        t.key("\x1b[B")
        time.sleep(0.05)
    t.until(lambda s: "main/bench-1-0 " not in s)
    t.key("\x1b[5~")
    t.until(lambda s: "main/bench-1-0 " in s)
    t.size(50, 130)
    t.until(lambda s: len(s.split("\n")) == 50 and s.count("main/bench-1-") == 30)
    t.key("p")
    t.until(lambda s: "PAUSED" in s)
    t.key("q")
    assert t.end() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_the_terminal_is_given_back(daemon, number):
    t = Terminal(daemon)
    t.until(lambda s: "nctd" in s)
    if number == signal.SIGINT:
        t.key("\x03")
    else:
        t.p.send_signal(number)
    assert t.end() == (0 if number != signal.SIGQUIT else -signal.SIGQUIT)


def test_ctrl_z_and_back(daemon):
    t = Terminal(daemon)
    t.until(lambda s: "nctd" in s)
    t.p.send_signal(signal.SIGTSTP)

    def stopped():
        t.read()
        with open(f"/proc/{t.p.pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] == "T"

    assert until(stopped)
    assert termios.tcgetattr(t.side) == t.before and t.bytes.endswith(b"\x1b[?1049l")
    t.bytes = t.bytes.replace(b"\x1b[J", b"")
    t.p.send_signal(signal.SIGCONT)
    t.until(lambda s: "nctd" in s)
    t.key("q")
    assert t.end() == 0


def test_a_daemon_that_goes_and_comes_back(daemon):
    t = Terminal(daemon)
    t.until(lambda s: "ready" in s)
    daemon.stop()
    t.until(lambda s: "Connection refused" in s and "ready" in s)
    daemon.start()
    t.until(lambda s: "Connection refused" not in s and "ready" in s)
    t.key("q")
    assert t.end() == 0
