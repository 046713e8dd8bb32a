"""Keys over time: what a reload changes, and what each key may do."""
import os
import subprocess
import sys

import numpy as np
import pytest
import zmq

import conftest
import nct_tools
import wire
from conftest import SLOW, until
from key_tools import *  # noqa: F401,F403 (fixtures are found by name)

sys.path.insert(0, os.path.join(conftest.ROOT, "client", "python"))
import nct  # noqa: E402


# ---- what a reload changes -------------------------------------------------------------------------------------------

@pytest.mark.sanitize
def test_a_reload_admits_new_keys_and_cuts_those_taken_off(start, keys, small_model):
    keys.make("bob")
    d = serve(start, keys, small_model)
    assert hears_nothing(d, **keys.curve("bob"))
    reload(d, "reload: nothing changed")
    keys.admit("bob")
    reload(d, "reload applied")
    with wire.Client(d.ingest, timeout_s=20 * SLOW, **keys.curve("bob")) as bob, d.client() as ann:
        assert bob.ask("m/bob", X).h.status == 0
        keys.remove("bob")
        reload(d, "reload applied")
        cut = ann.ledger()["cuts"]["key"]
        bob.frame("m/bob", X, seq=1)
        assert bob.recv(1.0 * SLOW) is None
        assert cut == 1 and ann.ask("m/ann", X).h.status == 0
    with open(keys.at("clients/broken.key"), "w") as f:
        f.write("no key\n")
    reload(d, "reload refused")
    assert "broken.key" in d.text()
    with d.client() as c:
        assert c.ask("m/s", X).h.status == 0
    os.remove(keys.at("clients/broken.key"))
    for half in ("key", "key_secret"):
        os.remove(keys.at(f"server.{half}"))
    keys.make("server")
    reload(d, "needs a restart")


def test_a_client_whose_key_is_taken_off_and_put_back_goes_on_by_itself(start, keys, small_model):
    keys.make("bob")
    keys.admit("bob")
    d = serve(start, keys, small_model, tcp=True)
    with nct.Client(d.ingest, timeout=30 * SLOW, curve=keys.files("bob")) as c:
        y = c.call(X, "m", "b")
        keys.remove("bob")
        reload(d, "reload applied")
        with pytest.raises(nct.NctError) as e:
            c.call(X, "m", "b", timeout=2 * SLOW)
        assert e.value.name == "ETIMEDOUT"
        keys.admit("bob")
        reload(d, "reload applied")
        assert np.array_equal(c.call(X, "m", "b"), y) and c.reconnects == 1


def test_libnct_too_goes_on_by_itself(start, keys, small_model):
    """`nct send` of a pipe: its key is gone in the middle, and comes back."""
    keys.make("bob")
    keys.admit("bob")
    d = serve(start, keys, small_model, tcp=True)
    frame = bytes(2 * 4 * 48)  # a pipe holds what nct does not read while it waits
    p = subprocess.Popen([nct_tools.NCT, "send", "-c", d.ingest, *keys.options("bob"), "--raw", "f32", "--rate", "48000", "--channels", "2",
                          "--frame", "48", "--name", "m", "--timeout", "60", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    answered = lambda n: until(lambda: d.ledger()["ok"] >= n)
    p.stdin.write(frame * 20)
    p.stdin.flush()
    assert answered(19), d.ledger()
    keys.remove("bob")
    reload(d, "reload applied")
    before = d.ledger()["ok"]
    p.stdin.write(frame * 20)
    p.stdin.flush()
    assert until(lambda: refused_by(d)["key"] >= 2), "it does not try again"
    assert d.ledger()["ok"] == before
    keys.admit("bob")
    reload(d, "reload applied")
    said = p.communicate(frame * 10, timeout=60 * SLOW)[1]
    assert p.returncode == 0 and b"50 ok, 0 refused" in said, said
    assert d.ledger()["ok"] >= 50  # what was answered and not read before the cut was asked for again


# ---- rights ----------------------------------------------------------------------------------------------------------

@pytest.mark.sanitize
def test_what_a_key_may_do(start, keys, small_model):
    keys.make("mic", "--rights", "send", "--topics", "m/mic-*")
    keys.make("screen", *LISTENER, "--topics", "m/mic-1,m/mic-2")
    for name in ("mic", "screen"):
        keys.admit(name)
    d = serve(start, keys, small_model)
    with wire.Client(d.ingest, timeout_s=20 * SLOW, **keys.curve("mic")) as mic:
        for stream, allowed in (("m/mic-1", True), ("m/other", False), ("m/mic-9", True), ("nowhere/x", False)):
            answer = mic.ask(stream, X)
            assert -answer.h.status == (0 if allowed else wire.EACCES), (stream, answer)
            assert allowed or stream.encode() in answer.payload and b"may not send" in answer.payload, answer
        mic.send(b"m/other/", wire.pack(kind=wire.OPEN, session=mic.session, request_id=77), b"{}")
        assert -mic.recv().h.status == wire.EACCES
        assert mic.ledger()["refused_by"]["EACCES"] == 2
    with wire.Client(d.ingest, timeout_s=20 * SLOW, **keys.curve("screen")) as screen:
        assert -screen.ask("m/mic-1", X).h.status == wire.EACCES


def test_what_a_key_may_hear(start, keys, small_model):
    keys.make("screen", *LISTENER, "--topics", "m/mic-1")
    keys.make("model", *LISTENER, "--topics", "m/*")
    keys.make("sender", *SENDER)
    for name in ("screen", "model", "sender"):
        keys.admit(name)
    d = serve(start, keys, small_model)
    subscribers = {}
    for who, prefix in (("screen", b"m/mic-1/"), ("screen", b"m/"), ("screen", b""), ("screen", b"m/mic-2/"), ("model", b"m/"),
                        ("model", b"m/mic-2/"), ("model", b""), ("sender", b""), ("ann", b""), ("ann", b"m/mi")):
        s = zmq.Context.instance().socket(zmq.SUB)
        s.linger = 0
        for name, value in keys.curve(who).items():
            setattr(s, name, value)
        s.connect(d.publish)
        s.subscribe(prefix)
        subscribers[who, prefix] = s
    wanted = {("screen", b"m/mic-1/"): {b"m/mic-1/"}, ("model", b"m/"): {b"m/mic-1/", b"m/mic-2/"},
              ("model", b"m/mic-2/"): {b"m/mic-2/"}, ("ann", b""): {b"m/mic-1/", b"m/mic-2/"},
              ("ann", b"m/mi"): {b"m/mic-1/", b"m/mic-2/"}}
    heard = {k: set() for k in subscribers}
    with d.client() as c:
        for seq in range(1, 300):
            for stream in ("m/mic-1", "m/mic-2"):
                c.ask(stream, X, seq=seq)
            for k, s in subscribers.items():
                while s.poll(1):
                    heard[k].add(s.recv_multipart()[0])
            if all(heard[k] >= v for k, v in wanted.items()) and seq > 20:
                break
        assert heard == {k: wanted.get(k, set()) for k in subscribers}
        assert c.ledger()["subscribe_refused"] == 5
    for s in subscribers.values():
        s.close()


def test_a_session_is_ended_by_its_own_key_alone(start, keys, small_model):
    keys.make("bob")
    keys.admit("bob")
    d = serve(start, keys, small_model)
    with d.client() as ann, wire.Client(d.ingest, timeout_s=20 * SLOW, **keys.curve("bob")) as bob:
        bob.hello(previous=f"{ann.session:016x}")
        assert ann.ask("m/s", X).h.status == 0
        with d.client(hello=False) as again:
            again.hello(previous=f"{ann.session:016x}")
            assert -ann.ask("m/s", X).h.status == wire.ESTALE
