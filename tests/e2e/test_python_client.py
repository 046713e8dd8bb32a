"""nct.Client and nct.Subscriber against the real daemon: arrays, axis order, dtypes, the window, cuts, fork, topics."""
import itertools
import json
import multiprocessing
import os
import signal
import sys
import threading

import numpy as np
import pytest
import zmq

import conftest
import wire

sys.path.insert(0, os.path.join(conftest.ROOT, "client", "python"))
import nct  # noqa: E402

SLOW = conftest.SLOW
COUNT = itertools.count()


@pytest.fixture
def daemon(start, small_model):
    fresh = {"in_channels": 128, "out_channels": 256, "kernel_size": 3, "padding": 1, "num_groups": 32}
    return start({"model m": {"file": small_model}, "model default": fresh})


def connect(d, **options):
    return nct.Client(d.ingest, **{"timeout": 20 * SLOW, **options})


def noise(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def raw(d, x, **fields):
    """The same frame by the independent client, in a stream of its own."""
    with d.client() as c:
        message = c.ask(f"m/raw{next(COUNT)}", x, **fields)
        assert message.h.kind == wire.RESULT, message
        return wire.array(message)


def same_bits(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape, (a.dtype, a.shape, b.dtype, b.shape)
    first = np.flatnonzero(a.reshape(-1).view(np.uint8) != b.reshape(-1).view(np.uint8))
    assert first.size == 0, f"first difference at byte {first[0]}"


@pytest.mark.sanitize
def test_same_bits_as_the_wire(daemon):
    x = noise(2, 300)
    with connect(daemon) as c:
        assert set(c.models) == {"m", "default"}
        y = c.call(x, "m", "a")
        assert y.shape == (4, 298) and y.flags.writeable
        same_bits(y, raw(daemon, x))
        same_bits(c.call(x, "m", want="f16"), raw(daemon, x, want=wire.F16))
        same_bits(c.call(x, "m", want=np.float32), y)
        same_bits(c.call(x, "m", want="bf16"), raw(daemon, x, want=wire.BF16))
        assert c.call(noise(128, 50), stream="b").shape == (256, 50)
        assert c.ping() > 0 and c.in_flight == 0 and 1 <= c.window <= 64


def test_a_model_that_is_not_served_is_told_from_those_that_are(daemon):
    with connect(daemon) as c:
        with pytest.raises(ValueError, match=r"no model 'nosuch' .* but 'm'"):
            c.call(noise(2, 9), "nosuch")
        with pytest.raises(nct.NctError, match="no model nosuch is served"):  # asked all the same: it may have come since
            c.call(noise(2, 9), "nosuch", layout="CT")
        assert c.call(noise(2, 9), "m").shape == (4, 7)


# d11: whatever numpy holds arrives as np.ascontiguousarray(x) would, or is refused by name.
VIEWS = {"transposed": lambda x: np.ascontiguousarray(x.T).T, "strided": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
         "reversed rows": lambda x: x[::-1][::-1], "fortran": np.asfortranarray, "big-endian": lambda x: x.astype(">f4"),
         "read-only": lambda x: np.frombuffer(x.tobytes(), np.float32).reshape(x.shape), "list of rows": lambda x: x.tolist()}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_sent_as_they_read(daemon, name):
    x = noise(2, 300, seed=2)
    with connect(daemon) as c:
        view = VIEWS[name](x)
        want = np.asarray(view)
        y = c.call(view, "m", "a")
        np.testing.assert_array_equal(want, x)  # the view reads as x: so must the daemon
        same_bits(y, raw(daemon, np.ascontiguousarray(want.astype(want.dtype.newbyteorder("=")))))


@pytest.mark.parametrize("dtype, number", [("float16", wire.F16), ("float64", wire.F64), ("int16", wire.I16),
                                           ("int32", wire.I32), (">i2", wire.I16), (">f8", wire.F64)])
def test_dtypes_are_not_cast(daemon, dtype, number):
    x = noise(2, 200, seed=3)
    x = (x * 1000).astype(dtype) if "i" in dtype else x.astype(dtype)
    with connect(daemon) as c:
        same_bits(c.call(x, "m"), raw(daemon, x.astype(x.dtype.newbyteorder("=")), dtype=number))


@pytest.mark.parametrize("x", [np.ones((2, 9), bool), np.ones((2, 9), np.int64), np.ones((2, 9), np.uint8),
                               np.ones((2, 9), complex), np.ma.masked_array(np.ones((2, 9), np.float32)),
                               [[1] * 9] * 2, np.array([["a"] * 9] * 2), np.full((2, 9), None)], ids=lambda x: str(type(x)))
def test_what_would_lose_is_refused(daemon, x):
    with connect(daemon) as c:
        with pytest.raises(TypeError):
            c.call(x, "m")
        assert c.call(noise(2, 9), "m").shape == (4, 7)


def test_axis_order_is_never_guessed(daemon):
    x = noise(2, 50, seed=4)
    with connect(daemon) as c:
        y = c.call(x, "m")
        with pytest.raises(ValueError, match=r"\(50, 2\).*2 channels.*layout='TC'"):
            c.call(x.T, "m")
        same_bits(c.call(x.T, "m", layout="TC"), y)
        same_bits(c.call(x, "m", layout="CT"), y)
        square = noise(128, 128)
        with pytest.raises(ValueError, match="which axis"):
            c.call(square)
        assert not np.array_equal(c.call(square, layout="CT"), c.call(square, layout="TC"))
        for bad in (noise(3, 50), noise(50, 3)):
            with pytest.raises(ValueError, match="2 channels"):
                c.call(bad, "m")
        for bad, word in ((noise(50), "1 axes"), (noise(1, 2, 50), "3 axes"), (noise(2, 0), "at least")):
            with pytest.raises(ValueError, match=word):
                c.call(bad, "m")
        with pytest.raises(ValueError, match="layout"):
            c.call(x, "m", layout="NCT")
        with pytest.raises(ValueError, match="3 channels"):
            c.call(noise(3, 50), "m", layout="CT")
        refused = daemon.ledger()
        assert refused["received"] == refused["ok"], "a refused array must not reach the daemon"


def test_errors_are_answers(daemon):
    with connect(daemon) as c:
        with pytest.raises(nct.NctError) as e:
            c.call(noise(2, 2), "m", layout="CT")  # T = 2, K = 3
        assert e.value.name == "EINVAL" and "2" in e.value.text and "3" in e.value.text
        with pytest.raises(nct.NctError) as e:
            c.call(noise(2, 9), "nobody", layout="CT")
        assert e.value.name == "ENOENT" and e.value.answer.seq == 0
        with pytest.raises(ValueError):
            c.call(noise(2, 9), "m", "ch1/x")
        with pytest.raises(ValueError):
            c.call(noise(2, 9), "m", seq=-1)
        with pytest.raises(TypeError):
            c.call(noise(2, 9), "m", layuot="CT")
        number = c.send(noise(2, 1), "m", tag="mine")
        answer = c.recv()
        assert answer.request_id == number and answer.tag == "mine" and answer.error.name == "EINVAL" and answer.y is None
        assert c.call(noise(2, 9), "m").shape == (4, 7)


def test_send_copies(daemon):
    x = noise(2, 4000, seed=5)
    want = raw(daemon, x)
    with connect(daemon) as c:
        for _ in range(20):
            y = x.copy()
            c.send(y, "m", "a")
            y[:] = np.nan
            same_bits(c.recv().value(), want)


def test_window_is_kept(daemon):
    frames = [noise(2, 100 + 7 * i, seed=i) for i in range(150)]
    with connect(daemon) as c:
        sent = []
        with pytest.raises(nct.NctError, match="EAGAIN.*answers wait"):  # nobody takes them: not collected without bound
            for x in frames * 2:
                sent.append(c.send(x, "m", "a"))
        assert 64 <= len(sent) <= 128
        seqs = [c.recv().seq for _ in sent]
        assert sorted(seqs) == list(range(len(sent)))
        for x, y in zip(frames, c.map(frames, "m", "b")):
            assert y.shape == (4, x.shape[1] - 2)
            if x is frames[77]:
                same_bits(y, raw(daemon, x))
        with pytest.raises(nct.NctError, match="ENOENT"):
            c.recv()


def test_observe_and_given(daemon):
    x = noise(2, 500, seed=6)
    with connect(daemon) as c:
        stats = c.call(x, "m", flags=nct.OBSERVE)
        assert stats.shape == (2, 3) and stats.dtype == np.float64 and stats[0, 0] == 2 * 498
        np.testing.assert_allclose(c.call(x, "m", given=stats), c.call(x, "m"), atol=2e-6)


def test_restart_is_survived(daemon):
    x = noise(2, 300, seed=7)
    with connect(daemon, ping=0.5 * SLOW) as c:
        y = c.call(x, "m")
        daemon.stop(signal.SIGKILL)
        with pytest.raises(nct.NctError, match="ETIMEDOUT"):
            c.call(x, "m", timeout=0.2)
        daemon.start()
        same_bits(c.call(x, "m"), y)
        assert c.reconnects == 1 and c.in_flight == 0

        daemon.signal(signal.SIGSTOP)  # accepted by the kernel, answered by nobody
        sent = {c.send(x, "m", tag=i): i for i in range(4)}
        daemon.stop(signal.SIGKILL)
        daemon.start()
        answers = [c.recv() for _ in sent]
        assert {a.request_id: a.tag for a in answers} == sent, "each answer once"
        for a in answers:
            same_bits(a.value(), y)
        with pytest.raises(nct.NctError, match="ENOENT"):
            c.recv(0)


def test_late_answer_is_nobodys(daemon):
    with connect(daemon, ping=60) as c:
        slow, x = noise(2, 500, seed=8), noise(2, 300, seed=9)
        y = c.call(x, "m")
        daemon.signal(signal.SIGSTOP)
        with pytest.raises(nct.NctError, match="ETIMEDOUT"):
            c.call(slow, "m", timeout=0.2)
        daemon.signal(signal.SIGCONT)
        same_bits(c.call(x, "m"), y)
        assert c.reconnects == 0 and c.in_flight == 0
        with pytest.raises(nct.NctError, match="ENOENT"):  # the late one was dropped, not kept for the next recv()
            c.recv(0)


def test_silent_daemon_is_left(daemon):
    with connect(daemon, ping=0.2 * SLOW) as c:
        x = noise(2, 300, seed=10)
        y = c.call(x, "m")
        daemon.signal(signal.SIGSTOP)
        threading.Timer(1.0 * SLOW, daemon.signal, [signal.SIGCONT]).start()
        same_bits(c.call(x, "m"), y)  # pings, gives up, connects anew, and is answered when the daemon goes on
        assert c.reconnects >= 1


class Peer(threading.Thread):
    """A ROUTER that plays a daemon with a window of 2, is cut under two frames, and comes back as another daemon."""

    def __init__(self, endpoint):
        super().__init__(daemon=True)
        self.endpoint, self.context, self.error, self.frames = endpoint, zmq.Context(), None, []
        self.bind()

    def bind(self):
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.linger, self.socket.rcvtimeo = 0, int(20000 * SLOW)
        self.socket.bind(self.endpoint)

    def get(self, kind):
        peer, *parts = self.socket.recv_multipart()
        message = wire.unpack(parts)
        assert message.h.kind == kind, message
        return peer, message

    def put(self, peer, message, payload, **fields):
        base = dict(request_id=message.h.request_id, seq=message.h.seq, window=2)
        self.socket.send_multipart([peer, message.topic, wire.pack(**{**base, **fields}), payload])

    def hello(self, session):
        peer, message = self.get(wire.HELLO)
        models = [{"name": "m", "mode": "frame", "in_channels": 2}]
        self.put(peer, message, json.dumps({"models": models}).encode(), kind=wire.WELCOME, session=session)
        return json.loads(message.payload)

    def run(self):
        try:
            assert "previous" not in self.hello(0xabc)
            first = [self.get(wire.FRAME)[1] for _ in range(2)]
            assert not self.socket.poll(300), "a third frame in a window of 2"
            self.socket.close()
            self.bind()
            assert self.hello(0xdef)["previous"] == "0000000000000abc"
            again = [self.get(wire.FRAME) for _ in range(2)]
            assert [m.h.request_id for _, m in again] == [m.h.request_id for m in first]
            assert all(m.h.flags & wire.RESENT and m.h.session == 0xdef and m.payload == f.payload
                       for (_, m), f in zip(again, first))
            for peer, m in again * 2:  # doubled: each is handed out once
                self.answer(peer, m)
            peer, m = self.get(wire.FRAME)
            assert not m.h.flags & wire.RESENT and m.h.seq == 2
            self.answer(peer, m)
        except BaseException as e:  # noqa: B902 - told by the test
            self.error = e

    def answer(self, peer, m):
        self.put(peer, m, np.float32([m.h.seq]).tobytes(), kind=wire.RESULT, session=0xdef, dtype=wire.F32, channels=1,
                 steps=1)


def test_window_and_cut_by_script(tmp_path):
    peer = Peer(f"ipc://{tmp_path}/s")
    peer.start()
    with nct.Client(peer.endpoint, timeout=20 * SLOW) as c:
        x = noise(2, 9)
        sent = [c.send(x, "m") for _ in range(2)]
        with pytest.raises(nct.NctError, match="EAGAIN.*2 frames.*window is 2"):
            c.send(x, "m", block=False)
        got = [c.recv(), c.recv()]
        assert [a.request_id for a in got] == sent and [a.value()[0, 0] for a in got] == [0, 1]
        with pytest.raises(nct.NctError, match="ENOENT"):
            c.recv(1)
        assert c.call(x, "m")[0, 0] == 2 and c.reconnects == 1
    peer.join(30 * SLOW)
    if peer.error:
        raise peer.error


def test_no_daemon(tmp_path):
    with pytest.raises(nct.NctError) as e:
        nct.Client(f"ipc://{tmp_path}/nobody", timeout=0.2)
    assert e.value.name == "ETIMEDOUT" and "no daemon answered" in e.value.text
    for endpoint in ("inproc://x", "nobody", None, "tcp://"):
        with pytest.raises(ValueError):
            nct.Client(endpoint, timeout=0.2)


def _child(c, s, queue):
    names = []
    for call in (lambda: c.call(noise(2, 9), "m"), lambda: c.recv(0), lambda: c.ping(), lambda: c.welcome, lambda: s.recv(0)):
        try:
            call()
            names.append("nothing")
        except nct.NctError as e:
            names.append(e.name)
    c.close()
    s.close()
    queue.put(names)


def test_fork(daemon):
    fork = multiprocessing.get_context("fork")
    with connect(daemon) as c, nct.Subscriber(daemon.publish) as s:
        y = c.call(noise(2, 9), "m")
        queue = fork.Queue()
        child = fork.Process(target=_child, args=(c, s, queue))
        child.start()
        assert queue.get(timeout=30 * SLOW) == ["EINVAL"] * 5
        child.join(30 * SLOW)
        assert child.exitcode == 0
        same_bits(c.call(noise(2, 9), "m"), y)
        assert c.reconnects == 0


def test_stream_facts(daemon):
    with connect(daemon) as c:
        assert c.open_stream("eeg", {"sample_rate": 250, "unit": "uV"}, "m") >= 1
        with connect(daemon) as other:
            assert [s["facts"] for s in other.welcome["streams"]] == [{"sample_rate": 250, "unit": "uV"}]
            with pytest.raises(nct.NctError, match="EBUSY"):
                other.call(noise(2, 9), "m", "eeg")
        c.close_stream("eeg", "m")
        with connect(daemon) as other:
            assert other.welcome["streams"] == []


def test_subscriber_is_exact(daemon):
    with connect(daemon) as c, nct.Subscriber(daemon.publish, "m/ch1") as one, nct.Subscriber(daemon.publish, ["m/"]) as all_m:
        assert conftest.until(lambda: _seen(c, one) and _seen(c, all_m, "ch10"))  # both subscriptions have arrived
        for stream, seq in (("ch10", 1000), ("ch1", 1001), ("ch1", 1005), ("ch2", 1006)):
            y = c.call(noise(2, 9), "m", stream, seq=seq)
        got = _drain(one, lambda a: a.seq == 1005)
        assert {a.stream for a in got} == {"ch1"} and got[-1].missed == 3
        same_bits(got[-1].y, y)
        assert {a.stream for a in _drain(all_m, lambda a: a.seq == 1006)} == {"ch10", "ch1", "ch2"}
        with pytest.raises(nct.NctError, match="ETIMEDOUT"):
            one.recv(0.1)
        for bad in ("m", "m/a/b", "/", "m*/"):
            with pytest.raises(ValueError):
                nct.Subscriber(daemon.publish, bad)


def _seen(c, subscriber, stream="ch1"):
    c.call(noise(2, 9), "m", stream)
    try:
        return subscriber.recv(0.1)
    except nct.NctError:
        return None


def _drain(subscriber, last):
    got = []
    while not got or not last(got[-1]):
        got.append(subscriber.recv(10 * SLOW))
    return got


def test_golden_bytes():
    """The Python header against the same files as the C one."""
    from nct import _wire
    folder = os.path.join(conftest.ROOT, "tests", "golden")
    names = [n for n in os.listdir(folder) if n.endswith(".hex")]
    assert len(names) >= 14
    for name in names:
        with open(os.path.join(folder, name)) as f:
            data = bytes.fromhex(f.read())
        _, h, _ = _wire.unpack([b"", data, b""])
        assert _wire.pack(**h._asdict()) == data, name
    h = _wire.Header._make(_wire.HEADER.unpack(bytes.fromhex(open(os.path.join(folder, "frame.hex")).read())))
    assert (h.kind, h.request_id, h.seq, h.channels, h.steps, h.ttl_us) == (5, 7, 42, 2, 480, 20000)
    for parts in ([b""], [b"", data[:95], b""], [b"", data + b"x", b""], [b"", b"NCT2" + data[4:], b""]):
        with pytest.raises(nct.NctError, match="EPROTO"):
            _wire.unpack(parts)
