"""Version 1 of nctd's message format: the 96-byte header, kinds, flags, status numbers, names. No socket here."""

import collections
import errno
import re
import struct

HEADER = struct.Struct("<4sBBBBIiQQQQqIIIIIIIIq")
FIELDS = ("magic kind dtype want header_words flags status session request_id seq pos t_capture_ns channels steps "
          "ttl_us window epoch generation queue_us compute_us t_answer_ns").split()
Header = collections.namedtuple("Header", FIELDS)
ZERO = Header(b"NCT1", 0, 0, 0, HEADER.size // 8, *[0] * (len(FIELDS) - 5))

HELLO, WELCOME, OPEN, OPENED, FRAME, RESULT, ERROR, CLOSE, CLOSED, PING, PONG, GOAWAY = range(1, 13)
NO_REPLY, RESENT, GAP_SEEN, CPU_FALLBACK, LAST = (1 << i for i in range(5))
INTERLEAVED, NO_PUBLISH, GAP, INNER_LEFT, INNER_RIGHT, OBSERVE, GIVEN = (1 << i for i in range(16, 23))

DTYPES = {"f32": 1, "f16": 2, "bf16": 3, "i16": 4, "i32": 5, "f64": 6}
DTYPE_BYTES = {1: 4, 2: 2, 3: 2, 4: 2, 5: 4, 6: 8}

# The wire's numbers are Linux's on every host.
STATUS = {2: "ENOENT", 5: "EIO", 11: "EAGAIN", 13: "EACCES", 16: "EBUSY", 17: "EEXIST", 22: "EINVAL", 62: "ETIME",
          71: "EPROTO", 84: "EILSEQ", 87: "EUSERS", 90: "EMSGSIZE", 95: "ENOTSUP", 105: "ENOBUFS", 108: "ESHUTDOWN",
          116: "ESTALE"}

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
TOPIC = re.compile(rb"([A-Za-z0-9][A-Za-z0-9._-]{0,63})/([A-Za-z0-9][A-Za-z0-9._-]{0,63})/")


class NctError(Exception):
    """A failed call, or an error that the daemon answered. `name` is the errno's name ("EAGAIN"), `errno` its number on
    this host, `text` the sentence, `answer` the daemon's answer where there is one."""

    def __init__(self, name, text, answer=None):
        super().__init__(f"{name}: {text}")
        self.name, self.text, self.answer = name, text, answer
        self.errno = getattr(errno, name, errno.EPROTO)


def pack(**fields):
    try:
        return HEADER.pack(*ZERO._replace(**fields))
    except struct.error as e:
        raise ValueError(f"a header field is out of its range: {e}: {fields}") from None


def unpack(parts):
    """Three parts -> (topic, Header, payload) or NctError EPROTO. A longer header is read and its tail skipped."""
    if len(parts) != 3:
        raise NctError("EPROTO", f"a message of {len(parts)} parts, not 3")
    topic, header, payload = parts
    if len(header) < HEADER.size:
        raise NctError("EPROTO", f"the header part has {len(header)} bytes, a header has at least {HEADER.size}")
    h = Header._make(HEADER.unpack_from(header))
    if h.magic != b"NCT1" or h.header_words * 8 != len(header) or not HELLO <= h.kind <= 14:
        raise NctError("EPROTO", f"no header of version 1: {header[:8].hex(' ')}, {len(header)} bytes")
    return topic, h, payload


def topic_of(model, stream):
    for what, name in (("model", model), ("stream", stream)):
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(f"{what} {name!r}: a name is 1..64 of A-Z a-z 0-9 . _ - and begins with a letter or digit")
    return f"{model}/{stream}/".encode()


def names_of(topic):
    """b"model/stream/" -> ("model", "stream"); ("", "") for anything else."""
    m = TOPIC.fullmatch(topic)
    return (m[1].decode(), m[2].decode()) if m else ("", "")


def status_name(status):
    return STATUS.get(-status, "EPROTO")
