"""The HTTP end: what it answers and refuses, and that nobody there can hold up the frames."""
import base64
import os
import shutil
import signal
import socket
import subprocess
import threading
import time

import numpy as np
import pytest

import prom
from conftest import SANITIZE, SLOW, until
from http_tools import HTTP, Events, Reader, ask, connect, get, port_of, status

TEXT = "text/plain; version=0.0.4; charset=utf-8"


def scrape(d):
    code, headers, body = get(d, "/metrics")
    assert code == 200 and headers["Content-Type"] == TEXT and int(headers["Content-Length"]) == len(body)
    return prom.parse(body)


def assert_ledger(m):
    """The ledger's identities, inside one page."""
    of = lambda name, **labels: m[name].value(**labels)  # noqa: E731
    outcomes = ("ok", "failed", "refused", "expired", "orphaned")
    assert of("nctd_frames_received_total") == sum(of("nctd_frames_total", outcome=o) for o in outcomes) + of("nctd_frames_in_flight")
    assert of("nctd_handed_total") == of("nctd_let_go_total") + of("nctd_cut_total") + of("nctd_answers_held")
    assert of("nctd_frames_total", outcome="refused") == sum(m["nctd_frames_refused_total"].samples.values())
    models = {dict(labels)["model"] for _, labels in m["nctd_model_info"].samples}
    for name in models:
        assert of("nctd_model_frames_received_total", model=name) == of("nctd_model_frames_in_flight", model=name) + sum(
            of("nctd_model_frames_total", model=name, outcome=o) for o in outcomes), name
    assert of("nctd_batches_total") == sum(of(f"nctd_batch_{c}_total") for c in ("full", "deadline", "idle", "flush"))
    assert m["nctd_batch_size_frames"].value("_count") == of("nctd_batches_total")
    assert m["nctd_batch_size_frames"].value("_sum") == of("nctd_batch_frames_total")
    for stage in ("queue", "copy", "compute"):
        assert m[f"nctd_{stage}_seconds"].value("_count") == of("nctd_batch_frames_total"), stage
    assert m["nctd_publish_seconds"].value("_count") == of("nctd_frames_total", outcome="ok")


class Load:
    """Frames from some clients until stopped."""

    def __init__(self, d, names, shape, clients=3):
        self.d, self.names, self.shape, self.over, self.failures, self.n = d, names, shape, threading.Event(), [], 0
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(clients)]
        [t.start() for t in self.threads]

    def run(self, i):
        try:
            rng = np.random.default_rng(i)
            with self.d.client(timeout_s=60) as c:
                k = 0
                while not self.over.is_set():
                    batch = [c.frame(f"{self.names[(k + j) % len(self.names)]}/load{i}", rng.standard_normal(self.shape).astype(np.float32), seq=k + j + 1) for j in range(8)]
                    for _ in batch:
                        assert c.recv().h.status == 0
                    k += 8
                    self.n += 8
                    time.sleep(0.002)
        except Exception as e:
            self.failures.append(e)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.over.set()
        [t.join() for t in self.threads]
        assert not self.failures, self.failures[0]
        assert self.n, "no load"


def models(small_model, n):
    return {f"model m{i}": {"file": small_model} for i in range(n)}


# ---- what is answered ---------------------------------------------------------------------------------------------


@pytest.mark.sanitize
@pytest.mark.parametrize("path", ["/metrics", "/metrics?x=1", "/metrics?x=%00&&=&"])
def test_metrics_by_every_kind_of_request(start, small_model, path):
    d = start({**HTTP, **models(small_model, 1)})
    line = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n".encode()
    for accept in (b"", b"Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5\r\n", b"Accept: text/html\r\n"):
        with connect(d) as s:
            s.sendall(line + accept + b"\r\n")
            code, headers, body = Reader(s).answer()
            assert (code, headers["content-type"]) == (200, TEXT)
            prom.parse(body)
    old = ask(d, f"GET {path} HTTP/1.0\r\n\r\n".encode())
    top, body = old.split(b"\r\n\r\n", 1)
    assert top.startswith(b"HTTP/1.1 200") and f"Content-Type: {TEXT}".encode() in top
    prom.parse(body)
    with connect(d) as s:  # one connection, one request after the other, then two at once, then octet by octet
        r = Reader(s)
        for _ in range(5):
            s.sendall(line + b"\r\n")
            prom.parse(r.answer()[2])
        s.sendall(2 * (line + b"\r\n"))
        prom.parse(r.answer()[2])
        prom.parse(r.answer()[2])
        for octet in line + b"\r\n":
            s.sendall(bytes([octet]))
        prom.parse(r.answer()[2])
        s.sendall(line.replace(b"GET", b"HEAD") + b"\r\n")
        code, headers, _ = r.answer(head=True)
        assert code == 200 and int(headers["content-length"]) > 1000 and headers["content-type"] == TEXT
        s.sendall(line + b"\r\n")  # nothing of a body was in the way
        prom.parse(r.answer()[2])


@pytest.mark.sanitize
def test_what_is_refused(start, small_model):
    d = start({**HTTP, **models(small_model, 1)})
    close = b"Connection: close\r\n"
    host = close + b"Host: localhost\r\n"
    assert ask(d, b"GET /nothing HTTP/1.1\r\n" + host + b"\r\n").startswith(b"HTTP/1.1 404 ")
    assert ask(d, b"GET /metrics/ HTTP/1.1\r\n" + host + b"\r\n").startswith(b"HTTP/1.1 404 ")
    for method in (b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE", b"get", b"BREW"):
        answer = ask(d, method + b" /metrics HTTP/1.1\r\n" + host + b"Content-Length: 3\r\n\r\nx=1")
        assert answer.startswith(b"HTTP/1.1 405 ") and b"\r\nAllow: GET, HEAD\r\n" in answer, (method, answer[:200])
    assert ask(d, b"POST /metrics HTTP/1.1\r\n" + host + b"Content-Length: 99999999999\r\n\r\n" + b"x" * 3000000).startswith(b"HTTP/1.1 405 ")
    assert ask(d, b"GET /metrics HTTP/1.1\r\n" + close + b"\r\n").startswith(b"HTTP/1.1 400 ")
    assert ask(d, b"GET /metrics HTTP/1.1\r\n" + host + b"Host: localhost\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert ask(d, b"GET /events?stream=no%20name HTTP/1.1\r\n" + host + b"\r\n").startswith(b"HTTP/1.1 400 ")
    for evil in (b"evil.example", b"localhost.evil.example", b"127.0.0.1.evil.example:7772", b"", b"localhost evil"):
        answer = ask(d, b"GET / HTTP/1.1\r\n" + close + b"Host: " + evil + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 421 ") and b"<html" not in answer, (evil, answer[:100])
    for garbage in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9, b"GARBAGE\r\n\r\n", b"\r\n" * 50, bytes(5000), b"GET\r\n\r\n"):
        assert not ask(d, garbage, seconds=0.5).startswith(b"HTTP/1.1 200"), garbage[:20]
    for size in (40000, 8 << 20):
        answer = ask(d, b"GET /metrics HTTP/1.1\r\n" + host + b"X-Long: " + b"a" * size + b"\r\n\r\n")
        assert not answer or answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 413 ")), answer[:100]
    assert ask(d, b"GET /" + b"a" * (8 << 20) + b" HTTP/1.1\r\n" + host + b"\r\n")[:12] in (b"", b"HTTP/1.1 414", b"HTTP/1.1 431")
    scrape(d)
    assert d.rss_kb() < 600000 * SLOW


@pytest.mark.sanitize
def test_other_names_by_configuration_and_no_bind_beyond_loopback(start, tmp_path, small_model):
    d = start({"http": {**HTTP["http"], "hosts": "rack4.example  nctd"}, **models(small_model, 1)})
    for name in ("rack4.example", "RACK4.example:9000", "nctd", "127.0.0.1", "[::1]:7"):
        assert get(d, "/healthz", Host=name)[0] == 200, name
    assert get(d, "/healthz", Host="rack5.example")[0] == 421
    again = start({"http": {"enabled": "yes", "endpoint": f"127.0.0.1:{port_of(d)}"}}, wait=False)
    assert again.wait() == 1 and "in use" in again.text() and "http.endpoint" in again.text()
    wide = start({"http": {"enabled": "yes", "endpoint": "0.0.0.0:0"}}, wait=False)
    assert wide.wait() == 1 and "http.insecure" in wide.text()
    off = start(models(small_model, 1))
    assert "http bound" not in off.text()


def test_readyz_says_why_not(start):
    """While models load, when they are there, and while it stops with an answer that a client does not take."""
    large = {"in_channels": 512, "out_channels": 512, "kernel_size": 9, "num_groups": 8, "padding": 4}
    d = start({**HTTP, **{f"model m{i}": large for i in range(8)}, "daemon": {"drain_ms": 20000}}, wait=False)
    code, _, body = get(d, "/readyz")
    assert (code, body) == (503, b"the models are being loaded\n")
    assert get(d, "/healthz")[0] == 200
    assert scrape(d)["nctd_ready"].value() == 0
    assert not status(d)["ready"] and "being loaded" in status(d)["reason"]
    assert until(lambda: get(d, "/readyz")[0] == 200, 60)
    assert get(d, "/readyz")[2] == b"ready\n"
    assert scrape(d)["nctd_ready"].value() == 1 and status(d)["ready"]
    with d.client(rcvhwm=1) as c:
        for seq in range(1, 61):  # 2 MiB each: more than sockets hold
            c.frame("m0/s", np.ones((512, 1024), np.float32), seq=seq)
        assert until(lambda: scrape(d)["nctd_answers_held"].value() > 4, 60)
        d.signal(signal.SIGTERM)
        assert until(lambda: get(d, "/readyz")[2] == b"stopping\n")
        assert get(d, "/readyz")[0] == 503 and get(d, "/healthz")[0] == 200
    assert d.wait() == 0


# ---- metrics ------------------------------------------------------------------------------------------------------


@pytest.mark.sanitize
def test_a_thousand_scrapes_under_load(start, small_model, record_property):
    """Every page parses, its ledger adds up, its histograms are whole, and no counter ever goes down."""
    n = 150 if SANITIZE else 1000
    d = start({**HTTP, **models(small_model, 64), "batch": {"max_delay_us": 300}, "limits": {"window": 64}})
    with Load(d, [f"m{i}" for i in range(64)], (2, 120)), connect(d) as s:
        reader, before = Reader(s), {}
        for k in range(n):
            s.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            code, headers, body = reader.answer()
            assert code == 200
            m = prom.parse(body)
            assert_ledger(m)
            now = prom.counters(m)
            assert before.keys() <= now.keys(), before.keys() - now.keys()
            for key, value in before.items():
                assert now[key] >= value, (k, key, value, now[key])
            before = now
    moved = scrape(d)
    assert moved["nctd_frames_total"].value(outcome="ok") > 0
    assert all(moved["nctd_model_frames_total"].value(model=f"m{i}", outcome="ok") > 0 for i in range(64))
    for stage in ("queue", "copy", "compute", "publish"):
        assert moved[f"nctd_{stage}_seconds"].value("_sum") > 0, stage
    last = moved["nctd_last_result_timestamp_seconds"].value()
    assert abs(last - time.time()) < 120 * SLOW
    if shutil.which("promtool"):
        done = subprocess.run(["promtool", "check", "metrics"], input=get(d, "/metrics")[2], capture_output=True)
        assert done.returncode == 0 and not done.stderr, done.stderr.decode()
    with connect(d) as s:
        reader, used = Reader(s), []
        for _ in range(n):
            s.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            body = reader.answer()[2]
            used.append(prom.parse(body)["process_cpu_seconds_total"].value() if len(used) in (0, n - 1) else 0)
    record_property("scrape_cpu_us", 1e6 * (used[-1] - used[0]) / (n - 1))
    print(f"CPU time of a scrape with 64 models, {len(body)} octets: {1e6 * (used[-1] - used[0]) / (n - 1):.0f} us")


@pytest.mark.sanitize
def test_what_clients_say_makes_no_series(start, small_model):
    """Ten thousand stream names and odd client names later, the page has the series it began with."""
    d = start({**HTTP, **models(small_model, 2), "limits": {"max_streams_client": 4000, "max_streams": 4000}})
    series = {key for f in scrape(d).values() for key in f.samples}
    x = np.zeros((2, 8), np.float32)
    for name in ('a"b', "C:\\", "new\nline", "", "\u202e"):
        with d.client(hello=False) as c:
            c.hello(client=name)
            for i in range(60 if SANITIZE else 600):
                assert c.ask(f"m0/s-{len(name)}-{i}", x).h.status == 0
            assert scrape(d)["nctd_streams_open"].value() >= i
    assert {key for f in scrape(d).values() for key in f.samples} == series


def test_every_number_has_a_dot_in_any_locale(start, tmp_path, small_model):
    """de_DE and tr_TR, and a library that calls setlocale() behind the daemon's back."""
    if not shutil.which("localedef") or not os.path.exists("/usr/share/i18n/locales/de_DE"):
        pytest.skip("no locale sources (Debian: locales)")
    source = tmp_path / "set.c"
    source.write_text('#include <locale.h>\n#include <stdio.h>\n'
                      '__attribute__((constructor)) static void set(void) { if (!setlocale(LC_ALL, "")) perror("setlocale"); }\n')
    library = tmp_path / "set.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    for locale in ("de_DE", "tr_TR"):
        subprocess.run(["localedef", "-i", locale, "-f", "UTF-8", tmp_path / f"{locale}.UTF-8"], check=True)
        env = {"LC_ALL": f"{locale}.UTF-8", "LOCPATH": str(tmp_path)}
        # The locale is in force: printf in a process with this library writes a comma.
        shown = subprocess.run(["/usr/bin/printf", "%.1f", "0,5"], env=env, capture_output=True, text=True).stdout
        assert shown == "0,5", shown
        d = start({**HTTP, "model m": {"in_channels": 2, "out_channels": 4, "kernel_size": 3, "num_groups": 2, "eps": "0.001"}},
                  env={**env, "LD_PRELOAD": str(library)})
        with d.client() as c:
            assert c.welcome["models"][0]["eps"] == pytest.approx(0.001), c.welcome["models"][0]
            assert c.ask("m/s", np.ones((2, 9), np.float32)).h.status == 0
        m = scrape(d)
        assert m["nctd_compute_seconds"].value("_count") == 1
        assert 0 < m["nctd_compute_seconds"].value("_sum") < 60 * SLOW
        assert status(d)["latency"]["queue"]["sum"] > 0
        assert not any("," in word and word.replace(",", "").isdigit() for line in d.log for word in line.split()), d.text()


# ---- status and events --------------------------------------------------------------------------------------------


@pytest.mark.sanitize
def test_status_knows_streams_and_their_gaps(start, small_model):
    d = start({**HTTP, **models(small_model, 1), "limits": {"max_streams_client": 2000}})
    x = np.zeros((2, 8), np.float32)
    with d.client() as c:
        for seq in (1, 2, 5, 9, 10):
            assert c.ask("m0/gappy", x, seq=seq).h.status == 0
        row = status(d, "?q=gapp")["streams"][0]
        assert row[:2] == ["m0", "gappy"] and row[3:7] == [5, 2, 5, 0] and row[8] == 10, row
        assert 0 <= row[7] < 60 * SLOW
        for i in range(1100):
            assert c.ask(f"m0/s{i}", x).h.status == 0
        s = status(d)
        assert (s["streams_open"], s["streams_shown"], len(s["streams"])) == (1101, 1000, 1000)
        assert len(status(d, "?streams=7")["streams"]) == 7
        assert [r[1] for r in status(d, "?q=m0/s1099/")["streams"]] == ["s1099"]
        assert status(d, "?q=%22%5C")["streams"] == []


@pytest.mark.sanitize
def test_events_show_the_chosen_streams_results(start, small_model):
    d = start({**HTTP, **models(small_model, 1)})
    rng = np.random.default_rng(5)
    with d.client() as c:
        e = Events(d, "?stream=m0/seen")
        assert e.status == 200 and "text/event-stream" in e.headers
        kind, first = e.next()
        assert kind == "status" and first["ready"] and first["viewers"] == 1
        for seq in range(1, 6):
            x = rng.standard_normal((2, 40)).astype(np.float32)
            assert c.ask("m0/other", rng.standard_normal((2, 40)).astype(np.float32), seq=seq).h.status == 0
            y = np.frombuffer(c.ask("m0/seen", x, seq=seq).payload, np.float32).reshape(4, 38)
            p = e.next("picture")[1]
            assert (p["seq"], p["channels"], p["steps"], p["rows"], p["columns"]) == (seq, 4, 38, 4, 16), p
            cells = np.frombuffer(base64.b64decode(p["cells"]), np.uint8).reshape(4, 16)
            values = p["low"] + (p["high"] - p["low"]) * cells / 254
            for k in range(16):  # each cell is the sample of largest magnitude of its steps
                part = y[:, 38 * k // 16:38 * (k + 1) // 16]
                best = np.take_along_axis(part, np.abs(part).argmax(1)[:, None], 1)[:, 0]
                assert not np.any(~(np.abs(best - values[:, k]) <= (p["high"] - p["low"]) / 254)), (seq, k)
            time.sleep(0.06)  # pictures are at most 20 a second
        later = e.next("status")[1]
        assert later["ledger"]["ok"] > first["ledger"]["ok"]
        e.close()
        assert until(lambda: status(d)["viewers"] == 0)


@pytest.mark.sanitize
def test_no_more_than_sixteen_viewers_and_places_come_back(start, small_model):
    d = start({**HTTP, **models(small_model, 1)})
    views = [Events(d) for _ in range(16)]
    assert all(v.next()[0] == "status" for v in views)
    one_more = Events(d)
    assert one_more.status == 503
    one_more.close()
    scrape(d)
    views.pop().close()
    assert until(lambda: status(d)["viewers"] == 15)
    with_place = Events(d)
    assert with_place.status == 200 and with_place.next()[0] == "status"
    [v.close() for v in [*views, with_place]]
    assert until(lambda: status(d)["viewers"] == 0)


# ---- nobody holds up the frames -----------------------------------------------------------------------------------


@pytest.mark.sanitize
def test_clients_that_never_read_hold_up_nobody(start, small_model):
    d = start({**HTTP, **models(small_model, 64)})
    quiet = [connect(d, receive_bytes=2048) for _ in range(40)]
    for i, s in enumerate(quiet):
        many = 200 if i % 2 else 1  # of the answers, most cannot even leave
        s.sendall(many * b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    deaf = [connect(d, receive_bytes=2048) for _ in range(4)]
    for s in deaf:
        s.sendall(b"GET /events?stream=m0/s HTTP/1.1\r\nHost: localhost\r\n\r\n")
    slow = [connect(d) for _ in range(5)]
    for s in slow:
        s.sendall(b"GET /metrics HTT")
    with d.client() as c:
        for seq in range(1, 301):
            assert c.ask("m0/s", np.ones((2, 30), np.float32), seq=seq).h.status == 0
    assert_ledger(scrape(d))
    grown = d.rss_kb()
    with d.client() as c:
        for seq in range(1, 301):
            assert c.ask("m0/t", np.ones((2, 30), np.float32), seq=seq).h.status == 0
    assert SANITIZE or d.rss_kb() < grown + 20000
    [s.close() for s in [*quiet, *deaf, *slow]]
    scrape(d)


@pytest.mark.sanitize
def test_more_connections_than_allowed_wait_and_are_served_after(start, small_model):
    d = start({**HTTP, **models(small_model, 1)})
    held = [connect(d) for _ in range(64)]
    for s in held:  # each is open: it answered once
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert Reader(s).answer()[0] == 200
    late = connect(d)
    late.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    late.settimeout(0.3)
    with pytest.raises(socket.timeout):
        late.recv(100)
    with d.client() as c:
        assert c.ask("m0/s", np.ones((2, 30), np.float32)).h.status == 0
    held.pop().close()
    late.settimeout(12)  # before idle ones are closed, which would make room too
    assert Reader(late).answer()[0] == 200
    [s.close() for s in [*held, late]]


@pytest.mark.sanitize
def test_viewers_and_open_requests_do_not_hold_up_the_end(start, small_model):
    d = start({**HTTP, **models(small_model, 1)})
    views = [Events(d, "?stream=m0/s") for _ in range(3)]
    [v.next() for v in views]
    half = connect(d)
    half.sendall(b"GET /metr")
    assert d.stop(signal.SIGTERM) == 0, d.text()
    [v.close() for v in views]
    half.close()


@pytest.mark.sanitize
def test_how_a_reload_ended_is_seen(start, small_model):
    """Refused, then unchanged, then applied: counted by result, with its time; the page's facts have the reason."""
    d = start({**HTTP, **models(small_model, 1)})
    m = scrape(d)
    assert m["nctd_last_reload_success"].value() == 1 and m["nctd_last_reload_timestamp_seconds"].value() == 0
    last = 0
    for n, (change, result) in enumerate([({"max_frames": 0}, "refused"), ({}, "unchanged"), ({"max_frames": 5}, "applied")]):
        d.sections["batch"] = change
        d.write_conf()
        d.signal(signal.SIGHUP)
        assert until(lambda: sum(scrape(d)["nctd_reloads_total"].samples.values()) == n + 1)
        m, told = scrape(d), status(d)["reload"]
        assert m["nctd_reloads_total"].value(result=result) == 1, m["nctd_reloads_total"].samples
        assert m["nctd_last_reload_success"].value() == (result != "refused")
        assert told["last"] == result and ("max_frames" in told["why"]) == (result == "refused"), told
        when = m["nctd_last_reload_timestamp_seconds"].value()
        assert when >= last and abs(when - time.time()) < 60 * SLOW
        last = when
