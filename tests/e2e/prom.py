"""Prometheus' text format 0.0.4, read strictly and on its own: nothing here knows the daemon.

    parse(text) -> {family: Family}; raises AssertionError with the line at fault.
"""
import math
import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"(,|$)')
VALUE = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
SPECIAL = {"NaN": math.nan, "+Inf": math.inf, "-Inf": -math.inf}
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}


class Family:
    def __init__(self, name, help_text):
        self.name, self.help, self.type, self.samples = name, help_text, None, {}  # {(name, labels): value}

    def value(self, suffix="", **labels):
        return self.samples[(self.name + suffix, tuple(sorted(labels.items())))]


def number(text):
    if text in SPECIAL:
        return SPECIAL[text]
    assert VALUE.fullmatch(text), f"not a number: {text!r}"
    return float(text)


def unescape(text):
    def one(match):
        assert match[0] in ("\\\\", '\\"', "\\n"), f"no such escape: {match[0]!r}"
        return {"\\\\": "\\", '\\"': '"', "\\n": "\n"}[match[0]]
    return re.sub(r"\\.", one, text)


def labels_of(text):
    found, at = {}, 0
    while text and at < len(text):
        m = LABEL.match(text, at)
        assert m, f"not a label: {text[at:]!r}"
        assert m[1] not in found, f"label twice: {m[1]}"
        found[m[1]] = unescape(m[2])
        at = m.end()
    assert not text or not text.endswith(","), text
    return tuple(sorted(found.items()))


def parse(page):
    text = page.decode("utf-8") if isinstance(page, bytes) else page
    assert text.endswith("\n"), "the last line has no line feed"
    assert "\r" not in text
    families, now = {}, None
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            _, _, name, help_text = line.split(" ", 3)
            assert re.fullmatch(NAME, name) and name not in families, line
            now = families[name] = Family(name, help_text)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert now and name == now.name and now.type is None and not now.samples, line
            assert kind in ("counter", "gauge", "histogram"), line
            now.type = kind
        else:
            m = SAMPLE.fullmatch(line)
            assert m, f"not a sample: {line!r}"
            assert now and now.type, line
            assert m[1] in [now.name + s for s in SUFFIXES.get(now.type, ("",))], f"{line!r} inside {now.name}"
            key = (m[1], labels_of(m[2]))
            assert key not in now.samples, f"series twice: {line!r}"
            now.samples[key] = number(m[3])
    for f in families.values():
        assert f.type, f.name
        if f.type == "histogram":
            check_histogram(f)
    return families


def check_histogram(f):
    """Cumulative, le rising, +Inf there and equal to _count; for every set of other labels."""
    groups = {}
    for (name, labels), value in f.samples.items():
        rest = tuple(x for x in labels if x[0] != "le")
        group = groups.setdefault(rest, {"buckets": []})
        if name.endswith("_bucket"):
            group["buckets"].append((number(dict(labels)["le"]), value))
        else:
            group[name[len(f.name):]] = value
    assert groups, f.name
    for labels, group in groups.items():
        bounds = [b for b, _ in group["buckets"]]
        counts = [c for _, c in group["buckets"]]
        assert bounds == sorted(set(bounds)) and bounds[-1] == math.inf, (f.name, labels, bounds)
        assert counts == sorted(counts), (f.name, labels, counts)
        assert counts[-1] == group["_count"], (f.name, labels)
        assert group["_sum"] >= 0, (f.name, labels)


def counters(families):
    """{(name, labels): value} of everything that may only rise."""
    found = {}
    for f in families.values():
        for (name, labels), value in f.samples.items():
            if f.type == "counter" or (f.type == "histogram"):
                found[(name, labels)] = value
    return found
