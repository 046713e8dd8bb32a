"""The daemon on a GPU: what it says of itself, and what it does with what it cannot do."""
import os
import re
import subprocess
import time

import numpy as np
import pytest

from daemon import E2E, INPUTS, conf, get, rng, run, stories, wire, with_http  # noqa: F401


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


@pytest.mark.parametrize("visible", [None, "0"])
def test_visible_gpus(visible):
    env = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    for engine in ("cuda", "auto"):
        r = subprocess.run([stories.NCTD, "--check", f"engine.engine={engine}"], capture_output=True, text=True, timeout=60,
                           env=env if visible is None else {**env, "CUDA_VISIBLE_DEVICES": visible})
        assert r.returncode == 0 and int(re.search(r"^  device +(\d+)", r.stdout, re.M)[1]) > 0, r.stderr
        assert "on the CPU" not in r.stderr, r.stderr


@pytest.mark.parametrize("engine", ["cpu", "cuda"])
def test_cpu_never_touches_the_driver(run, engine):
    d = run(conf(engine))
    with d.client() as c:
        assert c.ask("m/s", INPUTS[0]).h.status == 0 and c.welcome["backend"] == engine
    with open(f"/proc/{d.process.pid}/maps") as maps:
        assert ("libcuda.so" in maps.read()) == (engine == "cuda")
    assert d.stop() == 0


def test_offset_frames_are_counted(run):
    d = run({"engine": {"engine": "cuda", "precision": "auto", "slot_bytes": "32M"},
             "model m": {"in_channels": 1, "out_channels": 1, "kernel_size": 1, "num_groups": 1}})
    with d.client() as c:
        c.ask("m/s", rng.standard_normal((1, 1000)).astype(np.float32))
        assert d.ledger()["offset"] == 0
        c.ask("m/s", (1000 + rng.standard_normal((1, 1000))).astype(np.float32))
        assert d.ledger()["offset"] == 1
    said = subprocess.run([stories.NCT, "info", "-c", d.ingest], capture_output=True, text=True, check=True).stdout
    assert "beyond what tf32 resolves to 1 %: set engine.precision = f32" in said, said


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


NVML = """
#include <unistd.h>
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **ret) { return *ret = (void *)pci, 0; }
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *ret) { %s }
int nvmlDeviceGetUtilizationRates(void *device, unsigned *ret) { return 999; }
const char *nvmlErrorString(int error) { return "broken"; }
"""


@pytest.mark.parametrize("answer", ["return 999;", "for (;;) pause();"])
def test_a_driver_that_does_not_answer(run, tmp_path, answer):
    """NVML as it is when the driver fails or hangs: no gauges, and nothing waits for them."""
    (tmp_path / "nvml.c").write_text(NVML % answer)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "libnvidia-ml.so.1", tmp_path / "nvml.c"], check=True)
    port, sections = with_http(conf())
    d = run(sections, env={"LD_LIBRARY_PATH": f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}"})
    with d.client() as c:
        for _ in range(4):
            begin = time.monotonic()
            text = get(port, "/metrics")[1]
            assert time.monotonic() - begin < 1
            assert "# TYPE nctd_gpu_memory_used_bytes gauge" in text and "nctd_gpu_memory_used_bytes{" not in text
            assert c.ask("m/s", INPUTS[0]).h.status == 0
            time.sleep(0.6)
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


def test_frames_that_grow(run):
    """What does not fit is refused with the numbers; what fits is answered before and after it, and memory stays."""
    import torch
    d = run(conf())
    with d.client() as c:
        small = wire.array(c.ask("m/s", INPUTS[0])).copy()
        before = torch.cuda.mem_get_info()[0]
        for i in range(1000):
            m = c.ask("m/s", np.zeros((4, 20000 + i), np.float32))  # 320 KB and more where 256K are allowed
            assert m.h.status == -wire.EMSGSIZE and "262144" in m.payload.decode(), m.payload
            assert i % 250 or c.ask("m/s", INPUTS[1]).h.status == 0  # 1000 refusals in a row would cut the client
        for steps in (1, 100, 8192, 1, 3000):
            assert c.ask("m/s", np.ones((4, steps), np.float32)).h.status == 0
        assert np.array_equal(wire.array(c.ask("m/s", INPUTS[0])), small)
        assert d.ledger()["refused"] == 1000
        assert before - torch.cuda.mem_get_info()[0] < 64 << 20
    assert d.stop() == 0


def test_a_reload_on_a_full_gpu(run):
    """Refused with the numbers, and the old model serves on; when there is room it is taken."""
    import torch
    sections = conf()
    d = run(sections)
    with d.client() as c:
        before = wire.array(c.ask("m/s", INPUTS[0])).copy()
        d.sections["model large"] = {"in_channels": 1024, "out_channels": 1024, "kernel_size": 8, "num_groups": 2}  # 32 MiB
        d.write_conf()
        free, _ = torch.cuda.mem_get_info()
        block = torch.empty(free - (20 << 20), dtype=torch.uint8, device="cuda")
        try:
            room = torch.cuda.mem_get_info()[0]
            for n in range(1, 21):
                d.signal(1)
                assert stories.until(lambda: d.text().count("reload refused") == n, 60), d.text()
                assert np.array_equal(wire.array(c.ask("m/s", INPUTS[0])), before)
            assert torch.cuda.mem_get_info()[0] == room, "memory of a refused model stays taken"
            assert "memory" in [x for x in d.log if "reload refused" in x][-1], d.text()
        finally:
            del block
            torch.cuda.empty_cache()
        d.signal(1)
        assert stories.until(lambda: "reload applied" in d.text(), 60), d.text()
        assert np.array_equal(wire.array(c.ask("m/s", INPUTS[0])), before)
        assert c.ask("large/s", np.ones((1024, 16), np.float32)).h.status == 0
    assert d.stop() == 0
