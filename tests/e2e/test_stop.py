"""How the daemon ends: SIGTERM answers what was admitted, whoever is frozen; SIGHUP ends nothing."""
import itertools
import json
import re
import signal
import subprocess
import threading
import time

import numpy as np
import pytest
import zmq

import stfile
import wire
from conftest import ENGINE, NCTD, SLOW, until
from peers import Peer

X = np.arange(20, dtype=np.float32).reshape(2, 10)


def make_model(path, c_in=2, c_out=2, k=1):
    rng = np.random.default_rng(8)
    stfile.write(path, {"conv.weight": rng.standard_normal((c_out, c_in, k)).astype(np.float32)}, {"num_groups": 1, "affine": "False"})
    return str(path)


@pytest.fixture
def daemon(start, tmp_path):
    small, large = make_model(tmp_path / "s.safetensors"), make_model(tmp_path / "l.safetensors", 8, 64)

    def run(drain_ms=5000, arena="96M", stall_ms=10000, **options):
        return start({"model small": {"file": small}, "model large": {"file": large},
                      "daemon": {"drain_ms": drain_ms, "stall_ms": stall_ms},
                      "limits": {"queue_bytes": "64M", "arena_bytes": arena}}, **options)

    return run


def last_words(d):
    """The ledger's line at exit, as numbers."""
    lines = [line for line in d.log if " received=" in line or line.startswith("<6>ledger ")]
    assert len(lines) == 1, d.text()
    books = {k: int(v) for k, v in re.findall(r"([\w.]+)=(\d+)", lines[0])}
    assert books["received"] == sum(books[k] for k in ("ok", "failed", "refused", "expired", "orphaned", "in_flight")), lines[0]
    assert books["handed"] == books["let_go"] + books["cut"] + books["held"], lines[0]
    return books


@pytest.mark.sanitize
@pytest.mark.parametrize("tcp", [False, True], ids=["ipc", "tcp"])
@pytest.mark.parametrize("rows", ["small", "large"])
def test_sigterm_under_load_answers_everything_admitted(daemon, tcp, rows):
    d = daemon(tcp=tcp)
    x = np.ones((2, 480), np.float32) if rows == "small" else np.ones((8, 2000), np.float32)
    answers, failures = [], []
    running = threading.Barrier(5)

    def client(i):
        """Keeps its window full until GOAWAY, then takes what is due."""
        try:
            with d.client(context=zmq.Context()) as c:
                mine, goaway, in_flight = [], 0, 0
                warm = True
                while True:
                    while not goaway and in_flight < c.window:
                        c.frame(f"{rows}/s{i}", x)
                        in_flight += 1
                    m = c.recv(timeout_s=3)
                    if m is None:
                        break
                    if m.h.kind == wire.GOAWAY:
                        assert json.loads(m.payload)["drain_ms"] == 5000
                        goaway += 1
                        continue
                    in_flight -= 1
                    mine.append((m.h.status, goaway))
                    if warm and len(mine) > 50:
                        warm = False
                        running.wait(60)
                assert goaway == 1
                answers.extend(mine)
        except Exception as e:
            failures.append(repr(e))
            running.abort()

    threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    running.wait(60 * SLOW)
    d.signal(signal.SIGTERM)
    code = d.wait()
    [t.join() for t in threads]
    assert not failures, failures
    assert code == 0
    books = last_words(d)
    ok = sum(status == 0 for status, _ in answers)
    assert ok == books["ok"], "answers that were handed over did not arrive"
    assert {s for s, _ in answers} <= {0, -wire.ESHUTDOWN, -wire.EAGAIN, -wire.ENOBUFS}
    assert all(goaway for s, goaway in answers if s == -wire.ESHUTDOWN), "refused before GOAWAY"
    assert len(answers) == books["ok"] + books["refused"]
    assert books["failed"] == books["expired"] == books["orphaned"] == books["in_flight"] == books["cut"] == 0


@pytest.mark.sanitize
def test_new_frames_are_refused_while_it_stops_and_control_is_answered(daemon):
    d = daemon(drain_ms=20000)
    with d.client() as c, d.client(rcvhwm=1, context=zmq.Context()) as holder:
        assert c.ask("small/a", X).h.status == 0
        x = np.ones((8, 4000), np.float32)
        for _ in range(40):
            holder.frame("large/h", x)  # 40 results of 1 MB that nobody takes: the daemon stays to wait for that
        assert until(lambda: d.ledger()["ok"] == 41)
        assert d.ledger()["held"] > 0
        d.signal(signal.SIGTERM)
        assert c.recv().h.kind == wire.GOAWAY
        for _ in range(3):
            m = c.ask("small/a", X)
            assert (m.h.kind, -m.h.status) == (wire.ERROR, wire.ESHUTDOWN)
        c.send(b"", wire.pack(kind=wire.PING, session=c.session, request_id=5), b"still?")
        assert c.recv().payload == b"still?"
        with wire.Client(d.ingest, hello=False) as late:
            late.send(b"", wire.pack(kind=wire.HELLO, request_id=3), b"{}")
            m = late.recv()
            assert (m.h.kind, -m.h.status, m.h.request_id) == (wire.ERROR, wire.ESHUTDOWN, 3)
        kinds = [holder.recv().h.kind for _ in range(41)]  # the holder takes all of it now, and the daemon is free to go
        assert sorted(kinds) == [wire.RESULT] * 40 + [wire.GOAWAY]
        assert d.wait(60) == 0
    assert last_words(d)["ok"] == 41


@pytest.mark.sanitize
@pytest.mark.parametrize("tcp", [False, True], ids=["ipc", "tcp"])
@pytest.mark.parametrize("when", ["at once", "when all are answered"])
def test_60_results_of_1_mib_all_arrive(daemon, tcp, when):
    """d4. The client begins to read when the daemon is told to stop."""
    d = daemon(tcp=tcp, drain_ms=20000, arena="160M")  # one client has half of it at most
    x = np.ones((8, 4096), np.float32)
    with d.client(rcvhwm=1, context=zmq.Context()) as c:
        for _ in range(60):
            c.frame("large/a", x)
        field = "received" if when == "at once" else "ok"
        assert until(lambda: d.ledger()[field] == 60)
        d.signal(signal.SIGTERM)
        got = [c.recv() for _ in range(61)]
    assert None not in got, f"{sum(g is not None for g in got)} of 61 messages"
    results = [g for g in got if g.h.kind == wire.RESULT]
    assert [g.h.request_id for g in results] == list(range(1, 61)) and all(len(g.payload) == 1 << 20 for g in results)
    assert d.wait() == 0
    assert last_words(d)["let_go"] == 60


@pytest.mark.parametrize("tcp", [False, True], ids=["ipc", "tcp"])
def test_results_reach_a_client_that_goes_on_sending(daemon, tcp):
    """Input that nobody read any more when the connection closed would make tcp throw away what is on its way."""
    d = daemon(tcp=tcp, drain_ms=20000, arena="160M")
    x = np.ones((8, 4096), np.float32)
    with d.client(rcvhwm=1, context=zmq.Context()) as c:
        for _ in range(60):
            c.frame("large/a", x)
        assert until(lambda: d.ledger()["received"] == 60)
        d.signal(signal.SIGTERM)
        got = 0
        while got < 60:
            for _ in range(4):
                try:
                    c.socket.send_multipart([b"", wire.pack(kind=wire.PING, session=c.session), bytes(20000)], zmq.DONTWAIT)
                except zmq.Again:
                    pass
            m = c.recv(timeout_s=5)
            assert m is not None, f"{got} of 60"
            got += m.h.kind == wire.RESULT
            time.sleep(0.01)
    assert d.wait() == 0


def kinds_until_silence(c, most):
    return [m.h.kind for m in itertools.takewhile(lambda m: m is not None, (c.recv(timeout_s=5) for _ in range(most)))]


@pytest.mark.sanitize
@pytest.mark.parametrize("tcp", [False, True], ids=["ipc", "tcp"])
def test_what_a_client_has_not_read_outlives_what_it_sends_at_the_end(daemon, tcp):
    """All 12 results wait in the client's kernel, and the daemon has nothing left to do. A reset would discard them; at a
    hang-up libzmq gives up the input that it had stopped."""
    d = daemon(tcp=tcp, drain_ms=20000)
    with d.client(rcvhwm=1, context=zmq.Context()) as c:
        for _ in range(12):
            c.frame("small/a", np.ones((2, 250), np.float32))  # 24 KB; a unix socket calls itself full with more than 53
        assert until(lambda: (b := d.ledger())["ok"] == 12 and b["held"] == 0)
        d.signal(signal.SIGTERM)
        assert until(lambda: "ledger received" in d.text())
        for _ in range(5):
            c.socket.send_multipart([b"", wire.pack(kind=wire.PING, session=c.session), bytes(20000)], zmq.DONTWAIT)
            time.sleep(0.1)
        kinds = kinds_until_silence(c, 13)
        assert kinds.count(wire.RESULT) == 12 and kinds.count(wire.GOAWAY) == 1, kinds
        begin = time.monotonic()
        assert d.wait() == 0
        assert time.monotonic() - begin < 10, "it waits for one that has everything"


def idle(d):
    before = d.cpu_s()
    time.sleep(0.5)
    return d.cpu_s() == before


@pytest.mark.parametrize("tcp", [False, True], ids=["ipc", "tcp"])
def test_what_waits_behind_a_full_kernel_is_sent_to_a_client_that_reads_late(daemon, tcp):
    """GOAWAY behind 8 MB of PONGs, which no window bounds, for longer than sockets linger."""
    d = daemon(tcp=tcp, drain_ms=20000)
    with d.client(rcvhwm=1, rcvbuf=65536, context=zmq.Context()) as c:
        for _ in range(400):
            c.send(b"", wire.pack(kind=wire.PING, session=c.session), bytes(20000))
        assert until(lambda: idle(d))  # the kernel's buffers are full
        d.signal(signal.SIGTERM)
        time.sleep(2.5)
        kinds = kinds_until_silence(c, 401)
        assert (kinds.count(wire.PONG), kinds.count(wire.GOAWAY)) == (400, 1), kinds[-9:]
    assert d.wait() == 0


@pytest.mark.parametrize("tcp", [False, True], ids=["ipc", "tcp"])
def test_a_frozen_client_that_is_owed_nothing_is_waited_for_until_the_cut(daemon, tcp):
    """Whether its program has read all of it cannot be known. A second SIGTERM ends that too."""
    for hurry in (False, True):
        d = daemon(tcp=tcp, drain_ms=20000 if hurry else 2000)
        peer = Peer(d.ingest, "small/p", 2, 10, 1000000)
        assert peer.line() == "0"
        peer.stop()
        assert until(lambda: (b := d.ledger())["held"] == b["in_flight"] == 0)
        d.signal(signal.SIGTERM)
        assert until(lambda: "ledger received" in d.text())
        with pytest.raises(subprocess.TimeoutExpired):
            d.process.wait(0.5)
        if hurry:
            d.signal(signal.SIGTERM)
        begin = time.monotonic()
        assert d.wait() == 0
        assert time.monotonic() - begin < 9
        assert last_words(d)["cut"] == 0
        peer.kill()


def received(d, model):
    with d.client() as c:
        return next(m["ledger"]["received"] for m in c.welcome["models"] if m["name"] == model)


def freeze_with_answers_due(d, peer):
    """Frozen at an unlucky moment its window is frames on their way to us, and what is due fits into the kernel."""
    for _ in range(30):
        peer.stop()
        if until(lambda: d.ledger()["held"] > 0, 1):
            return
        peer.go_on()
        time.sleep(0.1)
    raise AssertionError("it never held an answer")


@pytest.mark.parametrize("tcp", [False, True], ids=["ipc", "tcp"])
@pytest.mark.parametrize("frozen", ["client", "subscriber"])
def test_who_is_frozen_does_not_keep_it(daemon, tcp, frozen):
    d = daemon(tcp=tcp, drain_ms=3000)
    x = np.ones((8, 4000), np.float32)
    if frozen == "client":
        peer = Peer(d.ingest, "large/p", 8, 4000, 1000000)
        assert until(lambda: peer.line() == "0")  # of a full window some are refused, and errors overtake
        freeze_with_answers_due(d, peer)
    else:
        peer = Peer("sub", d.publish, "large/")
        time.sleep(0.5)
        peer.stop()
    with d.client(context=zmq.Context()) as c:
        for seq in range(1, 101):
            assert c.ask("large/a", x, seq=seq).h.status == 0
        assert until(lambda: d.ledger()["in_flight"] == 0)
        for _ in range(20):
            c.frame("small/a", X)
        assert until(lambda: received(d, "small") == 20)
        begin = time.monotonic()
        d.signal(signal.SIGTERM)
        got = [c.recv() for _ in range(21)]
        assert sorted(m.h.status for m in got if m.h.kind == wire.RESULT) == [0] * 20
    assert d.wait(30) == 0
    assert time.monotonic() - begin < 3 * SLOW + 3, "it outstayed drain_ms"
    books = last_words(d)
    assert books["in_flight"] == books["held"] == 0 and (books["cut"] > 0) == (frozen == "client")
    assert ("clients cut" in d.text()) == (frozen == "client")
    peer.kill()


@pytest.mark.sanitize
def test_a_second_sigterm_hurries_it(daemon):
    d = daemon(drain_ms=600000, stall_ms=600000)
    with d.client(rcvhwm=1, context=zmq.Context()) as holder:
        for _ in range(40):
            holder.frame("large/h", np.ones((8, 4000), np.float32))
        assert until(lambda: d.ledger()["ok"] == 40)
        assert d.ledger()["held"] > 0
        d.signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            d.process.wait(1)
        d.signal(signal.SIGTERM)
        assert d.wait(60) == 0
    books = last_words(d)
    assert books["cut"] > 0 and books["cut"] + books["let_go"] == 40


@pytest.mark.sanitize
def test_queued_frames_are_computed_not_dropped(daemon):
    """SIGTERM in front of a full queue: batches that were not due yet go too."""
    d = daemon(drain_ms=20000)
    with d.client() as c:
        for _ in range(60):
            c.frame("large/q", np.ones((8, 500), np.float32))
        assert until(lambda: d.ledger()["received"] == 60)
        d.signal(signal.SIGTERM)
        got = [c.recv() for _ in range(61)]
        assert sum(m.h.kind == wire.RESULT and m.h.status == 0 for m in got) == 60
    assert d.wait() == 0


def test_a_client_that_sends_and_leaves_does_not_keep_it(daemon):
    d = daemon()
    for i in range(5):
        context = zmq.Context()
        c = wire.Client(d.ingest, context=context)
        c.socket.linger = 2000
        c.frame(f"large/x{i}", np.ones((8, 4000), np.float32))
        c.close()
        context.term()
    # One that is read when its connection has ended already is no frame of a live session
    assert until(lambda: (b := d.ledger())["received"] + b["malformed"]["gone"] == 5)
    assert d.stop() == 0
    books = last_words(d)
    assert books["ok"] + books["orphaned"] == books["received"] and books["in_flight"] == books["held"] == 0


@pytest.mark.sanitize
def test_sighup_never_ends_it(daemon, tmp_path):
    """During start, while serving, while stopping; a thousand of them."""
    d = daemon(drain_ms=20000)
    for _ in range(20):
        d.signal(signal.SIGHUP)
    with d.client() as c:
        assert until(lambda: c.ledger() and c.welcome["reload"]["unchanged"] > 0)
        assert c.ask("small/a", X).h.status == 0
    with d.client(rcvhwm=1, context=zmq.Context()) as holder:
        for _ in range(40):
            holder.frame("large/h", np.ones((8, 4000), np.float32))
        assert until(lambda: d.ledger()["ok"] == 41)
        d.signal(signal.SIGTERM)
        for _ in range(200):
            d.signal(signal.SIGHUP)
            time.sleep(0.001)
        assert d.process.poll() is None
        assert all(holder.recv() is not None for _ in range(41))
        while d.process.poll() is None:  # up to its last moment
            d.signal(signal.SIGHUP)
            time.sleep(0.0005)
    assert d.wait() == 0, d.text()


@pytest.mark.sanitize
def test_signals_during_start(daemon, tmp_path):
    """A model whose check takes long: SIGHUP then changes nothing, SIGTERM ends the start."""
    rng = np.random.default_rng(9)
    stfile.write(tmp_path / "big.safetensors", {"conv.weight": rng.standard_normal((512, 512, 7)).astype(np.float32)},
                 {"num_groups": 1, "affine": "False"})
    d = daemon(wait=False)
    d.process.kill()
    d.wait()
    d.sections["model big"] = {"file": tmp_path / "big.safetensors"}
    d.write_conf()
    for moment in ("hup", "term"):
        d.start(wait=False)
        assert until(lambda: catches(d.process.pid, signal.SIGTERM))  # not SIGHUP: whoever runs this may ignore it
        if moment == "hup":
            while "ready version" not in d.text():
                d.signal(signal.SIGHUP)
                time.sleep(0.001)
                assert d.process.poll() is None, d.text()
            assert d.stop() == 0
        else:
            d.signal(signal.SIGTERM)
            assert d.wait() == 0
            assert "ready version" not in d.text()


def catches(pid, number):
    """Does the process catch that signal already?"""
    with open(f"/proc/{pid}/status") as f:
        caught = re.search(r"^SigCgt:\s+([0-9a-f]+)$", f.read(), re.M).group(1)
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.skipif(ENGINE == "cuda", reason="no layer keeps a GPU busy for so long; tests/gpu/test_faults.py has kernels that do not end")
def test_past_its_deadline_it_says_what_is_lost(start, tmp_path):
    """A batch that computes for longer than drain_ms: the daemon names the frames and ends all the same."""
    path = make_model(tmp_path / "slow.safetensors", 256, 256, 31)
    d = start({"model slow": {"file": path}, "daemon": {"drain_ms": 100}, "engine": {"threads": 1, "cpu_variant": "portable"}})
    x = np.ones((256, 15000), np.float32)
    with d.client(context=zmq.Context()) as c:
        for _ in range(4):
            c.frame("slow/a", x)
        assert until(lambda: d.ledger()["received"] == 4)
        d.signal(signal.SIGTERM)
        assert d.wait(60) == 0
    books = last_words(d)
    assert books["in_flight"] > 0 and f"{books['in_flight']} frames without an answer" in d.text()


def test_usage_is_2_and_the_version_is_said():
    r = subprocess.run([NCTD, "--nonsense"], capture_output=True, text=True)
    assert r.returncode == 2 and "nonsense" in r.stderr
    assert subprocess.run([NCTD, "--version"], capture_output=True, text=True).stdout.startswith("nctd ")
