"""What the manual holds, asked of sources that the pages are not made from: the parser's own lists, the libraries' symbols."""
import os
import re
import shutil
import subprocess

import pytest

from conftest import BUILD, NCT, NCTD, ROOT

PAGES = ["client/nct.1", "client/libnct.3", "daemon/nctd.conf.5", "daemon/nctd.8"]


def page(path):
    """A page's text, hyphens and all as a reader sees them: {section: lines}; .SS headings stay as lines."""
    sections, at = {}, None
    with open(os.path.join(ROOT, path)) as f:
        for line in f.read().replace("\\-", "-").replace("\\e", "\\").replace("\\&", "").split("\n"):
            if line.startswith(".SH "):
                at = sections.setdefault(line[4:], [])
            elif at is not None:
                at.append(line)
    return sections


def part(lines, heading):
    """The lines below one .SS heading."""
    start = next(i for i, line in enumerate(lines) if line.startswith(f".SS {heading}"))
    end = next((i for i in range(start + 1, len(lines)) if lines[i].startswith(".SS ")), len(lines))
    return lines[start + 1:end]


def out(*args):
    return subprocess.run(args, check=True, capture_output=True, text=True).stdout


def commands():
    return re.findall(r"^  (\w+) +\S", out(NCT, "help").split("Exit codes:")[0].split("\n\n", 2)[2], re.M)


def test_every_key_of_the_configuration_with_its_section_and_default():
    keys = page("daemon/nctd.conf.5")["KEYS"]
    section, seen = None, 0
    for line in out(NCTD, "--dump-config").split("\n"):
        if line.startswith("[model"):
            break
        if line.startswith("["):
            section = line
        elif found := re.match(r"(?:# )?(\w+) = (.*?) ?(?:#|has no effect|$)", line):
            lines = part(keys, section)
            at = lines.index(f".B {found.group(1)}")
            value = found.group(2).strip() or "empty"
            assert lines[at + 2].startswith(f"Default: {value};"), (section, line, lines[at + 2])
            seen += 1
    assert seen > 30
    for key in re.findall(r"^#(\w+) = ", out(NCTD, "--print-conf").split("[model")[1].split("NAME]")[1], re.M):
        assert f".B {key}" in part(keys, "[model NAME]"), key


def test_every_option_of_nctd():
    lines = page("daemon/nctd.8")["OPTIONS"]
    options = re.findall(r"^  (--\S+)", out(NCTD, "--help"), re.M)
    assert len(options) >= 8
    for option in options:
        assert any(re.fullmatch(rf"\.B {option}( [A-Z]+)?", line) for line in lines), option


def test_every_command_and_option_of_nct():
    sections, seen = page("client/nct.1"), 0
    for command in commands():
        if command in ("help", "version", "completion"):
            assert any(line.startswith(f".B nct {command}") for line in sections["SYNOPSIS"]), command
            continue
        assert f".B nct {command}" in sections["SYNOPSIS"]
        text = "\n".join(part(sections["COMMANDS"], f"nct {command} "))
        for option in re.findall(r"^ +(?:-\w, )? *(--[\w-]+)", out(NCT, command, "--help"), re.M):
            if option != "--help":
                assert re.search(rf"{option}(\s|$)", text), (command, option)
                seen += 1
    assert seen > 40
    assert any("--help" in line for line in sections["DESCRIPTION"])


def test_every_exit_code():
    for line in out(NCT, "help").split("Exit codes:\n")[1].strip().split("\n"):
        number, meaning = line.split(None, 1)
        lines = page("client/nct.1")["EXIT STATUS"]
        assert lines[lines.index(f".B {number}") + 1] == meaning + "."


def test_every_error_of_the_wire():
    with open(os.path.join(ROOT, "client/error.h")) as f:
        errors = re.findall(r"XX\((E[A-Z]+), (\d+)", f.read())
    assert len(errors) == 16
    for path in ("client/libnct.3", "daemon/nctd.8"):
        lines = page(path)["ERRORS"]
        for name, number in errors:
            assert f".B -{name} ({number})" in lines, (path, name)


def test_every_metric():
    with open(os.path.join(ROOT, "daemon/metrics.def")) as f:
        names = re.findall(r'"((?:nctd?|process)_\w+)"', f.read())
    assert len(names) > 40
    for name in names:
        assert f".B {name}" in page("daemon/nctd.8")["METRICS"], name


def test_every_function_of_libnct():
    symbols = re.findall(r" T (nct_\w+)@@", out("nm", "-D", "--with-symbol-versions", os.path.join(BUILD, "libnct.so.0")))
    assert len(symbols) > 25
    sections = page("client/libnct.3")
    for name in symbols:
        for at in ("SYNOPSIS", "FUNCTIONS"):
            assert any(re.match(rf'\.B ".*\b{name}\(', line) for line in sections[at]), (name, at)


@pytest.mark.parametrize("path", PAGES)
def test_roff_takes_every_page_without_a_word(path):
    if not shutil.which("groff"):
        pytest.skip("groff is not installed")
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""


def completed(*words):
    script = "source conf/nct.bash; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _nct; printf '%s\\n' \"${COMPREPLY[@]}\""
    done = subprocess.run(["bash", "-c", script, "bash", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.split()


def test_bash_completes_commands_options_and_files():
    assert completed("nct", "ru") == ["run"]
    assert set(commands()) <= set(completed("nct", ""))
    assert completed("nct", "ping", "--cou") == ["--count"]
    assert completed("nct", "run", "READ") == ["README.md"]
    assert completed("nct", "ping", "--nothing") == []
