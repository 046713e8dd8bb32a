"""A session that outlives cuts: HELLO, the window, sending again, PING. Turned by the calls of Client; no thread.

    connecting --connected, HELLO--> greeting --WELCOME--> live
        ^------ cut, silence, session unknown, GOAWAY ran out ------'
"""

import collections
import json
import time

from . import _wire as wire
from ._link import Link
from ._wire import NctError

READY_MAX = 64       # answers read ahead of the caller by send()
HELLO_AGAIN_S = 0.2  # after a HELLO that led to nothing
REFUSED_AGAIN_S = 1  # libzmq gives a connection up whose handshake was refused: the key may be back by then
DRAIN_S = 10.0       # a GOAWAY that does not say


class Frame:
    """A frame without an answer. `stateful`: of a stream-mode model; never sent again."""
    __slots__ = "fields topic payload tag stateful sent forgotten lost".split()

    def __init__(self, fields, topic, payload, tag, stateful):
        self.fields, self.topic, self.payload, self.tag, self.stateful = fields, topic, payload, tag, stateful
        self.sent, self.forgotten, self.lost = False, False, 0


class Control:
    """OPEN, CLOSE or PING that a call waits for."""
    __slots__ = "id kind topic payload sent done header error".split()

    def __init__(self, number, kind, topic, payload):
        self.id, self.kind, self.topic, self.payload = number, kind, topic, payload
        self.sent, self.done, self.header, self.error = False, False, None, None


Answer = collections.namedtuple("Answer", "header topic payload tag error last_seq")


class Session:
    def __init__(self, endpoint, name, ping_s, resend, keys):
        self.link = Link(endpoint, keys)
        self.name, self.ping_s, self.resend = name, ping_s, resend
        self.phase, self.leaving, self.blocked, self.gone = "connecting", None, False, False
        self.id, self.window, self.next_id, self.reconnects = 0, 1, 1, 0
        self.hello_id = self.ping_id = 0
        self.heard = self.hello_after = time.monotonic()
        self.pinged = self.refusal = self.control = self.retry = None
        self.welcome, self.models, self.why = {}, {}, ""
        self.flight, self.ready = {}, collections.deque()
        self.events = 0  # messages taken and connections lost: who turned for another knows that something came
        self.facts, self.opens, self.last_seq, self.stale = {}, set(), {}, set()

    # ---- one turn ----

    def turn(self):
        self.link.news()
        if self.link.refused and self.phase == "connecting":
            self.refusal = NctError(*self.link.refused)
            if self.id and self.retry is None:
                self.retry = time.monotonic() + REFUSED_AGAIN_S
        for _ in range(64):
            parts = self.link.recv()
            if parts is None:
                break
            self._message(parts)
        else:
            return
        now = time.monotonic()
        if self.blocked:
            self.blocked = not self.link.socket.poll(0, 2)  # POLLOUT
        if self.link.cut:
            self._lost("the connection was cut")
        elif self.gone:
            self._lost("the daemon does not know the session any more")
        elif self.retry is not None and now >= self.retry:
            self._lost(self.refusal.text)
        self._keep_alive(now)
        if self.phase == "connecting":
            self._greet(now)
        if self.phase == "live" and self.leaving is None:
            self._go_on()

    def wait(self, deadline):
        """Sleep until something happens; False: the deadline (None: never) has come."""
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            return False
        due = [t for t in (deadline, self._due()) if t is not None]
        self.link.wait(min(due) - now if due else None, self.blocked)
        return True

    def _waits(self):
        return self.phase == "greeting" or self.phase == "live" and (self.flight or self.control and self.control.sent)

    def _due(self):
        if self.phase == "connecting" and self.retry is not None:
            return self.retry
        if self.phase == "connecting":
            return None if self.blocked else self.hello_after
        due = [] if self.leaving is None else [self.leaving]
        if self._waits():
            due.append((self.pinged or self.heard) + self.ping_s)
        return min(due, default=None)

    def _send(self, topic, payload=b"", **fields):
        sent = self.link.send(topic, wire.pack(**fields), payload)
        self.blocked = not sent
        return sent

    def _new_id(self):
        self.next_id += 1
        return self.next_id - 1

    def _greet(self, now):
        if now < self.hello_after:
            return
        hello = {"client": self.name}
        if self.id:
            hello["previous"] = f"{self.id:016x}"
        self.hello_id = self._new_id()
        if self._send(b"", json.dumps(hello).encode(), kind=wire.HELLO, request_id=self.hello_id):
            self.phase, self.heard, self.pinged = "greeting", now, None

    def _keep_alive(self, now):
        if self.leaving is not None and now >= self.leaving:
            self._lost("the daemon said goodbye and did not go")
        elif not self._waits():
            self.pinged = None
        elif self.pinged and now - self.pinged >= self.ping_s:
            self._lost("the daemon fell silent (no PONG)")
        elif not self.pinged and now - self.heard >= self.ping_s:
            self.ping_id = self._new_id()
            self._send(b"", kind=wire.PING, session=self.id, request_id=self.ping_id)
            self.pinged = now

    def _lost(self, why):
        self.why = why
        self.events += 1
        self.hello_after = time.monotonic() + (0 if self.phase == "live" else HELLO_AGAIN_S)
        self.phase, self.leaving, self.blocked, self.gone, self.pinged = "connecting", None, False, False, None
        self.retry = None
        self.opens = set(self.facts)
        self.stale |= set(self.last_seq)
        for number, f in list(self.flight.items()):
            if not f.forgotten and self.resend and not f.stateful and not f.fields["epoch"]:
                f.sent = False
                continue
            del self.flight[number]
            if not f.forgotten:
                self._local_error(number, f, why)
        if self.control:
            self.control.sent = False
            if self.control.kind == wire.CLOSE:
                self._control_done(None, NctError("ESTALE", f"{why}: the stream has ended"))
        self.link.renew()

    def _local_error(self, number, f, why):
        last = self.last_seq.get(f.topic)
        reason = "stream mode sends nothing again" if f.stateful else "nothing is sent again"
        h = wire.ZERO._replace(kind=wire.ERROR, request_id=number, seq=f.fields["seq"])
        error = NctError("ESTALE", f"{why} before the answer; {reason}" +
                         (f"; the last seq answered is {last}" if f.stateful and last is not None else ""))
        self.ready.append(Answer(h, f.topic, b"", f.tag, error, last))

    def _go_on(self):
        for topic in list(self.opens):
            if not self._send(topic, self.facts[topic], kind=wire.OPEN, session=self.id, request_id=self._new_id()):
                return
            self.opens.discard(topic)
        c = self.control
        if c and not c.sent and not c.done:
            self.heard = self.heard if self.flight else time.monotonic()
            c.sent = self._send(c.topic, c.payload, kind=c.kind, session=self.id, request_id=c.id)
        out = sum(f.sent for f in self.flight.values())
        for number, f in self.flight.items():
            if out >= self.window:
                break
            if not f.sent:
                f.fields["flags"] |= wire.RESENT
                if not self.send_frame(number, f):
                    break
                out += 1

    # ---- frames ----

    def place(self):
        return self.phase == "live" and self.leaving is None and not self.blocked and len(self.flight) < self.window

    def send_frame(self, number, f):
        f.sent = self._send(f.topic, f.payload, kind=wire.FRAME, session=self.id, request_id=number, **f.fields)
        return f.sent

    def admit(self, f):
        """Sends a new frame; its request id, or None: the connection has just gone."""
        if f.stateful and f.topic in self.stale and not f.fields["flags"] & wire.GAP:
            raise NctError("ESTALE", f"{f.topic.decode()} lost its state after seq {self.last_seq.get(f.topic, 0)}: open the "
                                     "stream again or send with GAP")
        number = self.next_id
        if not self.send_frame(number, f):
            return None
        if not self.flight:
            self.heard = time.monotonic()
        self._new_id()
        self.flight[number] = f
        if f.stateful:
            self.stale.discard(f.topic)
            self.last_seq.setdefault(f.topic, 0)
        return number

    def forget(self, number):
        f = self.flight.get(number)
        if f is None or f.forgotten:
            return False
        f.forgotten, f.payload = True, b""
        if not f.sent:
            del self.flight[number]
        return True

    # ---- messages ----

    def _message(self, parts):
        self.events += 1
        try:
            topic, h, payload = wire.unpack(parts)
        except NctError as e:
            self.why = f"what came is not this protocol: {e.text}"
            if self.phase == "greeting":
                self.refusal = e
            return
        self.heard, self.pinged = time.monotonic(), None
        take = {wire.WELCOME: self._take_welcome, wire.RESULT: self._take_result, wire.ERROR: self._take_error,
                wire.CLOSED: self._take_closed, wire.GOAWAY: self._take_goaway, wire.OPENED: self._take_control,
                wire.PONG: self._take_control}.get(h.kind)
        if take:
            take(topic, h, payload)
        if h.session == self.id and h.window:
            self.window = min(h.window, 64)

    def _take_welcome(self, topic, h, payload):
        if self.phase != "greeting" or h.request_id != self.hello_id:
            return
        try:
            self.welcome = json.loads(payload)
            models = self.welcome.get("models", [])
            self.models = {m["name"]: m for m in models}
        except (ValueError, TypeError, KeyError, AttributeError):
            self.refusal = NctError("EPROTO", "WELCOME's JSON cannot be read")
            return
        self.reconnects += self.id != 0
        self.id, self.window, self.phase = h.session, 1, "live"

    def _take_control(self, topic, h, payload):
        if self.control and h.request_id == self.control.id:
            self._control_done(h, None)

    def _control_done(self, h, error):
        self.control.done, self.control.header, self.control.error = True, h, error

    def _take_closed(self, topic, h, payload):
        text = payload.decode("utf-8", "replace")
        error = NctError(wire.status_name(h.status), text) if h.status else None
        if self.control and h.request_id == self.control.id:
            self._control_done(h, error)
        elif len(self.ready) < 8 * READY_MAX:
            if topic in self.last_seq:
                self.stale.add(topic)
            self.ready.append(Answer(h._replace(request_id=0), topic, b"", None, error, self.last_seq.get(topic)))

    def _take_goaway(self, topic, h, payload):
        try:
            drain_s = json.loads(payload)["drain_ms"] / 1000
        except (ValueError, TypeError, KeyError):
            drain_s = DRAIN_S
        self._leave(drain_s)

    def _leave(self, drain_s):
        if self.leaving is None:
            self.leaving = time.monotonic() + min(max(drain_s, 0), 600) + 1

    def _take_result(self, topic, h, payload):
        f = self.flight.pop(h.request_id, None)
        if f is None:  # the rest of a stream after CLOSE; else late, or handed out before
            if h.flags & wire.LAST and self.control and self.control.kind == wire.CLOSE:
                self.ready.append(Answer(h, topic, payload, None, None, None))
            return
        if f.stateful:
            self.last_seq[f.topic] = max(h.seq, self.last_seq.get(f.topic, 0))
        if not f.forgotten:
            self.ready.append(Answer(h, f.topic, payload, f.tag, None, None))

    def _take_error(self, topic, h, payload):
        error = NctError(wire.status_name(h.status), payload.decode("utf-8", "replace"))
        f = self.flight.get(h.request_id)
        if f is not None:
            self._refused(f, h, error)
        elif self.phase == "greeting" and h.request_id == self.hello_id:
            self.refusal = error
            self.phase, self.hello_after = "connecting", time.monotonic() + 0.5
        elif self.control and h.request_id == self.control.id:
            if error.name == "ESTALE" and self.control.kind != wire.CLOSE:
                self.gone, self.control.sent = True, False
            else:
                self._control_done(h, error)
        elif h.request_id == self.ping_id and h.session == self.id and error.name == "ESTALE":
            self.gone = self.phase == "live"

    def _refused(self, f, h, error):
        if error.name in ("ESHUTDOWN", "ESTALE"):
            if not f.sent or h.session != self.id:
                return  # of an earlier session; the frame has gone on since
            if error.name == "ESHUTDOWN":
                self._leave(DRAIN_S)
            kept = self.resend and not f.forgotten and not f.stateful and not f.fields["epoch"]
            if error.name == "ESTALE" and (kept and not f.lost or f.fields["flags"] & wire.GAP):
                self.gone = True
            if kept and not (error.name == "ESTALE" and f.lost):
                f.lost += error.name == "ESTALE"
                f.sent = False
                return
            if f.stateful and error.name == "ESTALE":
                self.stale.add(f.topic)
        del self.flight[h.request_id]
        if not f.forgotten:
            self.ready.append(Answer(h, f.topic, b"", f.tag, error, self.last_seq.get(f.topic)))
