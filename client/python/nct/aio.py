"""nct.AsyncClient: a session with nctd for asyncio. Any number of tasks of one event loop may use it at once.

Nothing runs in the background: each task that waits turns the session when one of its two descriptors is readable, and wakes
the others when something came for them."""

import asyncio
import collections
import time

import zmq

from . import _wire as wire
from ._session import Control
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
        try:
            await self._until(self._opened, _deadline(self._timeout), self._not_opened)
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

    async def _until(self, ready, deadline, late):
        while True:
            self._turn()
            got = ready()
            if got is not None:
                return got
            if not await self._sleep(deadline):
                raise late()

    # ---- frames ----

    def _wants(self, number):
        return number not in self._awaited

    def _unread(self):
        return sum(self._wants(a.header.request_id) for a in self._s.ready)

    def _expects(self):
        return self._sending or super()._expects()

    async def _place(self, f, count_on, deadline, block=True):
        async with self._gate:
            if count_on:  # seqs in the order of sending, which is that of the calls
                f.fields["seq"] = self._next_seq.get(f.topic, 0)
            return await self._until(lambda: self._admitted(f, block), deadline, self._no_place)

    async def send(self, x, model="default", stream="python", *, block=True, **options):
        """As Client.send: the request id, once there was a place in the window."""
        f = self._frame(x, model, stream, **options)
        self._sending += 1
        try:
            return await self._place(f, options.get("seq") is None, _deadline(self._timeout), block)
        finally:
            self._sending -= 1

    async def recv(self, timeout=-1):
        """As Client.recv: the next Answer to a send()."""
        return await self._until(self._next, _deadline(self._timeout if timeout == -1 else timeout), self._no_next)

    async def call(self, x, model="default", stream="python", *, timeout=None, **options):
        """As Client.call: y (C_out, T_out). A cancelled call leaves nobody waiting."""
        deadline = _deadline(self._timeout if timeout is None else timeout)
        f = self._frame(x, model, stream, **options)
        number = await self._place(f, options.get("seq") is None, deadline)
        self._awaited.add(number)
        try:
            return (await self._until(lambda: self._take(number), deadline, self._no_answer)).value()
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
            try:
                await self._until(lambda: c.done or None, _deadline(timeout), self._no_answer)
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
