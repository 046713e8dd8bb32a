"""SIGHUP: configuration and weights as one transaction. What is refused changes nothing and says why, everywhere; what is
applied is swapped between batches, and every frame belongs to the generation that admitted it."""
import glob
import os
import re
import signal
import threading
import time

import numpy as np
import pytest
import zmq

import wire
from conftest import SLOW, until
from oracle import Layer, assert_close
from reloading import *  # noqa: F401,F403 (fixtures are found by name)


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
