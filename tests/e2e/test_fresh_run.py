"""nct run, used clumsily: a result that would replace what it was made from, messages that name the file at fault."""
import os
import shutil

import pytest

from nct_tools import B0, ST, fails, nct, ok


def run(model, *args, cwd):
    return nct("run", "--model", model, "--param", "num_groups=2", *args, cwd=cwd)


@pytest.mark.parametrize("out", ["m.safetensors", "./m.safetensors", "soft.raw", "hard.raw"])
def test_output_is_never_the_model(out, tmp_path):
    m = tmp_path / "m.safetensors"
    shutil.copy(B0, m)
    os.symlink(m, tmp_path / "soft.raw")
    os.link(m, tmp_path / "hard.raw")
    before = m.read_bytes()
    fails(run("m.safetensors", ST, "-o", out, "--format", "raw", cwd=tmp_path), 1, "is the model file", out)
    assert m.read_bytes() == before and sorted(os.listdir(tmp_path)) == ["hard.raw", "m.safetensors", "soft.raw"]
    assert (tmp_path / "soft.raw").is_symlink()
    ok(run("m.safetensors", ST, "-o", "other.raw", cwd=tmp_path))


def test_the_message_names_the_output_that_cannot_be_written(tmp_path):
    fails(run(B0, ST, "-o", "no/folder.npy", cwd=tmp_path), 1, os.path.basename(ST), "output 'no/folder.npy': cannot be written")
    fails(run(B0, ST, "-o", "x.npy", "--plot", "no/p.png", cwd=tmp_path), 1, "--plot 'no/p.png': cannot be written")
