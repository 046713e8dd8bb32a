"""The status page's facts and events: streams, pictures of results, and viewers who come, stay and go."""
import base64
import signal
import time

import numpy as np
import pytest

from conftest import SLOW, until
from http_tools import HTTP, Events, connect, models, scrape, status


@pytest.mark.sanitize
def test_status_knows_streams_and_their_gaps(start, small_model):
    d = start({**HTTP, **models(small_model, 1), "limits": {"max_streams_client": 2000}})
    x = np.zeros((2, 8), np.float32)
    with d.client() as c:
        for seq in (1, 2, 5, 9, 10):
            assert c.ask("m0/gappy", x, seq=seq).h.status == 0
        row = status(d, "?q=gapp")["streams"][0]
        assert row[:2] == ["m0", "gappy"] and row[3:7] == [5, 2, 5, 0] and row[8] == 10, row
        assert 0 <= row[7] < 60 * SLOW
        for i in range(1100):
            assert c.ask(f"m0/s{i}", x).h.status == 0
        s = status(d)
        assert (s["streams_open"], s["streams_shown"], len(s["streams"])) == (1101, 1000, 1000)
        assert len(status(d, "?streams=7")["streams"]) == 7
        assert [r[1] for r in status(d, "?q=m0/s1099/")["streams"]] == ["s1099"]
        assert status(d, "?q=%22%5C")["streams"] == []


@pytest.mark.sanitize
def test_events_show_the_chosen_streams_results(start, small_model):
    d = start({**HTTP, **models(small_model, 1)})
    rng = np.random.default_rng(5)
    with d.client() as c:
        e = Events(d, "?stream=m0/seen")
        assert e.status == 200 and "text/event-stream" in e.headers
        kind, first = e.next()
        assert kind == "status" and first["ready"] and first["viewers"] == 1
        for seq in range(1, 6):
            x = rng.standard_normal((2, 40)).astype(np.float32)
            assert c.ask("m0/other", rng.standard_normal((2, 40)).astype(np.float32), seq=seq).h.status == 0
            y = np.frombuffer(c.ask("m0/seen", x, seq=seq).payload, np.float32).reshape(4, 38)
            p = e.next("picture")[1]
            assert (p["seq"], p["channels"], p["steps"], p["rows"], p["columns"]) == (seq, 4, 38, 4, 16), p
            cells = np.frombuffer(base64.b64decode(p["cells"]), np.uint8).reshape(4, 16)
            values = p["low"] + (p["high"] - p["low"]) * cells / 254
            for k in range(16):  # each cell is the sample of largest magnitude of its steps
                part = y[:, 38 * k // 16:38 * (k + 1) // 16]
                best = np.take_along_axis(part, np.abs(part).argmax(1)[:, None], 1)[:, 0]
                assert not np.any(~(np.abs(best - values[:, k]) <= (p["high"] - p["low"]) / 254)), (seq, k)
            time.sleep(0.06)  # pictures are at most 20 a second
        later = e.next("status")[1]
        assert later["ledger"]["ok"] > first["ledger"]["ok"]
        e.close()
        assert until(lambda: status(d)["viewers"] == 0)


@pytest.mark.sanitize
def test_no_more_than_sixteen_viewers_and_places_come_back(start, small_model):
    d = start({**HTTP, **models(small_model, 1)})
    views = [Events(d) for _ in range(16)]
    assert all(v.next()[0] == "status" for v in views)
    one_more = Events(d)
    assert one_more.status == 503
    one_more.close()
    scrape(d)
    views.pop().close()
    assert until(lambda: status(d)["viewers"] == 15)
    with_place = Events(d)
    assert with_place.status == 200 and with_place.next()[0] == "status"
    [v.close() for v in [*views, with_place]]
    assert until(lambda: status(d)["viewers"] == 0)


@pytest.mark.sanitize
def test_viewers_and_open_requests_do_not_hold_up_the_end(start, small_model):
    d = start({**HTTP, **models(small_model, 1)})
    views = [Events(d, "?stream=m0/s") for _ in range(3)]
    [v.next() for v in views]
    half = connect(d)
    half.sendall(b"GET /metr")
    assert d.stop(signal.SIGTERM) == 0, d.text()
    [v.close() for v in views]
    half.close()
