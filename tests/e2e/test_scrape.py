"""/metrics under load: identities in every scrape, and nothing that a client says becomes a series."""
import os
import shutil
import subprocess
import threading
import time

import numpy as np
import pytest

import prom
from conftest import SANITIZE, SLOW
from http_tools import HTTP, Reader, assert_ledger, connect, get, models, scrape, status


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
    for k, name in enumerate(('a"b', "C:\\", "new\nline", "", "\u202e")):
        with d.client(hello=False) as c:
            c.hello(client=name)
            for i in range(60 if SANITIZE else 600):
                assert c.ask(f"m0/s-{k}-{i}", x).h.status == 0
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
