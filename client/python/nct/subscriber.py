"""nct.Subscriber: published results. One thread at a time per Subscriber."""

import os
import time

import zmq

from . import _wire as wire
from ._answer import answer_of
from ._keys import curve_of
from ._link import check_endpoint, set_options
from ._wire import NctError


class Subscriber:
    """Published results. topics: "model/stream" (exactly that one), "model/" (all of a model), "" (everything). Results that
    a slow reader loses are dropped by the daemon, which cannot count them: Answer.missed shows them by seq."""

    def __init__(self, endpoint="ipc:///run/nctd/publish.sock", topics=("",), *, curve=None):
        check_endpoint(endpoint)
        self._pid, self._seen = os.getpid(), {}
        self._wanted = [self._topic(t) for t in ([topics] if isinstance(topics, str) else topics)]
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        set_options(self._socket, curve_of(curve))
        self._socket.rcvhwm = 256
        self._socket.connect(endpoint)
        for prefix in self._wanted:
            self._socket.subscribe(prefix)

    @staticmethod
    def _topic(topic):
        model, slash, stream = topic.partition("/")
        stream = stream[:-1] if stream.endswith("/") else stream
        if not topic:
            return b""
        if not slash or not wire.NAME.fullmatch(model) or stream and not wire.NAME.fullmatch(stream):
            raise ValueError(f'topic {topic!r} is not "model/stream", "model/" or ""')
        return f"{model}/{stream}/".encode() if stream else f"{model}/".encode()

    def recv(self, timeout=None):
        """The next Answer, or NctError ETIMEDOUT; EPROTO: what came is not this protocol, call again."""
        if self._socket is None or os.getpid() != self._pid:
            raise NctError("EINVAL", "this Subscriber is closed, or belongs to the parent process")
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0, int((deadline - time.monotonic()) * 1000 + 0.999))
            if not self._socket.poll(left):
                raise NctError("ETIMEDOUT", "no result in time")
            topic, h, payload = wire.unpack(self._socket.recv_multipart())
            if not wire.TOPIC.fullmatch(topic):
                raise NctError("EPROTO", f"{topic[:80]!r} is no topic")
            if h.kind == wire.RESULT:  # a subscription that ends with a slash is a whole name: a prefix match is exact
                return answer_of(h._replace(request_id=0), topic, payload, missed=self._missed(topic, h))

    def _missed(self, topic, h):
        epoch, seq = self._seen.pop(topic, (0, 0))
        self._seen[topic] = h.epoch, h.seq
        if len(self._seen) > 4096:
            del self._seen[next(iter(self._seen))]  # unseen for longest
        return h.seq - seq - 1 if epoch == h.epoch and epoch and h.seq > seq else 0

    def close(self):
        if self._socket is not None and os.getpid() == self._pid:
            self._socket.close(linger=0)
            self._context.term()
        self._socket = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __iter__(self):
        while True:
            yield self.recv()
