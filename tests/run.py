#!/usr/bin/env python3
"""Runs the suites that need no GPU and closes with `N passed, N failed`.

    tests/run.py [--only SUITE[,SUITE]] [--list]

A suite is a row below: its name, its lane, and what runs it. Unit tests are cmocka programs, the rest is pytest; both are
counted test by test. Two lanes run side by side: the stories of real processes, which mostly wait and so go WORKERS at a
time, and, at a lower priority, what computes (builds, unit tests, the layer, fuzzing). A suite's words are printed when it
ends. Exit 0 only when nothing failed and every suite ran at least one test.
Environment: MAKE, PYTHON, FUZZ_SECONDS (60), BUILD (build), WORKERS (twice the cores, at most 8).
"""
import argparse
import glob
import importlib.util
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MAKE = os.environ.get("MAKE", "make")
PYTHON = os.environ.get("PYTHON", sys.executable)
BUILD = os.environ.get("BUILD", "build")
CORES = len(os.sched_getaffinity(0))
WORKERS = int(os.environ.get("WORKERS", min(2 * CORES, 8)))
ASAN, TSAN = "address,undefined", "thread"
CHECK = {"ASAN_OPTIONS": "detect_leaks=1:abort_on_error=1:allocator_may_return_null=1",
         "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
         "TSAN_OPTIONS": f"halt_on_error=1:second_deadlock_stack=1:suppressions={ROOT}/tests/tsan.supp"}
BUILDING = {sanitize: threading.Lock() for sanitize in ("", ASAN, TSAN)}  # one make in a build folder at a time
PRINTING = threading.Lock()
NICE = ["nice", "-n", "5"]


class Result:
    """What a suite counted; `again` holds its failed stories' node ids with the environment to run them in once more."""

    def __init__(self, passed, failed, skipped=0, again=None):
        self.passed, self.failed, self.skipped, self.again, self.seconds = passed, failed, skipped, again, 0.0


def build_dir(sanitize):
    return BUILD + ("/" + sanitize.replace(",", "-") if sanitize else "")


def make(*targets, sanitize=""):
    args = [*NICE, MAKE, "-s", f"-j{CORES}", f"BUILD={build_dir(sanitize)}", *targets]
    if sanitize:
        args += [f"SANITIZE={sanitize}", "CUDA=no"]
    with BUILDING[sanitize]:
        subprocess.run(args, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def run_unit(out, sanitize):
    """Every cmocka program of tests/unit."""
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
            print(done.stdout, file=out)
            print(f"    {os.path.basename(program)}: exit {done.returncode}", file=out)
            bad = bad or 1
        passed, failed, skipped = passed + ok, failed + bad, skipped + skip
    return Result(passed, failed, skipped)


def pytest_once(out, paths, env, marks, before=(), workers=0):
    """-> (total, skipped, node ids that failed), or None when pytest left no report."""
    out.flush()
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        args = [*before, PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report.name}", *paths]
        args += ["-m", marks] if marks else []
        args += ["-n", str(workers), "--dist", "loadgroup"] if workers > 1 and importlib.util.find_spec("xdist") else []
        subprocess.run(args, cwd=ROOT, env=env, stdout=out, stderr=out)
        try:
            suite = ET.parse(report.name).getroot()
        except ET.ParseError:
            return None
    suite = suite if suite.tag == "testsuite" else suite.find("testsuite")
    failed = sorted({f"{case.get('classname').replace('.', '/')}.py::" + re.sub(r"@\w+$", "", case.get("name"))  # @: xdist's group
                     for case in suite.iter("testcase") if case.find("failure") is not None or case.find("error") is not None})
    return int(suite.get("tests")), int(suite.get("skipped")), failed


def environment(sanitize):
    folder = f"{ROOT}/{build_dir(sanitize)}"
    return {**os.environ, **CHECK, "NCT_BUILD": folder, "NCTD": f"{folder}/nctd", "NCT": f"{folder}/nct",
            "NCT_SANITIZE": sanitize, "PYTHONDONTWRITEBYTECODE": "1"}


def run_layer(out):
    make("all")
    counted = pytest_once(out, ["tests/layer"], environment(""), "", before=NICE)
    return Result(counted[0] - counted[1] - len(counted[2]), len(counted[2]), counted[1]) if counted else Result(0, 1)


def run_stories(out, sanitize="", marks=""):
    """Stories of real processes on a machine that others load: see run_again."""
    make("all", sanitize=sanitize)
    env = {**environment(sanitize), "OMP_NUM_THREADS": "1"}  # PyTorch beside so many others
    counted = pytest_once(out, ["tests/e2e"], env, marks, workers=WORKERS)
    if counted is None:
        return Result(0, 1)
    total, skipped, failed = counted
    return Result(total - len(failed) - skipped, len(failed), skipped, (failed, env) if 0 < len(failed) <= 8 else None)


def run_again(result):
    """What failed is run once more when everything else is over, alone, and named when it passes then; what fails twice
    has failed."""
    stories, env = result.again
    counted = pytest_once(sys.stdout, stories, env, "")
    if counted is None or counted[0] < len(stories):
        return
    for name in sorted(set(stories) - set(counted[2])):
        print(f"    passed only when run again: {name}")
    result.passed += len(stories) - len(counted[2])
    result.failed = len(counted[2])


def run_fuzz(out):
    """Each target counts as one test; a finding leaves its input beside the target."""
    names = [os.path.basename(path)[5:-2] for path in glob.glob(f"{ROOT}/tests/fuzz/fuzz_*.c")]
    make(*(f"{BUILD}/fuzz/{name}" for name in names))
    out.flush()
    done = subprocess.run([*NICE, MAKE, "-s", f"-j{CORES}", f"BUILD={BUILD}", "fuzz"], cwd=ROOT, stdout=out, stderr=out)
    return Result(0, 1) if done.returncode else Result(len(names), 0)


def run_generated(out):
    """What is generated from the tables is committed as generated."""
    make("all")
    out.flush()
    done = subprocess.run([*NICE, MAKE, "-s", f"BUILD={BUILD}", "check-generated"], cwd=ROOT, stdout=out, stderr=out)
    return Result(0, 1) if done.returncode else Result(1, 0)


SUITES = [
    ("unit", "work", lambda out: run_unit(out, "")),
    ("generated", "work", run_generated),
    ("unit-asan", "work", lambda out: run_unit(out, ASAN)),
    ("unit-tsan", "work", lambda out: run_unit(out, TSAN)),
    ("layer", "work", run_layer),
    ("fuzz", "work", run_fuzz),
    ("e2e-asan", "stories", lambda out: run_stories(out, ASAN, "sanitize")),  # without CUDA: built while nvcc is at work
    ("e2e-tsan", "stories", lambda out: run_stories(out, TSAN, "sanitize")),
    ("e2e", "stories", run_stories),
]


def run_suite(name, run, out):
    start = time.monotonic()
    try:
        result = run(out)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"    {error}", file=out)
        result = Result(0, 1)
    if result.passed + result.failed == 0:
        print(f"    {name} ran no test", file=out)
        result.failed = 1
    result.seconds = time.monotonic() - start
    return result


def run_lane(suites, results):
    """One suite after the other; what each says is held back until it ends, as the lanes would mix."""
    for name, run in suites:
        with tempfile.TemporaryFile("w+", errors="replace") as out:
            result = run_suite(name, run, out)
            out.seek(0)
            with PRINTING:
                print(f"== {name}: {result.passed} passed, {result.failed} failed\n{out.read()}", flush=True)
        results[name] = result


def run_lanes(chosen):
    """-> {suite: Result}"""
    results = {}
    if len(chosen) == 1:  # nothing runs beside it: its words come as they are said
        name, _, run = chosen[0]
        return {name: run_suite(name, run, sys.stdout)}
    lanes = [[(name, run) for name, lane, run in chosen if lane == this] for this in ("stories", "work")]
    threads = [threading.Thread(target=run_lane, args=(lane, results), daemon=True) for lane in lanes]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.list:
        print("\n".join(name for name, _, _ in SUITES))
        return 0
    only = [s for s in args.only.split(",") if s]
    unknown = set(only) - {name for name, _, _ in SUITES}
    if unknown:
        parser.error(f"no suite {', '.join(sorted(unknown))}; --list shows them")
    chosen, start = [row for row in SUITES if not only or row[0] in only], time.monotonic()
    results = run_lanes(chosen)
    for name, _, _ in chosen:
        if name not in results:
            results[name] = Result(0, 1)  # its lane broke; the traceback is above
        elif results[name].again:
            print(f"== {name}: once more", flush=True)
            run_again(results[name])
    print()
    for name, _, _ in chosen:
        r = results[name]
        print(f"{name:12s} {r.passed:5d} passed {r.failed:4d} failed {r.skipped:4d} skipped {r.seconds:7.1f} s")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"in all {time.monotonic() - start:.0f} s on {CORES} cores, {used.ru_utime + used.ru_stime:.0f} s of processor time")
    passed, failed, skipped = (sum(getattr(results[row[0]], field) for row in chosen) for field in ("passed", "failed", "skipped"))
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
