import base64
import json
import struct
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.report.live import LiveFeed, LiveMark
from gpu_profile.report.live.feed import OTHER
from gpu_profile.report.live.strands import KEEP_MS, NumberStrand

#: What happens, one after the other: some samples of a device, a mark, a new region, a wait in s, or a viewer's poll.
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("samples"), st.sampled_from(["GPU-a", "GPU-b"]), st.integers(1, 30)),
        st.tuples(st.just("mark"), st.just(""), st.just(0)),
        st.tuples(st.just("region"), st.just(""), st.integers(0, 5)),
        st.tuples(st.just("wait"), st.just(""), st.sampled_from([0, 1, 3, 100, 400])),
        st.tuples(st.just("poll"), st.just(""), st.integers(0, 2)),
    ),
    max_size=60,
)


class Viewer:
    """Keeps what a page keeps: the rows of all its answers since the last new beginning."""

    def __init__(self) -> None:
        self.cursor = ""
        self.rows: dict[str, list[float]] = {}
        self.marks: list[str] = []
        #: The names of regions by number, and the regions of all executions.
        self.names: dict[int, str] = {}
        self.executions: list[str] = []

    def take(self, answer: dict[str, Any]) -> None:
        if answer["reset"]:
            self.rows, self.marks, self.names = {}, [], {}
        self.cursor = answer["cursor"]
        for device, charts in answer["samples"].items():
            self.rows.setdefault(device, []).extend(column(charts["power"]["t"], "d"))
        self.marks += [text for *_, text in answer["marks"]]
        self.names |= dict(answer["names"])
        self.executions = [] if answer["reset"] else self.executions
        for packed in answer["blocks"].values():
            self.executions += [self.names[int(number)] for number in column(packed["region"], "H")]


def column(text: str, code: str) -> list[float]:
    data = base64.b64decode(text)
    return list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))


@patch("gpu_profile.report.live.feed.MOST_NAMES", 3)
@given(_STEPS)
def test_any_sequence_of_polls_gives_every_row_exactly_once(steps: list[tuple[str, str, int]]) -> None:
    feed, viewers, now_ms = LiveFeed("a"), [Viewer() for _ in range(3)], 1e6
    sent: dict[str, list[float]] = {}
    marks: list[str] = []
    ran: list[tuple[float, str]] = []
    for kind, device, n in [*steps, ("wait", "", 1), *(("poll", "", i) for i in range(3))]:
        match kind:
            case "samples":
                for _ in range(n):
                    now_ms += 20
                    assert feed.add(device, "power", now_ms, 20, 1.0)
                    sent.setdefault(device, []).append(now_ms)
            case "mark":
                marks.append(str(len(marks)))
                feed.mark(LiveMark(now_ms, device, "bad", marks[-1]))
            case "region":
                ran.append((now_ms, f"region {n}"))
                feed.blocks("GPU-a").append(now_ms, 1, feed.number(ran[-1][1]), 1, 255)
            case "wait":
                now_ms += n * 1e3
            case _:
                answer = json.loads(feed.answer(viewers[n].cursor, now_ms, dict))
                assert not (viewers[n].cursor == answer["cursor"] and answer["samples"])
                viewers[n].take(answer)
    for viewer in viewers:
        assert viewer.rows.keys() == sent.keys()
        for device, rows in viewer.rows.items():
            # Old rows are dropped at the front; behind them each is there once, in order.
            assert rows == sent[device][-len(rows) :]
            assert {row for row in sent[device] if row >= sent[device][-1] - KEEP_MS} <= set(rows)
        assert viewer.marks == marks
        # Each execution has its region's name, or `OTHER`, however many names there were before.
        names = [name for t, name in ran if t >= now_ms - KEEP_MS]
        assert len(viewer.executions) >= len(names)
        assert all(a in (b, OTHER) for a, b in zip(reversed(viewer.executions), reversed(names), strict=False))


@given(st.lists(st.floats(0.1, 20_000), min_size=1, max_size=200), st.data())
def test_a_strand_has_the_rows_of_any_part_that_it_keeps(steps: list[float], data: st.DataObject) -> None:
    strand, times, now_ms = NumberStrand({"t": "d", "v": "f"}), [], 0.0
    for step in steps:
        now_ms += step
        times.append(now_ms)
        strand.append(now_ms, 1.0)
    assert strand.total == len(times)
    assert strand.newest_ms == now_ms
    first = data.draw(st.integers(strand.dropped, len(times)))
    last = data.draw(st.integers(first, len(times)))
    assert column(strand.part(first, last)["t"], "d") == times[first:last]
