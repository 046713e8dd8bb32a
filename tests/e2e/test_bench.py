"""nct bench against a running daemon: the schedule, what is counted, objectives, the search, and what it says when something is off."""
import json
import signal
import subprocess
import time

import pytest
import zmq

from conftest import SLOW, until
from nct_tools import B0, ENV, NCT, fails, nct, objects, ok

CALM = ["--lag", "100000"]  # a loaded machine delays the bench itself: not what these stories are about


@pytest.fixture
def daemon(start):
    return start({"model main": {"file": B0, "num_groups": 2}})


def bench(d, *args):
    return nct("bench", "--connect", d.ingest, *CALM, *args)


@pytest.mark.parametrize("poisson", [False, True])
def test_bench_counts(daemon, poisson):
    args = ["--rate", "400", "--seconds", "1.5", "--warmup", "0.5", "--streams", "8", "--clients", "3", "--steps", "10,480,100", "--json"]
    r = ok(bench(daemon, *args, *(["--poisson"] if poisson else [])))
    j = objects(r)[0]
    if not poisson:
        assert j["due"] == 600
    assert 400 < j["due"] < 800 and j["due"] == j["sent"] == j["ok"]
    assert j["refused"] == j["failed"] == j["not_sent"] == j["unanswered"] == 0
    assert j["ledger"]["received"] - j["ledger_before"]["received"] == j["sent"]
    assert j["ledger"]["ok"] - j["ledger_before"]["ok"] == j["ok"]
    h = j["latency"]
    assert 0 < h["p50_us"] <= h["p99_us"] <= h["p999_us"] <= h["max_us"] * 1.01
    assert h["n"] == j["from_real_send"]["n"] and h["n"] < j["ok"]
    text = ok(bench(daemon, "--seconds", "0.3", "--warmup", "0")).stdout.decode()
    for word in ("p99.9", "this program's own lag", "ledger after: received", "batches of", "constant"):
        assert word in text


def test_bench_does_not_hide_a_pause(daemon):
    """The daemon stops for a second: frames that were due meanwhile carry the wait, though they were sent late."""
    p = subprocess.Popen([NCT, "bench", "--connect", daemon.ingest, *CALM, "--rate", "500", "--seconds", "3", "--warmup", "0", "--json"],
                         stdout=subprocess.PIPE, env=ENV)
    time.sleep(1)
    daemon.signal(signal.SIGSTOP)
    time.sleep(1)
    daemon.signal(signal.SIGCONT)
    out, _ = p.communicate(timeout=60 * SLOW)
    j = json.loads(out)
    assert j["due"] == 1500 and j["ok"] + j["refused"] == 1500
    # A closed loop would have one slow answer; here about a third of all frames waited, half a second on average.
    assert j["latency"]["max_us"] > 0.9e6 and j["latency"]["p90_us"] > 0.3e6
    assert j["window_wait"]["n"] > 100


def test_a_subscriber_gets_what_the_sender_gets(daemon):
    j = objects(ok(bench(daemon, "-d", "1.5", "--warmup", "0.5", "-R", "300", "-s", "6", "-j", "2", "--threads", "2", "--no-reply",
                         "--subscribe", daemon.publish, "--json")))[0]
    assert j["due"] == j["ok"] == 450 and j["latency"]["n"] == j["subscriber"]["n"] == 300 and j["unheard"] == j["lost"] == 0
    assert 0 < j["subscriber"]["p50_us"] <= j["subscriber"]["p999_us"] <= j["subscriber"]["max_us"] * 1.01
    text = ok(bench(daemon, "-d", "0.5", "--warmup", "0.1", "--subscribe", daemon.publish)).stdout.decode()
    assert "scheduled send to subscriber" in text and "the subscriber got 40" in text
    fails(bench(daemon, "-d", "0.5", "--warmup", "0.1", "--subscribe", "ipc:///nonexistent/p"), 1, "the subscriber got nothing from",
          "publish.endpoint")


def sizes(d, s, *args):
    """Steps of the results (C_out = 4) in the order in which they were published."""
    j = objects(ok(bench(d, "-d", "0.6", "--warmup", "0", "-R", "500", *args, "--json")))[0]
    got = []
    while len(got) < j["ok"] and s.poll(5000 * SLOW):
        got.append(len(s.recv_multipart()[2]) // 16)
    assert len(got) == j["ok"] == j["due"]
    return got


@pytest.fixture
def subscriber(daemon):
    """A SUB socket whose subscription has arrived."""
    ctx = zmq.Context()
    s = ctx.socket(zmq.SUB)
    s.setsockopt(zmq.SUBSCRIBE, b"main/")
    s.connect(daemon.publish)
    assert until(lambda: ok(bench(daemon, "-d", "0.05", "--warmup", "0")) and s.poll(100))
    while s.poll(500):
        s.recv_multipart()
    yield s
    ctx.destroy(linger=0)


def test_a_mix_of_sizes_is_drawn_by_weight_and_seed(daemon, subscriber):
    mix = ["--mix", "10:80,100:15,480:5"]
    drawn = sizes(daemon, subscriber, *mix)
    n = [drawn.count(s - 2) for s in (10, 100, 480)]  # kernel 3, no padding
    assert sum(n) == 300 and 190 < n[0] < 280 and 15 < n[1] < 90 and 1 < n[2] < 45, n
    assert sizes(daemon, subscriber, *mix) == drawn
    assert sizes(daemon, subscriber, *mix, "--seed", "2") != drawn
    assert set(sizes(daemon, subscriber, *mix, "--poisson")) == {8, 98, 478}


def test_every_stream_in_real_time(daemon):
    j = objects(ok(bench(daemon, "--every", "50ms", "-s", "20", "-d", "1", "--warmup", "0.1", "--json")))[0]
    assert j["due"] == j["ok"] == 400 and j["rate"] == 400 and j["every_ms"] == 50 and j["clients"] == 1
    stream = objects(nct("sub", "-c", daemon.publish, "-k", "1", "--timeout", "0.1", "--json"))
    assert stream == []  # nothing is sent any more
    j = objects(ok(bench(daemon, "--every", "1s", "-s", "130", "-d", "1", "--warmup", "0.1", "--json")))[0]
    assert j["clients"] == 3 and j["due"] == j["ok"] == 130


def test_frames_without_an_answer_are_explained(daemon, start):
    """More than is served, and no patience: exit code 1, and why."""
    slow = start({"model slow": {"in_channels": 128, "out_channels": 128, "kernel_size": 31, "num_groups": 4}})
    r = fails(bench(slow, "-R", "300", "-d", "0.3", "--warmup", "0", "--drain", "0", "--steps", "8000", "--pending", "5", "--no-reply"), 1,
              "had no answer 0 s after the last one was due (--drain)", "A lower --rate", "were never sent", "--pending")
    assert b"unanswered" in r.stdout
    p = subprocess.Popen([NCT, "bench", "--connect", daemon.ingest, *CALM, "-R", "200", "-d", "2", "--warmup", "0.1", "--drain", "0.2",
                          "--timeout", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV)
    time.sleep(1)
    daemon.signal(signal.SIGSTOP)
    _, err = p.communicate(timeout=60 * SLOW)
    daemon.signal(signal.SIGCONT)
    assert p.returncode == 1 and b"and the daemon does not answer either" in err, (p.returncode, err)


def test_objectives(daemon):
    r = ok(bench(daemon, "-d", "0.5", "--warmup", "0.1", "--slo", "p99=1min,max=2min", "--json"))
    assert objects(r)[0]["slo_kept"] is True and objects(r)[0]["slo_ms"] == {"p99": 60000, "max": 120000}
    r = fails(bench(daemon, "-d", "0.5", "--warmup", "0.1", "--slo", "p50=1us", "--json"), 1, "--slo asks for 0.001 ms")
    assert objects(r)[0]["slo_kept"] is False


def test_its_own_lag_is_told(daemon):
    """The bench itself is stopped for most of its schedule: the figures are not the daemon's, and it says so."""
    p = subprocess.Popen([NCT, "bench", "--connect", daemon.ingest, "-R", "200", "-d", "2", "--warmup", "0", "--json"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV)
    time.sleep(0.7)
    p.send_signal(signal.SIGSTOP)
    time.sleep(1)
    p.send_signal(signal.SIGCONT)
    out, err = p.communicate(timeout=60 * SLOW)
    j = json.loads(out)
    assert p.returncode == 75 and b"this program was late itself" in err, (p.returncode, err)
    assert j["lagged"] is True and j["own_lag"]["max_us"] > 0.5e6 and j["due"] == j["ok"] == 400


def test_the_search(start):
    """A daemon that takes 12 streams at most: a patient objective holds up to there; an impossible one nowhere."""
    d = start({"model main": {"file": B0, "num_groups": 2}, "limits": {"max_streams": 12}})
    search = ["--find-knee", "--every", "20ms", "-s", "4", "-d", "0.4", "--warmup", "0.1"]
    r = ok(bench(d, *search, "--slo", "p99=1min", "--json"))
    j = objects(r)[0]
    assert j["bench"] == "nct-knee" and j["searched"] == "streams" and j["answer"] == 12 and j["at_the_limit"] is True
    assert [(s["level"], s["verdict"], s["sent"]) for s in j["tried"]] == [(4, "holds", 80), (8, "holds", 160), (12, "holds", 240)]
    assert j["ledger"]["ok"] == 480 and j["limited_by"] == "a limit"
    assert r.stderr.count(b"holds") == 3  # one line a step while it goes on
    text = ok(bench(d, *search, "--slo", "p99=1min")).stdout.decode()
    assert "at least 12 streams with a frame every 20 ms (600 frames/s) keep it" in text and "ledger after" in text, text
    r = fails(bench(d, *search, "--slo", "p50=1us"), 1, "once more")
    assert "no level keeps it; 1 streams do not" in r.stdout.decode()
    j = objects(fails(bench(d, "--find-knee", "-R", "4000", "-d", "0.3", "--warmup", "0.1", "--slo", "max=1us", "--json"), 1))[0]
    assert j["searched"] == "rate" and j["answer"] is None and {s["tries"] for s in j["tried"]} == {2}


@pytest.mark.parametrize("args,words", [
    (["--rate", "5", "--every", "10ms"], ["--rate and --every exclude"]),
    (["--every", "480"], ["--every is '480'", "unit"]),
    (["--steps", "5", "--mix", "5:1"], ["--steps and --mix exclude"]),
    (["--mix", "480"], ["STEPS:WEIGHT"]),
    (["--find-knee"], ["needs --slo"]),
    (["--within", "3"], ["--find-knee"]),
    (["--slo", "p99"], ["QUANTILE=TIME"]),
    (["--streams", "9999"], ["limits.max_streams", "4096"]),
    (["--streams", "600", "--clients", "2"], ["limits.max_streams_client", "256"]),
    (["--clients", "3"], ["3 clients need as many streams"]),
    (["--warmup", "10"], ["must be shorter"])])
def test_usage(daemon, args, words):
    fails(bench(daemon, *args), 2, *words)


def test_no_daemon():
    start = time.monotonic()
    fails(nct("bench", "--connect", "ipc:///nonexistent/x", "--timeout", "60"), 69, "/nonexistent/x does not exist", "is nctd running?")
    assert time.monotonic() - start < 30
