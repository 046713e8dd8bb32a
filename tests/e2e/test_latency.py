"""tests/bench/latency.py, briefly: both servers answer every frame of the same schedule, and its lines make the README's table."""
import json
import os
import subprocess
import sys

import pytest

from conftest import BUILD, ENGINE, NCT, NCTD, ROOT, SANITIZE, SLOW

sys.path.insert(0, os.path.join(ROOT, "tests", "bench"))
import tables  # noqa: E402

FLAGS = [f"-fsanitize={SANITIZE}"] if SANITIZE else []


@pytest.fixture
def programs(tmp_path):
    """A folder with nctd, nct and the echo, which no other target builds."""
    os.symlink(NCTD, tmp_path / "nctd")
    os.symlink(NCT, tmp_path / "nct")
    subprocess.run(["cc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", *FLAGS, f"-I{ROOT}/client", f"{ROOT}/tests/bench/echo_server.c",
                    os.path.join(BUILD, "libnct.a"), "-lzmq", "-ljansson", "-lpthread", "-o", str(tmp_path / "echo_server")], check=True)
    return tmp_path


def test_both_answer_everything_and_the_table_is_made(programs, monkeypatch):
    out = programs / "latency.json"
    out.write_text('{"engine": "other", "bench": "latency"}\n')
    r = subprocess.run([sys.executable, f"{ROOT}/tests/bench/latency.py", programs, "--engine", ENGINE, "--json", out, "--rows", "1:20,12:60",
                        "--seconds", "0.8", "--knee-seconds", "0.2", "--first", "64"], capture_output=True, text=True, timeout=300 * SLOW)
    assert r.returncode == 0, r.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows.pop(0) == {"engine": "other", "bench": "latency"}
    found = [(r["impl"], r["streams"], r["measured"], r["lost"]) for r in rows if r["bench"] == "latency"]
    assert found == [(impl, streams, n, 0) for streams, n in ((1, 40), (12, 160)) for impl in ("echo", "nctd")], found
    for r in rows[:4]:
        assert 0 < r["answer"]["p50_us"] <= r["answer"]["p99_us"] <= r["answer"]["max_us"] * 1.01 and r["subscriber"]["p50_us"] > 0
        assert r["command"].startswith("make bench-latency BENCH='--engine") and str(programs) not in json.dumps(r)
    assert [(r["impl"], r["bench"], r["slo"]) for r in rows[4:]] == [(i, "real-time-streams", "p99 < 10 ms, no frame lost") for i in ("echo", "nctd")]
    monkeypatch.setattr(tables, "RESULTS", str(programs))
    out.write_text("\n".join(json.dumps({**r, "engine": "cpu"}) for r in rows))
    text = tables.latency()
    assert text.count("| nctd |") == text.count("| echo |") == 2 and "Real-time streams" in text
