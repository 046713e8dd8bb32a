"""Results on PUB: the topic is exact, what a slow subscriber loses shows in the seqs, and nobody who asked for nothing
costs anything."""
import json
import signal
import struct
import subprocess
import time

import numpy as np
import pytest
import zmq

import stfile
import wire
from conftest import NCT, SANITIZE, SLOW, until
from peers import shake_hands

X = np.arange(20, dtype=np.float32).reshape(2, 10)
LAST = 1 << 40  # the seq of a frame that closes a story


def make_model(path, c_in=2, c_out=4):
    rng = np.random.default_rng(7)
    stfile.write(path, {"conv.weight": rng.standard_normal((c_out, c_in, 1)).astype(np.float32)}, {"num_groups": 1, "affine": "False"})
    return str(path)


@pytest.fixture
def daemon(start, tmp_path):
    return start({"model m": {"file": make_model(tmp_path / "m.safetensors")},
                  "model m2": {"file": make_model(tmp_path / "m2.safetensors")},
                  "model quiet": {"file": make_model(tmp_path / "q.safetensors"), "publish": "no"}})


class Subscriber:
    """A raw SUB that has surely arrived: a PUB says nothing to a new subscriber, so a stream of its own calls it in."""

    def __init__(self, daemon, *topics, hwm=None):
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.linger = 0
        if hwm:
            self.socket.rcvhwm = hwm
        for topic in topics:
            self.socket.subscribe(topic)
        name = f"here{id(self):x}"
        self.socket.subscribe(f"m/{name}/".encode())
        self.socket.connect(daemon.publish)
        with daemon.client() as c:
            seqs = iter(range(1, 10000))
            assert until(lambda: c.ask(f"m/{name}", X, seq=next(seqs)).h.status == 0 and self.socket.poll(20))
            c.send(f"m/{name}/".encode(), wire.pack(kind=wire.CLOSE, session=c.session, request_id=9), b"")
            assert c.recv().h.kind == wire.CLOSED
        while self.recv(0.1):
            pass

    def recv(self, seconds=20):
        return wire.unpack(self.socket.recv_multipart()) if self.socket.poll(1000 * seconds * SLOW) else None

    def all_up_to(self, topic, seq):
        """What arrives until `seq` of `topic` did, this one too."""
        got = []
        while not got or (got[-1].topic, got[-1].h.seq) != (topic, seq):
            got.append(self.recv())
            assert got[-1] is not None, [(g.topic, g.h.seq) for g in got[:-1]]
        return got

    def close(self):
        self.socket.close()


@pytest.mark.sanitize
def test_a_topic_with_its_slash_brings_that_stream_alone(daemon):
    """d9: ch1 brings neither ch10 nor what else begins so; a prefix without the slash brings all of them."""
    one, prefix, model = Subscriber(daemon, b"m/ch1/"), Subscriber(daemon, b"m/ch1"), Subscriber(daemon, b"m/")
    with daemon.client() as c:
        for stream in ("m/ch10", "m/ch1.x", "m/ch1_", "m/ch", "m2/ch1", "m/ch1"):
            answer = c.ask(stream, X, seq=LAST)
            assert answer.h.status == 0
        for name in ("m/ch1/x", "m/"):  # neither a slash nor nothing makes a name
            assert -c.ask(name, X, seq=1).h.status == wire.EINVAL
    assert [g.topic for g in one.all_up_to(b"m/ch1/", LAST)] == [b"m/ch1/"]
    assert [g.topic for g in prefix.all_up_to(b"m/ch1/", LAST)] == [b"m/ch10/", b"m/ch1.x/", b"m/ch1_/", b"m/ch1/"]
    assert [g.topic for g in model.all_up_to(b"m/ch1/", LAST)] == [b"m/ch10/", b"m/ch1.x/", b"m/ch1_/", b"m/ch/", b"m/ch1/"]
    for s in (one, prefix, model):
        s.close()


@pytest.mark.sanitize
@pytest.mark.parametrize("topic", ["m/ch1", "m/ch1/"])
def test_nct_sub_takes_the_one_stream_it_names(daemon, topic):
    p = sub_process(daemon, topic, "--count", "2")
    with daemon.client() as c:
        seqs = iter(range(1, 1000))
        until(lambda: (c.ask("m/ch10", X, seq=(n := next(seqs))), c.ask("m/ch1", X, seq=n), p.poll() is not None)[2])
    lines = [json.loads(line) for line in p.communicate(timeout=60)[0].splitlines()]
    assert p.returncode == 0
    assert [(line["model"], line["stream"]) for line in lines] == [("m", "ch1")] * 2


def sub_process(daemon, *args):
    return subprocess.Popen([NCT, "sub", "--connect", daemon.publish, "--json", *args], stdout=subprocess.PIPE, text=True)


@pytest.mark.sanitize
def test_what_is_published_is_what_the_sender_got(daemon):
    s = Subscriber(daemon, b"")
    with daemon.client() as c:
        answer = c.ask("m/a", X, seq=5, pos=1000, t_capture_ns=77)
        there = s.recv()
        assert there.topic == answer.topic and there.payload == answer.payload
        assert there.h.window == 0 and answer.h.window >= 1  # a subscriber keeps no window
        for field in ("kind", "dtype", "flags", "status", "seq", "pos", "t_capture_ns", "channels", "steps", "epoch", "generation"):
            assert getattr(there.h, field) == getattr(answer.h, field), field
        assert there.h.t_answer_ns > 0
        # An error is the sender's alone; a header that asks for no payload concerns the sender alone
        assert c.ask("m/a", np.ones((3, 4), np.float32), seq=6).h.status < 0
        short = c.ask("m/a", X, seq=7, flags=wire.NO_REPLY)
        assert short.payload == b""
        there = s.recv()
        assert (there.h.seq, there.h.dtype, there.payload) == (7, wire.F32, answer.payload)
    s.close()


@pytest.mark.sanitize
def test_what_is_not_to_be_published_is_not(daemon):
    s = Subscriber(daemon, b"")
    before = daemon.ledger()["published"]
    with daemon.client() as c:
        assert c.ask("m/a", X, seq=1, flags=wire.NO_PUBLISH).h.status == 0
        assert c.ask("quiet/a", X, seq=2).h.status == 0
        assert c.ask("m/a", X, seq=LAST).h.status == 0
    assert [(g.topic, g.h.seq) for g in s.all_up_to(b"m/a/", LAST)] == [(b"m/a/", LAST)]
    assert daemon.ledger()["published"] == before + 1
    s.close()


@pytest.mark.sanitize
def test_only_rising_seqs_are_published(daemon):
    s = Subscriber(daemon, b"m/a/")
    before = daemon.ledger()
    with daemon.client() as c:
        for seq in (5, 3, 5, 6, 0, 2**63):
            assert c.ask("m/a", X, seq=seq).h.status == 0
        assert [g.h.seq for g in s.all_up_to(b"m/a/", 2**63)] == [5, 6, 2**63]
        assert daemon.ledger()["publish_stale"] == before["publish_stale"] + 3
        c.send(b"m/a/", wire.pack(kind=wire.CLOSE, session=c.session, request_id=9), b"")
        assert c.recv().h.kind == wire.CLOSED
        assert c.ask("m/a", X, seq=1).h.status == 0  # another epoch begins anew
    there = s.recv()
    assert there.h.seq == 1 and there.h.epoch > 1
    s.close()


@pytest.mark.sanitize
def test_who_comes_late_sees_what_comes_then(daemon):
    with daemon.client() as c:
        for seq in range(1, 11):
            assert c.ask("m/a", X, seq=seq).h.status == 0
        s = Subscriber(daemon, b"m/a/")
        for seq in range(11, 16):
            assert c.ask("m/a", X, seq=seq).h.status == 0
        assert [g.h.seq for g in s.all_up_to(b"m/a/", 15)] == [11, 12, 13, 14, 15]
    s.close()


@pytest.mark.sanitize
@pytest.mark.sanitize
@pytest.mark.parametrize("what", ["one of 256 MB", "many that are too long"])
def test_a_subscriber_that_sends_more_than_prefixes_is_cut(daemon, what):
    """libzmq keeps every one, granted or not, in a trie of a node a byte."""
    good = Subscriber(daemon, b"m/a/")
    before = daemon.rss_kb()
    s = shake_hands(daemon.publish.removeprefix("ipc://"), b"SUB")
    size = 256 << 20 if what == "one of 256 MB" else 500
    header = b"\x02" + struct.pack(">Q", size + 1) + b"\x01"
    try:
        for n in range(1 if size > 500 else 20000):
            s.sendall(header + b"%-500d" % n)
            for _ in range(size // 500 if size > 500 else 0):
                s.sendall(bytes(500))
    except OSError:
        pass
    cause = "protocol" if size > 500 else "faults"
    assert until(lambda: daemon.ledger()["cuts"][cause] == 1)
    s.close()
    if size > 500 and not SANITIZE:
        assert daemon.rss_kb() - before < 100 << 10
    with daemon.client() as c:
        assert c.ask("m/a", X, seq=1).h.status == 0
    assert good.recv().h.seq == 1


def test_nobody_subscribed_costs_no_copy(daemon):
    with daemon.client() as c:
        assert c.ask("m/a", X, seq=1).h.status == 0
        assert c.ledger()["published"] == 0
    s = Subscriber(daemon, b"m/other/")
    before = daemon.ledger()
    with daemon.client() as c:
        for seq in range(1, 11):
            assert c.ask("m/a", X, seq=seq).h.status == 0
        assert c.ledger()["published"] == before["published"], "published what nobody asked for"
        assert c.ask("m/other", X, seq=1).h.status == 0
        assert c.ledger()["published"] == before["published"] + 1
        s.socket.unsubscribe(b"m/other/")
        seqs = iter(range(2, 1000))
        s.socket.subscribe(b"m/now/")  # behind the other one on the same connection
        assert until(lambda: c.ask("m/now", X, seq=next(seqs)).h.status == 0 and s.socket.poll(20))
        while s.recv(0.2):
            pass
        n = c.ledger()["published"]
        assert c.ask("m/other", X, seq=9).h.status == 0
        assert c.ledger()["published"] == n
    s.close()


def test_a_sleeping_subscriber_finds_a_gap_and_the_daemon_does_not_grow(start, tmp_path):
    """d3: 500 results of 100,000 bytes, a subscriber that sleeps behind a high-water mark of 10."""
    limit = 4 << 20
    d = start({"model m": {"file": make_model(tmp_path / "m.safetensors", 2, 25)}, "publish": {"publish_bytes": limit},
               "limits": {"max_frame_bytes": "1M", "queue_bytes": "16M", "arena_bytes": "16M"}, "engine": {"slot_bytes": "8M"}})
    x = np.ones((2, 1000), np.float32)
    s = Subscriber(d, b"m/a/", hwm=10)
    with d.client() as c:
        for seq in range(1, 21):
            assert c.ask("m/warm", x, seq=seq).h.status == 0
        before = d.rss_kb()
        for seq in range(1, 501):
            assert c.ask("m/a", x, seq=seq).h.status == 0
        grown = (d.rss_kb() - before) * 1024
        assert grown < limit + (8 << 20), f"{grown} bytes for a subscriber that sleeps"
        assert d.ledger()["published"] >= 500  # every send succeeds: the drops cannot be counted here
        got = [s.recv().h.seq]
        while (m := s.recv(1)) is not None:
            got.append(m.h.seq)
        assert got == sorted(set(got)) and got[0] == 1 and len(got) < 500, len(got)
        assert c.ask("m/a", x, seq=501).h.status == 0  # awake again, it sees what comes, and from its seq what it lost
        assert s.recv().h.seq == 501
    s.close()


def test_nct_sub_counts_what_it_lost(start, tmp_path):
    d = start({"model m": {"file": make_model(tmp_path / "m.safetensors", 2, 25)}, "publish": {"publish_bytes": 4 << 20},
               "limits": {"max_frame_bytes": "1M", "queue_bytes": "16M", "arena_bytes": "16M"}, "engine": {"slot_bytes": "8M"}})
    x = np.ones((2, 1000), np.float32)
    p = sub_process(d, "m/a", "--count", "100000")
    lines = []
    try:
        with d.client() as c:
            seq = 0
            while not lines:  # until its subscription is there
                seq += 1
                assert c.ask("m/a", x, seq=seq).h.status == 0
                import select
                if select.select([p.stdout], [], [], 0.02)[0]:
                    lines.append(json.loads(p.stdout.readline()))
            p.send_signal(signal.SIGSTOP)
            for seq in range(seq + 1, seq + 3001):  # beyond what its own queue of 1000, the kernel and the daemon hold
                assert c.ask("m/a", x, seq=seq).h.status == 0
            p.send_signal(signal.SIGCONT)
            time.sleep(1)
            last = seq + 1
            assert c.ask("m/a", x, seq=last).h.status == 0
        while lines[-1]["seq"] < last:
            lines.append(json.loads(p.stdout.readline()))
        first = lines[0]["seq"]
        assert sum(line["missed"] for line in lines[1:]) + len(lines) == last - first + 1
        assert sum(line["missed"] for line in lines[1:]) > 0, "it lost nothing: the story tells nothing"
    finally:
        p.kill()
        p.communicate()
