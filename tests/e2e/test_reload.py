"""SIGHUP: configuration and weights as one transaction. What is refused changes nothing and says why, everywhere; what is
applied is swapped between batches, and every frame belongs to the generation that admitted it."""
import glob
import os
import queue
import re
import signal
import socket
import threading
import time

import numpy as np
import pytest
import zmq

import stfile
import wire
from conftest import ROOT, SLOW, until
from oracle import Layer, assert_close

DATA = os.path.join(ROOT, "tests", "data")
X = np.arange(20, dtype=np.float32).reshape(2, 10) / 7
PARAMS = {"num_groups": 2}


def write_model(path, seed, c_in=2, c_out=4, k=3, meta=None):
    """Under another name, then renamed: nobody reads half of it."""
    rng = np.random.default_rng(seed)
    tensors = {"conv.weight": rng.standard_normal((c_out, c_in, k)).astype(np.float32),
               "norm.weight": rng.standard_normal(c_out).astype(np.float32), "norm.bias": rng.standard_normal(c_out).astype(np.float32)}
    stfile.write(f"{path}.new", tensors, meta)
    os.rename(f"{path}.new", path)
    return str(path)


class Manager:
    """The service manager's end of the notify socket. A thread reads it at once: Linux keeps 10 datagrams."""

    def __init__(self, folder):
        self.path = f"{folder}/notify.sock"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.got = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while message := self.socket.recv(4096):
            self.got.put(message.decode())

    def close(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(b"", self.path)

    def next(self, seconds=20):
        """The next datagram as a dict, WATCHDOG=1 and requests for more time left out; None when nothing comes."""
        for _, text in self.every(seconds * SLOW, stop=lambda text: not text.startswith(("WATCHDOG", "EXTEND"))):
            if not text.startswith(("WATCHDOG", "EXTEND")):
                return dict(line.split("=", 1) for line in text.strip().split("\n"))
        return None

    def every(self, seconds, stop=lambda text: False):
        """All datagrams of that time, or until one says stop, whole: (when, text)."""
        end, got = time.monotonic() + seconds, []
        while (left := end - time.monotonic()) > 0:
            try:
                got.append((time.monotonic(), self.got.get(timeout=left)))
            except queue.Empty:
                break
            if stop(got[-1][1]):
                break
        return got

    def reloaded(self):
        """One reload, as it must be told: its STATUS."""
        begins, ends = self.next(), self.next()
        assert begins and set(begins) == {"RELOADING", "MONOTONIC_USEC", "STATUS"} and begins["RELOADING"] == "1", begins
        assert 0 <= time.clock_gettime(time.CLOCK_MONOTONIC) - int(begins["MONOTONIC_USEC"]) / 1e6 < 60 * SLOW
        assert ends and set(ends) == {"READY", "STATUS"} and ends["READY"] == "1", ends
        return ends["STATUS"]


@pytest.fixture
def manager(tmp_path):
    m = Manager(tmp_path)
    yield m
    m.close()


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "m.safetensors", 1)


@pytest.fixture
def daemon(start, manager, model):
    d = start({"model m": {"file": model, **PARAMS}}, env={"NOTIFY_SOCKET": manager.path})
    ready = manager.next()
    assert ready["READY"] == "1" and "serving 1 models" in ready["STATUS"]
    return d


def reload(d, manager):
    d.signal(signal.SIGHUP)
    return manager.reloaded()


def facts(d):
    """What WELCOME says of models and reloads."""
    with d.client() as c:
        return {m["name"]: (m["generation"], m["digest"]) for m in c.welcome["models"]}, c.welcome["reload"]


def stays(d, before, why, status):
    """Refused: everything is as before, and the reason stands in STATUS, WELCOME and the log."""
    models, told = facts(d)
    assert models == before
    assert told["last"] == "refused" and re.search(why, told["why"]), told
    assert "; reload refused: " in status and told["why"][:200] in status, status
    assert until(lambda: any(line.startswith("<4>reload refused") and told["why"][:200] in line for line in d.log)), d.text()


@pytest.mark.sanitize
def test_a_good_model_takes_the_place_of_the_old_one(daemon, manager, model):
    with daemon.client() as c:
        first = c.ask("m/s", X)
        assert_close(wire.array(first), Layer(model, **PARAMS), X)
        write_model(model, 2)
        assert "reload applied: 1 models changed, 0 added, 0 removed" in reload(daemon, manager)
        second = c.ask("m/s", X)
    assert (first.h.generation, second.h.generation) == (1, 2)
    assert first.h.epoch == second.h.epoch, "the stream goes on"
    assert_close(wire.array(second), Layer(model, **PARAMS), X)
    told = facts(daemon)[1]
    assert (told["asked"], told["applied"], told["refused"], told["unchanged"], told["last"]) == (1, 1, 0, 0, "applied")
    assert abs(told["last_s"] - time.time()) < 60 * SLOW


BROKEN = sorted(glob.glob(f"{DATA}/B1_*.safetensors") + glob.glob(f"{DATA}/B4_*.safetensors"))


@pytest.mark.sanitize
def test_broken_models_change_nothing(daemon, manager, model):
    """b1, b4: every file of the cases, one after the other, then one that is not there; then it is whole again."""
    assert len(BROKEN) == 15
    before, _ = facts(daemon)
    with daemon.client() as c:
        good = c.ask("m/s", X)
        for path in BROKEN:
            os.system(f"cp {path} {model}.new && mv {model}.new {model}")
            stays(daemon, before, re.escape(model), reload(daemon, manager))
            now = c.ask("m/s", X)
            assert (now.payload, now.h.generation, now.h.epoch) == (good.payload, 1, good.h.epoch), path
        os.remove(model)
        stays(daemon, before, "No such file", reload(daemon, manager))
        write_model(model, 3)
        assert "reload applied: 1 models changed" in reload(daemon, manager)
        assert c.ask("m/s", X).h.generation == 2
    told = facts(daemon)[1]
    assert (told["applied"], told["refused"], told["last"], told["why"]) == (1, len(BROKEN) + 1, "applied", "")


@pytest.mark.sanitize
def test_one_broken_model_refuses_all_of_it(daemon, manager, model, tmp_path):
    """Nothing of a transaction is applied: no key, no other model."""
    before, _ = facts(daemon)
    write_model(model, 5)
    daemon.sections["model other"] = {"file": write_model(tmp_path / "o.safetensors", 6), **PARAMS}
    daemon.sections["model sick"] = {"file": f"{DATA}/B1_len_past_eof.safetensors", **PARAMS}
    daemon.sections["batch"] = {"max_frames": 5}
    daemon.write_conf()
    stays(daemon, before, "model sick: .*B1_len_past_eof", reload(daemon, manager))
    with daemon.client() as c:
        assert c.welcome["limits"]["max_frames"] == 16
        assert c.ask("other/s", X).h.status == -wire.ENOENT
    del daemon.sections["model sick"]
    daemon.write_conf()
    assert "1 models changed, 1 added, 0 removed" in reload(daemon, manager)
    with daemon.client() as c:
        assert c.welcome["limits"]["max_frames"] == 5
        assert [m["name"] for m in c.welcome["models"]] == ["m", "other"]
        assert c.ask("other/s", X).h.status == 0


@pytest.mark.sanitize
@pytest.mark.parametrize("section,key,value,why", [
    ("engine", "slots", 5, "engine.slots changed from 3 to 5: that needs a restart"),
    ("limits", "window", 7, "limits.window changed from 64 to 7: that needs a restart"),
    ("ingest", "endpoint", "inproc://x", "ingest.endpoint changed from ipc.* to inproc://x: that needs a restart"),
    ("batch", "max_frames", 0, r"nctd.conf:\d+: .*max_frames"),
    ("batch", "max_framse", 3, r"nctd.conf:\d+: .*max_frames"),
    ("model m", "mode", "stream", r"nctd.conf:\d+: mode = stream"),
    ("model m", "stride", 0, "model m: .*stride")])
def test_a_conf_that_cannot_be_applied_changes_nothing(daemon, manager, section, key, value, why):
    before, _ = facts(daemon)
    daemon.sections.setdefault(section, {})[key] = value
    daemon.write_conf()
    stays(daemon, before, why, reload(daemon, manager))


@pytest.mark.sanitize
def test_a_reload_of_the_same_changes_nothing(daemon, manager, model):
    """Touched files too. Sessions, streams, epochs and generations go on."""
    before, _ = facts(daemon)
    with daemon.client() as c:
        first = c.ask("m/s", X)
        for _ in range(3):
            os.utime(model)
            os.utime(daemon.conf)
            assert reload(daemon, manager).endswith("; reload: nothing changed")
        again = c.ask("m/s", X)
        assert (again.h.epoch, again.h.generation, again.payload) == (first.h.epoch, 1, first.payload)
        session = c.session
        assert c.welcome["sessions"] and c.ask("m/s", X, session=session).h.status == 0
    models, told = facts(daemon)
    assert models == before and (told["unchanged"], told["applied"], told["refused"], told["last"]) == (3, 0, 0, "unchanged")


@pytest.mark.sanitize
def test_keys_are_applied(daemon, manager):
    daemon.sections["batch"] = {"max_frames": 64, "max_delay_us": 1234}
    daemon.sections["daemon"] = {"stall_ms": 777, "log_level": "debug"}
    daemon.write_conf()
    assert "reload applied: 0 models changed" in reload(daemon, manager)
    with daemon.client() as c:
        limits = c.welcome["limits"]
        assert (limits["max_frames"], limits["max_delay_us"], limits["stall_ms"]) == (64, 1234, 777)
        assert c.welcome["models"][0]["generation"] == 1
        before = c.ledger()
        for _ in range(64):
            c.frame("m/s", X)
        assert all(c.recv().h.status == 0 for _ in range(64))
        after = c.ledger()
        assert after["ok"] == before["ok"] + 64
    assert until(lambda: any(line.startswith("<7>") for line in daemon.log)), "no debug line"
    daemon.sections["daemon"]["log_level"] = "error"
    daemon.write_conf()
    reload(daemon, manager)
    with daemon.client():
        reload(daemon, manager)
    assert daemon.stop() == 0
    assert daemon.log[-1] == "<6>reload begins" and sum("reload begins" in line for line in daemon.log) == 2, daemon.text()


@pytest.mark.sanitize
def test_larger_batches_find_their_workspace(start, manager, model):
    """batch.max_frames grows by a reload: batches of that many are made and are right."""
    d = start({"model m": {"file": model, **PARAMS}, "batch": {"max_frames": 1}}, env={"NOTIFY_SOCKET": manager.path})
    manager.next()
    x = np.random.default_rng(1).standard_normal((2, 30000)).astype(np.float32)
    with d.client() as c:
        want = c.ask("m/s", x).payload
        d.sections["batch"] = {"max_frames": 48}
        d.write_conf()
        reload(d, manager)
        for i in range(48):
            c.frame(f"m/s{i}", x)
        assert all(c.recv().payload == want for _ in range(48))
        books = c.ledger()
        assert books["batches"] < 49 and books["batch_frames"] == 49, "no batch was larger than one frame"


class Slow:
    """A reload that waits in reading conf.d/slow.conf, a FIFO, until let go."""

    def __init__(self, d):
        self.path = os.path.join(d.folder, "conf.d", "slow.conf")
        os.mkdir(os.path.dirname(self.path))
        os.mkfifo(self.path)

    def let_go(self, last=False):
        with open(self.path, "w"):
            if last:
                os.remove(self.path)


@pytest.mark.sanitize
def test_those_that_come_while_one_runs_become_one(daemon, manager, model):
    """Two, then fifty: one runs, one waits; the one that waits sees what was on disk at the last SIGHUP."""
    slow = Slow(daemon)
    with daemon.client() as c:
        for n in (2, 50):
            before = facts(daemon)[1]
            daemon.signal(signal.SIGHUP)
            assert manager.next()["RELOADING"] == "1"
            for _ in range(n - 1):
                daemon.signal(signal.SIGHUP)
                assert c.ask("m/s", X).h.status == 0, "served meanwhile"
                assert until(lambda: facts(daemon)[1]["asked"] > before["asked"] + 1)
            write_model(model, 100 + n)  # the one that runs has not read it: it still waits for its conf
            slow.let_go()
            assert "reload applied: 1 models changed" in manager.next()["STATUS"]
            assert manager.next()["RELOADING"] == "1"
            slow.let_go()
            assert "reload: nothing changed" in manager.next()["STATUS"]
            assert manager.next(0.5) is None, "a third one"
            after = facts(daemon)[1]
            assert after["applied"] == before["applied"] + 1 and after["unchanged"] == before["unchanged"] + 1
    assert after["asked"] >= 2 + 3


@pytest.mark.sanitize
def test_100_in_a_row(daemon, manager, model):
    with daemon.client() as c:
        for i in range(100):
            if i % 10 == 0:
                write_model(model, 1000 + i)
            daemon.signal(signal.SIGHUP)
            if i % 20 == 0:
                assert c.ask("m/s", X).h.status == 0
        seen = [m for m in iter(lambda: manager.next(1), None)]
        told = facts(daemon)[1]
        assert told["refused"] == 0 and told["applied"] >= 1 and told["asked"] <= 100
        assert 1 <= told["applied"] + told["unchanged"] == len(seen) // 2 <= told["asked"]
        assert_close(wire.array(c.ask("m/s", X)), Layer(model, **PARAMS), X), "the last file on disk is served"
    assert ["RELOADING" in m for m in seen] == [True, False] * (len(seen) // 2), "RELOADING and READY, in turn"


@pytest.mark.sanitize
def test_under_load_no_frame_is_lost_and_each_has_its_weights(start, manager, tmp_path):
    """Four clients, twelve streams, a dozen swaps between two files: every answer has the bits of its generation, the
    order of every stream holds over the swap, and the books are exact."""
    path = tmp_path / "m.safetensors"
    x = np.random.default_rng(3).standard_normal((8, 900)).astype(np.float32)
    d = start({"model m": {"file": write_model(path, 11, 8, 16), **PARAMS}, "batch": {"max_frames": 8}},
              env={"NOTIFY_SOCKET": manager.path})
    manager.next()
    bits = []
    with d.client() as c:
        for seed in (11, 12):
            write_model(path, seed, 8, 16)
            reload(d, manager)
            answer = c.ask("m/probe", x)
            assert_close(wire.array(answer), Layer(path, **PARAMS), x)
            bits.append(answer.payload)  # generation 1 has the first, 2 the second, 3 the first again, ...
    assert bits[0] != bits[1]
    stop, failures, got = threading.Event(), [], []

    def client(i):
        try:
            with d.client(context=zmq.Context()) as c:
                due, last, mine = {}, {}, []
                while not stop.is_set() or due:
                    while not stop.is_set() and len(due) < c.window:
                        name = f"m/c{i}.{len(mine) % 3}"
                        due[c.frame(name, x)] = name
                        mine.append(name)
                    m = c.recv()
                    assert m is not None, "an answer is missing"
                    name = due.pop(m.h.request_id)
                    assert m.h.status == 0 and m.topic.decode() == name + "/", m.h
                    before = last.get(name, (0, 0, m.h.epoch))
                    assert m.h.request_id > before[0], "out of order"
                    assert m.h.generation >= before[1], "a frame of an older generation came later"
                    assert m.h.epoch == before[2], "the stream was opened anew"
                    assert m.payload == bits[(m.h.generation - 1) % 2], f"not the bits of generation {m.h.generation}"
                    last[name] = (m.h.request_id, m.h.generation, m.h.epoch)
                    got.append(m.h.generation)
        except Exception as e:
            failures.append(repr(e))

    threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    for n in range(12):
        before = len(got)
        assert until(lambda: len(got) > before + 50 or failures) and not failures, failures
        write_model(path, 11 + n % 2, 8, 16)
        assert "1 models changed" in reload(d, manager)
    before = len(got)
    assert until(lambda: len(got) > before + 100 or failures)
    stop.set()
    [t.join() for t in threads]
    assert not failures, failures
    assert set(got) == set(range(2, 15)), "a generation without an answer"
    books = d.ledger()
    assert books["received"] == books["ok"] == len(got) + 2 and books["in_flight"] == 0
    assert books["batch_flush"] > 0, "what was queued for the old weights is due at once"
    assert facts(d)[0]["m"][0] == 14


@pytest.mark.sanitize
def test_models_come_go_and_change_their_shape(daemon, manager, model, tmp_path):
    other = write_model(tmp_path / "o.safetensors", 4)
    daemon.sections["model o"] = {"file": other, **PARAMS}
    daemon.write_conf()
    assert "0 models changed, 1 added, 0 removed" in reload(daemon, manager)
    with daemon.client() as c:
        epochs = [c.ask("m/s", X).h.epoch, c.ask("o/s", X).h.epoch]
        # another number of channels: the stream goes on, frames of the old shape are refused
        write_model(other, 5, 3, 6)
        reload(daemon, manager)
        refused = c.ask("o/s", X)
        assert refused.h.status == -wire.EINVAL and b"2 channels, and model o takes 3" in refused.payload
        x = np.ones((3, 10), np.float32) * np.arange(10, dtype=np.float32)
        m = c.ask("o/s", x)
        assert (m.h.status, m.h.generation, m.h.epoch) == (0, 2, epochs[1])
        assert_close(wire.array(m), Layer(other, **PARAMS), x)
        # gone: queued frames are answered, then CLOSED says why; the other model's streams feel nothing
        for _ in range(10):
            c.frame("o/s", x)
        del daemon.sections["model o"]
        daemon.write_conf()
        assert until(lambda: facts(daemon) and daemon.ledger()["received"] >= 14)
        assert "0 models changed, 0 added, 1 removed" in reload(daemon, manager)
        answers = [c.recv() for _ in range(11)]
        assert [a.h.kind for a in answers] == [wire.RESULT] * 10 + [wire.CLOSED]
        closed = answers[-1]
        assert closed.h.status == -wire.ENOENT and closed.h.epoch == epochs[1] and closed.topic == b"o/s/"
        assert closed.payload == b"a reload took model o out of service"
        m = c.ask("o/s", x)
        assert m.h.status == -wire.ENOENT and b"no model o is served" in m.payload
        m = c.ask("m/s", X)
        assert (m.h.status, m.h.epoch, m.h.generation) == (0, epochs[0], 1)
        # back again: its numbers go on
        daemon.sections["model o"] = {"file": other, **PARAMS}
        daemon.write_conf()
        reload(daemon, manager)
        m = c.ask("o/s", x)
        assert (m.h.status, m.h.generation) == (0, 3) and m.h.epoch > epochs[1]
        c.hello()
        assert [(m["name"], m["ledger"]["ok"]) for m in c.welcome["models"]] == [("m", 2), ("o", 13)]
    daemon.ledger()


@pytest.mark.sanitize
def test_a_stream_of_another_rate_is_closed(daemon, manager, model):
    with daemon.client() as c:
        for name, text in (("a", b'{"sample_rate": 16000}'), ("b", b'{"sample_rate": 8000}'), ("c", b"{}")):
            c.send(f"m/{name}/".encode(), wire.pack(kind=wire.OPEN, session=c.session, request_id=1), text)
            assert c.recv().h.kind == wire.OPENED
        write_model(model, 2, meta={"sample_rate": 8000})
        reload(daemon, manager)
        closed = c.recv()
        assert (closed.h.kind, closed.h.status, closed.topic) == (wire.CLOSED, -wire.EINVAL, b"m/a/")
        assert closed.payload == b"sample_rate is 16000 Hz, and model m is for 8000 Hz"
        assert c.recv(0.3) is None
        assert c.ask("m/b", X).h.generation == c.ask("m/c", X).h.generation == 2


@pytest.mark.sanitize
def test_sighup_and_sigterm_while_a_reload_runs(start, manager, model):
    """The helper thread hangs in a FIFO: the daemon serves, drains and ends all the same, in its time."""
    d = start({"model m": {"file": model, **PARAMS}, "daemon": {"drain_ms": 2000}}, env={"NOTIFY_SOCKET": manager.path})
    manager.next()
    Slow(d)
    d.signal(signal.SIGHUP)
    assert manager.next()["RELOADING"] == "1"
    with d.client() as c:
        assert c.ask("m/s", X).h.status == 0
        d.signal(signal.SIGHUP)
        assert until(lambda: c.ledger() and c.welcome["reload"]["asked"] == 2)
        d.signal(signal.SIGTERM)
        assert until(lambda: "stopping:" in d.text())
        for _ in range(100):
            d.signal(signal.SIGHUP)
        begin = time.monotonic()
        assert d.wait(30) == 0
        assert time.monotonic() - begin < 30
    assert "reload refused, everything stays as it is: the daemon stops" in d.text()
    assert manager.next()["STOPPING"] == "1"


@pytest.mark.sanitize
def test_a_reload_that_ends_while_it_stops_is_not_applied(start, manager, model):
    d = start({"model m": {"file": model, **PARAMS}, "daemon": {"drain_ms": 20000}}, env={"NOTIFY_SOCKET": manager.path})
    manager.next()
    slow = Slow(d)
    write_model(model, 2)
    d.signal(signal.SIGHUP)
    assert manager.next()["RELOADING"] == "1"
    with d.client() as c:
        assert c.ask("m/s", X).h.status == 0
    d.signal(signal.SIGTERM)
    assert until(lambda: "stopping:" in d.text())
    slow.let_go()
    assert d.wait(30) == 0, d.text()
    assert "reload applied" not in d.text() and "everything stays as it is: the daemon stops" in d.text()


def slow_models(tmp_path, n=6):
    path = write_model(tmp_path / "big.safetensors", 9, 768, 768, 7)
    return {f"model big{i}": {"file": path, **PARAMS} for i in range(n)}


@pytest.mark.sanitize
def test_sighup_during_start_is_a_reload_after_it(start, manager, tmp_path):
    """And more time is asked for while it loads."""
    d = start(slow_models(tmp_path), env={"NOTIFY_SOCKET": manager.path}, wait=False)
    assert until(lambda: "ingest bound" in d.text())
    sent = 0
    while "ready version" not in d.text():
        d.signal(signal.SIGHUP)
        sent += 1
        time.sleep(0.005)
        assert d.process.poll() is None, d.text()
    first = manager.next()
    assert first["READY"] == "1" and "serving 6 models" in first["STATUS"]
    assert manager.reloaded().endswith("reload: nothing changed")
    models, told = facts(d)
    assert sent >= told["asked"] >= 1 and told["unchanged"] >= 1 and told["refused"] == 0
    assert {g for g, _ in models.values()} == {1}


def test_a_long_start_asks_for_time_and_feeds_the_watchdog(start, manager, tmp_path):
    d = start(slow_models(tmp_path, 24), env={"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "200000"}, wait=False)
    got = []
    while not any("READY=1" in text for _, text in got):
        got += manager.every(0.2)
        assert d.process.poll() is None
    before = [text for _, text in got[:[("READY=1" in text) for _, text in got].index(True)]]
    asked = [text for text in before if text.startswith("EXTEND_TIMEOUT_USEC=10000000\nSTATUS=loading for ")]
    assert asked and len(asked) + before.count("WATCHDOG=1") == len(before), before
    assert "WATCHDOG=1" in before
    assert not any("EXTEND" in text for _, text in manager.every(1.2)), "it goes on asking"


def test_the_watchdog_is_not_fed_by_a_stuck_engine(start, manager, tmp_path):
    """The loop turns all the while: it answers PINGs."""
    path = write_model(tmp_path / "slow.safetensors", 1, 256, 256, 31)
    d = start({"model slow": {"file": path, **PARAMS}, "engine": {"threads": 1, "cpu_variant": "portable"},
               "batch": {"max_frames": 1}}, env={"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "100000"})
    x = np.random.default_rng(1).standard_normal((256, 15000)).astype(np.float32)
    assert any("WATCHDOG=1" in text for _, text in manager.every(1)), "fed while there is nothing to do"
    with d.client() as c:
        c.frame("slow/a", x)
        assert until(lambda: d.ledger()["received"] == 1)
        time.sleep(0.2)
        manager.every(0.01)
        begin, fed, pongs = time.monotonic(), [], 0
        while True:  # until its RESULT is there
            c.send(b"", wire.pack(kind=wire.PING, session=c.session, request_id=5), b"")
            m = c.recv()
            if m.h.kind == wire.RESULT:
                break
            pongs += 1
            fed += manager.every(0.05)
        seconds = time.monotonic() - begin
        assert pongs > 4 and seconds > 0.5, "too fast to say anything"
        assert sum("WATCHDOG" in text for _, text in fed) <= 2, (seconds, fed)
        assert c.recv().h.kind == wire.PONG
    assert any("WATCHDOG=1" in text for _, text in manager.every(1)), "fed again"


def test_old_weights_are_given_back(start, manager, tmp_path):
    """50 reloads of a model of 3.5 MiB, and as much packed: 350 MiB, were they kept. What stays is a bounded number of
    copies: the helper threads' malloc keeps the files that they read."""
    path = tmp_path / "big.safetensors"
    d = start({"model m": {"file": write_model(path, 1, 256, 512, 7), **PARAMS}}, env={"NOTIFY_SOCKET": manager.path})
    manager.next()
    x = np.ones((256, 20), np.float32)
    seen = [d.rss_kb()]
    with d.client() as c:
        for i in range(50):
            write_model(path, 2 + i % 2, 256, 512, 7)
            assert "1 models changed" in reload(d, manager)
            m = c.ask("m/s", x)
            assert (m.h.status, m.h.generation) == (0, i + 2)
            seen.append(d.rss_kb())
    assert max(seen) - seen[0] < 80 << 10, seen
