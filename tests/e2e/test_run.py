"""nct run on files that other tools tripped over: right values or a clear error, by name and by pipe."""
import os
import shutil
import struct
import subprocess

import numpy as np
import pytest

from conftest import until
from nct_tools import (B0, DATA, ENV, HEAD, MODEL, NCT, ST, close, data, fails, nct, objects, ok, oracle, save_model, st, wav,
                       write_wav)

WRAPPINGS = ["A1_ffmpeg_pipe_ffffffff.wav", "A1_sox_pipe_7ffff000.wav", "A1_riff_ok_data_ffffffff.wav",
             "A1_data_7fffffff_int32max.wav", "A3_odd_list_padded_before_data.wav", "A4_data_4002_half_frame.wav",
             "A5_zero_list_20k_before_data.wav", "A6_bwf_bext_pad40k_before_data.wav", "A6_trailing_chunks_after_data.wav",
             "A7_fmt18_cbsize0.wav", "A7_wavex_pcm16_stereo.wav", "A7_wavex_24valid_in_32.wav",
             "A7_wavex_cbsize_34_oversize.wav", "A7_wavex_float32.wav", "A10_double64.wav", "A11_blockalign_wrong.wav",
             "A13_sniff_wrong_extension.flac", "A11_stereo_44100.wav"]


@pytest.fixture(scope="module")
def st_result(tmp_path_factory):
    """ST's result as bytes of a .npy file."""
    out = tmp_path_factory.mktemp("st") / "st.npy"
    ok(nct("run", *MODEL, ST, "-o", out))
    y = np.load(out)
    assert y.dtype == np.float32 and y.shape == (4, 998)
    np.testing.assert_allclose(y[:, 0], HEAD, atol=2e-6)
    assert abs(np.abs(y).max() - 8.7791) < 1e-4
    close(y, *oracle(st(), B0))
    return out.read_bytes()


@pytest.mark.parametrize("name", WRAPPINGS)
def test_one_signal_in_every_wrapping(name, st_result, tmp_path):
    if name == "A11_stereo_44100.wav":  # another signal: only that the two roads agree
        st_result = None
    out = tmp_path / "o.npy"
    r = ok(nct("run", *MODEL, data(name), "-o", out))
    assert b"warning" not in r.stderr
    by_name = out.read_bytes()
    os.unlink(out)
    shell = f"set -o pipefail; dd if='{data(name)}' bs=16 status=none | '{NCT}' run {' '.join(MODEL)} - -o '{out}'"
    r = subprocess.run(["bash", "-c", shell], capture_output=True, env=ENV, timeout=100)
    assert r.returncode == 0, r.stderr
    assert out.read_bytes() == by_name
    assert st_result is None or by_name == st_result


@pytest.mark.parametrize("name", WRAPPINGS[:4])
def test_announced_sizes_cost_no_memory(name, st_result, tmp_path):
    out = tmp_path / "o.npy"
    for road in (f"'{data(name)}'", "-"):
        # The limit is nct's own: the daemon it starts sets its memory aside openly.
        r = subprocess.run(["bash", "-c", f"ulimit -v 2000000; '{NCT}' run {' '.join(MODEL)} {road} -o '{out}' < '{data(name)}'"],
                           capture_output=True, env=ENV, timeout=100)
        assert r.returncode == 0, r.stderr
        assert out.read_bytes() == st_result


@pytest.mark.parametrize("name, head, peak, t_out", [
    ("C_silence_2ch_1000.wav", [-0.25, -0.125, 0, 0.125], 0.25, 998),
    ("C_noise_1003f.wav", [-0.378921, 0.494873, -0.272538, 0.831006], 5.1014, 1001),
    ("C_quiet_lsb.wav", [-0.252532, -0.135704, 0.016270, 0.133427], 0.2742, 998)])
def test_known_numbers(name, head, peak, t_out, tmp_path):
    out = tmp_path / "o.wav"
    ok(nct("run", *MODEL, data(name), "-o", out))
    rate, y = wav(out)
    assert rate == 16000 and y.shape == (4, t_out)
    np.testing.assert_allclose(y[:, 0], head, atol=1e-6 if peak < 1 else 2e-6)
    assert abs(np.abs(y).max() - peak) < 1e-4


@pytest.mark.parametrize("name", ["A3_24bit_mono_101f_padded_list.wav", "A3_24bit_mono_101f_nopad_eof.wav"])
def test_odd_24_bit_files(name, tmp_path):
    """A layer that passes its input through (kernel 1, weight 1) up to the norm shows all 101 steps."""
    model = data("B0_good_in1.safetensors")
    x = wav(data("A3_24bit_mono_101f_padded_list.wav"))[1]
    assert x.shape == (1, 101) and x[0, 0] == -8000000 / 8388608
    ok(nct("run", "--model", model, "-p", "num_groups=2", data(name), "-o", tmp_path / "o.npy"))
    close(np.load(tmp_path / "o.npy"), *oracle(x, model))


def test_unpadded_odd_list_is_st_or_an_error(tmp_path):
    r = nct("run", *MODEL, data("A3_odd_list_nopad_before_data.wav"), "-o", tmp_path / "o.npy", timeout=20)
    fails(r, 1, "cannot be read as sound")
    assert not os.listdir(tmp_path)


def test_closed_standard_descriptors_are_not_given_to_files_and_sockets(tmp_path):
    """What nct says would be written to whatever has number 2 then."""
    out = tmp_path / "o.npy"
    p = subprocess.Popen(["bash", "-c", f"exec '{NCT}' run {' '.join(MODEL)} - -o '{out}' >&- 2>&-"], stdin=subprocess.PIPE, env=ENV)
    with open(data("A4_truncated_mid_frame.wav"), "rb") as f:
        p.stdin.write(f.read())
    p.stdin.flush()
    assert until(lambda: os.readlink(f"/proc/{p.pid}/exe").endswith("nct") and os.path.exists(f"/proc/{p.pid}/fd/3"))
    assert [os.readlink(f"/proc/{p.pid}/fd/{n}") for n in (1, 2)] == ["/dev/null"] * 2
    p.stdin.close()
    assert p.wait(60) == 0 and np.load(out).shape == (4, 623)


NO_SOUND = {"r.bin": np.random.default_rng(4).bytes(3000), "notes.txt": b"not sound", "fake.wav": b"not sound either",
            "x.m4a": b"\0\0\0 ftypM4A " + bytes(99), "x.mp3": b"\xff\xfb\x90\0" + bytes(400), "x.ogg": b"OggS" + bytes(99)}


@pytest.mark.parametrize("name", NO_SOUND)
def test_what_is_no_sound_is_told_what_to_do(name, tmp_path):
    """The formats that are read, and the options that headerless samples need."""
    content = NO_SOUND[name]
    (tmp_path / name).write_bytes(content)
    for road in (tmp_path / name, "-"):
        r = nct("run", *MODEL, road, "-o", tmp_path / "o.npy", input=content if road == "-" else None)
        fails(r, 1, "cannot be read as sound", "wav, flac", "--raw f32|f64|i16|i32 --rate HZ --channels N", "ffmpeg")
        assert b"does not exist" not in r.stderr
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("pipe", [False, True])
def test_truncated_files(pipe, tmp_path):
    def run(name, out):
        with open(data(name), "rb") as f:
            return nct("run", *MODEL, "-" if pipe else data(name), "-o", tmp_path / out, input=f.read() if pipe else None)

    r = ok(run("A4_truncated_mid_frame.wav", "t.npy"))
    assert b"warning: header announced 1000 steps, got 625" in r.stderr
    close(np.load(tmp_path / "t.npy"), *oracle(st()[:, :625], B0))
    r = ok(run("A4_header_only_44.wav", "h.npy"))
    assert b"warning" in r.stderr and b"no samples" in r.stderr
    assert np.load(tmp_path / "h.npy").shape == (4, 0)
    fails(run("A4_cut_in_fmt_chunk.wav", "f.npy"), 1, "cannot be read as sound")
    assert sorted(os.listdir(tmp_path)) == ["h.npy", "t.npy"]


def test_channels_that_do_not_match(tmp_path):
    fails(nct("run", *MODEL, data("A11_mono.wav"), "-o", tmp_path / "o.wav"), 1, "file has 1 channel, model layer wants 2")
    fails(nct("run", *MODEL, data("A11_9ch.wav"), "-o", tmp_path / "o.wav"), 1, "file has 9 channels, model layer wants 2")
    fails(nct("run", *MODEL, data("A11_1025ch.wav"), "-o", tmp_path / "o.wav"), 1, "Too many channels")
    assert not os.listdir(tmp_path)


def test_sample_rates(tmp_path):
    rng = np.random.default_rng(1)
    model = save_model(tmp_path / "m.safetensors", rng.normal(size=(4, 2, 3)), np.ones(4), np.zeros(4), num_groups=2,
                       sample_rate=16000, stride=7)
    fails(nct("run", "--model", model, data("A11_stereo_44100.wav"), "-o", tmp_path / "o.wav"), 1, "44100", "16000")
    assert not os.path.exists(tmp_path / "o.wav")
    r = ok(nct("run", "--model", model, ST, "-o", tmp_path / "o.wav"))
    assert b"warning: 16000 Hz / stride 7 is 2285.71 Hz; the result's header says 2286 Hz" in r.stderr
    rate, y = wav(tmp_path / "o.wav")
    assert rate == 2286 and y.shape == (4, 143)
    close(y, *oracle(st(), model, stride=7))
    r = ok(nct("run", *MODEL, "-p", "stride=4", ST, "-o", tmp_path / "o.wav"))
    assert b"warning" not in r.stderr and wav(tmp_path / "o.wav")[0] == 4000


def test_64_channels_in_file_order(tmp_path):
    name, model = data("A7_wavex_24bit_64ch_mask0.wav"), data("B0_good_in64.safetensors")
    ok(nct("run", "--model", model, "-p", "num_groups=2", name, "-o", tmp_path / "o.npy"))
    x = wav(name)[1]
    t = np.arange(x.shape[1])
    assert (x == ((np.arange(64)[:, None] + 1) * 1000 + t) / 2**23).all()
    close(np.load(tmp_path / "o.npy"), *oracle(x, model))


def test_nine_channels_to_flac_are_refused_before_any_work(tmp_path):
    rng = np.random.default_rng(2)
    model = save_model(tmp_path / "m.safetensors", rng.normal(size=(9, 2, 3)), num_groups=3)
    env = {"PATH": "/nonexistent"}
    r = nct("run", "--model", model, ST, "-o", tmp_path / "o.flac", env=env)
    fails(r, 1, "FLAC holds at most 8 channels, the result has 9", "write .wav")
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_empty_and_short_input(tmp_path):
    out = tmp_path / "o.wav"
    fails(nct("run", *MODEL, data("A12_zero_byte.wav"), "-o", out), 1, "is empty (0 bytes)")
    fails(nct("run", *MODEL, "-", "-o", out, input=b""), 1, "is empty (0 bytes)")
    fails(nct("run", *MODEL, data("A12_1_frame.wav"), "-o", out), 1, "T = 1", "K = 3")
    fails(nct("run", *MODEL, data("A12_2_frames_shorter_than_kernel.wav"), "-o", out), 1, "T = 2", "K = 3")
    fails(nct("run", *MODEL, data("A11_channels_0.wav"), "-o", out), 1, "Channel count is zero")
    fails(nct("run", *MODEL, data("A11_samplerate_0.wav"), "-o", out), 1, "no sample rate (0 Hz)")
    assert not out.exists()
    r = ok(nct("run", *MODEL, data("A12_zero_frames_stereo.wav"), "-o", out))
    assert b"holds no samples; the result is empty" in r.stderr
    assert wav(out)[1].shape == (4, 0)


def test_the_first_three_frames(tmp_path):
    write_wav(tmp_path / "x.wav", st()[:, :3])
    ok(nct("run", *MODEL, tmp_path / "x.wav", "-o", tmp_path / "o.npy"))
    np.testing.assert_allclose(np.load(tmp_path / "o.npy")[:, 0], [-1.246133, 1.120166, 1.499171, -1.624033], atol=2e-6)


def test_output_is_never_the_input(tmp_path):
    x = tmp_path / "x.wav"
    shutil.copy(ST, x)
    os.symlink(x, tmp_path / "soft.wav")
    os.link(x, tmp_path / "hard.wav")
    before = x.read_bytes()
    for name in ("x.wav", "./x.wav", "soft.wav", "hard.wav"):
        fails(nct("run", *MODEL, "x.wav", "-o", name, cwd=tmp_path), 1, "is the input itself")
        assert x.read_bytes() == before
    fails(nct("run", *MODEL, "x.wav", "-O", ".", cwd=tmp_path), 1, "is the input itself")
    assert x.read_bytes() == before and sorted(os.listdir(tmp_path)) == ["hard.wav", "soft.wav", "x.wav"]


def test_a_failure_leaves_an_existing_output_as_it_was(tmp_path):
    out = tmp_path / "o.wav"
    out.write_bytes(b"precious")
    for bad in ("A12_zero_byte.wav", "A11_mono.wav", "A12_1_frame.wav"):
        assert nct("run", *MODEL, data(bad), "-o", out).returncode == 1
        assert out.read_bytes() == b"precious" and os.listdir(tmp_path) == ["o.wav"]


@pytest.mark.parametrize("locale", [None, "C"])
@pytest.mark.parametrize("name", ["音声 naïve (take 1).wav", "-leading_dash.wav", 'q"uote\\back.wav', "new\nline #;.wav"])
def test_file_names(name, locale, st_result, tmp_path):
    shutil.copy(ST, tmp_path / name)
    shutil.copy(B0, tmp_path / (name + ".safetensors"))
    env = {"LC_ALL": locale} if locale else {}
    ok(nct("run", "--model", "./" + name + ".safetensors", "-p", "num_groups=2", "-o", "out.npy", "--", name, cwd=tmp_path, env=env))
    assert (tmp_path / "out.npy").read_bytes() == st_result
    ok(nct("run", *MODEL, "-O", "dir", "--", name, cwd=tmp_path, env=env))
    assert os.listdir(tmp_path / "dir") == [name]
    r = nct("run", *MODEL, "-o", "out.npy", "--", name + "?", cwd=tmp_path, env=env)
    fails(r, 1, "No such file")
    assert len(r.stderr.splitlines()) == 1  # one event, one line, whatever the name holds


def test_numbers_have_a_dot_in_every_locale(tmp_path):
    for locale in ("de_DE.UTF-8", "fr_FR", "C"):
        r = ok(nct("run", *MODEL, ST, "-o", tmp_path / "o.npy", "--json", "--timeout", "2.5", env={"LC_ALL": locale}))
        assert objects(r)[0]["audio_s"] == 0.0625


def test_integer_outputs_saturate_and_count(tmp_path):
    y, _ = oracle(st(), B0)
    for encoding, bits in (("i16", 16), ("i24", 24), ("i32", 32)):
        r = ok(nct("run", *MODEL, ST, "-o", tmp_path / "o.wav", "--encoding", encoding, "--json"))
        got = wav(tmp_path / "o.wav")[1]
        want = np.clip(y, -1, 1 - 2.0**(1 - bits))
        assert np.abs(got - want).max() <= 2.0**-bits + 1e-5
        outside = int(((y > 1 - 2.0**(1 - bits)) | (y < -1)).sum())
        assert abs(objects(r)[0]["clipped"] - outside) <= 2 and outside > 300
        assert b"were clipped" in r.stderr
    ok(nct("run", *MODEL, ST, "-o", tmp_path / "o.flac"))
    old = (tmp_path / "o.flac").read_bytes()
    fails(nct("run", *MODEL, ST, "-o", tmp_path / "o.flac", "--clip", "fail"), 1, "outside [-1, 1]")
    assert (tmp_path / "o.flac").read_bytes() == old


def test_24_bit_mono_with_an_odd_number_of_steps_is_padded(tmp_path):
    model = save_model(tmp_path / "m.safetensors", np.ones((1, 2, 2)), num_groups=1)
    ok(nct("run", "--model", model, ST, "-o", tmp_path / "o.wav", "--encoding", "i24"))
    assert wav(tmp_path / "o.wav")[1].shape == (1, 999)  # wav() checks pad byte and RIFF size


def test_headerless_pipes(tmp_path):
    x = st().astype("<f4")
    y, bound = oracle(st(), B0)
    raw = ["--rate", "16000", "--channels", "2"]
    r = ok(nct("run", *MODEL, "--raw", "f32", *raw, "-", "-o", "-", input=x.T.tobytes()))
    close(np.frombuffer(r.stdout, "<f4").reshape(-1, 4).T, y, bound)
    r = ok(nct("run", *MODEL, "--raw", "i16", *raw, "-", "-o", "-", "--encoding", "f32", input=(x.T * 32768).astype("<i2").tobytes()))
    close(np.frombuffer(r.stdout, "<f4").reshape(-1, 4).T, y, bound)
    r = ok(nct("run", *MODEL, "--raw", "f64", *raw, "-", "-o", tmp_path / "o.npy", input=x.T.astype("<f8").tobytes() + b"abc"))
    assert b"3 bytes after the last whole step are left out" in r.stderr
    close(np.load(tmp_path / "o.npy"), y, bound)
    fails(nct("run", *MODEL, "--raw", "f32", "-", "-o", "-", input=b""), 2, "--rate")


def test_results_to_pipes(st_result, tmp_path):
    r = ok(nct("run", *MODEL, ST, "-o", "-", "--format", "npy"))
    assert r.stdout == st_result
    r = ok(nct("run", *MODEL, ST, "-o", "-"))
    (tmp_path / "o.wav").write_bytes(r.stdout)
    close(wav(tmp_path / "o.wav")[1], *oracle(st(), B0))
    r = ok(nct("run", *MODEL, ST, "-o", "/dev/null"))
    assert os.path.exists("/dev/null") and not os.path.isfile("/dev/null")
    r = subprocess.run(["bash", "-c", f"set -o pipefail; '{NCT}' run {' '.join(MODEL)} '{ST}' -o - | head -c 0"],
                       capture_output=True, env=ENV, timeout=100)
    assert r.returncode in (0, 1) and b"Traceback" not in r.stderr


def test_never_binary_to_a_terminal(tmp_path):
    import pty
    master, slave = pty.openpty()
    r = subprocess.run([NCT, "run", *MODEL, ST, "-o", "-"], stdout=slave, stderr=subprocess.PIPE, env=ENV, timeout=100)
    assert r.returncode == 2 and b"terminal" in r.stderr
    os.close(slave)
    os.close(master)


def test_windows_of_an_endless_pipe(tmp_path):
    """Each window is normalised by itself; the conv runs through, nothing is lost or doubled between two of them."""
    import torch
    import torch.nn.functional as F
    from nct_tools import load_model
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, 1003)).astype("<f4")
    m = load_model(B0)
    for padding, mode, stride in ((0, "zeros", 1), (1, "reflect", 1), (2, "replicate", 2), (5, "zeros", 7)):
        z = torch.from_numpy(x.astype(np.float64))[None]
        z = F.pad(z, (padding, padding), mode={"zeros": "constant"}.get(mode, mode))
        c = F.conv1d(z, m["conv.weight"], None, stride)
        outs = 100 // stride
        want = torch.cat([F.group_norm(p, 2, m["norm.weight"], m["norm.bias"], 1e-5) for p in c.split(outs, 2)], 2)[0].numpy()
        args = ["run", *MODEL, "-p", f"padding={padding}", "-p", f"padding_mode={mode}", "-p", f"stride={stride}", "--raw", "f32",
                "--rate", "1000", "--channels", "2", "--window", "100ms", "-", "-o", "-"]
        p = subprocess.Popen([NCT, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV,
                             bufsize=0)
        raw = x.T.tobytes()
        p.stdin.write(raw[:8 * 400])
        first = b""  # comes while the pipe stays open
        while len(first) < 16 * outs * 2:
            first += p.stdout.read(16 * outs * 2 - len(first))
        out, err = p.communicate(raw[8 * 400:], timeout=60)
        assert p.returncode == 0, err
        got = np.frombuffer(first + out, "<f4").reshape(-1, 4).T
        np.testing.assert_allclose(got, want, atol=2e-4)
    fails(nct("run", *MODEL, "-p", "padding=1", "-p", "padding_mode=circular", "--raw", "f32", "--rate", "1000", "--channels", "2",
              "--window", "1s", "-", "-o", "-", input=b""), 1, "circular")


def test_a_live_wav_is_read_and_written_as_it_comes(tmp_path):
    with open(data("A1_ffmpeg_pipe_ffffffff.wav"), "rb") as f:
        r = ok(nct("run", *MODEL, "--window", "10s", "-", "-o", "-", input=f.read()))
    assert r.stdout[:4] == b"RIFF" and r.stdout[40:46] != b""
    at = r.stdout.index(b"data") + 8
    assert struct.unpack("<I", r.stdout[at - 4:at])[0] == 0xFFFFFFFF
    close(np.frombuffer(r.stdout[at:], "<f4").reshape(-1, 4).T, *oracle(st(), B0))
    with open(data("A1_ffmpeg_pipe_ffffffff.wav"), "rb") as f:
        ok(nct("run", *MODEL, "--window", "10s", "-", "-o", tmp_path / "o.wav", input=f.read()))
    close(wav(tmp_path / "o.wav")[1], *oracle(st(), B0))


def test_pictures(tmp_path):
    for name in ("p.png", "p.svg"):
        ok(nct("run", *MODEL, ST, "-o", tmp_path / "o.npy", "--plot", tmp_path / name))
    png = (tmp_path / "p.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", png[16:24]) == (1100, 640)
    assert b"time (s)" in (tmp_path / "p.svg").read_bytes()
    fails(nct("run", *MODEL, ST, "-o", tmp_path / "o.npy", "--plot", tmp_path / "p.gif"), 2, ".png or .svg")


def test_a_full_disk_is_an_error(tmp_path):
    r = nct("run", *MODEL, ST, "-o", "/dev/full")
    fails(r, 1, "No space left")


def test_no_input_is_said(tmp_path):
    fails(nct("run", *MODEL, "-O", tmp_path / "d"), 2, "no input is named", "-r FOLDER")
    (tmp_path / "notes.txt").write_bytes(b"x")
    r = ok(nct("run", *MODEL, "-r", tmp_path, "-O", tmp_path / "d"))
    assert b"warning: no file in it has the extension of a sound file" in r.stderr and b"--match" in r.stderr
    assert b"matches *.flac" in ok(nct("run", *MODEL, "-r", tmp_path, "--match", "*.flac", "-O", tmp_path / "d")).stderr


def test_usage_errors_do_nothing(tmp_path):
    out = tmp_path / "o.wav"
    for args, word in [(["run", ST, "-o", out], "--model"), (["run", *MODEL, ST], "-o"), (["run", *MODEL, ST, ST, "-o", out], "-O"),
                       (["run", *MODEL, ST, "-o", tmp_path / "o.mp3"], "extension"), (["run", *MODEL, "-o", out], "none"),
                       (["run", *MODEL, ST, "-o", out, "--progres", "bar"], "--progress"), (["rnu"], "'run'"),
                       (["run", *MODEL, "--connect", "ipc:///x", ST, "-o", out], "--connect"),
                       (["run", *MODEL, ST, "-O", tmp_path / "d", "--shard", "3/2"], "--shard"), (["run", "-p", "x", ST, "-o", out], "KEY=VALUE"),
                       (["run", *MODEL, ST, "-o", out, "--window", "1h"], "--window")]:
        fails(nct(*args), 2, word)
    assert not os.listdir(tmp_path)


def test_configuration_errors(tmp_path):
    out = tmp_path / "o.wav"
    fails(nct("run", "--model", data("B2_git_lfs_pointer.safetensors"), ST, "-o", out), 78, "LFS")
    fails(nct("run", "--model", B0, ST, "-o", out), 78, "num_groups")
    fails(nct("run", *MODEL, "-p", "stride=0", ST, "-o", out), 78, "stride")
    fails(nct("run", "--model", tmp_path / "none.safetensors", ST, "-o", out), 78, "No such file")
    fails(nct("run", "--connect", f"ipc://{tmp_path}/nobody.sock", "--timeout", "0.5", ST, "-o", out), 69)
    assert not os.listdir(tmp_path)


def test_help_is_made_from_the_tables():
    text = ok(nct("help", "run")).stdout.decode()
    for word in ("--piece-steps N", "[30 s]", "--window SPAN", "78  the model file"):
        assert word in text
    assert ok(nct("run", "--help")).stdout.decode() == text
    assert "complete -o filenames -F _nct nct" in ok(nct("completion", "bash")).stdout.decode()
    check = subprocess.run(["bash", "-n"], input=ok(nct("completion")).stdout, capture_output=True)
    assert check.returncode == 0, check.stderr
    assert "nct run [-m|--model FILE]" in ok(nct("synopsis")).stdout.decode()
    fails(nct(), 2, "nct COMMAND")


@pytest.mark.parametrize("name", ["A7_fmt18_cbsize0.wav", "C_quiet_lsb.wav"])
def test_a_file_and_its_integers_over_the_wire_give_the_same_bits(name, start, tmp_path):
    import wire
    d = start({"model main": {"file": B0, "num_groups": 2}})
    ok(nct("run", "--connect", d.ingest, data(name), "-o", tmp_path / "o.npy"))
    by_file = np.load(tmp_path / "o.npy")
    x = wav(data(name))[1]
    with d.client() as c:
        for frame, flags in ((x * 32768).astype("<i2"), 0), ((x.T * 32768).astype("<i2"), wire.INTERLEAVED), (x.astype("<f4"), 0):
            m = c.ask("main/int", frame, flags=flags)
            assert m.h.status == 0 and (wire.array(m) == by_file).all()
        old = d.ledger()
        assert c.ask("main/int", np.zeros((3, 1000), np.float32)).h.status == -22
        assert c.ask("main/int", np.zeros((1000, 2), np.float32)).h.status == -22  # (T, C) without its flag is no frame of this model
        assert d.ledger()["refused"] == old["refused"] + 2
        assert c.ask("main/int", x.astype("<f4")).h.status == 0
    ok(nct("run", *MODEL, data(name), "-o", tmp_path / "p.npy"))
    assert (np.load(tmp_path / "p.npy") == by_file).all()
