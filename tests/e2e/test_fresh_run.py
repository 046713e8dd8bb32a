"""nct run, used clumsily: a result that would replace what it was made from, messages that name the file at fault."""
import os
import shutil

import pytest

from nct_tools import B0, ST, data, fails, nct, ok


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


def test_a_result_goes_where_a_link_points(tmp_path):
    """To a file, to a name where nothing is yet, through a second link in another folder; the links stay. A circle is an error."""
    (tmp_path / "d").mkdir()
    (tmp_path / "there.npy").write_text("old")
    os.symlink("there.npy", tmp_path / "a.npy")
    os.symlink("d/new.npy", tmp_path / "b.npy")
    os.symlink(tmp_path / "d" / "next.npy", tmp_path / "c.npy")
    os.symlink("../far.npy", tmp_path / "d" / "next.npy")
    os.symlink("e.npy", tmp_path / "e.npy")
    ok(run(B0, ST, "-o", "plain.npy", cwd=tmp_path))
    want = (tmp_path / "plain.npy").read_bytes()
    for link, target in (("a.npy", "there.npy"), ("b.npy", "d/new.npy"), ("c.npy", "far.npy")):
        ok(run(B0, ST, "-o", link, cwd=tmp_path))
        assert (tmp_path / link).is_symlink() and not (tmp_path / target).is_symlink()
        assert (tmp_path / target).read_bytes() == want
    fails(run(B0, ST, "-o", "e.npy", cwd=tmp_path), 1, "output 'e.npy'", "symbolic links")
    assert (tmp_path / "e.npy").is_symlink()
    os.symlink("d/m.safetensors", tmp_path / "m.safetensors")
    new = ["model", "new", "m.safetensors", "--in-channels", "2", "--out-channels", "2", "--kernel-size", "1", "--num-groups", "1"]
    fails(nct(*new, cwd=tmp_path), 1, "--force")
    ok(nct(*new, "--force", cwd=tmp_path))
    assert (tmp_path / "m.safetensors").is_symlink() and (tmp_path / "d" / "m.safetensors").stat().st_size > 100


def test_other_channels_say_what_to_do(tmp_path):
    mono = data("A11_mono.wav")
    fails(run(B0, mono, "-o", "x.npy", cwd=tmp_path), 1, "file has 1 channel, model layer wants 2; convert it (ffmpeg -i FILE -ac 2 NEW.wav)",
          "a model with in_channels 1")
    r = nct("run", "--model", B0, "--param", "num_groups=2", "--raw", "f32", "--rate", "8000", "--channels", "3", "-", "-o", "x.npy",
            input=bytes(1200), cwd=tmp_path)
    fails(r, 1, "file has 3 channels, model layer wants 2; --channels says how the input is laid out")
    assert os.listdir(tmp_path) == []
