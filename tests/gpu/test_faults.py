"""What the daemon does when its GPU fails, with a fault of every kind. Skipped without NCTD_FAULTS."""
import concurrent.futures
import json
import os
import re
import time

import numpy as np
import pytest

from daemon import FAULTS, INPUTS, conf, get, run, serve, wire, with_http, zmq  # noqa: F401

SECONDS = float(os.environ.get("NCT_FAULT_SECONDS", "0"))  # 0: the whole plan, else what fits
WORKERS = int(os.environ.get("NCT_WORKERS", "8"))
faults = pytest.mark.skipif(not FAULTS, reason="NCTD_FAULTS names no daemon built with FAULTS=1")
FRAMES, CLIENTS = 40, 3


def load(d):
    """Three clients keep frames in flight until all are answered or the daemon is gone. -> [(request, message)]"""
    clients = [d.client(timeout_s=60, context=zmq.Context()) for _ in range(CLIENTS)]
    poller = zmq.Poller()
    for c in clients:
        poller.register(c.socket, zmq.POLLIN)
        c.first, c.sent, c.open, c.answers, c.input = c.request_id + 1, 0, 0, {}, {}
    quiet = 0
    while quiet < 10 and any(c.open or c.sent < FRAMES for c in clients):
        for i, c in enumerate(clients):
            while c.sent < FRAMES and c.open < min(c.window, 8) and d.process.poll() is None:
                which = (c.sent + i) % len(INPUTS)
                c.input[c.frame(f"m/s{i}", INPUTS[which])] = which
                c.sent += 1
                c.open += 1
        ready = dict(poller.poll(100))
        quiet = quiet + 1 if not ready and d.process.poll() is not None else 0
        for c in clients:
            while c.socket in ready and c.socket.poll(0):
                m = c.recv(0)
                if m.h.kind == wire.GOAWAY:
                    c.sent = FRAMES  # nothing new
                    continue
                assert m.h.request_id in c.input and m.h.request_id not in c.answers, "answered twice"
                c.answers[m.h.request_id] = m
                c.open -= 1
    got = [(c.input[r], m) for c in clients for r, m in c.answers.items()]
    unanswered = sum(c.open for c in clients)
    for c in clients:
        c.close()
        c.context.destroy(linger=0)
    return got, unanswered


def ledger_at_exit(text):
    line = [x for x in text.splitlines() if "ledger received=" in x][-1]
    row = {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", line.split("ledger ", 1)[1])}
    assert row["received"] == sum(row.get(k, 0) for k in ("ok", "failed", "refused", "expired", "orphaned")), line
    return row


def judge(got, want, fallback_allowed):
    """No success of the GPU after the first error; every result right."""
    kinds = {wire.RESULT: 0, wire.ERROR: 0}
    errors = [m.h.t_answer_ns for _, m in got if m.h.kind == wire.ERROR and m.h.status == -wire.EIO]
    first = min(errors, default=None)
    for which, m in got:
        kinds[m.h.kind] += 1
        if m.h.kind == wire.ERROR:
            assert m.h.status in (-wire.EIO, -wire.ESHUTDOWN, -wire.EAGAIN), m.payload
            continue
        y = wire.array(m)
        if m.h.flags & wire.CPU_FALLBACK:
            assert fallback_allowed
            assert np.array_equal(y, want[which]), "the CPU's bits"
        else:
            assert first is None or m.h.t_answer_ns <= first, "a success after the fault"
            assert not np.abs(y - want[which]).max() > 2e-5, np.abs(y - want[which]).max()
    return kinds, len(errors)


def story(folder, fault, mode, want, extra=None):
    """One daemon with one fault under load; -> what happened, in a few words. Asserts what must hold."""
    os.makedirs(folder)
    d = serve(folder, conf(on_gpu_error=mode, stuck_ms=500, **(extra or {})), fault=fault)
    try:
        got, unanswered = load(d)
        hit = "gpu fault engine=0: " in d.text()
        if mode == "cpu":
            assert unanswered == 0 and d.process.poll() is None
            assert d.ledger()["in_flight"] == 0
            with d.client() as c:
                assert c.welcome["backend"] == ("cpu" if hit else "cuda")
                assert c.welcome["engine_memory"]["fallback"] == (1 if hit else 0)
            code = d.stop(seconds=60)
            assert code == 0, d.text()
        else:
            code = d.stop(seconds=60) if not hit else d.wait(60)
            assert code == (1 if hit else 0), d.text()
        kinds, n_eio = judge(got, want, mode == "cpu")
        row = ledger_at_exit(d.text())
        assert row.get("ok", 0) >= kinds[wire.RESULT] and row.get("orphaned", 0) == 0, row
        # what was read was answered; what a client wrote after the end is not ours
        assert row["received"] == len(got), (row, len(got), unanswered)
        assert hit == (n_eio > 0), (hit, n_eio, d.text())
        return f"{mode} {'hit' if hit else 'none'}"
    except BaseException:
        print(f"--- {fault} {mode}\n{d.text()}")
        raise
    finally:
        if d.process.poll() is None:
            d.process.kill()
            d.process.wait()


@pytest.fixture(scope="module")
def want(tmp_path_factory):
    """The CPU's results for INPUTS."""
    d = serve(tmp_path_factory.mktemp("cpu"), conf("cpu"))
    with d.client() as c:
        y = [wire.array(c.ask("m/s", x)).copy() for x in INPUTS]
    assert d.stop() == 0
    return y


def many(tmp_path, want, plan, seconds=3600):
    """Every story of the plan that can begin within `seconds`, WORKERS at a time. -> how many ended how"""
    end = time.monotonic() + seconds

    def one(i, job):
        return story(tmp_path / f"f{i}", *job, want) if time.monotonic() < end else "left out"

    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        jobs = {pool.submit(one, i, job): job for i, job in enumerate(plan)}
        failed, seen = [], {}
        for job in concurrent.futures.as_completed(jobs):
            try:
                word = job.result()
                seen[word] = seen.get(word, 0) + 1
            except Exception as error:  # every fault is tried, then all failures are shown
                failed.append(f"{jobs[job]}: {error!r}"[:600])
    print(seen)
    if os.environ.get("NCT_FAULT_RESULT"):
        with open(os.environ["NCT_FAULT_RESULT"], "a") as f:
            json.dump({"bench": "gpu-faults", "stories": seen, "failed": len(failed), "first": plan[0]}, f)
            f.write("\n")
    assert not failed, "\n".join(failed)
    return seen


@faults
def test_every_call_fails_once(tmp_path, want):
    calls = range(1, int(os.environ.get("NCT_FAULT_CALLS", "200")) + 1)
    plan = [(f"call={k}", "exit") for k in calls]
    plan += [(f"call={k}", "cpu") for k in calls if k % 4 == 1]
    plan += [(f"from={k}", "exit") for k in calls if k % 10 == 3]
    plan.sort(key=lambda job: hash(job[0]) % 97 if SECONDS else 0)
    seen = many(tmp_path, want, plan, SECONDS or 3600)
    assert seen.get("exit none", 0) + seen.get("cpu none", 0) < len(plan) // 4, seen  # a batch more or less
    assert SECONDS or "left out" not in seen


@faults
@pytest.mark.parametrize("mode", ["exit", "cpu"])
def test_a_kernel_traps(tmp_path, want, mode):
    seen = many(tmp_path, want, [(f"trap={k}", mode) for k in (1, 2, 5, 9)])
    assert seen == {f"{mode} hit": 4}, seen


@faults
@pytest.mark.parametrize("mode", ["exit", "cpu"])
def test_a_kernel_does_not_end(tmp_path, want, mode):
    seen = many(tmp_path, want, [(f"hang={k}", mode) for k in (1, 4)] + [("hang=3,ms=1500", mode)])
    assert seen == {f"{mode} hit": 3}, seen


@faults
def test_readyz_names_the_fault(run):
    """What a client does not take holds the end up: as long as it lasts, /readyz says what failed."""
    sections = conf(on_gpu_error="exit")
    port, sections = with_http({**sections, "daemon": {"drain_ms": 8000}})
    d = run(sections, fault="from=60,code=719")
    c = d.client(timeout_s=60)
    assert get(port, "/readyz") == (200, "ready\n")
    for i in range(60):  # results of 64 KB that nobody reads
        c.frame("m/s", INPUTS[1])
    end, seen = time.monotonic() + 30, (200, "")
    while seen[0] == 200 and time.monotonic() < end:
        try:
            seen = get(port, "/readyz")
        except OSError:
            break
    assert seen[0] == 503 and "error 719" in seen[1], (seen, d.text())
    c.close()
    assert d.wait(60) == 1


@faults
@pytest.mark.parametrize("code", [2, 800])
def test_registration_is_refused(run, want, code):
    d = run(conf(), fault=f"register={code}")
    with d.client() as c:
        for x, y in zip(INPUTS, want):
            assert not np.abs(wire.array(c.ask("m/s", x)) - y).max() > 2e-5
        memory = c.welcome["engine_memory"]
        assert memory["pinned_bytes"] == 0 and memory["unpinned_bytes"] > 6 << 20
    assert d.text().count("cudaHostRegister refused") == 1
    assert "host memory (not GPU memory)" in d.text() and f"error {code}," in d.text()
    assert d.stop() == 0


@faults
def test_an_mps_server_that_does_not_answer(run):
    d = run(conf(), fault="call=1,code=805,start", env={"CUDA_MPS_PIPE_DIRECTORY": "/run/nobody"}, wait=False)
    begin = time.monotonic()
    assert d.wait() == 78 and time.monotonic() - begin < 10  # no second try: it would be refused again
    assert "error 805" in d.text() and '"/run/nobody" does not answer user id' in d.text(), d.text()


@faults
def test_a_fault_at_start_is_an_exit(tmp_path):
    for k in (1, 3, 6, 10, 15, 25):
        folder = tmp_path / str(k)
        folder.mkdir()
        d = serve(folder, conf(gpu_wait_ms=0), fault=f"call={k},start", wait=False)
        end = time.monotonic() + 60
        while d.process.poll() is None and time.monotonic() < end and "ready " not in d.text():
            time.sleep(0.05)
        if d.process.poll() is None:
            assert "ready " in d.text(), d.text()  # a call that may fail: registering, or one behind the start
            d.stop()
        else:
            assert d.wait() != 0 and "error 719" in d.text(), d.text()
