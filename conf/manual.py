#!/usr/bin/env python3
"""Writes every file that is made from the tables: conf/nctd.conf, nctd@.service, the man pages and bash's completion.

    manual.py BUILD OUT          below OUT, by their paths in the tree
    manual.py BUILD --check      compares with the tree, prints what differs, exit 1

Words that no table holds stand in the *.in files beside the pages; @NAME@ in them is replaced by a table as nctd and
nct in BUILD print it. Called by `make generated` and `make check-generated`."""
import difflib
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def read(path):
    with open(os.path.join(ROOT, path)) as f:
        return f.read()


def say(build, program, *args):
    return subprocess.run([os.path.join(build, program), *args], check=True, capture_output=True, text=True).stdout


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in text.split("\n"))


def sections(text):
    """roff with .SH headings -> {heading: what stands below it}"""
    parts = re.split(r"^\.SH (.*)\n", text, flags=re.M)
    return {parts[i]: parts[i + 1].rstrip("\n") for i in range(1, len(parts), 2)}


def entries(rows):
    return "\n".join(f".TP\n.B {roff(name)}\n{roff(text)}" for name, text in rows)


def daemon_options(build):
    """`nctd --help` is columns: two blanks, --name, argument, text."""
    rows = []
    for line in say(build, "nctd", "--help").split("\n\n")[1].split("\n"):
        found = re.match(r"  (--\S+)\s+(?:([A-Z]+)\s)?\s*(.*)$", line)
        text = found.group(3)
        rows.append((" ".join(filter(None, found.groups()[:2])), f"{text[0].upper()}{text[1:]}."))
    return entries(rows)


def wire_errors():
    rows = re.findall(r"XX\((E\w+), (\d+), \"([^\"]+)\"\)", read("client/error.h"))
    return entries((f"-{name} ({number})", f"{text[0].upper()}{text[1:]}.") for name, number, text in rows)


def metrics():
    rows = re.findall(r'^METRIC\(\w+, "(\w+)", "(\w+)", "(.*)"\)$', read("daemon/metrics.def"), re.M)
    return entries((name, f"{text[0].upper()}{text[1:]} ({kind.capitalize()}.)") for name, kind, text in rows)


# ---- libnct(3) from client/nct.h -------------------------------------------------------------------------------------
def comment_text(raw):
    """The lines of a C comment, without its stars."""
    raw = re.sub(r"^/\*+ ?|\s*\*/$", "", raw.strip(), flags=re.S)
    return [re.sub(r"^\s*\* ?", "", line) for line in raw.split("\n")]


def paragraphs(lines):
    """Comment lines as roff: blocks indented by four stay as they are, `  -EWORD   text` becomes an entry."""
    out, literal = [], False
    for line in lines:
        code = line.startswith("    ") and not (out and out[-1] == ".TP" or re.match(r"\s{8,}", line) and not literal)
        if code != literal:
            out += [".PP", ".EX"] if code else [".EE", ".PP"]
            literal = code
        if code:
            out.append(roff(line).replace("\n", ""))
            continue
        found = re.match(r"\s{2,}(-E[A-Z]\w*(?:, (?:-E\w+|\.\.\.))*)\s\s*(.*)$", line)
        alone = re.match(r"\s{2}(-E[A-Z]\w*(?:, -E\w+)+)$", line)
        if found or alone:
            at = found or alone
            out += [".TP", ".B " + roff(at.group(1)), roff(found.group(2)) if found else "The system's own."]
        elif not line.strip() or ".TP" in out and not line.startswith(" ") and out[-1] != ".PP":
            out.append(".PP")
            out += [roff(line)] if line.strip() else []
        else:
            out.append(roff(line.strip()))
    out += [".EE"] if literal else []
    return [line for i, line in enumerate(out) if line != ".PP" or i and i + 1 < len(out) and out[i + 1][:3] not in (".PP", ".EE")]


def declarations(header):
    """The header below its guard: ('head', text) | ('comment', lines) | ('api', prototype, lines) | ('code', text)"""
    body = header.split('extern "C" {\n#endif\n', 1)[1].rsplit("#ifdef __cplusplus", 1)[0]
    body = re.sub(r"#if defined\(__GNUC__\).*?#endif\n", "", body, count=1, flags=re.S)
    token = re.compile(r"/\* ---- (?P<head>.*?) ---- \*/|(?P<comment>^/\*.*?\*/)|"
                       r"^NCT_API (?P<api>[^;]*;)[ ]*(?P<tail>/\*.*?\*/)?|"
                       r"(?P<code>^typedef struct \{.*?^\} \w+;|^typedef.*?$|^#define.*?$)", re.M | re.S)
    for m in token.finditer(body):
        if m["head"]:
            yield "head", m["head"], []
        elif m["comment"]:
            yield "comment", "", comment_text(m["comment"])
        elif m["api"]:
            yield "api", re.sub(r"\s+", " ", m["api"]), comment_text(m["tail"]) if m["tail"] else []
        elif m["code"]:
            yield "code", m["code"], []


def library_page():
    header = read("client/nct.h")
    synopsis, types, functions, pending = [], [], [], []
    for kind, text, lines in declarations(header):
        if kind == "comment":
            pending = lines
        elif kind == "code":
            types += [f"/* {' '.join(s.strip() for s in pending)} */"] * bool(pending) + text.split("\n")
            pending = []
        elif kind == "head":
            functions.append(f".SS {roff(text[0].upper() + text[1:])}")
            pending = []
        else:
            synopsis.append(f".B \"{roff(text)}\"\n.br")
            functions += [".PP"] * (not functions or not functions[-1].startswith(".SS")) + [f".B \"{roff(text)}\"", ".br"] + paragraphs(lines or pending)
            pending = [] if not lines else pending
    top = comment_text(re.match(r"/\*.*?\*/", header, re.S).group(0))
    functions = functions[1:] if functions[0] == ".PP" else functions
    return {"SYNOPSIS": "\n".join(synopsis), "DESCRIPTION": "\n".join(paragraphs(top)),
            "TYPES": "\n".join([".EX", *map(roff, types), ".EE"]), "FUNCTIONS": "\n".join(functions)}


# ---- all files -------------------------------------------------------------------------------------------------------
def instance_unit():
    """nctd@NAME.service: nctd.service with a folder of its own for the conf and for the sockets."""
    text = read("conf/nctd.service")
    for old, new in (("streams of multichannel frames", "streams of multichannel frames (%i)"),
                     ("/etc/nctd/nctd.conf", "/etc/nctd/%i/nctd.conf"),
                     ("RuntimeDirectory=nctd", "RuntimeDirectory=nctd-%i"),
                     ("ConfigurationDirectory=nctd", "ConfigurationDirectory=nctd/%i")):
        if old not in text:
            sys.exit(f"manual.py: conf/nctd.service has no '{old}' any more")
        text = text.replace(old, new)
    return "# Several daemons: nctd@NAME.service reads /etc/nctd/NAME/nctd.conf, which names its own ingest.endpoint and\n" \
           "# publish.endpoint (below /run/nctd-NAME/) and http.endpoint. Made from nctd.service.\n" + text


def page(path, names):
    def put(found):
        if found.group(1) not in names:
            sys.exit(f"manual.py: {path}: there is no table {found.group(0)}")
        return names[found.group(1)]
    return '.\\" Made from ' + path + " and the tables: make generated.\n" + re.sub(r"@([A-Z_]+)@", put, read(path))


def generate(build):
    command = sections(say(build, "nct", "man"))
    version = say(build, "nctd", "--version").split()[1]
    names = {"VERSION": version, "OPTIONS": daemon_options(build), "KEYS": say(build, "nctd", "--print-man").rstrip("\n"),
             "ERRORS": wire_errors(), "METRICS": metrics(),
             "COMMAND_SYNOPSIS": command["SYNOPSIS"], "COMMANDS": command["COMMANDS"],
             "EXITS": command["EXIT STATUS"]}
    library = library_page()
    return {"conf/nctd.conf": say(build, "nctd", "--print-conf"), "conf/nctd@.service": instance_unit(),
            "conf/nct.bash": say(build, "nct", "completion", "bash"),
            "daemon/nctd.8": page("daemon/nctd.8.in", names), "daemon/nctd.conf.5": page("daemon/nctd.conf.5.in", names),
            "client/nct.1": page("client/nct.1.in", names),
            "client/libnct.3": page("client/libnct.3.in", {**names, **library})}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    build, out = sys.argv[1:]
    differ = 0
    for path, text in generate(build).items():
        if out != "--check":
            os.makedirs(os.path.dirname(os.path.join(out, path)), exist_ok=True)
            with open(os.path.join(out, path), "w") as f:
                f.write(text)
            continue
        there = read(path) if os.path.exists(os.path.join(ROOT, path)) else ""
        lines = list(difflib.unified_diff(there.splitlines(True), text.splitlines(True), path, "from the tables"))
        sys.stdout.writelines(lines[:40])
        differ += bool(lines)
    if differ:
        sys.exit(f"{differ} files differ from the tables they are made from: make generated")


if __name__ == "__main__":
    main()
