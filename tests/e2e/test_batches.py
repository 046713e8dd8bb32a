"""Batches change nothing: 64 clients at once, each bit for bit what it gets alone; streams in order; books exact."""
import random
import threading

import numpy as np
import pytest

import stfile
import wire
from conftest import SANITIZE, assert_adds_up


def make_model(path, c_in=3, c_out=8, **meta):
    rng = np.random.default_rng(4)
    stfile.write(path, {"conv.weight": rng.standard_normal((c_out, c_in, 3)).astype(np.float32),
                        "norm.weight": rng.standard_normal(c_out).astype(np.float32),
                        "norm.bias": rng.standard_normal(c_out).astype(np.float32)}, {"num_groups": 4, "padding": 1, **meta})
    return str(path)


def frames_of(i, n):
    """Client i's own frames, every one of another length."""
    rng = np.random.default_rng(1000 + i)
    return [rng.standard_normal((3, int(rng.integers(1, 700)))).astype(np.float32) for _ in range(n)]


@pytest.mark.sanitize
@pytest.mark.parametrize("engine", [{"max_frames": 16, "instances": 1}, {"max_frames": 64, "instances": 3}, {"max_frames": 1, "instances": 2}])
def test_64_clients_with_ragged_frames_each_get_what_they_get_alone(start, tmp_path, engine):
    clients, each = (16, 6) if SANITIZE else (64, 12)
    d = start({"model m": {"file": make_model(tmp_path / "m.safetensors", activation="gelu")},
               "batch": {"max_frames": engine["max_frames"], "max_delay_us": 3000},
               "engine": {"instances": engine["instances"], "slot_bytes": "20M"}})
    alone = []
    with d.client() as c:
        for i in range(clients):
            alone.append([c.ask("m/alone", x).payload for x in frames_of(i, each)])
    failures = []
    barrier = threading.Barrier(clients)

    def one(i):
        try:
            with d.client(timeout_s=120) as c:
                barrier.wait()
                sent = [c.frame(f"m/s{i}", x, seq=k + 1) for k, x in enumerate(frames_of(i, each))]
                got = [c.recv() for _ in sent]
                assert [g.h.request_id for g in got] == sent, "out of order"
                assert [g.h.seq for g in got] == list(range(1, each + 1))
                assert [g.payload for g in got] == alone[i], "other bits than alone"
        except Exception as e:  # a thread's failure is the test's
            failures.append((i, e))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(clients)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failures, failures[:3]
    with d.client() as c:
        assert_adds_up(c.welcome)
        books = c.welcome["ledger"]
    assert books["ok"] == books["received"] == 2 * clients * each
    if engine["max_frames"] > 1:
        assert books["batch_frames"] > books["batches"], "nothing was batched"


@pytest.mark.sanitize
def test_one_client_many_streams_and_models_keep_their_order(start, tmp_path):
    """Results of one stream leave in the order of admission, whatever the other models cost."""
    models = {"model small": {"file": make_model(tmp_path / "a.safetensors")},
              "model big": {"file": make_model(tmp_path / "b.safetensors", c_out=64)}}
    d = start({**models, "engine": {"instances": 3, "slot_bytes": "20M"}, "batch": {"max_frames": 4}})
    pick = random.Random(5)
    seen, sent, got = {}, {}, 0
    with d.client() as c:
        for k in range(600):
            stream = f"{pick.choice(['small', 'big'])}/s{pick.randrange(7)}"
            x = np.full((3, pick.choice([1, 10, 4000])), k, np.float32)
            if k - got >= min(c.window, 60):
                got += 1
                answer = c.recv()
                assert answer.h.status == 0, answer.payload
                seen.setdefault(answer.topic, []).append(answer.h.request_id)
            sent.setdefault(stream.encode() + b"/", []).append(c.frame(stream, x))
        while got < 600:
            answer = c.recv()
            assert answer is not None and answer.h.status == 0, answer
            seen.setdefault(answer.topic, []).append(answer.h.request_id)
            got += 1
    assert seen == sent
    assert d.ledger()["ok"] == 600


@pytest.mark.sanitize
def test_frames_past_the_window_are_refused_not_lost(start, tmp_path):
    d = start({"model m": {"file": make_model(tmp_path / "m.safetensors", c_out=64)}, "limits": {"window": 4}})
    x = np.ones((3, 2000), np.float32)
    with d.client() as c:
        assert c.window == 4
        sent = {c.frame("m/s", x) for _ in range(100)}
        answers = [c.recv() for _ in range(100)]
        assert {a.h.request_id for a in answers} == sent
        assert {a.h.status for a in answers} == {0, -wire.EAGAIN}
        assert all(a.h.window >= 1 for a in answers)
    books = d.ledger()
    assert books["refused_by"]["EAGAIN"] + books["ok"] == 100


@pytest.mark.sanitize
def test_ttl_that_runs_out_in_the_queue_is_answered(start, tmp_path):
    d = start({"model m": {"file": make_model(tmp_path / "m.safetensors", c_out=64)}, "batch": {"max_frames": 1},
               "engine": {"slots": 1, "threads": 1}, "limits": {"arena_bytes": "256M"}})
    x = np.ones((3, 30000), np.float32)
    with d.client() as c:
        for _ in range(10):
            c.frame("m/busy", x)
        late = [c.frame("m/late", x, ttl_us=1) for _ in range(5)]
        answers = [c.recv() for _ in range(15)]
        statuses = {a.h.request_id: a.h.status for a in answers}
        assert sum(s == -wire.ETIME for s in statuses.values()) >= 4
        assert all(statuses[r] in (0, -wire.ETIME) for r in late)
    books = d.ledger()
    assert books["expired"] == sum(s == -wire.ETIME for s in statuses.values())


@pytest.mark.sanitize
@pytest.mark.parametrize("burst", [1, 2, 7, 63, 64, 65, 200, 1000])
def test_bursts_of_every_size_are_read_whole(start, tmp_path, burst):
    """ZMQ_FD is edge-triggered: what is read only at the next wake-up would be read never."""
    d = start({"model m": {"file": make_model(tmp_path / "m.safetensors")}, "limits": {"window": 2000}})
    with d.client() as c:
        for _ in range(burst):
            c.send(b"", wire.pack(kind=wire.PING, session=c.session, request_id=1), b"")
        for i in range(burst):
            answer = c.recv()
            assert answer is not None, f"{i} of {burst} answered"
            assert answer.h.kind == wire.PONG


@pytest.mark.sanitize
def test_open_close_and_reopen_give_rising_epochs(start, tmp_path):
    d = start({"model m": {"file": make_model(tmp_path / "m.safetensors")}})
    x = np.ones((3, 8), np.float32)
    with d.client() as c:
        epochs = []
        for _ in range(3):
            c.send(b"m/s/", wire.pack(kind=wire.OPEN, session=c.session, request_id=1), b'{"sample_rate": 16000, "unit": "Pa"}')
            opened = c.recv()
            assert (opened.h.kind, opened.h.status) == (wire.OPENED, 0), opened
            epochs.append(opened.h.epoch)
            assert c.ask("m/s", x, epoch=opened.h.epoch).h.epoch == opened.h.epoch
            c.send(b"m/s/", wire.pack(kind=wire.CLOSE, session=c.session, request_id=2), b"")
            closed = c.recv()
            assert (closed.h.kind, closed.h.status) == (wire.CLOSED, 0)
        assert epochs == sorted(set(epochs))
        assert -c.ask("m/s", x, epoch=epochs[0]).h.status == wire.ESTALE


@pytest.mark.sanitize
def test_a_rate_that_differs_from_the_models_is_refused_with_both_numbers(start, tmp_path):
    d = start({"model m": {"file": make_model(tmp_path / "m.safetensors", sample_rate=16000)}})
    with d.client() as c:
        c.send(b"m/s/", wire.pack(kind=wire.OPEN, session=c.session, request_id=1), b'{"sample_rate": 44100}')
        answer = c.recv()
        assert answer.h.status == -wire.EINVAL
        assert b"44100" in answer.payload and b"16000" in answer.payload
