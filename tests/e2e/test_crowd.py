"""More clients than there is room for: each one beyond is told so, and the room that gets free is the next one's."""
import json

import pytest

import wire
from conftest import SLOW, until


def say_hello(d, n):
    """n clients that all say HELLO; what each was told within 20 s."""
    clients, told = [d.client(hello=False) for _ in range(n)], {}
    for c in clients:
        c.send(b"", wire.pack(kind=wire.HELLO, request_id=1), b"{}")

    def all_told():
        told.update((c, m) for c in clients if c not in told and (m := c.recv(0)))
        return len(told) == n
    until(all_told)
    return [(c, told.get(c)) for c in clients]


@pytest.mark.sanitize
def test_each_of_280_beyond_20_gets_its_refusal(start):
    d = start({"limits": {"max_clients": "20"}})
    assert until(lambda: not told_sessions(d))
    told = say_hello(d, 300)
    welcome = [c for c, m in told if m and m.h.kind == wire.WELCOME]
    refused = [m for _, m in told if m and m.h.kind == wire.ERROR]
    assert len(welcome) == 20 and len(refused) == 280, (len(welcome), len(refused))
    assert all(-m.h.status == wire.EUSERS and b"limits.max_clients is 20" in m.payload for m in refused)
    welcome[0].send(b"", wire.pack(kind=wire.HELLO, request_id=2), b"{}")
    ledger = json.loads(welcome[0].recv().payload)["ledger"]
    assert ledger["cuts"]["crowd"] == 0
    welcome[1].close()
    c = next(c for c, m in told if m.h.kind == wire.ERROR)

    def again():
        c.send(b"", wire.pack(kind=wire.HELLO, request_id=3), b"{}")
        return c.recv().h.kind == wire.WELCOME
    assert until(again), "a place got free, and nobody may have it"
    for c, _ in told:
        c.close()


def told_sessions(d):
    """Sessions besides the one that asks."""
    with d.client() as c:
        return c.welcome["sessions"] - 1


@pytest.mark.sanitize
def test_the_refused_do_not_keep_their_connections_for_ever(start):
    d = start({"limits": {"max_clients": "2"}, "ingest": {"hello_ms": "300"}})
    first = d.client()
    assert until(lambda: first.hello() and first.welcome["sessions"] == 1)  # the one that waited for READY has left
    told = say_hello(d, 10)
    refused = [c for c, m in told if m.h.kind == wire.ERROR]
    assert len(refused) == 9

    def cut():
        first.hello()
        return first.welcome["ledger"]["cuts"]["hello"] >= 9
    assert until(cut, 20 * SLOW), first.welcome["ledger"]["cuts"]
    for c in [first, *(c for c, _ in told)]:
        c.close()
