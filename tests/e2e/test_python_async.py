"""nct.AsyncClient against the real daemon: many tasks on one session, the window, order, cuts, cancelling."""
import asyncio
import os
import signal
import sys
import time

import numpy as np
import pytest

import conftest
from conftest import SLOW

sys.path.insert(0, os.path.join(conftest.ROOT, "client", "python"))
import nct  # noqa: E402


@pytest.fixture
def daemon(start, small_model):
    return start({"model m": {"file": small_model}})


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 120 * SLOW))


def client(d, **options):
    return nct.AsyncClient(d.ingest, **{"timeout": 30 * SLOW, **options})


def noise(n, steps=40):
    return [np.random.default_rng(k).standard_normal((2, steps + k % 7)).astype(np.float32) for k in range(n)]


def expected(d, frames):
    with nct.Client(d.ingest, timeout=30 * SLOW) as c:
        return list(c.map(frames, "m", "sync"))


@pytest.mark.parametrize("tcp", [False, True], ids=["ipc", "tcp"])
def test_a_thousand_calls_at_once_get_each_its_own(start, small_model, tcp):
    d = start({"model m": {"file": small_model}, "limits": {"window": "8"}}, tcp=tcp)
    frames = noise(1000)
    want = expected(d, frames)

    async def story():
        async with client(d) as c:
            got = await asyncio.gather(*(c.call(x, "m", f"s{k % 5}") for k, x in enumerate(frames)))
            assert c.in_flight == 0 and c.models == ["m"]
            return got, await c.ping()
    got, pong = run(story())
    assert pong > 0 and all(np.array_equal(a, b) for a, b in zip(got, want))
    ledger = d.ledger()
    assert ledger["ok"] == 2000 and ledger["refused"] == 0, ledger  # the window was kept over all tasks


def test_send_recv_and_map_beside_calls(daemon):
    frames = noise(60)
    want = expected(daemon, frames)

    async def story():
        async with client(daemon) as c:
            assert await c.open_stream("sent", {"unit": "V"}, model="m") > 0
            ids = [await c.send(x, "m", "sent", tag=k) for k, x in enumerate(frames[:30])]
            calls = asyncio.gather(*(c.call(x, "m", "called") for x in frames))
            answers = [await c.recv() for _ in ids]
            assert [a.request_id for a in answers] == ids and [a.tag for a in answers] == list(range(30))
            assert [a.seq for a in answers] == list(range(30))
            mapped = [y async for y in c.map(frames, "m", "mapped")]

            async def source():
                for x in frames:
                    await asyncio.sleep(0)
                    yield x
            mapped2 = [y async for y in c.map(source(), "m", "mapped2")]
            called = await calls
            await c.close_stream("sent", model="m")
            with pytest.raises(nct.NctError) as e:
                await c.recv(0.1)
            assert e.value.name == "ENOENT"
            with pytest.raises(nct.NctError) as e:
                await c.call(frames[0], "nobody", layout="CT")
            assert e.value.name == "ENOENT" and "nobody" in e.value.text
            return [a.value() for a in answers], called, mapped, mapped2
    for got in run(story()):
        assert all(np.array_equal(a, b) for a, b in zip(got, want)) and got


def test_what_one_task_reads_for_another_wakes_it(daemon):
    x = noise(1)[0]

    async def story():
        async with client(daemon) as c:
            await c.call(x, "m")
            daemon.signal(signal.SIGSTOP)
            call = asyncio.ensure_future(c.call(x, "m", timeout=100 * SLOW))
            await asyncio.sleep(0.05)
            assert c.in_flight == 1
            daemon.signal(signal.SIGCONT)
            assert conftest.until(lambda: daemon.ledger()["ok"] == 2)  # nothing of this loop runs: the answer is in the socket
            with pytest.raises(nct.NctError, match="ENOENT"):
                await c.recv(0)  # reads it, for it is not its own
            await asyncio.wait_for(call, 10 * SLOW)
    run(story())


def test_seqs_rise_in_the_order_of_the_calls(daemon):
    frames = noise(50)

    async def story():
        async with client(daemon) as c:
            sent = asyncio.gather(*(c.send(x, "m", "s", tag=k) for k, x in enumerate(frames)))
            await asyncio.sleep(0)  # they begin
            answers = [await c.recv() for _ in frames]
            await sent
            assert [(a.seq, a.tag) for a in answers] == [(k, k) for k in range(50)]
            both = await asyncio.gather(c.send(frames[0], "m", "s", seq=1000), c.send(frames[0], "m", "s"))
            assert [(await c.recv()).seq for _ in both] == [1000, 1001]
    run(story())


def test_the_loop_goes_on_while_a_call_waits_and_a_cancelled_one_leaves_nobody(daemon):
    x = noise(1)[0]

    async def story():
        async with client(daemon) as c:
            await c.call(x, "m")
            daemon.signal(signal.SIGSTOP)
            try:
                call = asyncio.ensure_future(c.call(x, "m", timeout=60))
                ticks = 0
                for _ in range(20):
                    await asyncio.sleep(0.01)
                    ticks += 1
                assert ticks == 20 and not call.done()
                began = time.process_time()
                await asyncio.sleep(0.5)
                assert time.process_time() - began < 0.3, "the wait is a busy one"
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
            finally:
                daemon.signal(signal.SIGCONT)
            y = await c.call(x, "m")
            assert y.shape == (4, x.shape[1] - 2)
            with pytest.raises(nct.NctError):
                await c.recv(0.2)  # the cancelled call's late answer is nobody's
    run(story())


def test_tasks_go_on_through_restarts(daemon):
    frames = noise(200)
    want = expected(daemon, frames)

    async def story():
        async with client(daemon, ping=0.5 * SLOW) as c:
            async def restart():
                for _ in range(2):
                    await asyncio.sleep(0.05)
                    await asyncio.to_thread(daemon.stop, 9)
                    await asyncio.to_thread(daemon.start)
            got = asyncio.gather(*(c.call(x, "m", f"s{k % 3}") for k, x in enumerate(frames[:100])))
            again = asyncio.ensure_future(restart())
            first = await got
            await again
            second = await asyncio.gather(*(c.call(x, "m", f"s{k % 3}") for k, x in enumerate(frames[100:])))
            assert c.reconnects >= 1
            return first + second
    assert all(np.array_equal(a, b) for a, b in zip(run(story()), want))


def test_nobody_there_and_wrong_use(start, small_model, tmp_path):
    async def story():
        with pytest.raises(nct.NctError) as e:
            async with nct.AsyncClient(f"ipc://{tmp_path}/nobody", timeout=0.2):
                pass
        assert e.value.name == "ETIMEDOUT" and "no daemon answered" in e.value.text
        with pytest.raises(TypeError, match="async with"):
            with nct.AsyncClient(f"ipc://{tmp_path}/nobody"):
                pass
    run(story())
