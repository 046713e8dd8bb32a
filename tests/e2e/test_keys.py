"""CURVE keys: made, listed, and used by every client; everybody else gets no answer and is counted."""
import json
import os
import re
import stat
import subprocess
import sys

import numpy as np
import pytest
import zmq
import zmq.auth

import conftest
import nct_tools
import wire
from conftest import SLOW, until
from key_tools import *  # noqa: F401,F403 (fixtures are found by name)

sys.path.insert(0, os.path.join(conftest.ROOT, "client", "python"))
import nct  # noqa: E402


# ---- making keys -----------------------------------------------------------------------------------------------------

def test_keygen_makes_a_pair_that_others_read_and_never_writes_over_one(tmp_path):
    base = tmp_path / "lab"
    public = nct_tools.ok(nct_tools.nct("keygen", base)).stdout.decode().strip()
    assert zmq.auth.load_certificate(f"{base}.key") == (public.encode(), None)
    assert zmq.auth.load_certificate(f"{base}.key_secret")[0] == public.encode()
    secret = zmq.auth.load_certificate(f"{base}.key_secret")[1]
    assert zmq.curve_public(secret) == public.encode()
    assert secret.decode() not in open(f"{base}.key").read()
    assert stat.S_IMODE(os.stat(f"{base}.key_secret").st_mode) == 0o600
    before = open(f"{base}.key_secret").read()
    nct_tools.fails(nct_tools.nct("keygen", base), 1, "lab.key_secret", "never written over")
    os.remove(f"{base}.key_secret")  # the public half alone is there: neither is made
    nct_tools.fails(nct_tools.nct("keygen", base), 1, "lab.key ", "never written over")
    assert not os.path.exists(f"{base}.key_secret") and before
    nct_tools.fails(nct_tools.nct("keygen", tmp_path / "x", "--rights", "sing"), 2, "--rights", "'sing'", "send and subscribe")
    nct_tools.fails(nct_tools.nct("keygen", tmp_path / "nowhere" / "x"), 1, "nowhere/x.key_secret", "No such file")
    nct_tools.fails(nct_tools.nct("keygen"), 2, "NAME")
    other = json.loads(nct_tools.ok(nct_tools.nct("keygen", tmp_path / "x", "--json")).stdout)["public_key"]
    assert other != public and len(other) == 40


# ---- who gets in -----------------------------------------------------------------------------------------------------

@pytest.mark.sanitize
@pytest.mark.parametrize("tcp", [False, True], ids=["ipc", "tcp"])
def test_listed_keys_are_served_and_all_others_hear_nothing_and_are_counted(start, keys, small_model, tcp):
    keys.make("eve")
    keys.make("other-server")
    d = serve(start, keys, small_model, tcp=tcp)
    with d.client() as c:
        assert c.welcome["key"] == "ann"
        want = wire.array(c.ask("m/s", X))
        assert want.shape == (4, 8)
    before = refused_by(d)
    assert sum(before.values()) == 0
    null, plain = {}, dict(plain_username=b"ann", plain_password=b"x")
    for cause, options in (("mechanism", null), ("mechanism", plain), ("key", keys.curve("eve")),
                           ("server_key", keys.curve("ann", "other-server"))):
        assert hears_nothing(d, **options), cause
        after = refused_by(d)
        # Of two that see at once that the other speaks another mechanism, whoever is second sees a connection broken off.
        risen = sum(after[k] - before[k] for k in (cause, "protocol")) if cause == "mechanism" else after[cause] - before[cause]
        assert risen > 0, (cause, before, after)
        before = after
    with d.client() as c:
        assert np.array_equal(wire.array(c.ask("m/s", X)), want)
        assert c.welcome["ledger"]["malformed"]["session"] == 0, "something of theirs was read"
    lines = [line for line in d.log if "refused since the start" in line]
    assert 1 <= len(lines) <= 4, d.text()  # a line in ten seconds at most, however many tried
    assert until(lambda: any("refused since the start" in line for line in d.log))


@pytest.mark.sanitize
def test_subscribers_need_a_listed_key_too(start, keys, small_model):
    keys.make("eve")
    d = serve(start, keys, small_model)

    def subscriber(**options):
        s = zmq.Context.instance().socket(zmq.SUB)
        s.linger = 0
        for name, value in options.items():
            setattr(s, name, value)
        s.connect(d.publish)
        s.subscribe(b"")
        return s

    admitted, eve, null = subscriber(**keys.curve("ann")), subscriber(**keys.curve("eve")), subscriber()
    with d.client() as c:
        for seq in range(200):
            c.ask("m/s", X, seq=seq)
            if admitted.poll(50):
                break
        assert admitted.poll(0), "the listed subscriber hears nothing"
        assert not eve.poll(300) and not null.poll(0)
    for s in (admitted, eve, null):
        s.close()
    assert refused_by(d)["key"] >= 1


def test_nct_and_its_errors(start, keys, small_model):
    keys.make("eve")
    keys.make("other-server")
    d = serve(start, keys, small_model, tcp=True)
    info = nct_tools.nct("info", "-c", d.ingest, *keys.options("ann"), "--json")
    assert json.loads(nct_tools.ok(info).stdout)["key"] == "ann"
    public = open(keys.at("server.key")).read().split('public-key = "')[1].split('"')[0]
    nct_tools.ok(nct_tools.nct("ping", "-c", d.ingest, "--server-key", public, "--key", keys.at("ann.key_secret"), "-k", 1))
    fails = lambda code, words, *args: nct_tools.fails(nct_tools.nct("info", "-c", d.ingest, *args), code, *words)
    fails(78, ["asks for CURVE keys", "--server-key"])  # two ways to find out, by who sees the other's mechanism first
    fails(78, ["does not admit the public key", "auth.client_keys"], *keys.options("eve"))
    fails(78, ["hangs up", "its public key"], *keys.options("ann", "other-server"))
    fails(2, ["--server-key needs --key", "keygen"], "--server-key", public)
    fails(2, ["--key needs --server-key"], "--key", keys.at("ann.key_secret"))
    fails(2, ["ann.key:", "no secret-key", ".key_secret"], "--server-key", public, "--key", keys.at("ann.key"))
    fails(2, ["nobody.key_secret", "No such file"], "--server-key", public, "--key", keys.at("nobody.key_secret"))
    os.chmod(keys.at("ann.key_secret"), 0o644)
    fails(2, ["0644", "chmod 600"], *keys.options("ann"))
    os.chmod(keys.at("ann.key_secret"), 0o600)
    nct_tools.fails(nct_tools.nct("sub", "-c", d.publish, *keys.options("eve"), "--timeout", 20), 78, "does not admit")
    plain = start({"model m": {"file": small_model}}, tcp=True)
    nct_tools.fails(nct_tools.nct("info", "-c", plain.ingest, *keys.options("ann")), 78, plain.ingest)  # takes none, or hangs up


def test_nct_bench_and_send(start, keys, small_model, tmp_path):
    d = serve(start, keys, small_model, tcp=True)
    r = nct_tools.nct("bench", "-c", d.ingest, "--subscribe", d.publish, *keys.options("ann"), "--rate", "200", "--seconds", "1", "--warmup",
                      "0.1", "--steps", "40", "--json")
    assert r.returncode in (0, 75), r.stderr  # 75: too busy a machine for its figures to count
    assert json.loads(r.stdout.splitlines()[0])["bench"] == "nct"
    silent = tmp_path / "x.raw"
    silent.write_bytes(bytes(2 * 4 * 960))
    nct_tools.ok(nct_tools.nct("send", "-c", d.ingest, *keys.options("ann"), "--raw", "f32", "--rate", "48000", "--channels", "2",
                               "--name", "m", silent))
    assert d.ledger()["ok"] > 100


def test_nct_run_sends_a_file_to_a_daemon_with_keys_and_to_a_private_one_without(start, keys, tmp_path):
    d = start({"model st": {"file": nct_tools.B0, "num_groups": "2"}, "auth": keys.conf()}, curve=keys.curve("ann"))
    out, own = tmp_path / "y.npy", tmp_path / "z.npy"
    nct_tools.ok(nct_tools.nct("run", "--connect", d.ingest, "--name", "st", *keys.options("ann"), nct_tools.ST, "-o", out))
    nct_tools.ok(nct_tools.nct("run", *nct_tools.MODEL, nct_tools.ST, "-o", own, *keys.options("ann")))
    assert np.array_equal(np.load(out), np.load(own))


def test_the_python_client(start, keys, small_model):
    keys.make("eve")
    keys.make("other-server")
    d = serve(start, keys, small_model, tcp=True)
    connect = lambda curve: nct.Client(d.ingest, timeout=20 * SLOW, curve=curve)
    with connect(keys.files("ann")) as c, nct.Subscriber(d.publish, "m/s", curve=keys.files("ann")) as s:
        assert c.welcome["key"] == "ann"
        for _ in range(200):
            y = c.call(X, "m", "s")
            try:
                assert np.array_equal(s.recv(0.05).value(), y)
                break
            except nct.NctError as e:
                assert e.name == "ETIMEDOUT"
        else:
            raise AssertionError("the subscriber hears nothing")
    with connect(tuple(keys.curve("ann").values())) as c:
        assert c.call(X, "m").shape == (4, 8)
    for curve, words in ((None, "asks for CURVE keys"), (keys.files("eve"), "does not admit"),
                         (keys.files("ann", "other-server"), "hangs up")):
        with pytest.raises(nct.NctError, match=words) as e:
            connect(curve)
        assert e.value.name == "EACCES"
    with pytest.raises(ValueError, match="no secret-key"):
        connect((keys.at("server.key"), keys.at("ann.key")))
    os.chmod(keys.at("ann.key_secret"), 0o640)
    with pytest.raises(ValueError, match="0640.*chmod 600"):
        connect(keys.files("ann"))


@pytest.mark.sanitize
def test_ipc_may_go_without_keys_while_tcp_may_not(start, keys, small_model):
    port = conftest.free_port()
    d = start({"model m": {"file": small_model}, "auth": keys.conf(ipc_keyless="yes"), "ingest": {}})
    d.stop()
    d.sections["ingest"]["endpoint"] = f"{d.ingest} tcp://127.0.0.1:{port}"
    d.write_conf()
    d.start()
    with d.client() as c:
        assert "key" not in c.welcome and c.ask("m/s", X).h.status == 0
    tcp = f"tcp://127.0.0.1:{port}"
    with wire.Client(tcp, timeout_s=20 * SLOW, **keys.curve("ann")) as c:
        assert c.welcome["key"] == "ann" and c.ask("m/t", X).h.status == 0
    with wire.Client(tcp, hello=False, timeout_s=SLOW) as c:
        c.send(b"", wire.pack(kind=wire.HELLO, request_id=1), b"{}")
        assert c.recv() is None


# ---- what a start refuses --------------------------------------------------------------------------------------------

def does_not_start(start, sections, *words, code=78, check=True):
    d = start(sections, wait=False)
    assert d.wait() == code, d.text()
    for w in words:
        assert w in d.text(), (w, d.text())
    if check:
        r = subprocess.run([conftest.NCTD, "-c", d.conf, "--check"], capture_output=True, text=True)
        assert r.returncode == 78 and all(w in r.stderr for w in words), r.stderr


def test_a_bind_beyond_loopback_needs_keys_or_the_word_insecure(start, keys, small_model):
    port = conftest.free_port()
    far = {"ingest": {"endpoint": f"tcp://0.0.0.0:{port}"}, "model m": {"file": small_model}}
    does_not_start(start, far, f"tcp://0.0.0.0:{port}", "auth.secret_key_file", "ingest.insecure = yes", code=1)
    d = start({**far, "auth": keys.conf()}, wait=False, curve=keys.curve("ann"))
    d.ingest = f"tcp://127.0.0.1:{port}"
    with d.client() as c:
        assert c.ask("m/s", X).h.status == 0
    assert hears_nothing(d)


def test_keys_that_are_not_safe_or_not_there_end_the_start(start, keys, small_model):
    model = {"model m": {"file": small_model}}
    conf = lambda **more: {**model, "auth": keys.conf(**more)}
    os.chmod(keys.at("server.key_secret"), 0o640)
    does_not_start(start, conf(), "server.key_secret", "0640", "chmod 600")
    os.chmod(keys.at("server.key_secret"), 0o600)
    does_not_start(start, conf(secret_key_file=keys.at("no.key_secret")), "no.key_secret", "No such file", "nct keygen")
    does_not_start(start, conf(secret_key_file=keys.at("server.key")), "server.key", "no secret-key")
    does_not_start(start, conf(client_keys=None), "auth.secret_key_file is set and auth.client_keys is not")
    does_not_start(start, conf(secret_key_file=None), "auth.client_keys is set and auth.secret_key_file is not")
    does_not_start(start, conf(client_keys=keys.at("nobody")), "auth.client_keys", "nobody", "No such file")
    os.mkdir(keys.at("empty"))
    does_not_start(start, conf(client_keys=keys.at("empty")), "no .key file", "nobody could connect")
    os.chmod(keys.list, 0o777)
    does_not_start(start, conf(), "clients", "0777", "admit themselves")
    os.chmod(keys.list, 0o755)
    keys.make("twice")
    keys.admit("twice")
    os.rename(keys.at("clients/twice.key"), keys.at("clients/zwei.key"))
    keys.admit("twice")
    does_not_start(start, conf(), "is there twice", "twice")
    keys.remove("zwei")
    with open(keys.at("clients/twice.key"), "a") as f:
        f.write("metadata\n    rights = sing\n")
    does_not_start(start, conf(), "twice.key", 'rights = "sing"')
    keys.remove("twice")
    os.mkfifo(keys.at("clients/pipe.key"))
    does_not_start(start, conf(), "pipe.key", "not a regular file")
