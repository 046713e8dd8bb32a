"""Clients that leave at once, or read slowly: what they sent counts, and who takes bytes is not stalled."""
import socket
import threading
import time

import numpy as np
import pytest
import zmq

import conftest
import wire
from conftest import SLOW, until

X = np.arange(20, dtype=np.float32).reshape(2, 10) / 7


@pytest.mark.sanitize
@pytest.mark.parametrize("tcp", [False, True], ids=["ipc", "tcp"])
def test_frames_of_a_client_that_closes_at_once_are_received(start, small_model, tcp):
    d = start({"model m": {"file": small_model}}, tcp=tcp)
    sent = 0
    for n in (1, 2, 7, 40, 64) * 4:
        context = zmq.Context()
        with wire.Client(d.ingest, context=context, timeout_s=20 * SLOW) as c:
            for i in range(n):
                c.frame(f"m/s{n}", X, seq=i, flags=wire.NO_REPLY)
            c.socket.linger = 10000
        context.term()  # everything is in the daemon's kernel now, and the connection closed
        sent += n
    assert until(lambda: d.ledger()["received"] == sent), (sent, d.ledger()["received"], d.ledger()["malformed"], d.text())
    ledger = d.ledger()
    assert ledger["malformed"]["gone"] == 0 and ledger["malformed"]["session"] == 0, ledger
    assert until(lambda: (lambda l: l["ok"] + l["orphaned"] == sent and not l["in_flight"])(d.ledger())), d.ledger()


class SlowLink(threading.Thread):
    """Between a client and the daemon: what the daemon sends passes in small bites, everything else at once."""

    def __init__(self, endpoint, bytes_a_second):
        super().__init__(daemon=True)
        self.rate, self.passed = bytes_a_second, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = "tcp://127.0.0.1:%d" % self.listener.getsockname()[1]
        if endpoint.startswith("ipc://"):
            self.up = socket.socket(socket.AF_UNIX)
            self.at = endpoint[6:]
        else:
            self.up = socket.socket()
            host, port = endpoint[6:].rsplit(":", 1)
            self.at = host, int(port)
        self.up.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
        self.start()

    def run(self):
        down, _ = self.listener.accept()
        self.up.connect(self.at)
        threading.Thread(target=self.upwards, args=(down,), daemon=True).start()
        bite = 32768
        try:
            while data := self.up.recv(bite):
                down.sendall(data)
                self.passed += len(data)
                time.sleep(len(data) / self.rate)
        except OSError:
            pass
        down.close()

    def upwards(self, down):
        try:
            while data := down.recv(65536):
                self.up.sendall(data)
        except OSError:
            pass


@pytest.mark.parametrize("tcp", [False, True], ids=["ipc", "tcp"])
def test_one_large_answer_on_a_slow_link_is_no_stall(start, small_model, tcp):
    stall_s = 0.6 * SLOW
    d = start({"model m": {"file": small_model}, "daemon": {"stall_ms": str(int(stall_s * 1000))}}, tcp=tcp)
    x = np.random.default_rng(1).standard_normal((2, 1 << 19)).astype(np.float32)
    rows = x.shape[1] * 4 * 4
    link = SlowLink(d.ingest, rows / (6 * stall_s))
    with wire.Client(link.endpoint, timeout_s=120 * SLOW) as c:
        began = time.monotonic()
        answer = c.ask("m/slow", x)
        took = time.monotonic() - began
        assert answer.h.status == 0 and len(answer.payload) == (x.shape[1] - 2) * 16
    assert took > 3 * stall_s, "the link was too fast to show anything"
    assert d.ledger()["cuts"]["stall"] == 0
    with d.client() as c:
        assert wire.array(c.ask("m/fast", x)).tobytes() == answer.payload


def test_who_stops_in_the_middle_of_an_answer_is_still_cut(start, small_model):
    stall_s = 0.6 * SLOW
    d = start({"model m": {"file": small_model}, "daemon": {"stall_ms": str(int(stall_s * 1000))}}, tcp=True)
    x = np.zeros((2, 1 << 20), np.float32)
    link = SlowLink(d.ingest, 1 << 20)
    with wire.Client(link.endpoint, timeout_s=20 * SLOW) as c:
        c.frame("m/s", x)
        assert until(lambda: link.passed > 1 << 18)
        link.rate = 1e-3  # not a byte more
        assert until(lambda: d.ledger()["cuts"]["stall"] == 1, 20 * SLOW), d.ledger()
    assert until(lambda: d.ledger()["held"] == 0)
