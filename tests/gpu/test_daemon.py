"""The daemon on a GPU: what it says of itself, what it does when the GPU fails. NCTD is a daemon with CUDA;
NCTD_FAULTS one that was built with FAULTS=1 (daemon/gpu_fault.h), without which the faults are skipped."""
import concurrent.futures
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

E2E = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e")
sys.path.insert(0, E2E)
zmq = pytest.importorskip("zmq")
import wire  # noqa: E402

spec = importlib.util.spec_from_file_location("daemon_stories", os.path.join(E2E, "conftest.py"))
stories = importlib.util.module_from_spec(spec)
spec.loader.exec_module(stories)
FAULTS = os.environ.get("NCTD_FAULTS")
SECONDS = float(os.environ.get("NCT_FAULT_SECONDS", "0"))  # 0: the whole plan, else what fits
WORKERS = int(os.environ.get("NCT_WORKERS", "8"))
faults = pytest.mark.skipif(not FAULTS, reason="NCTD_FAULTS names no daemon built with FAULTS=1")
FRAMES, CLIENTS = 40, 3
rng = np.random.default_rng(5)
INPUTS = [rng.standard_normal((4, t)).astype(np.float32) for t in (64, 2000, 64, 700)]


def conf(engine="cuda", **keys):
    return {"model m": {"in_channels": 4, "out_channels": 8, "kernel_size": 3, "padding": 1, "num_groups": 2, "seed": 3},
            "engine": {"engine": engine, "slot_bytes": "1M", "precision": "f32", "threads": 1, **keys},
            "limits": {"max_frame_bytes": "256K", "queue_bytes": "8M", "arena_bytes": "8M"},
            "batch": {"max_frames": 4}, "http": {"enabled": "no"},
            "daemon": {"drain_ms": 3000}}


@pytest.fixture
def run(tmp_path):
    """run(sections, nctd=NCTD, fault=None, ...) -> Daemon; what still runs at the end is ended."""
    made = []

    def begin(sections, nctd=None, fault=None, wait=True, **options):
        folder = tmp_path / f"d{len(made)}"
        folder.mkdir()
        d = serve(folder, sections, nctd, fault, wait, **options)
        made.append(d)
        return d

    yield begin
    for d in made:
        if d.process.poll() is None:
            d.process.kill()
            d.process.wait()


def serve(folder, sections, nctd=None, fault=None, wait=True, env=None, **options):
    stories_nctd = stories.NCTD
    env = dict(env or {})
    if fault:
        env["NCTD_GPU_FAULT"] = fault
        nctd = FAULTS
    wrapped = type("Daemon", (stories.Daemon,), {})

    def start(self, wait=True):
        self.log = []
        self.process = subprocess.Popen([nctd or stories_nctd, "-c", self.conf, *self.args], stderr=subprocess.PIPE,
                                        env=self.env, stdout=subprocess.DEVNULL, text=True, errors="replace")
        self.reader = stories.threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        if wait:
            self.client(timeout_s=60).close()

    wrapped.start = start
    return wrapped(folder, sections, wait=wait, env=env, **options)


def test_it_says_what_computes(run):
    d = run({"engine": {"engine": "auto", "precision": "auto", "slot_bytes": "32M"}})
    with d.client() as c:
        w = c.welcome
        assert (w["backend"], w["precision"]) == ("cuda", "tf32")
        assert re.search(r" sm_\d+$", w["device"]) and w["plan"] and w["variant"]
        memory = w["engine_memory"]
        assert memory["pinned_bytes"] + memory["unpinned_bytes"] >= 6 * (32 << 20) + (64 << 20)
        assert memory["device_bytes"] >= 6 * (32 << 20) and memory["fallback"] == 0
        x = rng.standard_normal((128, 1024)).astype(np.float32)
        y = wire.array(c.ask("default/a", x)).reshape(32, -1)
        assert np.abs(y.mean(1)).max() < 1e-3 and np.abs(y.var(1) - 1).max() < 1e-2
    assert "engine.engine = auto: computing on " in d.text()
    assert d.stop() == 0


def test_check_prints_the_sums(run, tmp_path):
    r = subprocess.run([stories.NCTD, "--check", "engine.engine=cuda"], capture_output=True, text=True, timeout=60)
    assert r.returncode == 0, r.stderr
    sums = dict(re.findall(r"^  (\w+) +(\d+)", r.stdout, re.M))
    assert int(sums["pinned"]) == (6 * 64 + 128) << 20
    assert int(sums["device"]) > 6 * 64 << 20


@pytest.mark.parametrize("visible", ["", "-1", "7", "GPU-wrong"])
def test_hidden_gpus(visible):
    r = subprocess.run([stories.NCTD, "--check", "engine.engine=cuda", "engine.gpu_wait_ms=0"], capture_output=True,
                       text=True, timeout=60, env={**os.environ, "CUDA_VISIBLE_DEVICES": visible})
    assert r.returncode == 78 and "CUDA_VISIBLE_DEVICES" in r.stderr, r.stderr
    r = subprocess.run([stories.NCTD, "--check", "engine.engine=auto"], capture_output=True, text=True, timeout=60,
                       env={**os.environ, "CUDA_VISIBLE_DEVICES": visible})
    assert r.returncode == 0 and "computing on the CPU" in r.stderr, r.stderr


def test_offset_frames_are_counted(run):
    d = run({"engine": {"engine": "cuda", "precision": "auto", "slot_bytes": "32M"},
             "model m": {"in_channels": 1, "out_channels": 1, "kernel_size": 1, "num_groups": 1}})
    with d.client() as c:
        c.ask("m/s", rng.standard_normal((1, 1000)).astype(np.float32))
        assert d.ledger()["offset"] == 0
        c.ask("m/s", (1000 + rng.standard_normal((1, 1000))).astype(np.float32))
        assert d.ledger()["offset"] == 1


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def with_http(sections):
    port = stories.free_port()
    return port, {**sections, "http": {"enabled": "yes", "endpoint": f"127.0.0.1:{port}"}}


def test_gauges_of_the_gpu(run):
    port, sections = with_http(conf())
    d = run(sections)
    get(port, "/metrics")  # asks NVML for the first time
    values = {}
    end = time.monotonic() + 20
    while not values and time.monotonic() < end:
        time.sleep(1.1)
        text = get(port, "/metrics")[1]
        values = {k: float(v) for k, v in re.findall(r'^nctd_gpu_(\w+){engine="0"} (\S+)$', text, re.M)}
    assert set(values) == {"memory_used_bytes", "memory_bytes", "utilization_ratio"}, values
    assert 6 << 20 <= values["memory_used_bytes"] <= values["memory_bytes"], values
    assert values["memory_bytes"] > 1 << 30 and 0 <= values["utilization_ratio"] <= 1, values
    assert get(port, "/readyz") == (200, "ready\n")
    assert d.stop() == 0


def test_unaligned_weights(run):
    """Weights that begin at any byte of their file give the bits of the same weights in their place."""
    folder = os.path.join(os.path.dirname(E2E), "data")
    names = ["B0_good_f32"] + sorted(x[:-12] for x in os.listdir(folder) if re.match(r"B6_.*\.safetensors$", x))
    assert len(names) == 4
    models = {f"model m{i}": {"file": os.path.join(folder, f"{name}.safetensors"), "num_groups": 2} for i, name in enumerate(names)}
    d = run({"engine": {"engine": "cuda", "precision": "f32", "slot_bytes": "32M"}, **models})
    x = rng.standard_normal((2, 1000)).astype(np.float32)
    with d.client() as c:
        first = wire.array(c.ask("m0/s", x)).copy()
        assert first.shape == (4, 998) and np.isfinite(first).all()
        for i in range(1, len(names)):
            assert np.array_equal(wire.array(c.ask(f"m{i}/s", x)), first), names[i]
    assert d.stop() == 0


def test_the_gpu_is_full(run):
    import torch
    free, _ = torch.cuda.mem_get_info()
    block = torch.empty(free - (300 << 20), dtype=torch.uint8, device="cuda")
    d = run({"engine": {"engine": "cuda"}}, wait=False)
    try:
        assert d.wait() != 0
        assert re.search(r"GPU 0 has (no )?\d+ .*bytes", d.text()) and "memory" in d.text(), d.text()
    finally:
        del block
        torch.cuda.empty_cache()
    d = run({"engine": {"engine": "cuda"}})
    with d.client() as c:
        assert c.ask("default/a", np.ones((128, 64), np.float32)).h.status == 0
    assert d.stop() == 0


# ---- faults --------------------------------------------------------------------------------------------------------

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
def test_a_fault_at_start_is_an_exit(tmp_path):
    for k in (1, 3, 6, 10, 15, 25):
        folder = tmp_path / str(k)
        folder.mkdir()
        d = serve(folder, conf(gpu_wait_ms=0), fault=f"call={k},start", wait=False)
        end = time.monotonic() + 5
        while d.process.poll() is None and time.monotonic() < end and "ready " not in d.text():
            time.sleep(0.05)
        if d.process.poll() is None:
            assert "ready " in d.text(), d.text()  # a call that may fail: registering, or one behind the start
            d.stop()
        else:
            assert d.wait() != 0 and "error 719" in d.text(), d.text()
