"""engine.cpu_variant: which row of the CPU's table a daemon computes with, as `nct info` names it."""
import re

import pytest

from conftest import ENGINE
from nct_tools import B0, nct, ok

pytestmark = pytest.mark.skipif(ENGINE != "cpu", reason="the variants are the CPU engine's")

FLAGS = set(re.search(r"^(?:flags|Features)\s*:(.*)$", open("/proc/cpuinfo").read(), re.M)[1].split())
RUNS = {"avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma", "f16c"} <= FLAGS, "avx2": {"avx2", "fma", "f16c"} <= FLAGS,
        "portable": True}
BEST = next(v for v in RUNS if RUNS[v])


@pytest.mark.parametrize("variant", ["auto", *RUNS])
def test_info_names_what_computes(start, variant):
    sections = {"model main": {"file": B0, "num_groups": 2}, "engine": {"cpu_variant": variant}}
    if not RUNS.get(variant, True):
        d = start(sections, wait=False)
        assert d.wait() != 0 and f"cannot run the CPU variant {variant}" in d.text() and BEST in d.text()
        return
    d = start(sections)
    text = ok(nct("info", "--connect", d.ingest)).stdout.decode()
    named = re.findall(r"variant\s+(\S+)", text)
    assert named and set(named) == {BEST if variant == "auto" else variant}, text


def test_unknown_names_are_refused_with_those_that_exist(start):
    d = start({"model main": {"file": B0, "num_groups": 2}, "engine": {"cpu_variant": "avx1024"}}, wait=False)
    assert d.wait() != 0 and "avx1024" in d.text() and "auto|avx512|avx2|portable" in d.text(), d.text()
