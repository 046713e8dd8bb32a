"""Errors are answers: each wrong message gets the code wire.h names and a sentence with the numbers, and the next good
frame is served."""
import struct
import threading
import time

import numpy as np
import pytest
import zmq

import stfile
import wire
from conftest import SLOW, until

X = np.arange(20, dtype=np.float32).reshape(2, 10)


@pytest.fixture
def served(start, tmp_path):
    rng = np.random.default_rng(2)
    path = tmp_path / "m.safetensors"
    stfile.write(path, {"conv.weight": rng.standard_normal((4, 2, 3)).astype(np.float32),
                        "norm.weight": np.ones(4, np.float32), "norm.bias": np.zeros(4, np.float32)}, {"num_groups": 2})
    return start({"model m": {"file": path}, "limits": {"max_frame_bytes": "64K"}})


def good(c):
    """Frames are still served on this connection; errors that came before are taken first."""
    wanted = c.frame(f"m/good{c.session:x}", X)
    while True:
        answer = c.recv()
        assert answer is not None, "no answer to a good frame"
        if answer.h.request_id == wanted:
            break
    assert (answer.h.kind, answer.h.status) == (wire.RESULT, 0), answer.payload
    assert np.isfinite(wire.array(answer)).all()


def refused(c, parts, status, *words, request_id=None):
    c.send(*parts)
    answer = c.recv()
    assert answer is not None, "no answer"
    assert (answer.h.kind, -answer.h.status) == (wire.ERROR, status), (answer.h, answer.payload)
    if request_id is not None:
        assert answer.h.request_id == request_id
    text = answer.payload.decode()
    for word in words:
        assert word in text, text
    good(c)
    return text


# name: (header fields, payload or None for X's bytes, status, words of the sentence)
HEADERS = {
    "magic": (dict(magic=b"NCT2"), None, wire.EPROTO, ()),
    "header_words 11": (dict(header_words=11), None, wire.EPROTO, ()),
    "header_words 13 on 96 bytes": (dict(header_words=13), None, wire.EPROTO, ()),
    "kind 0": (dict(kind=0), None, wire.EPROTO, ()),
    "kind of the daemon": (dict(kind=wire.RESULT), None, wire.EPROTO, ()),
    "kind 15": (dict(kind=15), None, wire.EPROTO, ()),
    "kept kind RESUME": (dict(kind=wire.RESUME), None, wire.ENOTSUP, ()),
    "dtype 0": (dict(dtype=0), None, wire.EINVAL, ("dtype",)),
    "dtype 7": (dict(dtype=7), None, wire.EINVAL, ("dtype", "7")),
    "want 4": (dict(want=4), None, wire.EINVAL, ("want",)),
    "flag 24": (dict(flags=1 << 24), None, wire.ENOTSUP, ()),
    "flag SHM": (dict(flags=wire.SHM), None, wire.ENOTSUP, ()),
    "one byte short": ({}, X.tobytes()[:-1], wire.EINVAL, ("80", "79")),
    "one byte long": ({}, X.tobytes() + b"x", wire.EINVAL, ("80", "81")),
    "no payload": ({}, b"", wire.EINVAL, ("80",)),
    "C of 0": (dict(channels=0), b"", wire.EINVAL, ()),
    "T of 0": (dict(steps=0), b"", wire.EINVAL, ()),
    "product wraps 32 bits": (dict(channels=2, steps=0x80000001), X.tobytes(), wire.EMSGSIZE, ()),
    "product wraps 64 bits": (dict(channels=0xffffffff, steps=0xffffffff), X.tobytes(), wire.EMSGSIZE, ()),
    "C of another layer": (dict(channels=5, steps=4), None, wire.EINVAL, ("5", "2")),
    "T under the kernel": (dict(steps=2), np.zeros((2, 2), np.float32).tobytes(), wire.EINVAL, ("2", "3")),
    "GIVEN without statistics": (dict(flags=wire.GIVEN), None, wire.EINVAL, ()),
    "GIVEN and OBSERVE": (dict(flags=wire.GIVEN | wire.OBSERVE), X.tobytes() + bytes(48), wire.EINVAL, ()),
    "another epoch": (dict(epoch=77), None, wire.ESTALE, ()),
    "above max_frame_bytes": (dict(channels=2, steps=8193), bytes(8 * 8193), wire.EMSGSIZE, ("65536",)),
    "result above max_frame_bytes": (dict(channels=2, steps=8000), bytes(8 * 8000), wire.EMSGSIZE, ("65536",)),
}


@pytest.mark.sanitize
@pytest.mark.parametrize("name", HEADERS)
def test_a_wrong_header_is_answered_and_the_next_frame_served(served, name):
    fields, payload, status, words = HEADERS[name]
    with served.client() as c:
        good(c)
        header = c.header(X, **fields)
        refused(c, [b"m/s/", header, X.tobytes() if payload is None else payload], status, *words)
    served.ledger()


@pytest.mark.sanitize
def test_all_wrong_headers_at_once_in_one_burst(served):
    with served.client() as c:
        for fields, payload, _, _ in HEADERS.values():
            c.send(b"m/s/", c.header(X, **fields), X.tobytes() if payload is None else payload)
        good(c)


@pytest.mark.sanitize
@pytest.mark.parametrize("topic,status", [
    (b"", wire.EINVAL), (b"/", wire.EINVAL), (b"m", wire.EINVAL), (b"m/", wire.EINVAL), (b"m//", wire.EINVAL),
    (b"m/s", wire.EINVAL), (b"m/s/x/", wire.EINVAL), (b"/s/", wire.EINVAL), (b".m/s/", wire.EINVAL), (b"m/s p/", wire.EINVAL),
    (b"m/" + b"a" * 65 + b"/", wire.EINVAL), (b"m/\xff/", wire.EINVAL), (b"m/a\0b/", wire.EINVAL), (b"other/s/", wire.ENOENT),
    (b"x" * 5000, wire.EINVAL)])
def test_bad_names_and_unknown_models(served, topic, status):
    with served.client() as c:
        text = refused(c, [topic, c.header(X), X.tobytes()], status)
        if status == wire.ENOENT:
            assert "other" in text and "m" in text


@pytest.mark.sanitize
@pytest.mark.parametrize("parts", [1, 2, 4, 20])
def test_another_number_of_parts(served, parts):
    """What stands before the last three parts is taken for an envelope (a REQ delimiter, a proxy's addresses) and given back."""
    with served.client() as c:
        message = ([b"m/s/", c.header(X), X.tobytes()] * 7)[:parts]
        c.send(*message)
        assert c.socket.poll(20000 * SLOW)
        answer = c.socket.recv_multipart()
        assert answer[:-3] == (message[:-3] if parts <= 7 else [])  # an envelope has at most 4 parts
        answer = wire.unpack(answer[-3:])
        assert (answer.h.kind, -answer.h.status) == (wire.ERROR, wire.EPROTO)
        assert "3" in answer.payload.decode() and str(parts) in answer.payload.decode()
        good(c)


@pytest.mark.sanitize
@pytest.mark.parametrize("length", [0, 1, 31, 95, 97, 104])
def test_a_header_part_of_another_length(served, length):
    with served.client() as c:
        refused(c, [b"m/s/", (c.header(X) + b"\0" * 8)[:length], X.tobytes()], wire.EPROTO)


@pytest.mark.sanitize
def test_anything_before_hello_is_stale_and_another_sessions_number_too(served):
    with served.client() as owner, served.client(hello=False) as c:
        for session in (0, 1, owner.session):
            c.session = session
            c.send(b"m/s/", c.header(X), X.tobytes())
            answer = c.recv()
            assert (answer.h.kind, -answer.h.status) == (wire.ERROR, wire.ESTALE)
        c.hello()
        good(c)
        mine, c.session = c.session, owner.session
        c.send(b"m/s/", c.header(X), X.tobytes())
        assert -c.recv().h.status == wire.ESTALE
        c.session = mine
        good(c)
        good(owner)
    assert served.ledger()["malformed"]["session"] >= 3


@pytest.mark.sanitize
def test_request_ids_are_unique_while_in_flight(start, served):
    with served.client() as c:
        for _ in range(50):  # the first of each pair may have been answered before the second is read
            c.send(b"m/s/", c.header(X, request_id=9), X.tobytes())
            c.send(b"m/s/", c.header(X, request_id=9), X.tobytes())
            statuses = [c.recv().h.status for _ in range(2)]
            assert set(statuses) <= {0, -wire.EEXIST, -wire.EAGAIN} and 0 in statuses
        good(c)


@pytest.mark.sanitize
@pytest.mark.parametrize("stat,word", [((-1, 0, 1), "count"), ((0.5, 0, 1), "count"), ((float("inf"), 0, 1), "count"),
                                       ((float("nan"), 0, 1), "count"), ((10, 0, -1), "M2")])
def test_senseless_statistics_are_refused(served, stat, word):
    with served.client() as c:
        tail = struct.pack("<6d", 10, 0, 1, *stat)
        header = c.header(X, flags=wire.GIVEN)
        refused(c, [b"m/s/", header, X.tobytes() + tail], wire.EINVAL, word, "group 1")
        spoiled = struct.pack("<6d", 10, 0, 1, 10, float("nan"), float("nan"))  # of a group that is not finite: an honest answer
        c.send(b"m/s/", c.header(X, flags=wire.GIVEN), X.tobytes() + spoiled)
        y = wire.array(c.recv())
        assert np.isfinite(y[:2]).all() and np.isnan(y[2:]).all()


@pytest.mark.sanitize
def test_a_stream_belongs_to_the_session_that_first_used_it(served):
    with served.client() as a, served.client() as b:
        assert a.ask("m/s", X).h.status == 0
        answer = b.ask("m/s", X)
        assert (-answer.h.status, answer.h.kind) == (wire.EBUSY, wire.ERROR)
        a.send(b"m/s/", wire.pack(kind=wire.CLOSE, session=a.session, request_id=99), b"")
        assert a.recv().h.kind == wire.CLOSED
        answer = b.ask("m/s", X)
        assert answer.h.status == 0 and answer.h.epoch > 1


@pytest.mark.sanitize
def test_json_that_cannot_be_read(served):
    texts = [b"{", b"[]", b"\xff", b'{"a":1,"a":2}', b"1" * 70000, b"[" * 3000, b'"\\ud800"', b"{}x", b"nul"]
    with served.client(hello=False) as c:
        for text in texts:
            c.send(b"", wire.pack(kind=wire.HELLO, request_id=1), text)
            answer = c.recv()
            assert (answer.h.kind, answer.h.status < 0) == (wire.ERROR, True), text
        c.hello()
        for text in texts:
            c.send(b"m/s/", wire.pack(kind=wire.OPEN, session=c.session, request_id=5), text)
            assert c.recv().h.status < 0
        good(c)


@pytest.mark.sanitize
def test_req_socket_gets_its_envelope_back(served):
    s = zmq.Context.instance().socket(zmq.REQ)
    s.linger = 0
    s.connect(served.ingest)
    for _ in range(3):
        s.send_multipart([b"", wire.pack(kind=wire.HELLO), b"{}"])
        assert s.poll(20000 * SLOW), "a REQ client waits for ever"
        answer = wire.unpack(s.recv_multipart())
        assert -answer.h.status == wire.EPROTO
    s.close()
    with served.client() as c:
        good(c)


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", ["REQ", "DEALER"])
def test_behind_a_proxy_each_is_answered_through_it(served, kind):
    """d6: a ROUTER-DEALER proxy puts its client's address in front; the daemon gives all of it back with the answer."""
    context = zmq.Context()
    front, back = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    port = front.bind_to_random_port("tcp://127.0.0.1")
    back.connect(served.ingest)

    def proxy():
        try:
            zmq.proxy(front, back)
        except zmq.ZMQError:  # its context ended
            front.close(0)
            back.close(0)

    thread = threading.Thread(target=proxy, daemon=True)
    thread.start()
    clients = [zmq.Context.instance().socket(getattr(zmq, kind)) for _ in range(3)]
    for s in clients:
        s.linger = 0
        s.connect(f"tcp://127.0.0.1:{port}")
    for turn in range(3):
        for i, s in enumerate(clients):
            s.send_multipart([b"", wire.pack(kind=wire.HELLO, request_id=10 * turn + i), b"{}"])
        for i, s in enumerate(clients):
            assert s.poll(20000 * SLOW), "no answer through the proxy"
            answer = wire.unpack(s.recv_multipart())
            assert (answer.h.kind, -answer.h.status, answer.h.request_id) == (wire.ERROR, wire.EPROTO, 10 * turn + i)
    for s in clients:
        s.close()
    context.term()
    thread.join(10)
    with served.client() as c:
        good(c)


@pytest.mark.sanitize
def test_beyond_twice_the_limit_the_connection_is_cut_and_counted(served):
    with served.client() as c, served.client() as other:
        good(c)
        c.send(b"m/s/", c.header(X), bytes(2 * 65536 + 4096))
        assert c.recv(timeout_s=1) is None
        good(other)
        assert until(lambda: served.ledger()["cuts"]["protocol"] >= 1)
    with served.client() as c:
        good(c)


@pytest.mark.sanitize
def test_up_to_twice_the_limit_is_answered(served):
    with served.client() as c:
        refused(c, [b"m/s/", c.header(channels=2, steps=16384), bytes(2 * 65536)], wire.EMSGSIZE, "65536")


def test_a_thousand_faults_in_a_row_cut_the_client(served):
    with served.client() as c:
        for _ in range(1100):
            try:
                c.socket.send_multipart([b"m/s/", c.header(X, dtype=7), X.tobytes()], zmq.DONTWAIT)
            except zmq.Again:
                time.sleep(0.01)
        assert until(lambda: served.ledger()["cuts"]["faults"] == 1)
    with served.client() as c:
        good(c)


@pytest.mark.sanitize
def test_noise_in_every_part_is_answered_or_counted(served):
    rng = np.random.default_rng(3)
    with served.client() as c:
        sent = 0
        for _ in range(300):
            header = bytearray(c.header(X))
            for _ in range(rng.integers(1, 6)):
                header[rng.integers(0, 96)] = rng.integers(0, 256)
            c.send(b"m/s/", bytes(header), X.tobytes())
            sent += 1
            answer = c.recv()
            assert answer is not None and answer.h.kind in (wire.ERROR, wire.RESULT, wire.OPENED, wire.CLOSED, wire.PONG, wire.WELCOME)
            if answer.h.kind == wire.WELCOME:
                c.session = answer.h.session
        good(c)
    served.ledger()


def test_a_payload_of_2_gib_announced_by_the_transport_is_cut(served, tmp_path):
    """Raw ZMTP: a frame header that announces 2 GiB. The daemon neither allocates nor waits for it."""
    import socket
    path = served.ingest.removeprefix("ipc://")
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    s.settimeout(10 * SLOW)
    s.sendall(b"\xff" + struct.pack(">Q", 1) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31))
    got = b""
    while len(got) < 64:
        got += s.recv(4096)
    body = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
    s.sendall(b"\x04" + bytes([len(body)]) + body)
    before = served.rss_kb()
    s.sendall(b"\x02" + struct.pack(">Q", 1 << 31) + b"x" * 1000)  # long frame
    try:
        while s.recv(4096):
            pass
    except ConnectionError:
        pass
    assert served.rss_kb() - before < 50000
    with served.client() as c:
        good(c)
