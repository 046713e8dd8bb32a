"""What an idle daemon costs, that a lone frame waits for nobody, and that connections leave nothing behind."""
import os
import re
import time

import numpy as np
import pytest
import zmq

import wire
from conftest import SANITIZE, until

X = np.arange(20, dtype=np.float32).reshape(2, 10)


def switches(pid):
    """Times that any thread of it woke up."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status") as f:
            total += sum(map(int, re.findall(r"ctxt_switches:\s+(\d+)", f.read())))
    return total


@pytest.mark.parametrize("connected", [False, True])
def test_an_idle_daemon_sleeps(start, model, connected):
    """At most 0.3 s of CPU a minute; here ten seconds, and the wake-ups, which do not depend on the machine."""
    d = start({"model m": {"file": model}, "engine": {"threads": 2}})
    sub = zmq.Context.instance().socket(zmq.SUB)
    clients = []
    if connected:
        sub.subscribe(b"")
        sub.connect(d.publish)
        clients = [d.client() for _ in range(5)]
        for i, c in enumerate(clients):
            for _ in range(20):
                assert c.ask(f"m/s{i}", X).h.status == 0
    time.sleep(1)
    n, cpu = switches(d.process.pid), d.cpu_s()
    time.sleep(10)
    n, cpu = switches(d.process.pid) - n, d.cpu_s() - cpu
    assert n < 200, f"{n} wake-ups in 10 s"  # a period of 1 s, and the timer's own; a poll of 1 ms would be 10,000
    assert cpu <= 0.05, f"{cpu} s of CPU in 10 s"
    for c in clients:
        c.close()
    sub.close(0)


@pytest.mark.sanitize
def test_a_lone_frame_waits_for_nobody(start, model):
    """max_delay is a second and batches take 16; the engine is idle, so each frame goes at once."""
    d = start({"model m": {"file": model}, "batch": {"max_frames": 16, "max_delay_us": 1000000}})
    with d.client() as c:
        for _ in range(20):
            answer = c.ask("m/a", X)
            assert answer.h.status == 0
        books = c.ledger()
    assert books["batches"] == books["batch_idle"] == 20 and books["batch_deadline"] == books["batch_full"] == 0


@pytest.mark.sanitize
def test_what_comes_while_the_engine_is_busy_goes_together(start, model):
    """The other side of it: with a batch in flight the next ones gather, and the last is not left lying."""
    d = start({"model m": {"file": model}, "batch": {"max_frames": 8, "max_delay_us": 1000000}, "engine": {"threads": 1}})
    long = np.ones((2, 100000), np.float32)
    with d.client() as c:
        for _ in range(20):
            for _ in range(3):
                c.frame("m/a", long)
            for i in range(9):
                c.frame(f"m/s{i}", X)
            assert [c.recv().h.status for _ in range(12)] == [0] * 12
        books = c.ledger()
    assert books["batch_frames"] == 240 and books["batches"] < 240 and books["batch_deadline"] == 0


def descriptors(d):
    return len(os.listdir(f"/proc/{d.process.pid}/fd"))


@pytest.mark.parametrize("what", ["silent", "hello", "frame", "subscriber"])
@pytest.mark.parametrize("tcp", [False, True], ids=["ipc", "tcp"])
def test_two_thousand_connections_leave_nothing_behind(start, model, what, tcp):
    """Nothing is sent to most of them: a socket that is never touched would gather what its mailbox gets."""
    rounds, each = (4, 50) if SANITIZE else (20, 100)
    d = start({"model m": {"file": model}}, tcp=tcp)
    with d.client() as watcher:
        assert watcher.ask("m/w", X).h.status == 0
        fds, sizes = descriptors(d), []
        for _ in range(rounds):
            context = zmq.Context()
            sockets = [come(d, context, what, i) for i in range(each)]
            if what in ("hello", "frame"):
                for s in sockets:
                    assert s.poll(60000)
            else:
                assert until(lambda: descriptors(d) >= fds + 2 * each, 60)
            for s in sockets:
                s.close(0)
            context.term()
            assert until(lambda: descriptors(d) <= fds + 2, 60), f"{descriptors(d)} descriptors, {fds} before"
            sizes.append(d.rss_kb())
        watcher.hello()
        assert watcher.welcome["sessions"] == 1
        assert until(lambda: watcher.hello() and watcher.welcome["streams"] == [], 20)
        if what != "subscriber":
            assert watcher.welcome["ledger"]["connections"] == rounds * each + 2
    middle = rounds // 2  # what grows once (pools, tables) has grown by then
    assert SANITIZE or sizes[-1] - sizes[middle] < 1024, f"RSS in kB after each {each}: {sizes}"


def come(d, context, what, i):
    s = context.socket(zmq.SUB if what == "subscriber" else zmq.DEALER)
    s.linger = 0
    if what == "subscriber":
        s.subscribe(f"m/s{i}/".encode())
    s.connect(d.publish if what == "subscriber" else d.ingest)
    if what in ("hello", "frame"):
        s.send_multipart([b"", wire.pack(kind=wire.HELLO), b"{}"])
    if what == "frame":
        assert s.poll(60000)
        session = wire.unpack(s.recv_multipart()).h.session
        s.send_multipart([f"m/s{i}/".encode(), wire.pack(kind=wire.FRAME, session=session, request_id=1, dtype=1, channels=2, steps=10),
                          X.tobytes()])
    return s
