#!/usr/bin/env python3
"""The README's tables of figures, made from tests/bench/results/*.json. `tables.py` rewrites what stands between the
markers, `tables.py --check` says whether that would change anything."""
import json
import math
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RESULTS = os.path.join(ROOT, "tests/bench/results")
README = os.path.join(ROOT, "README.md")


def rows(name):
    path = os.path.join(RESULTS, name)
    if not os.path.exists(path):
        return []
    with open(path) as f:
        return [json.loads(line) for line in f if line.strip()]


def table(head, lines):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
                     + ["| " + " | ".join(map(str, line)) + " |" for line in lines])


def cpu():
    """Ratios alone: times over our best variant's in the same run."""
    found = [r for r in rows("cpu-layer.json") if "contestants" in r]
    lines, ratios, over = [], [], {}
    for r in found:
        c = r["contestants"]
        ours = next((v for v in ("avx512", "avx2", "portable") if v in c), None)
        peers = {k: v["over_ours"] for k, v in c.items() if k in ("onednn-ncw", "onednn-nwc", "torch")}
        if not ours or not peers:
            continue
        if "torch" in peers:
            ratios.append(peers["torch"])
        over.setdefault(r["shape"], {})[r["threads"]] = c[ours]["over_fma"]
        lines.append([r["shape"], f"{r['n']}", r["threads"], f"{c[ours]['over_fma']:.2f}",
                      *(f"{peers[p]:.2f}x" if p in peers else "" for p in ("onednn-ncw", "onednn-nwc", "torch"))])
    if not lines:
        return "No figures yet: `make bench`."
    peers = found[0].get("versions", {})
    commands = dict.fromkeys(r["command"] for r in found)
    note = f"{found[0]['hardware']}, {found[0]['date']}, " + " and ".join(f"`{c}`" for c in commands)
    note += "".join(f", {name} {peers[key]}" for key, name in (("onednn", "oneDNN"), ("torch", "PyTorch")) if key in peers) + "."
    if ratios:
        note += f" Geometric mean against PyTorch: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}x."
    scaling = sorted((o[1] / o[2], shape) for shape, o in over.items() if 1 in o and 2 in o)
    if scaling:
        note += (f" Two threads scale {scaling[len(scaling) // 2][0]:.2f} of the FMA loop's own (median of {len(scaling)} shapes), "
                 f"at worst {scaling[0][0]:.2f} ({scaling[0][1]}).")
    return note + "\n\n" + table(["shape", "N", "threads", "ours / FMA loop", "oneDNN ncw / ours", "oneDNN nwc / ours",
                                  "PyTorch / ours"], lines)


def mean_of(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def compiled_of_eager():
    """{(shape, precision): compiled / eager} of the run that compiled everything, and one of its lines."""
    by, found = {}, [r for r in rows("gpu-peers.json") if r["bench"] == "gpu-layer"]
    for r in found:
        at = by.setdefault((r["shape"], r["precision"]), {})
        kind = "compiled" if r["impl"].endswith("-compile") else "eager"
        at[kind] = min(at.get(kind, 1e9), r["median_us"])
    return {k: v["compiled"] / v["eager"] for k, v in by.items() if len(v) == 2}, found[0] if found else None


def gpu():
    found = [r for r in rows("gpu-layer.json") if r.get("bench") == "gpu-layer" and r.get("precision") in ("tf32", "bf16")]
    best, (compiled, from_run) = {}, compiled_of_eager()
    for r in found:
        at = best.setdefault(r["shape"], {}).setdefault(r["precision"], {})
        if r["impl"] == "nct":
            at["ours"], at["floor"] = r["median_us"], r["floor_us"]
        elif r["impl"] in ("torch", "torch-cl"):
            at["eager"] = min(at.get("eager", 1e9), r["median_us"])
        elif r["impl"].endswith("-compile"):
            at["compiled"] = min(at.get("compiled", 1e9), r["median_us"])
    lines, eager, every, slower = [], [], [], []
    for shape, by in best.items():
        line = [shape]
        for precision in ("tf32", "bf16"):
            b = by.get(precision, {})
            if "ours" not in b or "eager" not in b:
                line += [""] * 4
                continue
            known = b.get("compiled") or (b["eager"] * compiled[shape, precision] if (shape, precision) in compiled else None)
            eager.append(b["eager"] / b["ours"])
            line += [f"{b['ours']:.1f}", f"{b['floor']:.1f}", f"{eager[-1]:.2f}x", f"{known / b['ours']:.2f}x" if known else ""]
            if known:
                every.append(min(known, b["eager"]) / b["ours"])
                if every[-1] < 1:
                    slower.append(f"{shape} {precision} {every[-1]:.2f}x")
        lines.append(line)
    if not lines:
        return "No figures yet: `make bench-gpu`."
    note = (f"{found[0]['hardware']}, {found[0]['date']}, PyTorch {found[0]['torch']}. Geometric mean against the best eager PyTorch "
            f"{mean_of(eager):.2f}x, slower in {sum(r < 1 for r in eager)} of {len(eager)} rows")
    if every and from_run:
        note += (f"; against the best of eager and `torch.compile` (max-autotune) {mean_of(every):.2f}x, slower in {len(slower)} of {len(every)}"
                 f"{': ' + ', '.join(slower) if slower else ''}. Compiled times are their ratio to eager in a run of their own "
                 f"({from_run['date']}, `make bench-gpu-peers`) times this run's eager")
    head = [h for p in ("tf32", "bf16") for h in (f"{p} µs", "floor", "eager / ours", "compiled / ours")]
    return note + ".\n\n" + table(["shape", *head], lines)


def gpu_more():
    """What else was measured on the GPU host: shapes nobody chose, the engine's overlap, the daemon, the checkers."""
    said = []
    drawn = rows("gpu-random.json")
    for r in (r for r in drawn if r["bench"] == "gpu-layer-summary"):
        layers = len({x["shape"] for x in drawn if x["bench"] == "gpu-layer"})
        said.append(f"{layers} random layers, {r['rows']} rows in tf32 and bf16, against the best eager PyTorch: geometric mean {r['geometric_mean']:.2f}x, "
                    f"slower in {len(r['slower_than_a_peer'])}, the slowest {r['slowest'][0]:.2f}x.")
    near = sorted(r["cliff"] for r in rows("gpu-neighbours.json") if "cliff" in r)
    if near:
        said.append(f"{len(near)} neighbours of the shapes (a step more or less, 8 channels more, a channel a group more, a frame less): a unit of work "
                    f"takes {near[len(near) // 2]:.2f}x the shape's own time in the median, {near[-1]:.2f}x at worst.")
    tests = rows("gpu-tests.json")
    if tests:
        said.append("Tests on the card: " + ", ".join(f"{r['suite']} {r['passed']}" + (f" ({r['failed']} failed)" if r["failed"] else "") for r in tests) + " passed.")
    found = rows("gpu-accuracy.json")
    if found:
        worst = {p: max(r["of_bound"] for r in found if r["precision"] == p) for p in dict.fromkeys(r["precision"] for r in found)}
        said.append("Largest error on the bench's shapes and 300 random layers against float64, as a part of its bound: " + ", ".join(f"{p} {v:.2f}" for p, v in worst.items()) + ".")
    overlap = {(r["what"], r["slots"]): r for r in rows("gpu-overlap.json") if r["bench"] == "engine"}
    if ("whole engine", 3) in overlap:
        said.append("The engine without ZeroMQ on the default batch (16 frames of 128 x 1024 f32), as a part of the rate of plain copies in both directions: "
                    + ", ".join(f"{n} slot{'s' * (n > 1)} {overlap['whole engine', n]['of_duplex']:.2f}" for n in (1, 2, 3))
                    + f" (payloads filled once: {overlap['filled once', 3]['of_duplex']:.2f} with 3).")
    for r in rows("gpu-sanitizer.json"):
        older = f" (kernels of commit {r['commit']}, older than those of the table)" if "commit" in r else ""
        said.append(f"compute-sanitizer {r['tool']}{older}: {r['errors']} {'hazards' if r['tool'] == 'racecheck' else 'errors'} in "
                    f"{r['jobs']} small jobs over {r['rows_run']} of {r['rows']} kernel rows{'; ' + r['note'] if 'note' in r else ''}.")
    found = [r for r in rows("gpu-daemon.json") if r["bench"] == "daemon" and r["impl"] == "nctd" and r["engine"] == "cuda"]
    lines = [[r["frame"].replace("x", " × "), r["clients"], r["frames_s"], f"{r['p50_us'] / 1000:.2f}", f"{r['p99_us'] / 1000:.2f}",
              f"{r['of_echo']:.2f}", r["server_cpu_us"]] for r in found]
    text = "\n".join(f"- {x}" for x in said)
    if lines:
        text += "\n\n" + table(["frame", "clients", "frames/s", "p50 ms", "p99 ms", "of the echo's rate", "server CPU µs a frame"], lines)
    return text or "No figures yet: `make bench-gpu bench-engine`."


def daemon():
    found = [r for r in rows("daemon.json") if r.get("impl") == "nctd" and r.get("engine") == "cpu"]
    if not found:
        return "No figures yet: `make bench-daemon`."
    return table(["frame", "clients", "frames/s", "p50 ms", "p99 ms", "of the echo's rate", "server CPU µs a frame",
                  "of it the layer"],
                 [[r["frame"].replace("x", " × "), r["clients"], r["frames_s"], f"{r['p50_us'] / 1000:.2f}", f"{r['p99_us'] / 1000:.2f}",
                   f"{r['of_echo']:.2f}", r["server_cpu_us"], r["layer_us"]] for r in found])


def ms(us):
    return f"{us / 1000:.2f}"


def latency():
    """Capture to answer and to subscriber, nctd beside the echo of the same run; then the streams that each serves."""
    found = rows("latency.json")
    text = []
    for engine in ("cpu", "cuda"):
        mine = [r for r in found if r["engine"] == engine]
        by = {(r["streams"], r["every_ms"], r["impl"]): r for r in mine if r["bench"] == "latency"}
        lines = []
        for streams, every in dict.fromkeys(k[:2] for k in by):
            for impl in ("nctd", "echo"):
                r = by.get((streams, every, impl))
                if not r:
                    continue
                # What the load generator could not send in time says nothing about a server.
                late = r["bench_lagged"]
                lines.append([streams, f"{every} ms", impl] + [("late" if late else ms(r[at][q])) for at in ("answer", "subscriber")
                                                              for q in ("p50_us", "p99_us", "p999_us")] + [r["lost"], r["answered_s"]])
        if not lines:
            continue
        served = {r["impl"]: r for r in mine if r["bench"] == "real-time-streams"}
        said = "; ".join(f"{impl} **{served[impl]['streams'] or 0:.0f}** (limited by {served[impl]['limited_by']})" for impl in ("nctd", "echo")
                         if impl in served)
        text.append(f"{mine[0]['hardware']}, {mine[0]['cores']} cores, engine `{engine}`, {mine[0]['date']}. Real-time streams (a frame every "
                    f"10 ms) with p99 < 10 ms and no frame lost: {said}.\n\n"
                    + table(["streams", "a frame every", "server", "answer p50 ms", "p99", "p99.9", "subscriber p50 ms", "p99", "p99.9",
                             "lost", "answers/s"], lines))
    return "\n\n".join(text) or "No figures yet: `make bench-latency`."


TABLES = {"cpu": cpu, "gpu": gpu, "gpu-more": gpu_more, "daemon": daemon, "latency": latency}


def main():
    with open(README) as f:
        old = text = f.read()
    for name, make in TABLES.items():
        begin, end = f"<!-- table {name} -->\n", "<!-- end -->"
        if begin not in text:
            continue
        head, rest = text.split(begin, 1)
        text = head + begin + make() + "\n" + end + rest.split(end, 1)[1]
    if "--check" in sys.argv[1:]:
        if text != old:
            print("README.md: its tables differ from tests/bench/results: tests/bench/tables.py")
            return 1
        return 0
    with open(README, "w") as f:
        f.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
