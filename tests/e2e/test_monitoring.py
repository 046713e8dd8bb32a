"""What is shipped beside the metrics names metrics and labels that exist: the alerts and the dashboard."""
import json
import os
import re
import shutil
import subprocess

import numpy as np
import pytest

import prom
from conftest import ROOT
from http_tools import HTTP, get

RULES = os.path.join(ROOT, "conf/prometheus/nctd.rules.yml")
BOARD = os.path.join(ROOT, "conf/grafana/nctd.json")


def expressions():
    with open(RULES) as f:
        found = [("rules", e) for e in re.findall(r"^ +expr: (.*)$", f.read(), re.M)]
    with open(BOARD) as f:
        board = json.load(f)
    for panel in board["panels"]:
        found += [("board: " + panel["title"], t["expr"]) for t in panel["targets"]]
    found += [("board", a["expr"]) for a in board["annotations"]["list"]]
    found += [("board", v["definition"].split("(")[1].split(",")[0]) for v in board["templating"]["list"] if "definition" in v]
    assert len(found) > 30
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    from conftest import Daemon
    d = Daemon(tmp_path_factory.mktemp("d"), {**HTTP, "model m": {"in_channels": 2, "out_channels": 4, "kernel_size": 3, "num_groups": 2}})
    with d.client() as c:
        assert c.ask("m/s", np.ones((2, 9), np.float32)).h.status == 0
    families = prom.parse(get(d, "/metrics")[2])
    assert d.stop() == 0
    return families


def test_alerts_and_dashboard_name_what_exists(page):
    series = {}
    for f in page.values():
        if not f.samples:
            series[f.name] = {}  # a GPU's, on a host without one
        for (name, labels) in f.samples:
            for label, value in labels:
                series.setdefault(name, {}).setdefault(label, set()).add(value)
            series.setdefault(name, {})
    closed = {"outcome", "reason", "cause", "result"}  # labels whose values come from tables
    for where, e in expressions():
        names = re.findall(r"\b((?:nctd?|process)_[a-z0-9_]+)\s*(?:\{([^}]*)\})?", e)
        assert names or e.startswith("up{"), (where, e)
        for name, labels in names:
            assert name in series, f"{where}: no metric {name}"
            for label, op, value in re.findall(r'(\w+)\s*(=~|!=|=)\s*"([^"]*)"', labels):
                if label in ("instance", "job"):
                    continue
                assert label in series[name], f"{where}: {name} has no label {label}"
                assert label not in closed or value in series[name][label], f"{where}: {name}{{{label}}} is never {value}"
        for by in re.findall(r"by \(([^)]*)\)", e):
            for label in (x.strip() for x in by.split(",")):
                assert label in ("instance", "le") or any(label in series[n] for n, _ in names), f"{where}: nothing has a label {label}"


def test_rates_are_of_counters_alone(page):
    counters = {f.name + s for f in page.values() if f.type == "histogram" for s in ("_bucket", "_sum", "_count")} | {f.name for f in page.values() if f.type == "counter"}
    used = 0
    for where, e in expressions():
        for name in re.findall(r"(?:rate|increase)\((\w+)", e):
            used += 1
            assert name in counters, f"{where}: {name} is no counter"
    assert used > 15


def test_promtool_takes_the_rules():
    if not shutil.which("promtool"):
        pytest.skip("no promtool (Debian: prometheus)")
    done = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True)
    assert done.returncode == 0 and "rules found" in done.stdout, done.stdout + done.stderr


def test_every_metric_says_what_it_is(page):
    for f in page.values():
        assert len(f.help) > 10 and f.help.endswith("."), f.name
        assert (f.type == "counter") == f.name.endswith("_total"), f.name
        assert not re.search(r"_(ms|us|ns|seconds_ns|kb|mb)(_|$)", f.name), f.name
