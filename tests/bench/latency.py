#!/usr/bin/env python3
"""Two numbers of a running daemon, measured by `nct bench`: how long from a frame's capture to its answer and to a subscriber,
and how many real-time streams (a stereo frame of 480 samples every 10 ms each) are served with no frame lost and p99 below
10 ms. Beside them the same of tests/bench/echo_server.c, the least that a ZeroMQ server of the same messages can do: same load
generator, schedule and connections, in turns within one run.

    tests/bench/latency.py BUILD [--engine cpu|cuda] [--json FILE] [--seconds 5] [--knee-seconds 2.5] [--threads N]
                                 [--first STREAMS] [--rows STREAMS:MS,...] [--set KEY=VALUE ...]

Frames are (2, 480) f32; the layer is the cheapest that keeps the frame's size (kernel 1, a group a channel), so that what is
measured is the way and not the arithmetic. "Capture" is the moment at which a frame is due by the schedule. Rows where a peer
did not keep up say how many frames it lost and how many it answered a second. Writes one JSON object a line into FILE (rows of another
engine stay there), then prints a table. Needs python3 alone. Exit 0, or 1 when a run failed.
"""
import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

ROWS = [(1, 10), (100, 10), (1000, 10), (1000, 100)]  # streams, ms between two frames of one stream
CONF = """[daemon]
log_level = warning
[ingest]
endpoint = ipc://{folder}/nctd
[publish]
endpoint = ipc://{folder}/nctd-pub
[http]
enabled = no
[engine]
engine = {engine}
[model cheap]
in_channels = 2
out_channels = 2
kernel_size = 1
groups = 2
num_groups = 2
"""


def hardware():
    name = "unknown CPU"
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    try:
        gpu = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True).stdout.split("\n")[0]
    except OSError:
        gpu = ""
    return name + (f", {gpu}" if gpu else "")


def program(build, name):
    """In a build folder, or in a bundle's bin/."""
    for folder in ("", "bench", "bin"):
        path = os.path.join(build, folder, name)
        if os.access(path, os.X_OK):
            return path
    sys.exit(f"latency.py: there is no {name} in {build}, its bench/ or its bin/: make bench-latency builds it")


class Peers:
    """nctd and the echo, both up for the whole run: the one that is not measured sleeps."""

    def __init__(self, o, folder):
        self.folder, self.processes = folder, []
        conf = os.path.join(folder, "nctd.conf")
        with open(conf, "w") as f:
            f.write(CONF.format(folder=folder, engine=o.engine))
        self.start([program(o.build, "echo_server"), f"ipc://{folder}/echo", f"ipc://{folder}/echo-pub"])
        self.start([program(o.build, "nctd"), "-c", conf, *o.set])

        for name, process in zip(("echo", "nctd"), self.processes):
            end = time.monotonic() + 120  # a GPU's context and the model's warm-up
            while not os.path.exists(os.path.join(folder, name)):
                if process.poll() is not None or time.monotonic() > end:
                    self.stop()
                    sys.exit(f"latency.py: {name} did not start")
                time.sleep(0.02)

    def start(self, command):
        self.processes.append(subprocess.Popen(command))

    def stop(self):
        for p in self.processes:
            p.terminate()
        for p in self.processes:
            p.wait(30)

    def cpu_s(self, impl):
        with open(f"/proc/{self.processes[impl == 'nctd'].pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bench(o, peers, impl, *args):
    """One `nct bench --json`. -> its object, with its exit code and the server's CPU seconds."""
    command = [program(o.build, "nct"), "bench", "--json", "-c", f"ipc://{peers.folder}/{impl}", "--timeout", "60",
               "--threads", str(o.threads), *map(str, args)]
    cpu_s = peers.cpu_s(impl)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1, 75) or not done.stdout.strip():
        sys.exit(f"latency.py: {' '.join(command)}: exit {done.returncode}\n{done.stderr}")
    return {**json.loads(done.stdout), "exit": done.returncode, "server_cpu_s": peers.cpu_s(impl) - cpu_s}


def quantiles(h):
    return {k: round(h[k], 1) for k in ("p50_us", "p99_us", "p999_us", "max_us")}


def latency(o, peers, impl, streams, every_ms):
    warmup = min(1, o.seconds / 4)
    j = bench(o, peers, impl, "--streams", streams, "--every", f"{every_ms}ms", "--seconds", o.seconds + warmup, "--warmup", warmup,
              "--subscribe", f"ipc://{peers.folder}/{impl}-pub", "--pending", 2000, "--drain", 1)
    return {"bench": "latency", "impl": impl, "streams": streams, "every_ms": every_ms, "clients": j["clients"],
            "frames_due_s": j["rate"], "answered_s": round(j["answered_per_s"]), "measured": j["latency"]["n"],
            "lost": j["lost"] - j["unheard"], "unheard": j["unheard"], "kept_up": j["lost"] == 0 and j["latency"]["p99_us"] < 1e6, "answer": quantiles(j["latency"]),
            "subscriber": quantiles(j["subscriber"]), "own_lag_p99_us": round(j["own_lag"]["p99_us"], 1), "bench_lagged": j["lagged"],
            "server_cpu_us": round(j["server_cpu_s"] * 1e6 / max(j["ok"], 1), 1)}


def knee(o, peers, impl):
    j = bench(o, peers, impl, "--find-knee", "--slo", "p99=10ms", "--every", "10ms", "--streams", o.first, "--seconds", o.knee_seconds,
              "--warmup", min(0.5, o.knee_seconds / 4), "--drain", 1)
    at = next((s for s in j["tried"] if s["level"] == j["answer"]), {})
    return {"bench": "real-time-streams", "impl": impl, "every_ms": 10, "slo": "p99 < 10 ms, no frame lost", "streams": j["answer"],
            "misses_at": j["misses_at"], "limited_by": j["limited_by"], "p50_ms": at.get("p50_ms"), "p99_ms": at.get("p99_ms"),
            "seconds": o.knee_seconds, "tried": [[s["level"], s["verdict"], s["p99_ms"], s["lag_p99_ms"]] for s in j["tried"]]}


def measure(o, folder):
    """Row after row, the peers in turns; what a shorter time should not lose comes first."""
    peers = Peers(o, folder)
    try:
        for impl in ("echo", "nctd"):  # both are up, and what comes first to a fresh process is over
            bench(o, peers, impl, "--rate", 200, "--seconds", 0.5, "--warmup", 0)
        for streams, every_ms in o.rows[:2]:
            for impl in ("echo", "nctd"):
                yield latency(o, peers, impl, streams, every_ms)
        for impl in ("echo", "nctd") if o.knee_seconds else ():
            yield knee(o, peers, impl)
        for streams, every_ms in o.rows[2:]:
            for impl in ("echo", "nctd"):
                yield latency(o, peers, impl, streams, every_ms)
    finally:
        peers.stop()


def show(r):
    if r["bench"] == "real-time-streams":
        print(f"{r['impl']:>5}: {r['streams'] or 0:.0f} streams of a frame every 10 ms with p99 < 10 ms and no loss; {r['misses_at'] or 0:.0f} are too many "
              f"(limited by {r['limited_by']})", flush=True)
        return
    a, s = r["answer"], r["subscriber"]
    print(f"{r['impl']:>5}: {r['streams']:4} streams, a frame every {r['every_ms']:3} ms: answer p50 {a['p50_us'] / 1e3:8.3f}  p99 {a['p99_us'] / 1e3:8.3f}  "
          f"p99.9 {a['p999_us'] / 1e3:8.3f}   subscriber {s['p50_us'] / 1e3:8.3f} {s['p99_us'] / 1e3:8.3f} {s['p999_us'] / 1e3:8.3f} ms, "
          f"lost {r['lost']} + {r['unheard']}, own lag p99 {r['own_lag_p99_us'] / 1e3:.3f} ms", flush=True)


def keep(path, rows, engine):
    """Written after every row. The file's rows of other engines stay."""
    old = []
    if os.path.exists(path):
        with open(path) as f:
            old = [line for line in f if line.strip() and json.loads(line)["engine"] != engine]
    with open(path, "w") as f:
        f.writelines(old)
        f.writelines(json.dumps(r) + "\n" for r in rows)


def command(args, o):
    """What was asked for, without the folders."""
    return " ".join(a for i, a in enumerate(args) if a != "--json" and args[i - 1:i] != ["--json"] and os.path.abspath(a) != o.build)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("build")
    parser.add_argument("--engine", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--knee-seconds", type=float, default=2.5, help="a step of the search; 0 leaves it out")
    parser.add_argument("--threads", type=int, default=max(1, min(4, cores // 4)))
    parser.add_argument("--first", type=int, default=64, help="streams that the search begins with")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="handed to nctd, as batch.max_frames=64")
    parser.add_argument("--rows", default=",".join(f"{s}:{e}" for s, e in ROWS), help="STREAMS:MS,...")
    o = parser.parse_args()
    o.build = os.path.abspath(o.build)
    o.rows = [tuple(map(int, r.split(":"))) for r in o.rows.split(",")]
    began, folder = time.monotonic(), tempfile.mkdtemp(prefix="nct-latency-")
    about = {"date": datetime.date.today().isoformat(), "hardware": hardware(), "cores": cores, "frame": "2x480", "engine": o.engine,
             "command": f"make bench-latency BENCH='{command(sys.argv[1:], o)}'"}
    rows = []
    try:
        for row in measure(o, folder):
            rows.append({**about, **row})
            show(row)
            if o.json:
                keep(o.json, rows, o.engine)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
