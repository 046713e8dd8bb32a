#!/usr/bin/python3
"""The CPU layer against the FMA loop, oneDNN and PyTorch, interleaved in one process on warm memory.

Every round runs each contestant once on each shape; ratios are taken within a round, and medians over rounds are
reported, so that a machine that others use as well disturbs all alike. One JSON object a line goes to --json, a table to
stdout. Needs python3-torch and the library that `make bench` builds from bench_ours.c and bench_dnnl.c."""

import argparse
import ctypes
import datetime
import json
import math
import os
import platform
import statistics
import sys
import time

import numpy as np

ACTS = {"none": 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4, "mish": 5, "elu": 6}

# name: N here, N of the table, Ci, Co, K, stride, pad, dilation, conv groups, norm groups, activation, bias, T, eps
SHAPES = {
    "default": (16, 16, 128, 256, 3, 1, 1, 1, 1, 32, "none", 0, 1024, 1e-5),
    "default-n1": (1, 1, 128, 256, 3, 1, 1, 1, 1, 32, "none", 0, 1024, 1e-5),
    "default-n64": (32, 64, 128, 256, 3, 1, 1, 1, 1, 32, "none", 0, 1024, 1e-5),
    "default-long": (2, 16, 128, 256, 3, 1, 1, 1, 1, 32, "none", 0, 16384, 1e-5),
    "wav2vec2-l0": (16, 16, 1, 512, 10, 5, 0, 1, 1, 512, "gelu", 0, 16000, 1e-5),
    "diffpolicy": (256, 256, 256, 256, 5, 1, 2, 1, 1, 8, "mish", 1, 16, 1e-5),
    "diffpolicy-n1": (1, 1, 1024, 2048, 5, 1, 2, 1, 1, 8, "mish", 1, 4, 1e-5),
    "matcha": (16, 16, 256, 256, 3, 1, 1, 1, 1, 8, "mish", 1, 500, 1e-5),
    "cosyvoice": (2, 2, 512, 256, 3, 1, 1, 1, 1, 8, "mish", 1, 500, 1e-5),
    "dconv": (2, 4, 64, 16, 3, 1, 2, 2, 1, 1, "gelu", 1, 220500, 1e-5),
    "encodec48-l0": (16, 16, 2, 32, 7, 1, 0, 1, 1, 1, "none", 1, 48006, 1e-5),
    "convtasnet": (4, 4, 512, 128, 1, 1, 0, 1, 1, 1, "none", 1, 3200, 1e-8),
    "convtasnet-dw": (4, 4, 512, 512, 3, 1, 16, 16, 512, 1, "none", 1, 3200, 1e-8),
    "demucs-l4": (2, 4, 512, 1024, 8, 4, 0, 1, 1, 4, "gelu", 1, 3444, 1e-5),
    "eeg64": (16, 16, 64, 128, 7, 1, 3, 1, 1, 16, "silu", 0, 512, 1e-5),
}


SETTLE_S = 0.03
REST_ROUNDS = 3  # of the variants that are not this machine's best


class Shape(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int32) for n in
                "n ci co k stride pad dilation groups num_groups activation t t_out".split()]
    _fields_ += [("eps", ctypes.c_double)]
    _fields_ += [(n, ctypes.c_void_p) for n in "x w bias gamma beta y".split()]


class DnnlVersion(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int) for n in ("major", "minor", "patch")]


def library(path):
    lib = ctypes.CDLL(path)
    for name, args in {"ours_new": [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32],
                       "dnnl_peer_new": [ctypes.c_void_p, ctypes.c_int, ctypes.c_int32]}.items():
        getattr(lib, name).restype = ctypes.c_void_p
        getattr(lib, name).argtypes = args
    for name in "ours_run", "dnnl_peer_run", "dnnl_peer_bare":
        getattr(lib, name).restype = ctypes.c_double
        getattr(lib, name).argtypes = [ctypes.c_void_p]
    for name in "ours_free", "dnnl_peer_free":
        getattr(lib, name).restype = None
        getattr(lib, name).argtypes = [ctypes.c_void_p]
    lib.ours_plan.restype = ctypes.c_char_p
    lib.ours_plan.argtypes = [ctypes.c_void_p]
    lib.dnnl_version.restype = ctypes.POINTER(DnnlVersion)
    lib.fma_run.restype = ctypes.c_double
    lib.fma_run.argtypes = [ctypes.c_double, ctypes.c_int32]
    return lib


class Data:
    """One shape's tensors, touched, and its description for the C side."""

    def __init__(self, name):
        n, table_n, ci, co, k, s, p, d, g, ng, act, bias, t, eps = SHAPES[name]
        rng = np.random.default_rng(1)
        self.name, self.act, self.eps, self.table_n = name, act, eps, table_n
        self.t_out = (t + 2 * p - d * (k - 1) - 1) // s + 1
        bound = 1 / math.sqrt(ci // g * k)
        self.x = rng.standard_normal((n, ci, t), dtype=np.float32)
        self.w = rng.uniform(-bound, bound, (co, ci // g, k)).astype(np.float32)
        self.bias = rng.uniform(-bound, bound, co).astype(np.float32) if bias else None
        self.gamma, self.beta = np.ones(co, np.float32), np.zeros(co, np.float32)
        self.conv = dict(stride=s, padding=p, dilation=d, groups=g)
        self.num_groups = ng
        self.flop = 2.0 * n * co * self.t_out * (ci // g) * k
        self.fields = (n, ci, co, k, s, p, d, g, ng, ACTS[act], t, self.t_out, eps)

    def shape(self):
        y = np.zeros((self.fields[0], self.fields[2], self.t_out), np.float32)
        at = [a.ctypes.data if a is not None else None
              for a in (self.x, self.w, self.bias, self.gamma, self.beta, y)]
        return Shape(*self.fields, *at), y


def torch_new(data, threads):
    import torch
    import torch.nn.functional as F
    acts = {"none": lambda z: z, "gelu": F.gelu, "silu": F.silu, "mish": F.mish}
    x, w = torch.from_numpy(data.x), torch.from_numpy(data.w)
    bias = torch.from_numpy(data.bias) if data.bias is not None else None
    gamma, beta = torch.from_numpy(data.gamma), torch.from_numpy(data.beta)

    def run():
        torch.set_num_threads(threads)
        with torch.no_grad():
            clock = time.thread_time if threads == 1 else time.perf_counter
            start = clock()
            run.y = acts[data.act](F.group_norm(F.conv1d(x, w, bias, **data.conv), data.num_groups, gamma, beta, data.eps))
            return clock() - start
    return run


class Contest:
    """All contestants of one shape at one thread count."""

    def __init__(self, lib, data, threads, variants, peers):
        self.lib, self.data, self.threads = lib, data, threads
        self.kept, self.handles, self.runs, self.plan = [], [], {}, ""
        for v in variants:
            o = self.keep(lib.ours_new, lib.ours_free, v.encode(), threads)
            self.runs[v] = lambda o=o: lib.ours_run(o)
            self.plan = self.plan or lib.ours_plan(o).decode()
        if "dnnl" in peers:
            ncw = self.keep(lib.dnnl_peer_new, lib.dnnl_peer_free, 0, threads)
            nwc = self.keep(lib.dnnl_peer_new, lib.dnnl_peer_free, 1, threads)
            self.runs["onednn-ncw"] = lambda: lib.dnnl_peer_run(ncw)
            self.runs["onednn-nwc"] = lambda: lib.dnnl_peer_run(nwc)
            self.runs["onednn-bare"] = lambda: lib.dnnl_peer_bare(nwc)
        if "torch" in peers:
            self.runs["torch"] = torch_new(data, threads)
        self.slower = variants[1:]
        # The loop's share: at least 2 ms, else it measures waking up.
        self.fma_flop = max(data.flop, 4e8 * threads)
        self.times = {k: [] for k in ["fma", *self.runs]}

    def keep(self, new, free, *args):
        shape, y = self.data.shape()
        handle = new(ctypes.byref(shape), *args)
        if not handle:
            sys.exit(f"bench: {self.data.name}: {new.__name__}{args} failed")
        self.kept += [shape, y]
        self.handles.append((free, handle))
        return handle

    def check(self):
        """Contestants that compute different things are not peers."""
        ys = {}
        for i, k in enumerate([k for k in self.runs if k not in ("torch", "onednn-bare")]):
            self.runs[k]()
            ys[k] = self.kept[2 * i + 1]
        if "torch" in self.runs:
            self.runs["torch"]()
            ys["torch"] = self.runs["torch"].y.numpy()
        first = next(iter(ys.values()))
        return {k: float(np.max(np.abs(y - first))) for k, y in ys.items()}

    def round(self, repeat, rest):
        """rest: the variants beside the best one too."""
        beside = []
        for k, run in self.runs.items():
            if k in self.slower and not rest:
                continue
            # The loop beside each contestant: what the machine gave at that moment.
            beside.append(self.lib.fma_run(self.fma_flop, self.threads) * self.data.flop / self.fma_flop)
            run()
            self.times[k].append(min(run() for _ in range(repeat)))
            # An OpenMP peer's threads look for work for milliseconds after it: on the next one's processors.
            time.sleep(SETTLE_S if self.threads > 1 and (k == "torch" or k.startswith("onednn")) else 0.002)
        self.times["fma"].append(min(beside))

    def medians(self):
        ms = {k: statistics.median(v) * 1e3 for k, v in self.times.items()}
        best = self.times[next(iter(self.runs))]
        ratio = {k: statistics.median(a / b for a, b in zip(self.times[k], self.times["fma"])) for k in self.runs}
        beside = {k: statistics.median(a / b for a, b in zip(self.times[k], best)) for k in self.runs}
        return ms, ratio, beside

    def close(self):
        for free, handle in self.handles:
            free(handle)


def row_print(threads, data, ms, ratio, beside):
    n = f"{data.name}" + (f" (N {data.fields[0]} of {data.table_n})" if data.fields[0] != data.table_n else "")
    cells = "".join(f"{ms[k]:10.3f}{ratio[k]:6.2f}x{beside[k]:6.2f}" for k in ratio)
    print(f"{n:28s}{threads:2d} {ms['fma']:9.3f}{cells}", flush=True)


def command_line():
    """As it was given, without where the library and the results lie."""
    args = sys.argv[2:]
    if "--json" in args:
        del args[args.index("--json"):args.index("--json") + 2]
    return " ".join(["tests/bench/bench_layer.py", *args])


def hardware():
    model = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("library")
    ap.add_argument("--shapes", default=",".join(SHAPES))
    ap.add_argument("--variants", default=os.environ.get("CPU_VARIANT") or "avx512,avx2,portable")
    ap.add_argument("--peers", default="dnnl,torch")
    ap.add_argument("--threads", default="1,2")
    ap.add_argument("--rounds", type=int, default=9)
    ap.add_argument("--seconds", type=float, default=20, help="for one shape, after 3 rounds at least")
    ap.add_argument("--json")
    args = ap.parse_args()
    lib, rows = library(args.library), []
    variants, peers = args.variants.split(","), args.peers.split(",")
    about = versions(lib, peers)
    print(hardware(), about)
    print("milliseconds (median), x: over the FMA loop beside it, last: over the first column; memory warm;\n1 thread by its CPU time, 2 by the wall\n"
          f"{'shape':28s}th  fma loop" + "".join(f"{c:>23s}" for c in variants + (["onednn-ncw", "onednn-nwc", "(conv, nwc)"] if "dnnl" in args.peers else []) + (["torch"] if "torch" in args.peers else [])))
    for name in args.shapes.split(","):
        for threads in map(int, args.threads.split(",")):
            data = Data(name)
            contest = Contest(lib, data, threads, variants, peers)
            off = contest.check()
            if any(not d < 1e-3 for d in off.values()):
                sys.exit(f"bench: {name}: contestants disagree: {off}")
            end, rounds = time.monotonic() + args.seconds, 0
            while rounds < 3 or rounds < args.rounds and time.monotonic() < end:
                contest.round(2, rounds < REST_ROUNDS)
                rounds += 1
            ms, ratio, beside = contest.medians()
            contest.close()
            row_print(threads, data, ms, ratio, beside)
            rows.append(dict(date=datetime.date.today().isoformat(), hardware=hardware(), command=command_line(), versions=about,
                             shape=name, n=data.fields[0], n_of_table=data.table_n, threads=threads, memory="warm", rounds=rounds, clock="thread CPU" if threads == 1 else "wall",
                             gflop=data.flop / 1e9, plan=contest.plan, fma_ms=ms["fma"],
                             contestants={k: dict(ms=ms[k], over_fma=ratio[k], over_ours=beside[k]) for k in ratio}))
            if args.json:
                with open(args.json, "a" if len(rows) > 1 else "w") as f:
                    f.write(json.dumps(rows[-1]) + "\n")
    summary(rows, variants[0])


def versions(lib, peers):
    found = {}
    if "dnnl" in peers:
        v = lib.dnnl_version().contents
        found["onednn"] = f"{v.major}.{v.minor}.{v.patch}"
    if "torch" in peers:
        import torch
        found["torch"] = torch.__version__
    return found


def summary(rows, ours):
    for threads in sorted({r["threads"] for r in rows}):
        mine = [r for r in rows if r["threads"] == threads]
        for peer in "onednn-ncw", "onednn-nwc", "torch":
            faster = [r["contestants"][peer]["over_ours"] for r in mine if peer in r["contestants"]]
            if faster:
                worst = min(mine, key=lambda r: r["contestants"][peer]["over_ours"])["shape"]
                print(f"{threads} threads: {ours} is {math.exp(statistics.mean(map(math.log, faster))):.2f}x faster than "
                      f"{peer} (geometric mean of {len(faster)}), at worst {min(faster):.2f}x ({worst})")
    one = {r["shape"]: r["contestants"][ours]["over_fma"] for r in rows if r["threads"] == 1}
    two = {r["shape"]: r["contestants"][ours]["over_fma"] for r in rows if r["threads"] == 2}
    scaling = {s: one[s] / two[s] for s in one if s in two}
    if scaling:
        least = min(scaling, key=scaling.get)
        print(f"two threads scale {statistics.median(scaling.values()):.2f} of the FMA loop's own (median of {len(scaling)}), "
              f"at worst {scaling[least]:.2f} ({least})")


if __name__ == "__main__":
    main()
