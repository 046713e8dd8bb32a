#!/usr/bin/env python3
"""Checks of the tree that no compiler makes; each is one function that yields complaints."""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOP = {"Makefile", "README.md", "LICENSE", "CHANGELOG.md", "daemon", "kernels", "client", "conf", "tests"}
# Who may include whose headers (design: "Layout"): room -> folders whose headers it may name.
ARROWS = {
    "kernels": ["kernels"],
    "client": ["client"],
    "client/cli": ["client/cli", "client", "kernels"],
    "daemon": ["daemon", "client", "kernels"],
}
DAEMON_FROM_CLIENT = {"wire.h", "error.h", "keyfile.h"}
CLI_FROM_KERNELS = {"nct_layer.h", "model.h", "model_settings.h"}
ZMQ_OWNERS = {"daemon/zsock", "client/zsock"}


def tracked():
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [f for f in out.stdout.splitlines() if os.path.isfile(os.path.join(ROOT, f))]


def room(path):
    for name in sorted(ARROWS, key=len, reverse=True):
        if path.startswith(name + "/"):
            return name
    return None


def text(path):
    with open(os.path.join(ROOT, path), errors="replace") as f:
        return f.read()


def check_top_level(files):
    for name in sorted({f.split("/")[0] for f in files}):
        if name not in TOP and not name.startswith("."):
            yield f"{name}: outside the fixed top level"


def check_arrows(files):
    headers = {}
    for f in files:
        if f.endswith((".h", ".cuh", ".def")):
            headers.setdefault(os.path.basename(f), set()).add(os.path.dirname(f))
    for f in files:
        own = room(f)
        if not own or not f.endswith((".c", ".h", ".cu", ".cuh")):
            continue
        for name in re.findall(r'^\s*#\s*include "([^"]+)"', text(f), re.M):
            base = os.path.basename(name)
            homes = {h for h in headers.get(base, set())}
            if not homes:
                yield f"{f}: includes {name}, which is nowhere"
                continue
            if any(any(h == a or h.startswith(a + "/") and room(h + "/x") == a for a in ARROWS[own][:1]) for h in homes):
                continue
            allowed = [h for h in homes if any(room(h + "/x") == a for a in ARROWS[own])]
            if not allowed:
                yield f"{f}: {own} may not include {name} (of {', '.join(sorted(homes))})"
            elif own == "daemon" and room(allowed[0] + "/x") == "client" and base not in DAEMON_FROM_CLIENT:
                yield f"{f}: of client/ the daemon takes only {', '.join(sorted(DAEMON_FROM_CLIENT))}, not {name}"
            elif own == "client/cli" and room(allowed[0] + "/x") == "kernels" and base not in CLI_FROM_KERNELS:
                yield f"{f}: of kernels/ the command line takes only {', '.join(sorted(CLI_FROM_KERNELS))}, not {name}"


def check_zmq_wall(files):
    for f in files:
        if room(f) in ("daemon", "client") and f.endswith((".c", ".h")) and not any(f.startswith(o) for o in ZMQ_OWNERS):
            if re.search(r"\bzmq_\w+|<zmq", re.sub(r"/\*.*?\*/|//[^\n]*", "", text(f), flags=re.S)):
                yield f"{f}: names ZeroMQ outside the file that owns it"


def check_words(files):
    banned = re.compile(r"/home/\w|/root/|TODO|FIXME|XXX:|#if 0")
    for f in files:
        if f.startswith("tests/lint/") or f.endswith((".wav", ".safetensors", ".flac", ".png", ".npy")):
            continue
        for i, line in enumerate(text(f).splitlines(), 1):
            if banned.search(line):
                yield f"{f}:{i}: {line.strip()[:80]}"


def check_format(files):
    sources = [f for f in files if f.endswith((".c", ".h")) and not f.endswith(".inc.h") and f != "kernels/nct_layer.h"]
    done = subprocess.run(["clang-format", "--dry-run", "-Werror", *sources], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        for name in sorted(set(re.findall(r"^(\S+?):\d+:\d+: error: code should be", done.stderr, re.M))):
            yield f"{name}: clang-format -i {name}"


def check_sizes(files):
    for f in files:
        if f.endswith((".c", ".h", ".cu", ".cuh", ".py")) and text(f).count("\n") > 450:
            yield f"{f}: {text(f).count(chr(10))} lines; split by verb (400)"


def check_headers_say_what(files):
    for f in files:
        if room(f) and f.endswith((".c", ".h", ".cu", ".cuh")) and not text(f).lstrip().startswith("/*"):
            yield f"{f}: does not open with what it owns"


def main():
    files, bad = tracked(), 0
    for check in (check_top_level, check_arrows, check_zmq_wall, check_words, check_format, check_sizes, check_headers_say_what):
        for complaint in check(files):
            print(f"{check.__name__[6:]}: {complaint}")
            bad += 1
    print(f"  LINT     {len(files)} files, {bad} complaints")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
