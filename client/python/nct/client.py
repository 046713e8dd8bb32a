"""nct.Client: a session with nctd, numpy in and out. One thread at a time per Client."""

import collections
import json
import os
import time

from . import _wire as wire
from ._answer import answer_of
from ._array import dtype_name, to_payload
from ._session import READY_MAX, Control, Frame, Session
from ._wire import NctError


def _deadline(timeout):
    return None if timeout is None else time.monotonic() + timeout


class Client:
    """A session with nctd.

        with nct.Client("ipc:///run/nctd/ingest.sock") as c:
            y = c.call(x, model="default", stream="mic")      # x (C_in, T) -> y (C_out, T_out)

    timeout: seconds for connecting, for a place in the window, and for an answer. ping: silence while waiting before a
    PING, and again before the connection is given up. resend: after a cut, frames of frame-mode models without an answer
    are sent again (each answer is handed out once); stream-mode frames never are, they end with ESTALE. linger: longest
    wait at close() for bytes not written yet. curve: the daemon's public key (or its .key file) and your own .key_secret file
    as `nct keygen` makes them, or three keys: (server key, public key, secret key).

    It keeps the daemon's window: send() waits for a place, or raises NctError EAGAIN with block=False; it never queues
    more. In a forked child every call raises NctError EINVAL: open a new Client there."""

    def __init__(self, endpoint="ipc:///run/nctd/ingest.sock", *, timeout=5.0, ping=2.0, resend=True, linger=1.0,
                 name="python", curve=None):
        if not timeout > 0 or not ping > 0 or not 0 <= linger <= 60:
            raise ValueError(f"timeout {timeout} and ping {ping} are seconds above 0, linger {linger} is 0..60")
        self._timeout, self._linger, self._pid = timeout, linger, os.getpid()
        self._s = Session(endpoint, name, ping, resend, curve)
        self._next_seq = {}
        self._begin()

    def _begin(self):
        try:
            self._until(self._opened, _deadline(self._timeout), self._not_opened)
        except BaseException:
            self._abort()
            raise

    def _until(self, ready, deadline, late):
        """Turns the session until ready() gives something, -> that; raises late() at the deadline."""
        s = self._own()
        while True:
            s.turn()
            got = ready()
            if got is not None:
                return got
            if not s.wait(deadline):
                raise late()

    def _opened(self):
        if self._s.phase != "live" and self._s.refusal:
            raise self._s.refusal
        return self._s.phase == "live" or None

    def _not_opened(self):
        how = "connected, but no WELCOME" if self._s.link.connected else "no daemon answered"
        return NctError("ETIMEDOUT", f"{how} at {self._s.link.endpoint} within {self._timeout} s")

    def _abort(self):
        self._linger = 0
        Client.close(self)

    def _own(self):
        if self._s is None:
            raise NctError("EBADF", "this Client is closed")
        if os.getpid() != self._pid:
            raise NctError("EINVAL", f"this Client was opened by process {self._pid}; in a forked child open a new one")
        return self._s

    def close(self):
        s, self._s = self._s, None
        if s is not None and os.getpid() == self._pid:
            s.link.close(int(self._linger * 1000))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # ---- what the daemon says ----

    @property
    def welcome(self):
        """WELCOME's JSON: version, models, backend, limits, ledger."""
        return self._own().welcome

    @property
    def models(self):
        return list(self._own().models)

    @property
    def session(self):
        return self._own().id

    @property
    def window(self):
        """Frames to keep in flight, as of the last answer."""
        return self._own().window

    @property
    def in_flight(self):
        return len(self._own().flight)

    @property
    def reconnects(self):
        return self._own().reconnects

    # ---- frames ----

    def _frame(self, x, model, stream, *, layout=None, want=None, flags=0, seq=None, pos=0, ttl=0.0, t_capture_ns=0, epoch=0,
               given=None, tag=None):
        s = self._own()
        topic = wire.topic_of(model, stream)
        facts = s.models.get(model, {})
        if not facts and layout is None:
            raise ValueError(f"the daemon named no model {model!r} in its WELCOME, but {', '.join(map(repr, s.models)) or 'none'}: which axis is "
                             "the channels is not known. Name another model, or give layout='CT' or 'TC' if it came since then")
        payload, number, c, t, interleaved = to_payload(x, facts.get("in_channels"), layout)
        if given is not None:
            payload += b"".join(wire.struct.pack("<3d", *row) for row in given)
            flags |= wire.GIVEN
        limit = s.welcome.get("limits", {}).get("max_frame_bytes")
        if limit and len(payload) > limit:
            raise NctError("EMSGSIZE", f"the frame has {len(payload)} bytes, max_frame_bytes is {limit}")
        fields = dict(dtype=number, want=wire.DTYPES[dtype_name(want)] if want is not None else 0, channels=c, steps=t,
                      seq=self._next_seq.get(topic, 0) if seq is None else seq,
                      flags=flags | (wire.INTERLEAVED if interleaved else 0), pos=pos, epoch=epoch,
                      ttl_us=int(round(ttl * 1e6)), t_capture_ns=t_capture_ns)
        return Frame(fields, topic, payload, tag, facts.get("mode") == "stream")

    def _unread(self):
        return len(self._s.ready)

    def _admitted(self, f, block):
        """The frame's request id, once there was a place for it."""
        s, unread = self._s, self._unread()
        if unread >= READY_MAX:
            raise NctError("EAGAIN", f"{unread} answers wait to be taken: call recv()")
        number = s.admit(f) if s.place() else None
        if number is not None:
            self._next_seq[f.topic] = (f.fields["seq"] + 1) % 2**64
        elif not block:
            raise self._no_place("EAGAIN")
        return number

    def _place(self, f, deadline, block=True):
        return self._until(lambda: self._admitted(f, block), deadline, self._no_place)

    def _no_place(self, name="ETIMEDOUT"):
        s = self._s
        return NctError(name, f"no place: {len(s.flight)} frames are in flight, the window is {s.window}" if s.phase == "live" else
                        f"there is no session with {s.link.endpoint} at the moment")

    @staticmethod
    def _no_answer():
        return NctError("ETIMEDOUT", "no answer in time")

    def send(self, x, model="default", stream="python", *, block=True, **options):
        """Sends one frame, -> its request id. x: (C_in, T), or (T, C_in) with layout="TC"; float32, float16, bfloat16 and
        float64 as they are, int16 and int32 as x/2^15 and x/2^31. The data is copied. Options:

        layout: "CT" or "TC"; want: the result's dtype (f32, f16, bf16); flags: NO_REPLY, NO_PUBLISH, GAP, INNER_LEFT,
        INNER_RIGHT, OBSERVE; seq: None counts on from the stream's last one; pos: first step on the stream's axis; ttl:
        seconds in the daemon's queue; t_capture_ns: Unix time of the first step; epoch: must match, 0: any; given: rows
        (count, mean, M2), one a group; tag: handed back in the answer."""
        return self._place(self._frame(x, model, stream, **options), _deadline(self._timeout), block)

    def _wants(self, number):
        """May recv() hand out this request's answer?"""
        return True

    def _take(self, number=None):
        for i, a in enumerate(self._s.ready):
            if a.header.request_id == number or (number is None and self._wants(a.header.request_id)):
                del self._s.ready[i]
                return answer_of(*a)
        return None

    def _next(self):
        answer = self._take()
        if answer is None and not self._expects():
            raise NctError("ENOENT", "nothing is in flight: no answer would come")
        return answer

    def _expects(self):
        return any(self._wants(number) and not f.forgotten for number, f in self._s.flight.items())

    def _no_next(self):
        return NctError("ETIMEDOUT", f"no answer in time; {len(self._s.flight)} frames in flight")

    def recv(self, timeout=-1):
        """The next Answer of any stream, in the order of arrival; look at its .error. timeout: seconds, None: no limit,
        -1: the Client's. NctError ETIMEDOUT, or ENOENT: nothing is in flight, so nothing would come."""
        self._own()
        answer = self._take()  # one that is there costs no turn
        if answer is None:
            answer = self._until(self._next, _deadline(self._timeout if timeout == -1 else timeout), self._no_next)
        return answer

    def call(self, x, model="default", stream="python", *, timeout=None, **options):
        """Sends one frame and waits for its answer, -> y (C_out, T_out). Raises the daemon's error, or ETIMEDOUT: then the
        frame is forgotten, and a late answer is not taken for another's. Options as send()'s."""
        s, deadline = self._own(), _deadline(self._timeout if timeout is None else timeout)
        number = self._place(self._frame(x, model, stream, **options), deadline)
        try:
            return self._until(lambda: self._take(number), deadline, self._no_answer).value()
        finally:
            s.forget(number)  # an interrupted call, too, leaves nobody waiting

    def map(self, frames, model="default", stream="python", **options):
        """Keeps the window full with the arrays of `frames`, yields their y in the same order. Raises on the first error.
        No other answer may be on its way."""
        waiting, done = collections.deque(), {}
        source, more = iter(frames), True
        while more or waiting:
            while more and len(waiting) < max(self.window, 1):
                try:
                    x = next(source)
                except StopIteration:
                    more = False
                    break
                waiting.append(self.send(x, model, stream, **options))
            while waiting and waiting[0] in done:
                yield done.pop(waiting.popleft())
            if waiting:
                answer = self.recv()
                done[answer.request_id] = answer.value()

    def forget(self, request_id):
        """Nobody waits for this answer any more. False: it is not in flight."""
        return self._own().forget(request_id) or self._take(request_id) is not None

    # ---- streams ----

    def _ask(self, kind, topic, payload, timeout):
        s = self._own()
        s.control = c = Control(s._new_id(), kind, topic, payload)
        try:
            self._until(lambda: c.done or None, _deadline(timeout), self._no_answer)
        finally:
            s.control = None
        if c.error:
            raise c.error
        return c.header

    def open_stream(self, stream, facts=None, model="default"):
        """Declares a stream's facts ({"sample_rate": 48000, "channels": [...], "unit": "Pa"}), -> its epoch. They are sent
        again after a reconnect."""
        topic, payload = self._facts_of(stream, facts, model)
        return self._stream_opened(topic, payload, self._ask(wire.OPEN, topic, payload, self._timeout).epoch)

    @staticmethod
    def _facts_of(stream, facts, model):
        return wire.topic_of(model, stream), json.dumps(facts).encode() if facts else b""

    def _stream_opened(self, topic, payload, epoch):
        self._s.facts[topic] = payload
        self._s.stale.discard(topic)
        self._s.last_seq.pop(topic, None)
        self._next_seq.pop(topic, None)  # a new epoch counts from 0
        return epoch

    def close_stream(self, stream, model="default"):
        """The daemon answers what is queued (a last result of a stream-mode model waits for recv()) and ends the stream."""
        topic = wire.topic_of(model, stream)
        try:
            self._ask(wire.CLOSE, topic, b"", self._timeout)
        finally:
            self._stream_closed(topic)

    def _stream_closed(self, topic):
        for of in (self._s.facts, self._s.last_seq, self._next_seq):
            of.pop(topic, None)
        self._s.stale.discard(topic)

    def ping(self, timeout=None):
        """Seconds from PING to PONG."""
        began = time.monotonic()
        self._ask(wire.PING, b"", b"", self._timeout if timeout is None else timeout)
        return time.monotonic() - began
