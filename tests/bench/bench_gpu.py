#!/usr/bin/env python3
"""bench-gpu: the fused layer beside PyTorch on one GPU; JSON lines, then a table.

Method: one CUDA graph holds R >= 20 calls in a row over input and output sets that together exceed 200 MB (weights stay
hot); all implementations of a shape are interleaved in one process, clocks as found; medians. Peers: nn.Conv1d + GroupNorm
+ activation ("torch"), conv2d on (N, C, 1, T) in channels_last with the conversions inside ("torch-cl"), and with PEERS=all
torch.compile max-autotune of both, compiled by many processes first (compiled.py). ratio = best peer / ours. Without
PEERS=all the compiled peers are known by their ratio to eager in the last full run of compiled.py: "~" before their time;
ratio_compiled = the best of all peers so / ours.

    bench_gpu.py [--shapes a,b] [--precisions tf32,bf16,f32] [--rows row,row] [--random N | --neighbours] [--out FILE]
                 [--rounds 15] [--seconds S]

--rows: rows of nct_variant, or sm80: what a card of compute capability 8.0 would take (Hopper rows disabled); results
say impl "nct:ROW". --random: N layers drawn with a fixed seed instead of the table. --neighbours: each shape of the table
with a step more and less, eight more input channels, one more channel a group, one frame less; ours alone, beside the
shape itself: cliff = how much longer a unit of work takes than there. --seconds: rows not begun by then are left out and counted.
"""

import argparse
import datetime
import json
import os
import random
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
import gpu  # noqa: E402
from gpu import Spec, nt  # noqa: E402

BANDWIDTH, FLOPS = 4.27e12, {"tf32": 430e12, "bf16": 790e12, "f32": 430e12 / 3}
ACTS = {"none": nn.Identity, "relu": nn.ReLU, "gelu": nn.GELU, "gelu_tanh": lambda: nn.GELU("tanh"), "silu": nn.SiLU,
        "mish": nn.Mish, "elu": nn.ELU}
SET_BYTES, MIN_CALLS = 200e6, 20
compiled_file = Path(__file__).resolve().parent / "results/gpu-peers.json"


class ChannelsLast(nn.Module):
    """The same layer by conv2d on (N, C, 1, T) in channels_last, conversions inside."""

    def __init__(self, conv, norm, act):
        super().__init__()
        self.conv, self.norm, self.act = conv, norm, act
        self.weight = conv.weight.detach()[:, :, None, :].contiguous(memory_format=torch.channels_last)

    def forward(self, x):
        c = self.conv
        x = x[:, :, None, :].contiguous(memory_format=torch.channels_last)
        y = nn.functional.conv2d(x, self.weight, c.bias, (1, c.stride[0]), (0, c.padding[0]), (1, c.dilation[0]), c.groups)
        return self.act(self.norm(y))[:, :, 0, :].contiguous()


def modules(spec, dtype):
    assert spec.pad[0] == spec.pad[1] and spec.mode == "zeros"
    torch.manual_seed(0)
    conv = nn.Conv1d(spec.ci, spec.co, spec.k, spec.stride, spec.pad[0], spec.dil, spec.groups, spec.bias)
    norm = nn.GroupNorm(spec.G, spec.co, spec.eps)
    return conv.to("cuda", dtype), norm.to("cuda", dtype), ACTS[spec.act]()


def capture(fn, xs, calls):
    """A graph of `calls` calls in a row over xs; outputs are kept apart until the end of the capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for i in range(3):
            fn(xs[i % len(xs)])
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph, kept = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for i in range(calls):
            kept.append(fn(xs[i % len(xs)]))
            if len(kept) >= len(xs):
                kept.pop(0)
    return graph


def time_all(graphs, calls, rounds):
    """Median microseconds a call, the graphs interleaved."""
    times = {k: [] for k in graphs}
    for g in graphs.values():
        g.replay()
    for _ in range(rounds):
        for k, g in graphs.items():
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            g.replay()
            b.record()
            b.synchronize()
            times[k].append(a.elapsed_time(b) * 1e3 / calls)
    return {k: statistics.median(v) for k, v in times.items()}


def allow_tf32(on):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = on
    if hasattr(torch.backends.cudnn, "fp32_precision"):  # what torch.compile's own convolutions look at
        torch.backends.cudnn.fp32_precision = "tf32" if on else "ieee"


class Case:
    """A shape in a precision: PyTorch's modules, the input sets, and the row of a measured implementation."""

    def __init__(self, name, n, spec, t, precision):
        self.name, self.n, self.spec, self.t, self.precision = name, n, spec, t, precision
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        allow_tf32(precision != "f32")
        self.conv, self.norm, self.act = modules(spec, self.dtype)
        t_out, size = spec.t_out(t), 2 if precision == "bf16" else 4
        moved = n * (spec.ci * t + spec.co * t_out) * size
        self.sets = max(2, min(64, int(SET_BYTES / moved) + 1))
        self.calls = max(MIN_CALLS, self.sets)
        self.xs = [torch.randn(n, spec.ci, t, device="cuda").to(self.dtype) for _ in range(self.sets)]
        self.floor = max((moved + self.conv.weight.numel() * size) / BANDWIDTH,
                         2 * n * spec.co * t_out * spec.ci // spec.groups * spec.k / FLOPS[precision]) * 1e6

    def peers(self, compiled):
        conv, norm, act = self.conv, self.norm, self.act
        impls = {"torch": lambda x: act(norm(conv(x))), "torch-cl": ChannelsLast(conv, norm, act)}
        if compiled:
            impls["torch-compile"] = torch.compile(nn.Sequential(conv, norm, act), mode="max-autotune-no-cudagraphs")
            impls["torch-cl-compile"] = torch.compile(ChannelsLast(conv, norm, act), mode="max-autotune-no-cudagraphs")
        return impls

    def measure(self, impls, rounds, plans=None, more=None):
        """Rows of impls (and of `more`, already measured), interleaved. A peer that cannot be captured is left out; ours must."""
        graphs = {}
        allow_tf32(self.precision != "f32")
        for key, fn in impls.items():
            try:
                graphs[key] = capture(fn, self.xs, self.calls)
            except Exception as e:
                if key.startswith("nct"):
                    raise
                print(f"# {self.name} {self.precision} {key}: {type(e).__name__}: {str(e)[:120]}", flush=True)
        us = {**time_all(graphs, self.calls, rounds), **(more() if more else {})}
        best, rows = min((v for k, v in us.items() if k.startswith("torch")), default=None), []
        for key, v in us.items():
            row = {"bench": "gpu-layer", "shape": self.name, "precision": self.precision, "impl": key, "median_us": round(v, 2),
                   "floor_us": max(0.01, round(self.floor, 2)), "ratio": round(best / v, 3) if best else None, "hot": self.sets == 64}
            if plans and key in plans:
                row.update(plan=plans[key]["plan"], schedule=plans[key]["schedule"])
            rows.append(row)
        return rows


def bench_shape(name, n, spec, t, precision, args):
    case, impls, plans = Case(name, n, spec, t, precision), {}, {}
    for row in args.rows or [None]:
        fused = nt.FusedConv1dGroupNorm.from_modules(case.conv, case.norm, spec.act, precision)
        fused.force = row
        key = f"nct:{row}" if row else "nct"
        try:
            fused(case.xs[0])
        except nt.LayerError as e:
            if e.code != -95 or not row:
                raise
            continue
        impls[key], plans[key] = fused, fused.explain(case.xs[0])
    if not args.no_peers:
        if args.compiled:
            torch._dynamo.reset()  # it counts the forms of one function over all shapes
        impls.update(case.peers(args.compiled))

    def cold():
        layers = [nt.FusedConv1dGroupNorm(spec.ci, spec.co, spec.k, spec.G, padding=spec.pad[0], activation=spec.act,
                                          precision=precision, device="cuda", dtype=case.dtype) for _ in range(4)]
        for layer in layers:
            layer(case.xs[0])
        turn = iter(range(10 ** 9))
        plans["nct-cold"] = plans["nct"]
        graph = capture(lambda x: layers[next(turn) % 4](x), case.xs, case.calls)
        return {"nct-cold": time_all({"c": graph}, case.calls, args.rounds)["c"]}

    rows = case.measure(impls, args.rounds, plans, cold if args.cold and name == "diffpolicy-n1" and "nct" in plans else None)
    for row in rows:
        print(json.dumps(row), flush=True)
    return rows


def random_shapes(count):
    r = random.Random(7)
    for i in range(count):
        ci, g = r.choice([1, 2, 8, 16, 32, 64, 96, 128, 256, 512]), r.choice([1, 2, 4, 8, 16, 32])
        co, k = g * r.choice([2, 4, 8, 16, 24]), r.choice([1, 3, 3, 5, 7, 9])
        s, n = r.choice([1, 1, 1, 2, 4]), r.choice([1, 2, 4, 8, 16, 32])
        t = int(2 ** r.uniform(4, 14)) + k
        while n * (ci + co) * t > 6e7:
            t //= 2
        yield f"random-{i}", (n, Spec(ci, co, k, g, stride=s, pad=(k // 2, k // 2), act=r.choice(["none", "gelu", "silu", "mish"]),
                                      bias=r.random() < 0.5), max(t, k))


def neighbours():
    """The table's shapes, each followed by its neighbours: name, name/t+1, ..."""
    for name, (n, spec, t) in gpu.SHAPES.items():
        yield name, (n, spec, t)
        low = spec.dil * (spec.k - 1) + 1 - sum(spec.pad)
        for key, near in (("t+1", (n, spec, t + 1)), ("t-1", (n, spec, t - 1) if t - 1 >= low else None),
                          ("ci+8", (n, replace(spec, ci=spec.ci + 8), t) if spec.groups == 1 else None),
                          ("co+G", (n, replace(spec, co=spec.co + spec.G), t) if spec.groups == 1 else None),
                          ("n-1", (n - 1, spec, t) if n > 1 else None)):
            if near:
                yield f"{name}/{key}", near


def cliffs(rows):
    """Time for a unit of work against the shape's own; work = the floor, which counts bytes and products, plus a launch."""
    ours = {(r["shape"], r["precision"]): r for r in rows if r["impl"] == "nct"}
    for (shape, precision), r in ours.items():
        base = ours.get((shape.split("/")[0], precision))
        if base is not r and base:
            r["cliff"] = round(r["median_us"] / base["median_us"] / ((r["floor_us"] + 2) / (base["floor_us"] + 2)), 3)
    worst = sorted((r for r in ours.values() if "cliff" in r), key=lambda r: -r["cliff"])
    print(f"{len(worst)} neighbours; the steepest:")
    for r in worst[:12]:
        print(f"  {r['shape']:24}{r['precision']:6}{r['median_us']:9.1f} us  {r['cliff']:6.2f}x  {r['schedule']}")


def machine():
    q = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.mem", "--format=csv,noheader"],
                       capture_output=True, text=True, check=False).stdout.strip()
    return {"hardware": torch.cuda.get_device_name(0), "smi": q, "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(),
            "date": datetime.date.today().isoformat(), "command": "bench_gpu.py " + " ".join(sys.argv[1:])}


def last_compiled():
    """{(shape, precision): compiled / eager} of the last full run of compiled.py, and what it says of itself."""
    by, head = {}, None
    if compiled_file.exists():
        for r in map(json.loads, compiled_file.read_text().splitlines()):
            head = head or {k: r[k] for k in ("date", "hardware", "torch")}
            at = by.setdefault((r["shape"], r["precision"]), {})
            kind = "compiled" if r["impl"].endswith("-compile") else "eager"
            at[kind] = min(at.get(kind, 1e9), r["median_us"])
    return {k: v["compiled"] / v["eager"] for k, v in by.items() if len(v) == 2}, head


def table(rows):
    print(f"\n{'shape':16}{'prec':6}{'ours us':>9}{'floor':>8}{'x floor':>8}{'torch':>9}{'torch-cl':>9}{'compiled':>9}{'ratio':>7}  schedule")
    ratios, of_all, (last, said) = [], [], last_compiled()
    counted = rows[0]["impl"] if rows else ""  # "nct", or the first of --rows
    for shape, precision in dict.fromkeys((r["shape"], r["precision"]) for r in rows):
        by = {r["impl"]: r for r in rows if (r["shape"], r["precision"]) == (shape, precision)}
        cell = lambda k: f"{by[k]['median_us']:9.1f}" if k in by else " " * 9  # noqa: E731
        compiled = min((by[k]["median_us"] for k in ("torch-compile", "torch-cl-compile") if k in by), default=None)
        eager = min((by[k]["median_us"] for k in ("torch", "torch-cl") if k in by), default=None)
        known = compiled or (eager * last[shape, precision] if eager and (shape, precision) in last else None)
        text = f"{'' if compiled else '~'}{known:.1f}" if known else ""
        for key in (k for k in by if k.startswith("nct")):
            o = by[key]
            print(f"{shape:16}{precision:6}{o['median_us']:9.1f}{o['floor_us']:8.1f}{o['median_us'] / o['floor_us']:8.2f}{cell('torch')}"
                  f"{cell('torch-cl')}{text:>9}{o['ratio'] or 0:7.2f}  {key if key != 'nct' else ''} {o['schedule']}")
            if key == counted and o["ratio"]:
                ratios.append((o["ratio"], shape, precision))
            if key == counted and known:
                o["ratio_compiled"] = round(min(known, eager) / o["median_us"], 3)
                of_all.append((o["ratio_compiled"], shape, precision))
    summary = {}
    if ratios:
        summary = {"bench": "gpu-layer-summary", "impl": counted, "rows": len(ratios),
                   "peers": sorted({r["impl"] for r in rows if r["impl"].startswith("torch")}), **summed(ratios)}
        print("\n" + words("the best peer of this run", summary))
    if of_all:
        summary["with_compiled"] = {"rows": len(of_all), "from": said, **summed(of_all)}
        print(words(f"the best of all, torch.compile as in its last full run ({said and said['date']})", summary["with_compiled"]))
    return summary


def summed(ratios):
    return {"geometric_mean": round(statistics.geometric_mean(r[0] for r in ratios), 3), "slowest": min(ratios),
            "slower_than_a_peer": sorted(ratios)[:sum(r[0] < 1 for r in ratios)]}


def words(whom, s):
    return (f"geometric mean against {whom} {s['geometric_mean']:.2f}x over {s['rows']} rows; slowest {s['slowest']}; "
            f"slower in {len(s['slower_than_a_peer'])}: {s['slower_than_a_peer']}")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--shapes"), a.add_argument("--precisions", default="tf32,bf16"), a.add_argument("--rows")
    a.add_argument("--random", type=int, default=0), a.add_argument("--out"), a.add_argument("--rounds", type=int, default=15)
    a.add_argument("--no-peers", action="store_true"), a.add_argument("--cold", action="store_true")
    a.add_argument("--neighbours", action="store_true"), a.add_argument("--seconds", type=float, default=1e9)
    args = a.parse_args()
    args.no_peers |= args.neighbours
    args.rows = args.rows.split(",") if args.rows else None
    args.compiled = os.environ.get("PEERS") == "all"
    torch.backends.cudnn.benchmark = True
    shapes = dict(random_shapes(args.random) if args.random else neighbours()) if args.random or args.neighbours else gpu.SHAPES
    names, precisions = args.shapes.split(",") if args.shapes else list(shapes), args.precisions.split(",")
    head, rows, end = machine(), [], time.monotonic() + args.seconds
    print("# " + json.dumps(head), flush=True)
    if args.compiled and not args.no_peers and shapes is gpu.SHAPES:
        import compiled
        compiled.compile_all([(n, p) for p in precisions for n in names], 600)
    # Random layers take turns, so that a limit leaves every layer in one precision before any is in all.
    turn = lambda i, k: (k - i) % len(precisions) if args.random else 0  # noqa: E731
    todo = sorted(((turn(i, k), i, name, p) for i, name in enumerate(names) for k, p in enumerate(precisions)), key=lambda x: x[:2])
    left_out = []

    def save(*more):
        if args.out:
            Path(args.out).parent.mkdir(parents=True, exist_ok=True)
            Path(args.out).write_text("".join(json.dumps({**head, **r}) + "\n" for r in [*rows, *more]))

    with torch.no_grad():
        for _, _, name, precision in todo:
            if time.monotonic() > end:
                left_out.append((name, precision))
                continue
            rows += bench_shape(name, *shapes[name], precision, args)
            torch.cuda.empty_cache()
            save()
    summary = table(rows)
    if args.neighbours:
        cliffs(rows)
    if left_out:
        print(f"{len(left_out)} of {len(todo)} rows were left out: --seconds {args.seconds:g} were over")
        summary["left_out"] = len(left_out)
    save(*[summary] * bool(summary))


if __name__ == "__main__":
    main()
