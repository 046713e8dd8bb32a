"""The HTTP end: what it answers and refuses, and that nobody there can hold up the frames."""
import signal
import socket
import time

import numpy as np
import pytest

import prom
from conftest import SANITIZE, SLOW, until
from http_tools import HTTP, TEXT, Reader, ask, assert_ledger, connect, get, models, port_of, scrape, status


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
