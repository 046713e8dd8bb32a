"""A frame in, PyTorch's numbers out: every dtype, layout, piece and statistic of the wire."""
import subprocess

import numpy as np
import pytest

import stfile
import wire
from conftest import NCT
from oracle import Layer, assert_close

rng = np.random.default_rng(1)


def make_model(path, c_in=2, c_out=4, k=3, bias=False, **meta):
    tensors = {"conv.weight": rng.standard_normal((c_out, c_in // int(meta.get("groups", 1)), k)).astype(np.float32),
               "norm.weight": rng.standard_normal(c_out).astype(np.float32),
               "norm.bias": rng.standard_normal(c_out).astype(np.float32)}
    if bias:
        tensors["conv.bias"] = rng.standard_normal(c_out).astype(np.float32)
    stfile.write(path, tensors, {"num_groups": 2, **meta})
    return str(path)


@pytest.mark.sanitize
def test_default_layer_is_served_without_any_model(start):
    d = start()
    with d.client() as c:
        models = c.welcome["models"]
        x = rng.standard_normal((128, 1024)).astype(np.float32)
        answer = c.ask("default/a", x, seq=3, pos=100, t_capture_ns=-5)
        h = answer.h
        assert (h.kind, h.status, h.channels, h.steps, h.seq, h.t_capture_ns) == (wire.RESULT, 0, 256, 1024, 3, -5)
        assert h.window >= 1 and h.generation >= 1 and h.epoch >= 1 and h.t_answer_ns > 0
        y = wire.array(answer).reshape(32, -1)
        assert np.abs(y.mean(1)).max() < 1e-4 and np.abs(y.var(1) - 1).max() < 1e-2  # a fresh norm: mean 0, variance 1
        assert "default" in str(models)
    assert d.ledger()["ok"] == 1


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int16, np.int32])
def test_every_input_dtype_is_the_value_it_stands_for(start, tmp_path, dtype):
    path = make_model(tmp_path / "m.safetensors", bias=True, activation="gelu")
    d = start({"model m": {"file": path}})
    x = rng.standard_normal((2, 333)) * 0.2
    scale = {np.int16: 2**15, np.int32: 2**31}.get(dtype, 1)
    sent = (x * scale).astype(dtype)
    with d.client() as c:
        y = wire.array(c.ask("m/s", sent))
    # f64 and i32 are read as f32, to nearest even
    read = (sent.astype(np.float64) / scale).astype(np.float32)
    assert_close(y, Layer(path), read)


@pytest.mark.sanitize
def test_bf16_in_and_every_result_dtype(start, tmp_path):
    path = make_model(tmp_path / "m.safetensors")
    d = start({"model m": {"file": path}})
    x = rng.standard_normal((2, 100)).astype(np.float32)
    wide = x.view(np.uint32) & 0xffff0000
    x = wide.view(np.float32)
    layer = Layer(path)
    with d.client() as c:
        payload = (wide >> 16).astype(np.uint16).tobytes()
        for want, ulp in ((0, 0), (wire.F32, 0), (wire.F16, 2.0**-11), (wire.BF16, 2.0**-8)):
            c.send(b"m/s/", c.header(dtype=wire.BF16, channels=2, steps=100, want=want), payload)
            answer = c.recv()
            assert answer.h.status == 0, answer.payload
            assert answer.h.dtype == (want or wire.F32)
            assert_close(wire.array(answer).astype(np.float64), layer, x, extra=ulp)


def test_interleaved_payload_is_read_as_steps_by_channels(start, tmp_path):
    path = make_model(tmp_path / "m.safetensors", c_in=6, c_out=8)
    d = start({"model m": {"file": path}})
    x = rng.standard_normal((6, 77)).astype(np.float32)
    with d.client() as c:
        plain = c.ask("m/s", x).payload
        mixed = c.ask("m/s", np.ascontiguousarray(x.T), flags=wire.INTERLEAVED)
        assert (mixed.h.channels, mixed.h.steps) == (8, 75)
        assert mixed.payload == plain


@pytest.mark.parametrize("meta", [
    {"padding": 3}, {"padding": "same", "dilation": 2}, {"stride": 3, "padding": 2}, {"padding": 2, "padding_mode": "reflect"},
    {"padding": 2, "padding_mode": "replicate"}, {"padding": 2, "padding_mode": "circular"}, {"groups": 2, "activation": "mish"}])
def test_layer_parameters_of_the_file_are_the_ones_used(start, tmp_path, meta):
    path = make_model(tmp_path / "m.safetensors", c_in=4, c_out=6, **meta)
    d = start({"model m": {"file": path}})
    with d.client() as c:
        for steps in (9, 10, 64, 500):
            x = rng.standard_normal((4, steps)).astype(np.float32)
            assert_close(wire.array(c.ask("m/s", x)), Layer(path), x)


@pytest.mark.sanitize
def test_pieces_with_observed_and_given_statistics_make_the_whole(start, tmp_path):
    path = make_model(tmp_path / "m.safetensors", padding=1)
    d = start({"model m": {"file": path}})
    x = rng.standard_normal((2, 1000)).astype(np.float32) + 3
    cuts = [(0, 401, wire.INNER_RIGHT), (399, 801, wire.INNER_LEFT | wire.INNER_RIGHT), (799, 1000, wire.INNER_LEFT)]
    with d.client() as c:
        whole = wire.array(c.ask("m/s", x))
        total = np.zeros((2, 3))
        for a, b, flags in cuts:
            answer = c.ask("m/s", x[:, a:b], flags=flags | wire.OBSERVE)
            assert (answer.h.dtype, answer.h.channels, answer.h.steps) == (wire.F64, 2, 3), answer.payload
            total = np.array([merge(t, s) for t, s in zip(total, np.frombuffer(answer.payload).reshape(2, 3))])
        assert total[:, 0].tolist() == [2000, 2000]
        given = total.tobytes()
        parts = [wire.array(c.ask("m/s", x[:, a:b], flags=f | wire.GIVEN, tail=given)) for a, b, f in cuts]
    joined = np.concatenate(parts, axis=1)
    assert joined.shape == whole.shape
    assert np.abs(joined - whole).max() <= 1e-6 * np.abs(whole).max() + 5e-6
    assert_close(joined, Layer(path), x)


def merge(a, b):
    """Chan et al.: two {count, mean, M2} as one."""
    n = a[0] + b[0]
    delta = b[1] - a[1]
    return [n, a[1] + delta * b[0] / n, a[2] + b[2] + delta * delta * a[0] * b[0] / n]


def test_no_reply_brings_the_header_alone(start, tmp_path):
    d = start({"model m": {"file": make_model(tmp_path / "m.safetensors")}})
    with d.client() as c:
        answer = c.ask("m/s", np.ones((2, 10), np.float32), flags=wire.NO_REPLY)
        assert (answer.h.kind, answer.h.status, answer.h.dtype, answer.payload) == (wire.RESULT, 0, 0, b"")


def test_a_longer_header_is_read_and_its_tail_skipped(start, tmp_path):
    d = start({"model m": {"file": make_model(tmp_path / "m.safetensors")}})
    with d.client() as c:
        x = np.ones((2, 10), np.float32)
        c.send(b"m/s/", c.header(x, header_words=14) + b"\xff" * 16, x.tobytes())
        assert c.recv().h.status == 0


def test_a_frame_with_nan_spoils_its_own_group_and_nobody_else(start, tmp_path):
    path = make_model(tmp_path / "m.safetensors", c_in=4, c_out=6, groups=2)
    d = start({"model m": {"file": path}, "batch": {"max_frames": 8, "max_delay_us": 20000}})
    good = rng.standard_normal((4, 50)).astype(np.float32)
    bad = good.copy()
    bad[0, 7] = np.nan
    with d.client() as c:
        alone = c.ask("m/s", good).payload
        for i in range(8):
            c.frame("m/s", bad if i % 2 else good)
        got = [c.recv() for _ in range(8)]
        for i, answer in enumerate(got):
            y = wire.array(answer)
            if i % 2:
                assert np.isnan(y[:3]).all() and np.isfinite(y[3:]).all()
            else:
                assert answer.payload == alone


def test_a_mean_that_drowns_the_rest_is_counted_and_named(start):
    """|mean|/std beyond what the precision resolves: a wrong setting, not a wrong frame, so it is answered and told."""
    d = start({"model m": {"in_channels": 1, "out_channels": 1, "kernel_size": 1, "num_groups": 1, "seed": 1}})
    x = rng.standard_normal((1, 1000)).astype(np.float32)
    with d.client() as c:
        assert c.ask("m/s", 100 + x).h.status == 0
        assert d.ledger()["offset"] == 0 and "resolves" not in info(d)
        assert c.ask("m/s", 200000 + x).h.status == 0
        assert d.ledger()["offset"] == 1
    assert "1 frame had a group with |mean|/std beyond what f32 resolves to 1 %: take the mean out" in info(d)


def info(d):
    return subprocess.run([NCT, "info", "-c", d.ingest], capture_output=True, text=True, check=True).stdout
