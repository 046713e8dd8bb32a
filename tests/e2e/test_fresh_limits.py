"""Limits of the process and oddities beside the configuration: an error that says what to do, never a wait or a death."""
import os
import resource
import subprocess

from conftest import NCTD, SLOW
from nct_tools import ENV, MODEL, NCT, ST, fails
from wire import wait_until


def limited(kind, value, *command, cwd):
    return subprocess.run([str(a) for a in command], capture_output=True, env=ENV, cwd=cwd, timeout=30 * SLOW,
                          preexec_fn=lambda: resource.setrlimit(kind, (value, value)))


def test_past_the_file_size_limit_is_an_error_and_leaves_nothing(tmp_path):
    for out in ("o.npy", "o.wav", "o.raw"):
        r = limited(resource.RLIMIT_FSIZE, 1024, NCT, "run", *MODEL, ST, "-o", out, cwd=tmp_path)
        fails(r, 1, "File too large")
        assert os.listdir(tmp_path) == []


def test_too_few_descriptors_say_what_to_do(tmp_path):
    r = limited(resource.RLIMIT_NOFILE, 64, NCTD, "--check", "engine.engine=cpu", cwd=tmp_path)
    fails(r, 78, "limits.max_clients", "RLIMIT_NOFILE allows 64", "ulimit -n")


def test_what_is_no_file_in_conf_d_is_refused_not_waited_for(tmp_path):
    conf, odd = tmp_path / "nctd.conf", tmp_path / "conf.d" / "a.conf"
    conf.write_text("[engine]\nengine = cpu\n")
    odd.parent.mkdir()
    for make in (os.mkfifo, os.mkdir):
        make(odd)
        r = subprocess.run([NCTD, "--check", "-c", str(conf)], capture_output=True, timeout=30 * SLOW)
        fails(r, 78, "a.conf: not a regular file")
        os.rmdir(odd) if make is os.mkdir else os.unlink(odd)


def test_a_reload_does_not_wait_for_a_fifo(start):
    d = start({})
    odd = os.path.join(d.folder, "conf.d", "a.conf")
    os.mkdir(os.path.dirname(odd))
    os.mkfifo(odd)
    d.signal(1)
    with d.client() as c:
        assert wait_until(lambda: c.hello() and c.welcome["reload"]["refused"] == 1, 20 * SLOW), c.welcome["reload"]
        assert "a.conf: not a regular file" in c.welcome["reload"]["why"]
    os.unlink(odd)


def test_conf_d_is_never_passed_over(tmp_path):
    folder = tmp_path / "odd[x]*"
    (folder / "conf.d").mkdir(parents=True)
    (folder / "nctd.conf").write_text("[engine]\nengine = cpu\n")
    for name, text in (("b.conf", "[engine]\nthreads = 2\n"), (".hidden.conf", "[wrong"), ("a.conf.bak", "[wrong"),
                       ("a.conf", "[engine]\nthreads = 1\n")):
        (folder / "conf.d" / name).write_text(text)
    r = subprocess.run([NCTD, "--dump-config", "-c", str(folder / "nctd.conf")], capture_output=True, text=True)
    assert r.returncode == 0 and "threads = 2 # " in r.stdout and "conf.d/b.conf:2" in r.stdout, (r.stderr, r.stdout)
