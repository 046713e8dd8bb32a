"""nct send, sub, info, ping against a running daemon."""
import json
import os
import signal
import subprocess
import threading
import time

import numpy as np
import pytest

from conftest import SLOW, until
from nct_tools import B0, ENV, NCT, ST, close, data, fails, load_model, nct, objects, ok, oracle, st


@pytest.fixture
def daemon(start):
    return start({"model main": {"file": B0, "num_groups": 2}})


def test_info(daemon):
    r = ok(nct("info", "--connect", daemon.ingest, "--json"))
    j = json.loads(r.stdout)
    model = j["models"]["main"] if isinstance(j["models"], dict) else j["models"][0]
    assert (model["in_channels"], model["out_channels"], model["kernel_size"], model["num_groups"]) == (2, 4, 3, 2)
    text = ok(nct("info", "--connect", daemon.ingest)).stdout.decode()
    for word in ("model main", "kernel_size        3", "num_groups         2", "max_frame_bytes", "ledger: received 0", "variant"):
        assert word in text, (word, text)
    for command in ("info", "ping"):  # an hour's patience is of no use where there is no socket
        r = fails(nct(command, "--connect", "ipc:///nonexistent/x.sock", "--timeout", "3600"), 69, "/nonexistent/x.sock does not exist",
                  "is nctd running?", "--connect ENDPOINT")
        assert r.stderr.count(b"x.sock") == 1, r.stderr
    r = fails(nct("info", "--connect", "tcp://127.0.0.1:9", "--timeout", "0.3"), 69, "is nctd running?", "--connect ENDPOINT")
    fails(nct("info", "--connect", "http://x"), 2)


def test_ping(daemon):
    r = ok(nct("ping", "--connect", daemon.ingest, "-k", "3", "-i", "0.01", "--json"))
    j = objects(r)[0]
    assert j["sent"] == j["answered"] == 3 and 0 < j["least_ms"] <= j["p50_ms"] * 1.01 <= j["most_ms"] * 1.02
    assert ok(nct("ping", "--connect", daemon.ingest, "-k", "2", "-i", "0.01")).stdout.count(b"ms") == 5
    daemon.signal(signal.SIGSTOP)
    try:
        for command in (["ping", "-k", "1"], ["info"], ["send", ST]):
            r = fails(nct(*command, "--connect", daemon.ingest, "--timeout", "0.3"), 69, "is nctd running?")
            assert r.stderr.count(daemon.ingest.encode()) == 1, r.stderr
    finally:
        daemon.signal(signal.SIGCONT)


def subscribe(daemon, *args):
    """nct sub, its lines gathered, once its subscription has surely arrived."""
    p = subprocess.Popen([NCT, "sub", "--connect", daemon.publish, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV)
    time.sleep(0.5 * SLOW)  # a subscription has no answer
    return p


def frames_of(frame, steps, stream, daemon, *args):
    return ok(nct("send", "--connect", daemon.ingest, "--stream", stream, "--frame", frame, ST, "--json", *args))


def expected_frames(n):
    """Each frame of n steps on its own, joined."""
    x = st()
    return np.concatenate([oracle(x[:, i:i + n], B0)[0] for i in range(0, 1000, n)], 1)


def test_send_and_sub(daemon):
    p = subscribe(daemon, "main/mic", "--json", "--count", 5)
    j = objects(frames_of("200", 200, "mic", daemon))[0]
    assert (j["sent"], j["ok"], j["refused"], j["steps"]) == (5, 5, 0, 1000)
    out, err = p.communicate(timeout=30 * SLOW)
    assert p.returncode == 0, err
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["seq"] for line in lines] == [1, 2, 3, 4, 5]
    assert all((line["model"], line["stream"], line["channels"], line["steps"], line["dtype"], line["missed"]) ==
               ("main", "mic", 4, 198, "f32", 0) for line in lines)
    assert all(line["t_answer_ns"] >= line["t_capture_ns"] > 0 for line in lines)


@pytest.mark.parametrize("topic", ["main/", "main/mic", "main/mic/", ""])
def test_sub_writes_samples(daemon, topic):
    p = subscribe(daemon, *([topic] if topic else []), "--raw", "--count", 4)
    frames_of("250", 250, "mic", daemon)
    out, err = p.communicate(timeout=30 * SLOW)
    assert p.returncode == 0, err
    np.testing.assert_allclose(np.frombuffer(out, "<f4").reshape(-1, 4).T, expected_frames(250), atol=3e-5)


def test_sub_shows_gaps_and_other_streams_stay_out(daemon):
    p = subscribe(daemon, "main/mic", "--timeout", 1 * SLOW)
    with daemon.client() as c:
        x = np.zeros((2, 10), np.float32)
        for seq, stream in ((1, "mic"), (2, "mic"), (1, "mic2"), (6, "mic")):
            assert c.ask(f"main/{stream}", x, seq=seq).h.status == 0
    out, err = p.communicate(timeout=30 * SLOW)
    assert p.returncode == 0, err
    text = out.decode()
    assert "main/mic: 3 results are missing here" in text and "mic2" not in text and text.count("(4, 8) f32") == 3


def test_sub_says_that_nothing_came(daemon):
    """Nobody publishes there, or nobody sends: a timeout is no failure, but it is not silent."""
    r = ok(nct("sub", "--connect", "ipc:///nonexistent/x.sock", "--timeout", "0.3"))
    assert b"no result within 0.3 s" in r.stderr and b"is nctd running" in r.stderr and not r.stdout
    assert b"no result within 0.3 s" in ok(nct("sub", "--connect", daemon.publish, "main/none", "--timeout", "0.3")).stderr
    p = subscribe(daemon, "main/mic", "--timeout", 2 * SLOW)
    frames_of("250", 250, "mic", daemon)
    out, err = p.communicate(timeout=30 * SLOW)
    assert p.returncode == 0 and out.count(b"\n") == 4 and not err, err


def test_sub_ends_on_signals_and_closed_pipes(daemon):
    p = subscribe(daemon, "--raw")
    p.send_signal(signal.SIGINT)
    assert p.wait(20 * SLOW) == 0
    p = subscribe(daemon, "--raw")
    p.stdout.close()
    frames_of("250", 250, "mic", daemon)
    assert p.wait(20 * SLOW) == 0
    fails(nct("sub", "no slash", "--connect", daemon.publish), 2)


def test_send_paces_pipes_and_names_refusals(daemon):
    x = (st() * 32768).astype("<i2").T.tobytes()
    begin = time.monotonic()
    r = ok(nct("send", "--connect", daemon.ingest, "--raw", "i16", "--rate", "2000", "--channels", "2", "--pace", "-f", "50ms", "-",
               "--json", input=x))
    assert time.monotonic() - begin >= 0.4  # half a second of sound, its last frame is due after 0.45 s
    assert objects(r)[0]["sent"] == 10
    fails(nct("send", "--connect", daemon.ingest, data("A11_mono.wav")), 1, "file has 1 channel, model layer wants 2; convert it (ffmpeg")
    fails(nct("send", "--connect", daemon.ingest, "--frame", "2", ST), 1, "K = 3")
    fails(nct("send", "--connect", daemon.ingest, "--frame", "1h", ST), 2, "--frame")


def test_send_takes_any_frame_length_of_a_pipe(daemon):
    with open(data("A1_ffmpeg_pipe_ffffffff.wav"), "rb") as f:
        r = ok(nct("send", "--connect", daemon.ingest, "-f", "300", "-", "--json", input=f.read()))
    assert objects(r)[0]["steps"] == 1000 and objects(r)[0]["sent"] == 4
