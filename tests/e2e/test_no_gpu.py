"""What engine.engine means where there is no GPU: `cuda` ends with the reason, `auto` computes on the CPU and says so,
`cpu` never asks. Also in builds without CUDA."""
import os
import subprocess

import numpy as np
import pytest

from conftest import NCTD, SLOW, until


def gpu_here():
    return os.path.exists("/dev/nvidiactl")


pytestmark = pytest.mark.skipif(gpu_here(), reason="there is a GPU; tests/gpu/test_daemon.py has its stories")
NO_CUDA = "this nctd was built without a CUDA engine"
VISIBLE = [None, "", "-1", "0", "7", "GPU-wrong"]


def check(engine, visible=None, *more):
    env = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    if visible is not None:
        env["CUDA_VISIBLE_DEVICES"] = visible
    return subprocess.run([NCTD, "--check", f"engine.engine={engine}", "engine.gpu_wait_ms=0", *more], env=env,
                          capture_output=True, text=True, timeout=60 * SLOW)


@pytest.mark.parametrize("visible", VISIBLE)
def test_cuda_ends_with_the_reason(visible):
    r = check("cuda", visible)
    assert r.returncode == 78, r.stderr
    assert "engine.engine = cuda: " in r.stderr
    if NO_CUDA in r.stderr:
        return
    assert "no usable GPU: error " in r.stderr
    if visible is not None:
        assert f'CUDA_VISIBLE_DEVICES = "{visible}"' in r.stderr


@pytest.mark.parametrize("visible", VISIBLE)
def test_auto_computes_on_the_cpu_and_says_so(visible):
    r = check("auto", visible)
    assert r.returncode == 0, r.stderr
    assert "engine.engine = auto: computing on the CPU (" in r.stderr
    assert NO_CUDA in r.stderr or "no usable GPU: error " in r.stderr


def test_cpu_says_nothing_of_gpus():
    r = check("cpu")
    assert r.returncode == 0 and r.stderr == ""


def test_a_bounded_wait_for_the_driver():
    r = check("cuda", None, "engine.gpu_wait_ms=1000")
    assert r.returncode == 78
    assert NO_CUDA in r.stderr or "waiting up to 1000 ms for a GPU" in r.stderr


def test_precision_that_only_a_gpu_has():
    r = check("auto", None, "engine.precision=tf32")
    assert r.returncode == 78 and "the CPU engine computes in f32 alone" in r.stderr


def test_auto_serves(start):
    d = start({"engine": {"engine": "auto", "gpu_wait_ms": 0}})
    with d.client() as c:
        assert (c.welcome["backend"], c.welcome["precision"]) == ("cpu", "f32")
        assert c.welcome["plan"]
        assert c.welcome["engine_memory"] == {"pinned_bytes": 0, "unpinned_bytes": 0, "device_bytes": 0, "fallback": 0}
        assert c.ask("default/a", np.ones((128, 64), np.float32)).h.status == 0
    assert until(lambda: "engine.engine = auto: computing on the CPU (" in d.text())


def test_cuda_does_not_serve(start):
    d = start({"engine": {"engine": "cuda", "gpu_wait_ms": 0}}, wait=False)
    assert d.wait() == 78
    assert "engine.engine = cuda: " in d.text() and "ready" not in d.text()


def breaks_on_demand():
    with open(NCTD, "rb") as f:
        return b"NCTD_GPU_FAULT" in f.read()


@pytest.mark.skipif(not breaks_on_demand(), reason="not a build with FAULTS=1")
@pytest.mark.parametrize("folder", ["set", None])
def test_an_mps_server_that_does_not_answer_is_named_and_not_asked_again(tmp_path, folder):
    """e7: error 805 is a GPU that is not there, by the folder and the user who may not pass."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_")} | {"NCTD_GPU_FAULT": "from=1,code=805,start"}
    if folder:
        env["CUDA_MPS_PIPE_DIRECTORY"] = str(tmp_path)
    said = f'CUDA_MPS_PIPE_DIRECTORY = "{tmp_path if folder else "(its default)"}" does not answer user id {os.getuid()}'
    for engine, code in (("cuda", 78), ("auto", 0)):
        r = subprocess.run([NCTD, "--check", f"engine.engine={engine}", "engine.gpu_wait_ms=600000"], env=env, capture_output=True,
                           text=True, timeout=60 * SLOW)  # had it waited for such a GPU, this would not do
        assert r.returncode == code and "error 805" in r.stderr and said in r.stderr, r.stderr
        assert "waiting up to" not in r.stderr
