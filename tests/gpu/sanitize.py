#!/usr/bin/env python3
"""sanitize.py: every kernel row on small jobs under compute-sanitizer's four tools, all beside each other.

    sanitize.py WALK [--seconds 60] [--parts memcheck=3,racecheck=5,synccheck=2,initcheck=3] [--rows a,b] [--logs DIR] [--out FILE]

WALK is the program of walk.c; a tool's rows are dealt to its parts, each a process. One JSON object a tool: errors, jobs,
rows that ran, rows that did not. Exit 0; 1 when a tool reports anything, a result is wrong or a row never ran under a tool."""

import argparse
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) errors?|RACECHECK SUMMARY: (\d+) hazards? displayed)")


def machine():
    q = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=False)
    return {"hardware": ", driver ".join(q.stdout.strip().split(", ")), "date": datetime.date.today().isoformat(),
            "command": "sanitize.py " + " ".join(sys.argv[1:])}


def start(args, tool, part, parts, folder):
    log = folder / f"{tool}-{part}.log"
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", args.walk, "--seconds", str(args.seconds),
               "--part", f"{part}/{parts}", *(["--rows", args.rows] if args.rows else [])]
    with open(log, "w") as f:
        return log, subprocess.Popen(command, stdout=f, stderr=subprocess.STDOUT, start_new_session=True)


def result(tool, runs, end):
    """What the processes of one tool say together."""
    rows, errors, jobs, failed = {}, 0, 0, []
    for log, process in runs:
        try:
            code = process.wait(max(1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        text = log.read_text(errors="replace")
        rows.update({name: int(n) for name, n in re.findall(r"^row (\S+) (\d+)$", text, re.M)})
        found = SUMMARY.findall(text)
        errors += sum(int(a or b) for a, b in found)
        if code or not found:
            said = [x for x in text.splitlines() if re.search(r"[Ee]rror detected|Invalid|Race reported|WRONG|walk:|^=+ +at ", x)]
            failed.append(f"{log.name}: exit {code}" + "".join("; " + x.strip("= ")[:200] for x in said[:5]))
        jobs += sum(int(n) for n in re.findall(r"^(\d+) jobs over", text, re.M))
    return {"bench": "gpu-sanitizer", "tool": tool, "errors": errors, "jobs": jobs, "rows_run": sum(n > 0 for n in rows.values()),
            "rows": len(rows), "rows_not_run": [k for k, n in rows.items() if not n], "failed": failed}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("walk"), a.add_argument("--seconds", type=float, default=60), a.add_argument("--rows"), a.add_argument("--logs")
    a.add_argument("--parts", default="memcheck=3,racecheck=5,synccheck=2,initcheck=3"), a.add_argument("--out")
    args = a.parse_args()
    folder = Path(args.logs or tempfile.mkdtemp(prefix="sanitize-"))
    folder.mkdir(parents=True, exist_ok=True)
    head, tools = machine(), {k: int(v) for k, v in (p.split("=") for p in args.parts.split(","))}
    runs = {tool: [start(args, tool, i, n, folder) for i in range(n)] for tool, n in tools.items()}
    # A job that runs when the time is over is finished; a process that hangs is ended.
    end = time.monotonic() + args.seconds * 1.5 + 30
    results = [{**head, **result(tool, run, end)} for tool, run in runs.items()]
    for r in results:
        print(json.dumps({k: v for k, v in r.items() if k not in head}), flush=True)
    if args.out:
        Path(args.out).write_text("".join(json.dumps(r) + "\n" for r in results))
    bad = [r["tool"] for r in results if r["errors"] or r["failed"] or r["rows_not_run"] or not r["jobs"]]
    print(f"logs in {folder}" + (f"; not clean: {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
