"""An independent client of the wire: pyzmq and one struct.pack, nothing of ours. The README shows the short form."""
import collections
import json
import struct
import time

import numpy as np
import zmq

HEADER = struct.Struct("<4sBBBBIiQQQQqIIIIIIIIq")
FIELDS = ("magic kind dtype want header_words flags status session request_id seq pos t_capture_ns channels steps "
          "ttl_us window epoch generation queue_us compute_us t_answer_ns").split()
Header = collections.namedtuple("Header", FIELDS)
Message = collections.namedtuple("Message", "topic h payload")

(HELLO, WELCOME, OPEN, OPENED, FRAME, RESULT, ERROR, CLOSE, CLOSED, PING, PONG, GOAWAY, RESUME, RESUMED) = range(1, 15)
F32, F16, BF16, I16, I32, F64 = range(1, 7)
NO_REPLY, RESENT, GAP_SEEN, CPU_FALLBACK, LAST = (1 << i for i in range(5))
INTERLEAVED, NO_PUBLISH, GAP, INNER_LEFT, INNER_RIGHT, OBSERVE, GIVEN, SHM = (1 << i for i in range(16, 24))
NUMPY = {F32: np.float32, F16: np.float16, I16: np.int16, I32: np.int32, F64: np.float64}
ENOENT, EIO, EAGAIN, EACCES, EBUSY, EEXIST, EINVAL, ETIME = 2, 5, 11, 13, 16, 17, 22, 62
EPROTO, EILSEQ, EUSERS, EMSGSIZE, ENOTSUP, ENOBUFS, ESHUTDOWN, ESTALE = 71, 84, 87, 90, 95, 105, 108, 116


def pack(**fields):
    h = dict.fromkeys(FIELDS, 0)
    h.update(magic=b"NCT1", header_words=12)
    unknown = set(fields) - set(FIELDS)
    assert not unknown, unknown
    h.update(fields)
    return HEADER.pack(*(h[name] for name in FIELDS))


def unpack(parts):
    assert len(parts) == 3, [len(p) for p in parts]
    assert len(parts[1]) == 96, len(parts[1])
    h = Header(*HEADER.unpack(parts[1]))
    assert h.magic == b"NCT1" and h.header_words == 12
    return Message(parts[0], h, parts[2])


def array(message):
    """The samples of a RESULT, (channels, steps)."""
    h = message.h
    if h.dtype == BF16:
        wide = np.frombuffer(message.payload, np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(h.channels, h.steps)
    return np.frombuffer(message.payload, NUMPY[h.dtype]).reshape(h.channels, h.steps)


class Client:
    def __init__(self, endpoint, hello=True, context=None, rcvhwm=None, timeout_s=20, **options):
        self.context = context or zmq.Context.instance()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        if rcvhwm is not None:
            self.socket.rcvhwm = rcvhwm
        for name, value in options.items():
            setattr(self.socket, name, value)
        self.socket.connect(endpoint)
        self.timeout_s = timeout_s
        self.session = self.request_id = 0
        self.window = 1
        self.welcome = None
        if hello:
            self.hello()

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, *parts):
        self.socket.send_multipart(parts)

    def recv(self, timeout_s=None):
        """The next message, or None."""
        ms = int(1000 * (self.timeout_s if timeout_s is None else timeout_s))
        if not self.socket.poll(ms):
            return None
        message = unpack(self.socket.recv_multipart())
        if message.h.window:
            self.window = message.h.window
        return message

    def hello(self, **facts):
        self.send(b"", pack(kind=HELLO, request_id=1), json.dumps(facts).encode() if facts else b"{}")
        message = self.recv()
        assert message and message.h.kind == WELCOME, message
        self.session, self.window = message.h.session, message.h.window
        self.welcome = json.loads(message.payload)
        return message

    def header(self, x=None, **fields):
        self.request_id += 1
        base = dict(kind=FRAME, dtype=F32, session=self.session, request_id=self.request_id)
        if x is not None:
            channels, steps = x.shape
            if fields.get("flags", 0) & INTERLEAVED:
                channels, steps = steps, channels
            base.update(channels=channels, steps=steps)
            base["dtype"] = {np.dtype(v): k for k, v in NUMPY.items()}[x.dtype]
        base.update(fields)
        return pack(**base)

    def frame(self, stream, x, tail=b"", **fields):
        """Sends x as one FRAME to "model/stream"; -> request_id."""
        self.send(f"{stream}/".encode(), self.header(x, **fields), np.ascontiguousarray(x).tobytes() + tail)
        return self.request_id

    def ask(self, stream, x, **fields):
        """One frame, its answer."""
        wanted = self.frame(stream, x, **fields)
        message = self.recv()
        assert message is not None, "no answer"
        assert message.h.request_id == wanted, message.h
        return message

    def ledger(self):
        """A fresh HELLO's view of the daemon's books."""
        self.hello()
        return self.welcome["ledger"]


def wait_until(true, seconds=20, every=0.02):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(every)
    return bool(true())
