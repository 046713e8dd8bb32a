"""What the stories about keys share: a folder of key pairs, an allow-list, daemons that go by it."""
import os
import signal

import numpy as np
import pytest
import zmq.auth

import nct_tools
import wire
from conftest import SLOW, until

X = np.arange(20, dtype=np.float32).reshape(2, 10) / 7
SENDER, LISTENER = ("--rights", "send"), ("--rights", "subscribe")


class Keys:
    """A folder of key pairs by `nct keygen`, and the allow-list made of some of them."""

    def __init__(self, folder):
        self.folder = str(folder)
        self.list = os.path.join(self.folder, "clients")
        os.makedirs(self.list)
        self.make("server")

    def at(self, name):
        return os.path.join(self.folder, name)

    def make(self, name, *options):
        nct_tools.ok(nct_tools.nct("keygen", self.at(name), *options))
        return name

    def admit(self, name):
        """Whole or not at all, as a reload may come at any moment."""
        with open(self.at(name + ".key")) as f, open(os.path.join(self.list, name + ".new"), "w") as to:
            to.write(f.read())
        os.rename(os.path.join(self.list, name + ".new"), os.path.join(self.list, name + ".key"))

    def remove(self, name):
        os.remove(os.path.join(self.list, name + ".key"))

    def curve(self, name, server="server"):
        """As pyzmq's own loader reads the files."""
        public, secret = zmq.auth.load_certificate(self.at(name + ".key_secret"))
        return dict(curve_serverkey=zmq.auth.load_certificate(self.at(server + ".key"))[0], curve_publickey=public,
                    curve_secretkey=secret)

    def files(self, name, server="server"):
        return self.at(server + ".key"), self.at(name + ".key_secret")

    def options(self, name, server="server"):
        return ["--server-key", self.at(server + ".key"), "--key", self.at(name + ".key_secret")]

    def conf(self, **more):
        return {"secret_key_file": self.at("server.key_secret"), "client_keys": self.list, **more}


@pytest.fixture
def keys(tmp_path):
    folder = tmp_path / "keys"
    folder.mkdir()
    k = Keys(folder)
    k.make("ann")
    k.admit("ann")
    return k


def serve(start, keys, small_model, auth=None, sections=None, **options):
    return start({"model m": {"file": small_model}, "auth": keys.conf(**(auth or {})), **(sections or {})},
                 curve=keys.curve("ann"), **options)


def refused_by(d):
    return d.ledger()["handshakes"]


def hears_nothing(d, seconds=1.0, **options):
    """A client that never gets through its handshake: nothing it says arrives."""
    with wire.Client(d.ingest, hello=False, timeout_s=seconds * SLOW, **options) as c:
        c.send(b"", wire.pack(kind=wire.HELLO, request_id=1), b"{}")
        return c.recv() is None


def reload(d, word):
    asked = sum(word in line for line in d.log)
    d.signal(signal.SIGHUP)
    assert until(lambda: sum(word in line for line in d.log) > asked), d.text()
