"""What comes for a frame: the facts of its header, and y or the error."""

import collections

from . import _wire as wire
from ._array import from_payload
from ._wire import NctError

FACTS = ("model stream request_id tag seq pos channels steps flags t_capture_ns t_answer_ns epoch generation "
         "queue_us compute_us")


class Answer(collections.namedtuple("Answer", "y error closed missed last_seq " + FACTS)):
    """What came for one frame. y: (C_out, T_out) or None; error: None or the NctError the daemon answered; closed: the
    daemon ended the stream (no frame's answer); missed: Subscriber only, seqs of the stream missing before this one."""
    __slots__ = ()

    def value(self):
        """y, or raises the error."""
        if self.error is not None:
            raise self.error
        return self.y


def answer_of(h, topic, payload, tag=None, error=None, last_seq=None, missed=0):
    model, stream = wire.names_of(topic)
    facts = {k: getattr(h, k) for k in FACTS.split() if k not in ("model", "stream", "tag")}
    a = Answer(y=None, error=error, closed=h.kind == wire.CLOSED, missed=missed, last_seq=last_seq, model=model,
               stream=stream, tag=tag, **facts)
    if error is None and h.kind == wire.RESULT:
        try:
            return a._replace(y=from_payload(payload, h))
        except NctError as e:
            error = e
    if error is not None:
        a = a._replace(error=error)
        error.answer = a
    return a
