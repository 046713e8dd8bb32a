"""Ends for the HTTP tests: raw sockets, because a library would hide what is looked at."""
import json
import re
import socket
import urllib.request

import prom
from conftest import until

TEXT = "text/plain; version=0.0.4; charset=utf-8"
HTTP = {"http": {"enabled": "yes", "endpoint": "127.0.0.1:0"}}


def port_of(daemon):
    """The port that was bound, from the log."""
    assert until(lambda: re.search(r"http bound endpoint=\S+:(\d+)", daemon.text())), daemon.text()
    return int(re.search(r"http bound endpoint=\S+:(\d+)", daemon.text())[1])


def get(daemon, path, **headers):
    """A whole answer -> (status, headers, body)."""
    request = urllib.request.Request(f"http://127.0.0.1:{port_of(daemon)}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def status(daemon, query=""):
    code, headers, body = get(daemon, "/api/status" + query)
    assert code == 200 and headers["Content-Type"] == "application/json", (code, headers)
    return json.loads(body)


def connect(daemon, receive_bytes=0):
    s = socket.socket()
    if receive_bytes:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    s.settimeout(30)
    s.connect(("127.0.0.1", port_of(daemon)))
    return s


class Reader:
    """Answers from one connection, one after the other, by their Content-Length."""

    def __init__(self, s):
        self.s, self.held = s, b""

    def until(self, mark):
        while mark not in self.held:
            got = self.s.recv(65536)
            assert got, f"closed after {self.held[:200]!r}"
            self.held += got
        part, self.held = self.held.split(mark, 1)
        return part

    def answer(self, head=False):
        top = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in top[1:])}
        size = 0 if head else int(headers["content-length"])
        while len(self.held) < size:
            got = self.s.recv(65536)
            assert got, "closed inside the body"
            self.held += got
        body, self.held = self.held[:size], self.held[size:]
        return int(top[0].split(" ")[1]), headers, body


def ask(daemon, raw, seconds=30):
    """Sends raw octets, reads until the other end closes or says nothing for so long -> everything that came."""
    with connect(daemon) as s:
        got = b""
        try:
            s.sendall(raw)
        except OSError:
            pass  # refused before all was sent
        s.settimeout(seconds)
        try:
            while more := s.recv(65536):
                got += more
        except OSError:
            pass
        return got


class Events:
    """Server-sent events of one viewer."""

    def __init__(self, daemon, query=""):
        self.s = connect(daemon)
        self.s.sendall(f"GET /events{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        self.reader = Reader(self.s)
        top = self.reader.until(b"\r\n\r\n").decode()
        self.status = int(top.split(" ")[1])
        self.headers = top.lower()
        self.text = b""

    def next(self, kind=None):
        """The next event (of this kind) -> (kind, data)."""
        while True:
            while b"\n\n" not in self.text:
                size = int(self.reader.until(b"\r\n"), 16)
                assert size, "the stream ended"
                while len(self.reader.held) < size + 2:
                    got = self.s.recv(65536)
                    assert got, "closed inside a chunk"
                    self.reader.held += got
                self.text += self.reader.held[:size]
                self.reader.held = self.reader.held[size + 2:]
            event, self.text = self.text.split(b"\n\n", 1)
            fields = dict(line.split(": ", 1) for line in event.decode().split("\n"))
            if kind in (None, fields["event"]):
                return fields["event"], json.loads(fields["data"])

    def close(self):
        self.s.close()


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


def models(small_model, n):
    return {f"model m{i}": {"file": small_model} for i in range(n)}
