"""Log lines: whole, at once, one event a line, whatever is in them and whoever reads them or does not."""
import fcntl
import os
import re
import signal
import subprocess

import numpy as np
import pytest

import wire
from conftest import NCTD, SANITIZE, SLOW

LINE = re.compile(rb"<[3467]>[^\x00-\x1f]+\n")


def conf(folder, **sections):
    path = os.path.join(folder, "nctd.conf")
    base = {"ingest": {"endpoint": f"ipc://{folder}/in.sock"}, "publish": {"enabled": "no"}, "http": {"enabled": "no"},
            "engine": {"engine": "cpu", "slot_bytes": "32M"}, "limits": {"queue_bytes": "64M", "arena_bytes": "64M"}, **sections}
    with open(path, "w") as f:
        for name, keys in base.items():
            print(f"[{name}]", *(f"{k} = {v}" for k, v in keys.items()), sep="\n", file=f)
    return path, base["ingest"]["endpoint"]


def whole(text):
    lines = text.splitlines(keepends=True)
    assert lines and all(LINE.fullmatch(line) for line in lines), [x for x in lines if not LINE.fullmatch(x)][:3]
    return lines


@pytest.mark.sanitize
def test_lines_come_through_a_pipe_at_once_and_survive_kill_9(tmp_path):
    path, endpoint = conf(tmp_path)
    p = subprocess.Popen([NCTD, "-c", path], stderr=subprocess.PIPE)
    cat = subprocess.Popen(["cat"], stdin=p.stderr, stdout=subprocess.PIPE)
    p.stderr.close()
    seen = b""
    while b"ready version" not in seen:  # nothing else would make it come: the daemon lives on
        line = cat.stdout.readline()
        assert line, seen
        seen += line
    with wire.Client(endpoint, timeout_s=20 * SLOW) as c:
        assert c.ask("default/s", np.zeros((128, 8), np.float32)).h.status == 0
    p.send_signal(signal.SIGHUP)  # says something about the reload
    line = cat.stdout.readline()
    assert line, "no line about the reload"
    p.kill()
    p.wait()
    seen += line + cat.stdout.read()
    cat.wait()
    whole(seen)


@pytest.mark.sanitize
@pytest.mark.parametrize("name", ["two\nlines", "tab\tand\x01", "\u00fcml\u00e4ut \u2014", os.fsdecode(b"not utf-8 \xff"), "<3>fake"])
def test_a_name_stays_on_its_line(tmp_path, name):
    folder = tmp_path / name.replace("\x01", "\x02")
    folder.mkdir()
    path, _ = conf(folder, **{"ingest": {"endpoint": f"ipc://{tmp_path}/in.sock"}, "model m": {"file": "missing.safetensors"}})
    done = subprocess.run([NCTD, "-c", path], capture_output=True, timeout=60)
    assert done.returncode == 78
    errors = [line for line in whole(done.stderr) if line.startswith(b"<3>")]
    assert len(errors) == 1 and b"missing.safetensors" in errors[0], done.stderr


@pytest.mark.sanitize
def test_a_reader_that_stopped_does_not_stop_the_frames(tmp_path):
    """A pipe of 4 KiB that nobody reads, and an event with each frame: each is answered, and what was lost is said."""
    path, endpoint = conf(tmp_path)
    r, w = os.pipe()
    fcntl.fcntl(w, fcntl.F_SETPIPE_SZ, 4096)
    p = subprocess.Popen([NCTD, "-c", path], stderr=w)
    os.close(w)
    with wire.Client(endpoint, timeout_s=60 * SLOW) as c:
        x = np.zeros((128, 8), np.float32)
        for k in range(300):
            p.send_signal(signal.SIGHUP)  # refused or not, a line or more about each
            answer = c.ask("default/s", x, seq=k + 1)
            assert answer is not None and answer.h.status == 0, f"no answer after {k} events that nobody reads"
    p.terminate()
    text = b""
    while part := os.read(r, 65536):
        text += part
    os.close(r)
    assert p.wait(30 * SLOW) == 0
    assert int(re.search(rb"\((\d+) lines lost before this one", text)[1]) > (0 if SANITIZE else 20), text  # what is asked during a reload becomes one
    whole(text)
