#!/usr/bin/env python3
"""Runs the suites that need no GPU and closes with `N passed, N failed`.

    tests/run.py [--only SUITE[,SUITE]] [--list]

A suite is a row below: its name, what must be built first, and the command. Unit tests are cmocka programs, the rest
is pytest; both are counted test by test. Exit 0 only when nothing failed and every suite ran at least one test.
Environment: MAKE, PYTHON, FUZZ_SECONDS (60), BUILD (build).
"""
import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MAKE = os.environ.get("MAKE", "make")
PYTHON = os.environ.get("PYTHON", sys.executable)
BUILD = os.environ.get("BUILD", "build")
JOBS = f"-j{len(os.sched_getaffinity(0))}"
ASAN, TSAN = "address,undefined", "thread"
CHECK = {"ASAN_OPTIONS": "detect_leaks=1:abort_on_error=1:allocator_may_return_null=1",
         "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
         "TSAN_OPTIONS": f"halt_on_error=1:second_deadlock_stack=1:suppressions={ROOT}/tests/tsan.supp"}


def build_dir(sanitize):
    return BUILD + ("/" + sanitize.replace(",", "-") if sanitize else "")


def make(*targets, sanitize=""):
    args = [MAKE, "-s", JOBS, f"BUILD={build_dir(sanitize)}", *targets]
    if sanitize:
        args += [f"SANITIZE={sanitize}", "CUDA=no"]
    subprocess.run(args, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def run_unit(sanitize):
    """Every cmocka program of tests/unit. -> (passed, failed, skipped)"""
    make("unit", sanitize=sanitize)
    passed = failed = skipped = 0
    for program in sorted(glob.glob(f"{ROOT}/{build_dir(sanitize)}/unit/test_*")):
        if program.endswith(".d") or not os.path.exists(f"{ROOT}/tests/unit/{os.path.basename(program)}.c"):
            continue
        done = subprocess.run([program], cwd=ROOT, env={**os.environ, **CHECK}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=600)
        ok = len(re.findall(r"^\[ +OK \]", done.stdout, re.M))
        bad = len(set(re.findall(r"^\[  FAILED  \] (\w+)$", done.stdout, re.M)))
        skip = len(set(re.findall(r"^\[  SKIPPED \] (\w+)$", done.stdout, re.M)))
        if done.returncode and not bad:
            bad = 1  # it died outside a test
        if bad or not ok + skip:
            print(done.stdout)
            print(f"    {os.path.basename(program)}: exit {done.returncode}")
            bad = bad or 1
        passed, failed, skipped = passed + ok, failed + bad, skipped + skip
    return passed, failed, skipped


def pytest_once(paths, env, marks):
    """-> (total, skipped, node ids that failed), or None when pytest left no report."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        args = [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report.name}", *paths]
        subprocess.run(args + (["-m", marks] if marks else []), cwd=ROOT, env=env)
        try:
            suite = ET.parse(report.name).getroot()
        except ET.ParseError:
            return None
    suite = suite if suite.tag == "testsuite" else suite.find("testsuite")
    failed = sorted({f"{case.get('classname').replace('.', '/')}.py::{case.get('name')}" for case in suite.iter("testcase")
                     if case.find("failure") is not None or case.find("error") is not None})
    return int(suite.get("tests")), int(suite.get("skipped")), failed


def run_pytest(paths, sanitize="", marks=""):
    """Stories of real processes on a machine that others load: what fails is run once more, alone, and named when it
    passes then; what fails twice has failed."""
    make("all", sanitize=sanitize)
    folder = f"{ROOT}/{build_dir(sanitize)}"
    env = {**os.environ, **CHECK, "NCT_BUILD": folder, "NCTD": f"{folder}/nctd", "NCT": f"{folder}/nct",
           "NCT_SANITIZE": sanitize, "PYTHONDONTWRITEBYTECODE": "1"}
    first = pytest_once(paths, env, marks)
    if first is None:
        return 0, 1, 0
    total, skipped, failed = first
    if failed and paths == ["tests/e2e"] and len(failed) <= 8:
        again = pytest_once(failed, env, "")
        if again is not None and again[0] >= len(failed):
            for name in sorted(set(failed) - set(again[2])):
                print(f"    passed only when run again: {name}")
            failed = again[2]
    return total - len(failed) - skipped, len(failed), skipped


def run_fuzz():
    """Each target counts as one test; a finding leaves its input beside the target."""
    done = subprocess.run([MAKE, "-s", JOBS, "fuzz"], cwd=ROOT)
    targets = len(glob.glob(f"{ROOT}/tests/fuzz/fuzz_*.c"))
    return (0, 1, 0) if done.returncode else (targets, 0, 0)


def run_generated():
    """What is generated from the tables is committed as generated."""
    make("all")
    done = subprocess.run([MAKE, "-s", "check-generated"], cwd=ROOT)
    return (0, 1, 0) if done.returncode else (1, 0, 0)


SUITES = [
    ("unit", lambda: run_unit("")),
    ("unit-asan", lambda: run_unit(ASAN)),
    ("unit-tsan", lambda: run_unit(TSAN)),
    ("generated", run_generated),
    ("layer", lambda: run_pytest(["tests/layer"])),
    ("e2e", lambda: run_pytest(["tests/e2e"])),
    ("e2e-asan", lambda: run_pytest(["tests/e2e"], ASAN, "sanitize")),
    ("e2e-tsan", lambda: run_pytest(["tests/e2e"], TSAN, "sanitize")),
    ("fuzz", run_fuzz),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.list:
        print("\n".join(name for name, _ in SUITES))
        return 0
    chosen = [s for s in args.only.split(",") if s]
    unknown = set(chosen) - {name for name, _ in SUITES}
    if unknown:
        parser.error(f"no suite {', '.join(sorted(unknown))}; --list shows them")
    rows, total = [], [0, 0, 0]
    for name, run in SUITES:
        if chosen and name not in chosen:
            continue
        print(f"== {name}", flush=True)
        start = time.monotonic()
        try:
            passed, failed, skipped = run()
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"    {error}")
            passed, failed, skipped = 0, 1, 0
        if passed + failed == 0:
            print(f"    {name} ran no test")
            failed = 1
        rows.append((name, passed, failed, skipped, time.monotonic() - start))
        total = [a + b for a, b in zip(total, (passed, failed, skipped))]
    print()
    for name, passed, failed, skipped, seconds in rows:
        print(f"{name:12s} {passed:5d} passed {failed:4d} failed {skipped:4d} skipped {seconds:7.1f} s")
    print(f"{total[0]} passed, {total[1]} failed" + (f", {total[2]} skipped" if total[2] else ""))
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main())
