#!/usr/bin/env python3
"""compiled.py: PyTorch alone on the bench's shapes, torch.compile max-autotune beside eager; JSON lines.

    compiled.py [--shapes a,b] [--precisions tf32,bf16] [--only shape/precision,...] [--seconds 240] [--rounds 15] [--out FILE [--resume]] [--log FILE]

The rows (a shape in a precision) are dealt to PROCESSES, which compile beside each other; what torch.compile itself measures
on the GPU is measured by one process at a time, 20 calls instead of 100, so that it chooses as it would alone. When all
have compiled, or four fifths of the seconds are over, they time eager, channels-last and both compiled forms one process
after the other, by bench_gpu.py's method. A row is written when it is there; rows not reached are counted, and --resume
runs only what FILE lacks. bench_gpu.py prints compiled / eager from the last such file
(results/gpu-peers.json) where it runs without PEERS=all; with it, it calls compile_all() first, and its own
compiling finds everything in the cache."""

import argparse
import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

import torch

import bench_gpu

PROCESSES, COMPILE_THREADS = 18, "4"  # together more than cores, for those that still compile when others are done


def work(args):
    """Some rows: compile, say so, wait for a line on stdin, then time. Rows to stdout, what PyTorch says to stderr."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    lock = open(args.lock, "w")

    @contextlib.contextmanager
    def alone():
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
            torch.cuda.synchronize()
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)

    from torch._inductor.runtime import benchmarking
    kind = type(benchmarking.benchmarker)
    measure = kind.benchmark_gpu

    def measure_alone(*a, **k):
        with alone():
            return measure(*a, **{"benchmark_iters": 20, "memory_warmup_iters": 20, "max_benchmark_duration": 10, **k})

    kind.benchmark_gpu = measure_alone
    torch.backends.cudnn.benchmark = True
    begin, made = time.monotonic(), []
    with torch.no_grad():
        for i, (name, precision) in enumerate(x.split("/") for x in args.worker.split(",")):
            spent = time.monotonic() - begin
            if i and spent * (i + 1) / i > args.seconds * 0.8:
                break
            layer = bench_gpu.Case(name, *bench_gpu.gpu.SHAPES[name], precision)
            impls = layer.peers(compiled=True)
            for key, fn in list(impls.items()):
                try:
                    fn(layer.xs[0])
                except Exception as e:  # a peer that cannot be compiled is not a peer
                    print(f"# {name} {precision} {key}: {type(e).__name__}: {e}", file=out)
                    del impls[key]
            made.append((layer, impls))
            print(f"# {name} {precision}: compiled after {time.monotonic() - begin:.0f} s", file=out)
        print("# ready", file=out)
        sys.stdin.readline()
        for layer, impls in made if args.rounds else []:
            with alone():
                for row in layer.measure(impls, args.rounds):
                    print(json.dumps(row), file=out)


def compile_all(todo, seconds, rounds=0, log=None, row=lambda r: None):
    """Compile the rows of `todo`, (shape, precision), by processes; with rounds, time as well and give each row to row().

    The caller's TORCHINDUCTOR_CACHE_DIR, if any, is the cache of all. Returns what was measured."""
    parts = [",".join("/".join(x) for x in todo[i::PROCESSES]) for i in range(min(PROCESSES, len(todo)))]
    env = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": COMPILE_THREADS, "PYTHONUNBUFFERED": "1"}
    reached, ready, lock = [], {n: threading.Event() for n in parts}, threading.Lock()
    with tempfile.NamedTemporaryFile() as file:
        def follow(name, process):
            for line in process.stdout:
                if line == "# ready\n":
                    ready[name].set()
                elif line.startswith("#"):
                    print(line, end="", flush=True)
                else:
                    with lock:
                        reached.append(json.loads(line))
                        row(reached[-1])
            ready[name].set()

        command = [sys.executable, __file__, "--seconds", str(seconds), "--rounds", str(rounds), "--lock", file.name, "--worker"]
        end = time.monotonic() + seconds
        processes = {n: subprocess.Popen([*command, n], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=log or subprocess.DEVNULL, text=True, bufsize=1) for n in parts}
        threads = [threading.Thread(target=follow, args=p, daemon=True) for p in processes.items()]
        for t in threads:
            t.start()
        for n in parts:
            ready[n].wait(max(0, end - seconds / 5 - time.monotonic()))
        for p in processes.values():
            with contextlib.suppress(BrokenPipeError):
                p.stdin.write("go\n")
                p.stdin.flush()
        for t in threads:
            t.join(max(0, end - time.monotonic()))
        for p in processes.values():
            if p.poll() is None:
                p.kill()
            p.wait()
    return reached


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--shapes"), a.add_argument("--precisions", default="tf32,bf16"), a.add_argument("--rounds", type=int, default=15)
    a.add_argument("--seconds", type=float, default=240), a.add_argument("--out"), a.add_argument("--log")
    a.add_argument("--resume", action="store_true"), a.add_argument("--only"), a.add_argument("--worker"), a.add_argument("--lock")
    args = a.parse_args()
    if args.worker:
        return work(args)
    there = open(args.out).read() if args.resume else ""
    done = {(r["shape"], r["precision"]) for r in map(json.loads, there.splitlines())}
    names = args.shapes.split(",") if args.shapes else list(bench_gpu.gpu.SHAPES)
    todo = [tuple(x.split("/")) for x in args.only.split(",")] if args.only else [(n, p) for p in args.precisions.split(",") for n in names]
    todo = [x for x in todo if x not in done]
    head = {**bench_gpu.machine(), "command": "compiled.py " + " ".join(sys.argv[1:])}
    print("# " + json.dumps(head), flush=True)
    out = open(args.out, "w", buffering=1) if args.out else None
    if out:
        out.write(there)

    def row(r):
        print(json.dumps(r), flush=True)
        if out:
            print(json.dumps({**head, **r}), file=out)

    log = open(args.log, "w") if args.log else None
    reached = compile_all(todo, args.seconds, args.rounds, log, row)
    got = len({(r["shape"], r["precision"]) for r in reached})
    print(f"{got} of {len(todo)} rows measured" + (f"; {len(todo) - got} were not reached in {args.seconds:g} s" if got < len(todo) else ""))
    return 0 if got == len(todo) else 1


if __name__ == "__main__":
    sys.exit(main())
