"""The daemon dies and comes back: a client of libnct goes on by itself, and each answer is handed out once."""
import os
import signal
import subprocess
import time

import numpy as np
import pytest

import stfile
from conftest import BUILD, NCT, ROOT, SANITIZE, SLOW, until

SANITIZER = [f"-fsanitize={SANITIZE}"] if SANITIZE else []


@pytest.fixture(scope="session")
def asker(tmp_path_factory):
    """asker.c, built with the public header and the shared library alone."""
    path = tmp_path_factory.mktemp("asker") / "asker"
    subprocess.run(["cc", "-std=gnu11", "-Wall", "-Werror", *SANITIZER, f"-I{ROOT}/client", f"{ROOT}/tests/e2e/asker.c", f"-L{BUILD}",
                    "-lnct", f"-Wl,-rpath,{os.path.abspath(BUILD)}", "-o", path], check=True)
    return path


class Asker:
    def __init__(self, program, endpoint, timeout_ms=60000):
        self.process = subprocess.Popen([program, endpoint, str(timeout_ms * SLOW)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)

    def say(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def line(self):
        return self.process.stdout.readline().strip()

    def ask(self, text):
        self.say(text)
        return self.line()

    def end(self):
        _, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0 and "Sanitizer" not in err, err


@pytest.fixture
def daemon(start, tmp_path):
    rng = np.random.default_rng(10)
    path = tmp_path / "m.safetensors"
    stfile.write(path, {"conv.weight": rng.standard_normal((4, 2, 1)).astype(np.float32)}, {"num_groups": 1, "affine": "False"})

    def run(tcp=False, **sections):
        return start({"model m": {"file": path}, **sections}, tcp=tcp)

    return run


def die(d):
    d.process.kill()
    d.wait()


@pytest.mark.sanitize
@pytest.mark.parametrize("tcp", [False, True], ids=["ipc", "tcp"])
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_a_flood_goes_on_through_restarts_and_each_answer_comes_once(daemon, asker, tcp, how):
    n = 24000  # the asker is up to a pipe of lines ahead of what is read here
    d = daemon(tcp=tcp)
    a = Asker(asker, d.ingest)
    assert a.line().startswith("open ")
    a.say(f"flood {n}")
    seen, lives = {}, 0
    while len(seen) < n:
        line = a.line()
        assert line and not line.startswith(("error", "flood")), (line, len(seen))
        tag, status, steps = map(int, line.split())
        assert tag not in seen, f"frame {tag} was answered twice"
        assert status == 0 and steps == 3 + tag % 97, line
        seen[tag] = steps
        if len(seen) in (500, 8500, 16500):
            die(d) if how == "SIGKILL" else d.stop()
            d.start()
            lives += 1
    assert a.line() == f"flood {n} {n}" and set(seen) == set(range(n))
    reconnects, in_flight = map(int, a.ask("state").split())
    assert lives == 3 and reconnects >= 3 and in_flight == 0
    a.end()


@pytest.mark.sanitize
def test_between_two_requests_and_between_request_and_answer(daemon, asker):
    """d8."""
    d = daemon()
    a = Asker(asker, d.ingest)
    assert a.line().startswith("open ")
    assert a.ask("call 10 20000") == "0 10"
    die(d)
    assert a.ask("call 11 500") == "error ETIMEDOUT"  # the pending call ends,
    d.start()
    assert a.ask(f"call 12 {20000 * SLOW}") == "0 12"  # the next one succeeds with nothing done about it
    d.signal(signal.SIGSTOP)
    assert a.ask("send 13 7") == "sent"
    assert a.ask("recv 200") == "error ETIMEDOUT"
    die(d)
    d.start()
    assert a.ask(f"recv {20000 * SLOW}") == "7 0 13"
    assert a.ask("recv 300") == "error ENOENT"  # once
    a.end()


@pytest.mark.sanitize
def test_a_late_answer_is_not_taken_for_the_next_one(daemon, asker):
    d = daemon()
    a = Asker(asker, d.ingest)
    assert a.line().startswith("open ")
    for steps in range(20, 25):
        d.signal(signal.SIGSTOP)
        assert a.ask(f"call {steps} 300") == "error ETIMEDOUT"
        d.signal(signal.SIGCONT)
        assert a.ask(f"call {steps + 10} {20000 * SLOW}") == f"0 {steps + 10}"
    assert a.ask("recv 300") in ("error ENOENT", "error ETIMEDOUT")  # none of the old ones
    assert until(lambda: a.ask("state").split()[1] == "0" or not a.ask("recv 50"))
    a.end()


@pytest.mark.sanitize
def test_a_silent_daemon_is_left_and_found_again(daemon, asker):
    """Frozen for longer than two pings: a new session when it lives again, the frame is not lost."""
    d = daemon()
    a = Asker(asker, d.ingest)
    assert a.line().startswith("open ")
    d.signal(signal.SIGSTOP)
    assert a.ask("send 30 1") == "sent"
    assert a.ask("recv 2500") == "error ETIMEDOUT"
    d.signal(signal.SIGCONT)
    assert a.ask(f"recv {30000 * SLOW}") == "1 0 30"
    assert a.ask("recv 300") == "error ENOENT"
    a.end()


@pytest.mark.sanitize
def test_asked_before_the_daemon_is_up(daemon, asker):
    d = daemon()
    d.stop()
    assert Asker(asker, d.ingest, 300).line().startswith("error ETIMEDOUT")
    a = Asker(asker, d.ingest)
    time.sleep(0.5)
    d.start()
    assert a.line().startswith("open ")
    assert a.ask(f"call 5 {20000 * SLOW}") == "0 5"
    a.end()


@pytest.mark.sanitize
def test_a_cut_client_comes_back_by_itself(daemon, asker):
    """Stopped with answers it does not take, cut after stall_ms, continued: the same answers as ever, each once."""
    d = daemon(daemon={"stall_ms": 500})
    a = Asker(asker, d.ingest)
    assert a.line().startswith("open ")
    a.say("flood 20000")
    seen = [int(a.line().split()[0]) for _ in range(100)]
    a.process.send_signal(signal.SIGSTOP)
    time.sleep(2)
    a.process.send_signal(signal.SIGCONT)
    while len(seen) < 20000:
        tag, status, steps = map(int, a.line().split())
        assert status == 0 and steps == 3 + tag % 97
        seen.append(tag)
    assert sorted(seen) == list(range(20000))
    assert a.line() == "flood 20000 20000"
    a.end()


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_nct_run_of_many_pieces_is_the_same_with_a_daemon_that_dies(daemon, tmp_path, how):
    d = daemon(limits={"max_frame_bytes": "64K"})
    x = np.random.default_rng(3).standard_normal(2 * 5_000_000).astype("<f4")
    raw = tmp_path / "x.raw"
    raw.write_bytes(x.tobytes())
    command = [NCT, "run", "--connect", d.ingest, "--raw", "f32", "--rate", "48000", "--channels", "2", str(raw), "-o"]
    subprocess.run([*command, str(tmp_path / "quiet.npy")], check=True, capture_output=True, timeout=120 * SLOW)
    p = subprocess.Popen([*command, str(tmp_path / "troubled.npy")], stderr=subprocess.PIPE)
    before = d.ledger()["ok"]
    assert until(lambda: d.ledger()["ok"] > before + 20 or p.poll() is not None)
    assert p.poll() is None, "it was over before anything could happen"
    die(d) if how == "SIGKILL" else d.stop()
    d.start()
    _, err = p.communicate(timeout=120 * SLOW)
    assert p.returncode == 0, err
    assert d.ledger()["ok"] > 0, "the second daemon saw nothing of it"
    assert (tmp_path / "quiet.npy").read_bytes() == (tmp_path / "troubled.npy").read_bytes()
