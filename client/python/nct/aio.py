"""nct.AsyncClient: a session with nctd for asyncio. Any number of tasks of one event loop may use it at once.

Nothing runs in the background: each task that waits turns the session when one of its two descriptors is readable, and wakes
the others when something came for them."""

import asyncio
import collections
import time

import zmq

from . import _wire as wire
from ._answer import answer_of
from ._session import READY_MAX, Control
from ._wire import NctError
from .client import Client, _deadline


class AsyncClient(Client):
    """Client, awaited: `async with nct.AsyncClient(...) as c`, then call, send, recv, map, open_stream, close_stream and ping
    as in Client. Frames are sent in the order of the calls; the window is kept over all tasks."""

    def _begin(self):
        self._sleepers, self._watched = [], None
        self._awaited = set()  # request ids whose answers are a call()'s
        self._sending = 0      # send()s that wait for a place
        self._gate = self._asking = None  # made in the loop that uses them

    async def open(self):
        """What `async with` does first: connect, HELLO, WELCOME."""
        self._gate, self._asking = asyncio.Lock(), asyncio.Lock()
        deadline = _deadline(self._timeout)
        try:
            while not self._opened():
                if not await self._sleep(deadline):
                    raise self._not_opened()
        except BaseException:
            self._abort()
            raise
        return self

    async def __aenter__(self):
        return await self.open()

    async def __aexit__(self, *_):
        await self.close()

    def __enter__(self):
        raise TypeError("an AsyncClient is used with `async with`")

    async def close(self):
        self._watch(None)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, Client.close, self)  # it may take `linger`
        self._wake()

    # ---- waiting ----

    def _wake(self):
        sleepers, self._sleepers = self._sleepers, []
        for f in sleepers:
            if not f.done():
                f.set_result(None)

    def _turn(self):
        s = self._own()
        before = s.events
        s.turn()
        if s.events != before:
            self._wake()  # what came may be another task's
        return s

    def _watch(self, wanted):
        """wanted: (which connection, its descriptors), for a new connection may have an old one's numbers; None: nothing."""
        if wanted == self._watched:
            return
        loop = asyncio.get_running_loop()
        for fd in self._watched[1] if self._watched else ():
            loop.remove_reader(fd)
        for fd in wanted[1] if wanted else ():
            loop.add_reader(fd, self._wake)
        self._watched = wanted

    def _something_waits(self):
        link, s = self._s.link, self._s
        wanted = zmq.POLLIN | (zmq.POLLOUT if s.blocked else 0)
        return link.socket.getsockopt(zmq.EVENTS) & wanted or link.monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN

    async def _sleep(self, deadline):
        """Until something may have happened; False: the deadline has come. ZeroMQ's descriptors are edges: they are watched
        only after a look at the sockets themselves, and only while somebody waits."""
        s = self._own()
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            return False
        if self._something_waits():
            await asyncio.sleep(0)
            return True
        due = [t for t in (deadline, s._due()) if t is not None]
        self._watch((s.link.renewals, (s.link.socket.fd, s.link.monitor.fd)))
        f = asyncio.get_running_loop().create_future()
        self._sleepers.append(f)
        try:
            await asyncio.wait_for(f, max(0, min(due) - now) if due else None)
        except asyncio.TimeoutError:
            pass
        finally:
            if f in self._sleepers:
                self._sleepers.remove(f)
            if not self._sleepers:
                self._watch(None)
        return True

    # ---- frames ----

    async def _place(self, f, count_on, deadline, block=True):
        async with self._gate:
            if count_on:  # seqs in the order of sending, which is that of the calls
                f.fields["seq"] = self._next_seq.get(f.topic, 0)
            while True:
                s = self._turn()
                if sum(a.header.request_id not in self._awaited for a in s.ready) >= READY_MAX:
                    raise NctError("EAGAIN", f"{len(s.ready)} answers wait to be taken: call recv()")
                number = s.admit(f) if s.place() else None
                if number is not None:
                    self._next_seq[f.topic] = (f.fields["seq"] + 1) % 2**64
                    return number
                if not block:
                    raise self._no_place("EAGAIN")
                if not await self._sleep(deadline):
                    raise self._no_place("ETIMEDOUT")

    async def send(self, x, model="default", stream="python", *, block=True, **options):
        """As Client.send: the request id, once there was a place in the window."""
        f = self._frame(x, model, stream, **options)
        self._sending += 1
        try:
            return await self._place(f, options.get("seq") is None, _deadline(self._timeout), block)
        finally:
            self._sending -= 1

    def _take(self, number=None):
        for i, a in enumerate(self._s.ready):
            wanted = a.header.request_id == number if number is not None else a.header.request_id not in self._awaited
            if wanted:
                del self._s.ready[i]
                return answer_of(*a)
        return None

    async def recv(self, timeout=-1):
        """As Client.recv: the next Answer to a send()."""
        deadline = _deadline(self._timeout if timeout == -1 else timeout)
        while True:
            s = self._turn()
            answer = self._take()
            if answer is not None:
                return answer
            if not self._sending and all(f.forgotten or number in self._awaited for number, f in s.flight.items()):
                raise NctError("ENOENT", "nothing is in flight: no answer would come")
            if not await self._sleep(deadline):
                raise NctError("ETIMEDOUT", f"no answer in time; {len(s.flight)} frames in flight")

    async def call(self, x, model="default", stream="python", *, timeout=None, **options):
        """As Client.call: y (C_out, T_out). A cancelled call leaves nobody waiting."""
        deadline = _deadline(self._timeout if timeout is None else timeout)
        f = self._frame(x, model, stream, **options)
        number = await self._place(f, options.get("seq") is None, deadline)
        self._awaited.add(number)
        try:
            while True:
                self._turn()
                answer = self._take(number)
                if answer is not None:
                    return answer.value()
                if not await self._sleep(deadline):
                    raise NctError("ETIMEDOUT", "no answer in time")
        finally:
            self._awaited.discard(number)
            if self._s is not None:
                self.forget(number)

    async def map(self, frames, model="default", stream="python", **options):
        """Keeps the window full with the arrays of `frames` (any iterable, or an asynchronous one), yields their y in the same
        order. Raises on the first error."""
        waiting = collections.deque()
        source = frames.__aiter__() if hasattr(frames, "__aiter__") else None
        values = iter(frames) if source is None else None
        more = True
        try:
            while more or waiting:
                while more and len(waiting) < max(self.window, 1):
                    try:
                        x = await source.__anext__() if source is not None else next(values)
                    except (StopIteration, StopAsyncIteration):
                        more = False
                        break
                    waiting.append(asyncio.ensure_future(self.call(x, model, stream, **options)))
                    await asyncio.sleep(0)  # it takes its place in the order
                if waiting:
                    yield await waiting.popleft()
        finally:
            for task in waiting:
                task.cancel()

    # ---- streams ----

    async def _ask(self, kind, topic, payload, timeout):
        async with self._asking:
            s = self._own()
            s.control = c = Control(s._new_id(), kind, topic, payload)
            deadline = _deadline(timeout)
            try:
                while not c.done:
                    self._turn()
                    if not c.done and not await self._sleep(deadline):
                        raise NctError("ETIMEDOUT", "no answer in time")
            finally:
                s.control = None
        if c.error:
            raise c.error
        return c.header

    async def open_stream(self, stream, facts=None, model="default"):
        """As Client.open_stream: its epoch."""
        topic, payload = self._facts_of(stream, facts, model)
        header = await self._ask(wire.OPEN, topic, payload, self._timeout)
        return self._stream_opened(topic, payload, header.epoch)

    async def close_stream(self, stream, model="default"):
        """As Client.close_stream."""
        topic = wire.topic_of(model, stream)
        try:
            await self._ask(wire.CLOSE, topic, b"", self._timeout)
        finally:
            self._stream_closed(topic)

    async def ping(self, timeout=None):
        """Seconds from PING to PONG."""
        began = time.monotonic()
        await self._ask(wire.PING, b"", b"", self._timeout if timeout is None else timeout)
        return time.monotonic() - began
