"""f5: the folder and the rights of an ipc socket: who may connect, what the others are told, and a folder that is made anew."""
import grp
import os
import shutil
import stat
import subprocess
import sys

import numpy as np
import pytest

import conftest
import nct_tools
from conftest import SLOW

sys.path.insert(0, os.path.join(conftest.ROOT, "client", "python"))
import nct  # noqa: E402

X = np.arange(20, dtype=np.float32).reshape(2, 10) / 7
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


def info_as(folder, uid, gid, groups, endpoint, timeout="1"):
    """`nct info` as somebody else, who may not reach the folder it was built in: a copy of it."""
    program = shutil.copy(nct_tools.NCT, folder)
    return subprocess.run([program, "info", "-c", endpoint, "--timeout", timeout], capture_output=True, text=True, cwd="/",
                          user=uid, group=gid, extra_groups=groups, timeout=60 * SLOW, env=nct_tools.ENV)


@pytest.fixture
def open_folder():
    """One that everybody may pass through; pytest's own may not be."""
    path = f"/tmp/nct-e2e-{os.getpid()}"
    os.mkdir(path, 0o755)
    os.chmod(path, 0o755)
    yield path
    shutil.rmtree(path)


@as_root
def test_members_of_the_group_connect_and_others_are_told_whose_it_is(start, small_model, open_folder):
    d = start({"model m": {"file": small_model}, "ingest": {"endpoint": f"ipc://{open_folder}/run/in.sock", "socket_group": "daemon"}})
    assert stat.S_IMODE(os.stat(f"{open_folder}/run/in.sock").st_mode) == 0o660
    group = grp.getgrnam("daemon").gr_gid
    for groups, gid in (([group], NOBODY), ([], group)):
        r = info_as(open_folder, NOBODY, gid, groups, d.ingest, "20")
        assert r.returncode == 0 and "model m" in r.stdout, r.stderr
    r = info_as(open_folder, NOBODY, NOBODY, [], d.ingest)
    assert r.returncode == 69 and "permission denied" in r.stderr and f"{open_folder}/run/in.sock has mode 0660" in r.stderr, r.stderr
    assert "the group daemon" in r.stderr
    os.chmod(f"{open_folder}/run", 0o750)  # an operator's own folder
    r = info_as(open_folder, NOBODY, NOBODY, [], d.ingest)
    assert r.returncode == 69 and f"permission denied: {open_folder}/run has mode 0750 and the group root" in r.stderr, r.stderr


def test_clients_come_back_although_the_folder_was_made_anew(start, small_model, tmp_path):
    run = tmp_path / "run"
    d = start({"model m": {"file": small_model}, "ingest": {"endpoint": f"ipc://{run}/in.sock"}})
    with nct.Client(d.ingest, timeout=30 * SLOW) as c:
        y = c.call(X, "m")
        for _ in range(2):
            assert d.stop() == 0
            assert not os.listdir(run)
            shutil.rmtree(run)
            d.start()
            assert np.array_equal(c.call(X, "m"), y)
        assert c.reconnects == 2


def test_a_folder_two_levels_away_is_not_made(start, small_model, tmp_path):
    d = start({"model m": {"file": small_model}, "ingest": {"endpoint": f"ipc://{tmp_path}/no/run/in.sock"}}, wait=False)
    assert d.wait() == 1 and f"{tmp_path}/no/run" in d.text() and "cannot be made: No such file" in d.text(), d.text()
