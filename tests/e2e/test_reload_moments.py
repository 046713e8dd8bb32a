"""Reloads at awkward moments: during start, stop, each other; what the service manager and the watchdog hear."""
import signal
import time

import numpy as np
import pytest

import prom
import wire
from conftest import until
from http_tools import get
from reloading import *  # noqa: F401,F403 (fixtures are found by name)


@pytest.mark.sanitize
def test_sighup_and_sigterm_while_a_reload_runs(start, manager, model):
    """The helper thread hangs in reading: the daemon serves, drains and ends all the same, in its time."""
    d = start({"model m": {"file": model, **PARAMS}, "daemon": {"drain_ms": 2000}}, env={"NOTIFY_SOCKET": manager.path})
    manager.next()
    slow = Slow(d)
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
    slow.let_go()


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


def test_a_reload_that_does_not_end_shows(start, manager, model):
    d = start({"model m": {"file": model, **PARAMS}, "http": {"enabled": "yes", "endpoint": "127.0.0.1:0"}},
              env={"NOTIFY_SOCKET": manager.path})

    def told():
        return {name: f.value() for name, f in prom.parse(get(d, "/metrics")[2].decode()).items() if "reload" in name and
                len(f.samples) == 1}
    before = told()
    assert (before["nctd_reload_pending"], before["nctd_reloads_asked_total"]) == (0, 0)
    slow = Slow(d)
    for _ in range(3):
        d.signal(signal.SIGHUP)
    assert until(slow.waits)
    assert until(lambda: told()["nctd_reloads_asked_total"] >= 1)
    stuck = told()
    assert stuck["nctd_reload_pending"] == 1 and stuck["nctd_last_reload_timestamp_seconds"] == 0
    assert facts(d)[1]["pending"] is True
    slow.let_go()
    if until(slow.waits, 2):  # signals that came while it ran are one more
        assert told()["nctd_reload_pending"] == 1
        slow.let_go()
    assert until(lambda: told()["nctd_reload_pending"] == 0), d.text()
    assert told()["nctd_last_reload_timestamp_seconds"] > 0 and facts(d)[1]["pending"] is False
