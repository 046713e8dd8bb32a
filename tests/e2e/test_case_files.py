"""Files that broke other tools, as the daemon's models and as frames of a raw ZeroMQ client: right numbers or a reason."""
import os
import shutil

import numpy as np
import pytest

import wire
from nct_tools import B0, close, data, oracle, st, wav
from test_start import conf, nctd

ZEROS_PAST = (2, 0), (2, 2), (0, 100)


@pytest.fixture
def daemon(start):
    return start({"model main": {"file": B0, "num_groups": 2}})


# ---- (b) model files at start ----------------------------------------------------------------------------------------
REFUSED = {  # file: words of its reason
    "B1_len_u64max": ["18446744073709551615", "2"], "B1_len_wraps_plus8": ["18446744073709551608", "66"],
    "B1_len_100000001": ["100000001", "16"], "B1_len_past_eof": ["4096", "192"], "B1_len_zero": ["0 bytes"], "B1_seven_bytes": ["7 bytes"], "B1_empty_file": ["empty"], "B2_git_lfs_pointer": ["Git LFS pointer"],
    "B2_html_error_page": ["HTML"], "B2_zip_torch_pickle": ["zip", "torch"], "B4_shape_1000x1000_4bytes": ["conv.weight", "12000000", "96"],
    "B4_shape_product_overflow": ["conv.weight", "4294967296"], "B4_shape_negative": ["conv.weight", "-4"],
    "B4_shape_float": ["conv.weight", "whole number"],
    "B4_norm_weight_5": ["norm.weight", "5", "4"], "B4_conv_2d": ["conv.weight", "[4, 6]"], "B4_conv_kernel0": ["conv.weight", "[4, 2, 0]"],
    "B4_cout_3_not_div_by_groups": ["3", "2"], "B8_nul_padded_header": ["NUL"], "B8_bom": ["byte order mark"], "B8_not_utf8": ["0xff"],
    "B8_duplicate_key": ["duplicate", "norm.bias"], "B8_metadata_number": ["__metadata__"], "B8_deep_nesting": ["depth"], "B8_metadata_only": ["no tensor"]}
SERVED = ["B6_unaligned_header_mod4_is_2", "B6_unaligned_header_mod4_is_3", "B6_u8_first_odd_offsets", "B8_space_padded_4k",
          "B8_metadata_empty", "B8_metadata_null", "B8_metadata_nested_tensorlike", "B9_scalar_and_empty_extra"]


@pytest.mark.sanitize
@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_model_file_ends_the_start_with_its_reason(name, tmp_path):
    file = data(name + ".safetensors")
    r = nctd("-c", conf(str(tmp_path), model_mine={"file": file, "num_groups": 2}))
    assert r.returncode == 78, (r.returncode, r.stderr)
    line = next(s for s in r.stderr.splitlines() if "model mine" in s)
    assert line.startswith("<3>") and file in line, line
    for word in REFUSED[name]:
        assert word in line.replace(file, ""), line
    assert "Sanitizer" not in r.stderr and "runtime error" not in r.stderr and not os.path.exists(tmp_path / "ingest.sock")


@pytest.mark.sanitize
def test_odd_but_valid_model_files_are_served_with_the_same_bits(start, tmp_path):
    files = {name: data(name + ".safetensors") for name in SERVED}
    files["B8_leading_space"] = data("B8_leading_space.safetensors")  # an older reference takes it, ours may
    if nctd("--check", "-c", conf(str(tmp_path), model_m={"file": files["B8_leading_space"], "num_groups": 2})).returncode:
        del files["B8_leading_space"]
    d = start({f"model {name}": {"file": file, "num_groups": 2} for name, file in {**files, "B0": B0}.items()})
    x = st().astype(np.float32)
    with d.client() as c:
        good = c.ask("B0/s", x).payload
        assert np.abs(wire.array(c.ask("B0/s", x))[:, 0] - [-1.020913, 1.277622, 2.814057, -2.242940]).max() < 2e-6
        for name in files:
            assert c.ask(f"{name}/s", x).payload == good, name


def test_weights_with_nan_are_refused_or_loudly_named(tmp_path):
    r = nctd("--check", "-c", conf(str(tmp_path), model_m={"file": data("B9_nan_in_norm_weight.safetensors"), "num_groups": 2}))
    assert r.returncode == 78 and "norm.weight" in r.stderr and ("NaN" in r.stderr or "finite" in r.stderr), r.stderr


def test_shards_load_whole_or_not_at_all(start, tmp_path):
    names = ["B10_model.safetensors.index.json", "B10_model-00001-of-00002.safetensors", "B10_model-00002-of-00002.safetensors"]
    for name in names:
        shutil.copy(data(name), tmp_path)
    d = start({"model m": {"file": tmp_path / names[0], "num_groups": 2}, "model B0": {"file": B0, "num_groups": 2}})
    with d.client() as c:
        x = st().astype(np.float32)
        assert c.ask("m/s", x).payload == c.ask("B0/s", x).payload
    d.stop()
    r = nctd("--check", "-c", conf(str(tmp_path), model_m={"file": tmp_path / names[1], "num_groups": 2}))
    assert r.returncode == 78 and "norm.weight" in r.stderr, r.stderr  # one part alone: what is missing is named
    os.unlink(tmp_path / names[2])
    r = nctd("--check", "-c", conf(str(tmp_path), model_m={"file": tmp_path / names[0], "num_groups": 2}))
    assert r.returncode == 78 and names[2] in r.stderr, r.stderr


# ---- (a), (c) the same values as frames -------------------------------------------------------------------------------
@pytest.mark.sanitize
@pytest.mark.parametrize("name, head, peak", [
    ("A7_fmt18_cbsize0", [-1.020913, 1.277622, 2.814057, -2.242940], 8.7791),
    ("C_silence_2ch_1000", [-0.25, -0.125, 0, 0.125], 0.25),
    ("C_noise_1003f", [-0.378921, 0.494873, -0.272538, 0.831006], 5.1014),
    ("C_quiet_lsb", [-0.252532, -0.135704, 0.016270, 0.133427], 0.2742)])
def test_known_numbers_as_integers_over_the_wire(daemon, name, head, peak):
    """a9, c7: int16 is x / 32768 and eps is 1e-5; quiet input shows both, loud input neither."""
    x = wav(data(name + ".wav"))[1]
    with daemon.client() as c:
        y = wire.array(c.ask("main/s", np.round(x * 32768).astype(np.int16)))
        assert np.abs(y[:, 0] - head).max() < 2e-6 and abs(np.abs(y).max() - peak) < 1e-4
        close(y, *oracle(x, B0))
        assert (wire.array(c.ask("main/s", x.astype(np.float32))) == y).all()
    if name == "C_silence_2ch_1000":
        assert (y == np.array(head, np.float32)[:, None]).all()  # exactly norm.bias


@pytest.mark.sanitize
def test_integer_edges_are_the_values_they_stand_for(start, tmp_path):
    """a9: through a layer that passes its input on (identity conv, statistics given as mean 0, variance 1 - eps)."""
    import stfile
    path = tmp_path / "pass.safetensors"
    stfile.write(path, {"conv.weight": np.ones((1, 1, 1), np.float32)}, {"num_groups": 1, "affine": "False", "eps": "1e-5"})
    d = start({"model m": {"file": path}})
    given = np.array([1e6, 0, (1 - 1e-5) * 1e6]).tobytes()
    edges = {np.int16: ([-32768, -32767, -1, 0, 1, 32767], 2.0**15), np.int32: ([-2**31, -1, 0, 1, 2**30], 2.0**31)}
    with d.client() as c:
        for dtype, (values, scale) in edges.items():
            x = np.array([values], dtype)
            y = wire.array(c.ask("m/s", x, flags=wire.GIVEN, tail=given)).astype(np.float64)
            want = x / scale
            assert np.abs(y - want).max() <= 1e-7 * np.abs(want).max() and (np.sign(y) == np.sign(want)).all()
            assert abs(y[0, 0] + 1) <= 1e-7
        y = wire.array(c.ask("m/s", np.array([[32767, 1]], np.int16), flags=wire.GIVEN, tail=given))
        assert abs(y[0, 0] - 0.999969482421875) <= 1e-7 and abs(y[0, 1] - 2.0**-15) <= 1e-11


@pytest.mark.sanitize
@pytest.mark.parametrize("shape, words", [((3, 1000), ["3", "2"]), ((1000, 2), ["1000", "2"]), ((1, 1000), ["1", "2"])])
def test_channels_that_do_not_match_are_refused_with_both_numbers(daemon, shape, words):
    """a11: a (T, C) array is not reinterpreted."""
    with daemon.client() as c:
        m = c.ask("main/s", np.ones(shape, np.float32))
        assert (m.h.kind, -m.h.status) == (wire.ERROR, wire.EINVAL)
        for word in words:
            assert word in m.payload.decode(), m.payload
        assert c.ask("main/s", np.ones((2, 1000), np.float32)).h.status == 0
        books = c.ledger()
    assert books["refused"] == books["refused_by"]["EINVAL"] == 1


@pytest.mark.sanitize
def test_empty_and_too_short_frames_are_errors_that_name_the_numbers(daemon):
    """a14: (2, 0), (2, 2) under a kernel of 3, (0, 100)."""
    with daemon.client() as c:
        for shape in ZEROS_PAST:
            m = c.ask("main/s", np.zeros(shape, np.float32))
            assert (m.h.kind, -m.h.status) == (wire.ERROR, wire.EINVAL), shape
            text = m.payload.decode()
            assert "0" in text if 0 in shape else ("2" in text and "3" in text), text
            assert c.ask("main/s", np.zeros((2, 3), np.float32)).h.status == 0
        assert c.ledger()["refused"] == 3


@pytest.mark.sanitize
def test_the_variance_is_biased_alone_and_among_64(start):
    """c5: the first three frames of ST, one output step, two values in a group."""
    d = start({"model main": {"file": B0, "num_groups": 2}, "batch": {"max_frames": 64, "max_delay_us": 20000}})
    x = st()[:, :3].astype(np.float32)
    want = [-1.246133, 1.120166, 1.499171, -1.624033]
    with d.client() as c:
        one = c.ask("main/s", x)
        assert np.abs(wire.array(one)[:, 0] - want).max() < 2e-5
        for _ in range(64):
            c.frame("main/s", x)
        assert {c.recv().payload for _ in range(64)} == {one.payload}


@pytest.mark.sanitize
def test_same_padding_of_an_even_kernel_puts_the_extra_zero_on_the_right(start, tmp_path):
    """c5: kernel 4 of ones over 0..4 is 3 6 10 9 7; seen through statistics of mean 0 and variance 1 - eps."""
    import stfile
    path = tmp_path / "even.safetensors"
    stfile.write(path, {"conv.weight": np.ones((1, 1, 4), np.float32)}, {"num_groups": 1, "affine": "False", "padding": "same"})
    d = start({"model m": {"file": path}})
    given = np.array([1e6, 0, (1 - 1e-5) * 1e6]).tobytes()
    with d.client() as c:
        y = wire.array(c.ask("m/s", np.arange(5, dtype=np.float32)[None], flags=wire.GIVEN, tail=given))
    assert y.shape == (1, 5) and np.abs(y[0] - [3, 6, 10, 9, 7]).max() < 1e-5


@pytest.mark.sanitize
@pytest.mark.parametrize("scale", [50e-6, 50.0], ids=["volts", "microvolts"])
def test_64_channels_of_volts_are_swallowed_by_eps_as_in_pytorch(start, scale):
    """c7."""
    B64 = data("B0_good_in64.safetensors")
    d = start({"model eeg": {"file": B64, "num_groups": 2}})
    x = (np.random.default_rng(11).standard_normal((64, 500)) * scale).astype(np.float32)
    with d.client() as c:
        close(wire.array(c.ask("eeg/s", x)), *oracle(x, B64))
