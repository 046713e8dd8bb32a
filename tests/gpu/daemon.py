"""What the stories of a daemon on a GPU share: its configuration, its start. NCTD is a daemon with CUDA; NCTD_FAULTS one
that was built with FAULTS=1 (daemon/gpu_fault.h)."""
import importlib.util
import os
import subprocess
import sys
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
            self.client(timeout_s=30).close()

    wrapped.start = start
    return wrapped(folder, sections, wait=wait, env=env, **options)


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def with_http(sections):
    port = stories.free_port()
    return port, {**sections, "http": {"enabled": "yes", "endpoint": f"127.0.0.1:{port}"}}
