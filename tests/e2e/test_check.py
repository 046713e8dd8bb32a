"""`nctd --check`: what a start would refuse at its binds, said without binding anything; and odd configuration files."""
import os
import signal
import subprocess

import pytest

import conftest
from conftest import NCTD, SLOW, until


def check(*overrides, conf=None):
    args = ["-c", str(conf)] if conf else []
    return subprocess.run([NCTD, "--check", *args, "engine.engine=cpu", *overrides], capture_output=True, text=True,
                          timeout=60 * SLOW)


REFUSED = {
    "beyond this host": (["ingest.endpoint=tcp://0.0.0.0:7777"], ["ingest.endpoint", "tcp://0.0.0.0:7777", "auth.secret_key_file"]),
    "publish beyond this host": (["publish.endpoint=tcp://*:7777"], ["publish.endpoint", "tcp://*:7777"]),
    "http beyond this host": (["http.endpoint=0.0.0.0:7772"], ["http.endpoint", "0.0.0.0:7772", "http.insecure"]),
    "no such transport": (["ingest.endpoint=udp://127.0.0.1:1"], ["udp://127.0.0.1:1", "tcp://ADDRESS:PORT"]),
    "no port": (["ingest.endpoint=tcp://127.0.0.1"], ["tcp://127.0.0.1"]),
    "port out of range": (["ingest.endpoint=tcp://127.0.0.1:70000"], ["tcp://127.0.0.1:70000", "65535"]),
    "not an address of this host": (["ingest.endpoint=tcp://192.0.2.1:7777", "ingest.insecure=yes"], ["tcp://192.0.2.1:7777"]),
    "a name": (["ingest.endpoint=tcp://nobody.invalid:7777", "ingest.insecure=yes"], ["tcp://nobody.invalid:7777"]),
    "no folder": (["ingest.endpoint=ipc:///no/such/folder/x.sock"], ["ipc:///no/such/folder/x.sock", "/no/such", "No such file"]),
    "no folder for publish": (["publish.endpoint=ipc:///no/such/folder/x.sock"], ["publish.endpoint", "/no/such"]),
    "second of two": (["ingest.endpoint=ipc://@a tcp://0.0.0.0:1"], ["tcp://0.0.0.0:1"]),
    "empty list": (["ingest.endpoint= "], ["ingest.endpoint"]),
    "http syntax": (["http.endpoint=nonsense"], ["http.endpoint", "ADDRESS:PORT"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_check_refuses_what_a_bind_would(case):
    overrides, words = REFUSED[case]
    r = check(*overrides)
    assert r.returncode == 78 and "ok" not in r.stdout.split("\n"), (r.stdout, r.stderr)
    assert all(w in r.stderr for w in words), r.stderr


def test_check_beside_the_running_daemon_disturbs_nothing(start):
    d = start({}, tcp=True)
    assert check(conf=d.conf).returncode == 0
    e = start({})
    assert check(conf=e.conf).returncode == 0
    for each in (d, e):
        with each.client() as c:
            assert c.session
    r = check("ingest.endpoint=ipc:///tmp/nct-made-at-the-start/x.sock")  # its folder is made by the start
    assert r.returncode == 0 and not os.path.exists("/tmp/nct-made-at-the-start"), r.stderr


def test_a_configuration_that_is_no_file_is_refused_at_once(tmp_path):
    fifo = tmp_path / "nctd.conf"
    os.mkfifo(fifo)
    for args in (["--check"], ["--dump-config"], []):
        r = subprocess.run([NCTD, "-c", str(fifo), *args], capture_output=True, text=True, timeout=20 * SLOW)
        assert r.returncode == 78 and "nctd.conf: not a regular file" in r.stderr and "-c FILE" in r.stderr, r
    assert check(conf="/dev/null").returncode == 0
    assert "not a regular file" in check(conf=tmp_path).stderr


def test_a_reload_does_not_wait_for_a_fifo_in_the_files_place(start):
    d = start({})
    os.rename(d.conf, d.conf + ".kept")
    os.mkfifo(d.conf)
    d.signal(signal.SIGHUP)
    assert until(lambda: any("reload refused" in line and "not a regular file" in line for line in d.log)), d.text()
    os.rename(d.conf + ".kept", d.conf)
    d.signal(signal.SIGHUP)
    assert until(lambda: any("nothing changed" in line for line in d.log)), d.text()


def test_one_model_named_twice_in_one_file_names_both_lines(tmp_path):
    conf = tmp_path / "nctd.conf"
    conf.write_text("[engine]\nengine = cpu\n[model a]\nseed = 1\n[model b]\nseed = 2\n[model a]\nseed = 3\n")
    r = check(conf=conf)
    assert r.returncode == 78 and "nctd.conf:7:" in r.stderr and "[model a]" in r.stderr and "line 3" in r.stderr, r.stderr
    conf.write_text("[engine]\nengine = cpu\n[model a]\nseed = 1\n")
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "later.conf").write_text("[model a]\nseed = 5\n")  # a later file adds to it
    r = subprocess.run([NCTD, "--dump-config", "-c", str(conf)], capture_output=True, text=True)
    assert r.returncode == 0 and "seed = 5" in r.stdout, (r.stdout, r.stderr)
