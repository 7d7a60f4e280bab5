import gzip
import json
from typing import Any

import pytest

from gpu_profile.catalogue.samples import Event
from gpu_profile.catalogue.signals import THROTTLES, THROTTLES_SEEN
from gpu_profile.report.live import LiveFeed, LiveMark, ThrottleWatch, mark_of
from gpu_profile.report.live.feed import CUT_MS, LONGEST_NAME, MOST_MARKS, MOST_NAMES, OTHER
from gpu_profile.report.live.strands import KEEP_MS, MOST_ROWS, SAMPLES, NumberStrand


def ask(feed: LiveFeed, now_ms: float, after: str = "") -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(feed.answer(after, now_ms, dict))
    return answer


def test_viewers_with_one_cursor_share_an_answer_and_a_look_at_the_present() -> None:
    feed, looks = LiveFeed("a"), []

    def look() -> dict[str, Any]:
        looks.append(1)
        return {"devices": []}

    first = [feed.answer("", 0.0, look), feed.answer("", CUT_MS - 1, look)]
    assert first[0] is first[1]
    feed.add("GPU-a", "power", 1.0, 1.0, 5.0)
    cursor = json.loads(first[0])["cursor"]
    later = [feed.answer(cursor, CUT_MS + i, look) for i in range(3)]
    assert later[0] is later[1] is later[2]
    packed = feed.answer(cursor, CUT_MS + 3, look, packed=True)
    assert gzip.decompress(packed) == later[0]
    assert len(looks) == 2


@pytest.mark.parametrize("after", ["b.1", "a.2", "a.0", "a.-1", "a.1.0", "a.", "1", "a.²", "a." + "9" * 5000, '"<'])
def test_a_cursor_that_is_none_begins_anew(after: str) -> None:
    feed = LiveFeed("a")
    feed.add("GPU-a", "power", 1.0, 1.0, 5.0)
    assert ask(feed, 0.0)["cursor"] == "a.1"
    assert not ask(feed, 1.0, "a.1")["reset"]
    answer = ask(feed, 2.0, after)
    assert answer["reset"]
    assert answer["samples"]


def test_a_sample_that_is_not_newer_is_left_out_and_a_clock_set_back_begins_anew() -> None:
    feed = LiveFeed("a")
    assert feed.add("GPU-a", "power", 100_000, 10, 5.0)
    assert not feed.add("GPU-a", "power", 100_000, 10, 5.0)
    assert not feed.add("GPU-a", "power", 96_000, 10, 5.0)
    cursor = ask(feed, 100_000)["cursor"]
    assert feed.add("GPU-a", "power", 50_000, 10, 5.0)
    answer = ask(feed, 50_000, cursor)
    assert answer["reset"]
    assert answer["cursor"] != cursor
    assert "the clock was set back" in answer["marks"][0][3]


def test_memory_is_bounded() -> None:
    strand = NumberStrand({"t": "d"})
    for i in range(MOST_ROWS * 2):
        strand.append(i * 0.1)
    assert MOST_ROWS <= strand.total - strand.dropped <= MOST_ROWS * 1.1
    feed = LiveFeed("a")
    numbers = {feed.number(f"request {i}") for i in range(2 * MOST_NAMES)}
    assert len(numbers) == MOST_NAMES + 1
    for i in range(2 * MOST_MARKS):
        feed.mark(LiveMark(i, "GPU-a", "bad", "x"))
    answer = ask(feed, 0.0)
    assert answer["names"][-1] == [MOST_NAMES, OTHER]
    assert len(answer["marks"]) == MOST_MARKS


def test_a_name_that_is_not_visible_any_more_gives_its_place_to_another() -> None:
    feed = LiveFeed("a")
    for i in range(MOST_NAMES):
        feed.blocks("GPU-a").append(i, 1, feed.number(f"request {i}"), 1, 255)
    state = {"train": 0}

    def look() -> dict[str, Any]:
        state["train"] = feed.number("request 7")  # it is in the table in every cut
        return {}

    feed.answer("", 0.0, look)
    feed.answer("", CUT_MS, look)
    assert feed.number("late") == feed.number(OTHER)
    # On a device that is silent since, only the present's time makes executions old.
    cursor = json.loads(feed.answer("", KEEP_MS + 60_000, look))["cursor"]
    again = feed.number("late")
    assert again not in (feed.number(OTHER), state["train"])
    feed.blocks("GPU-b").append(KEEP_MS + 61_000, 1, again, 1, 255)
    answer = ask(feed, KEEP_MS + 62_000, cursor)
    assert not answer["reset"]
    assert answer["names"] == [[again, "late"]]
    everything = dict(ask(feed, KEEP_MS + 62_001)["names"])
    assert everything[again] == "late"
    assert everything[state["train"]] == "request 7"


def test_an_endless_name_is_cut() -> None:
    feed = LiveFeed("a")
    assert feed.number("x" * 10_000) == feed.number("x" * 5_000)
    assert [len(name) for _, name in ask(feed, 0.0)["names"]] == [LONGEST_NAME]


def test_throttling_has_one_mark_for_an_episode() -> None:
    watch = ThrottleWatch()
    counters = {THROTTLES[0]: "power cap", THROTTLES_SEEN[1]: "sw heat"}
    for counter, reason in counters.items():
        assert watch.read("GPU-a", counter, 0.0, 70) is None  # its growth is unknown
        assert watch.read("GPU-a", counter, 100.0, 70) is None
        mark = watch.read("GPU-a", counter, 200.0, 80)
        assert mark == LiveMark(200.0, "GPU-a", "warn", f"throttling begins: {reason}")
        assert watch.read("GPU-a", counter, 5_000.0, 90) is None
        assert watch.read("GPU-a", counter, 30_000.0, 91) is not None
    assert watch.present("GPU-a", 30_500.0) == ["power cap", "sw heat"]
    assert watch.present("GPU-a", 40_000.0) == []
    assert watch.present("GPU-b", 30_500.0) == []


def test_an_events_mark_has_its_text_and_its_weight() -> None:
    lost = mark_of(Event("GPU-a", 5_000_000, "lost", message="it fell off the bus"))
    assert lost == LiveMark(5.0, "GPU-a", "bad", "lost: it fell off the bus")
    assert mark_of(Event("GPU-a", 0, "back")).tone == "soft"
    assert mark_of(Event("GPU-a", 0, "xid", 79)).tone == "bad"
    assert mark_of(Event("GPU-a", 0, "spinning", message="x")).tone == "warn"


def test_older_samples_reach_a_viewer_that_has_the_newer_ones() -> None:
    feed, older = LiveFeed("a"), NumberStrand(SAMPLES)
    for t_ms in (1.0, 2.0, 3.0):
        older.append(t_ms, 1.0, 5.0)
    feed.add("GPU-a", "power", 3.0, 1.0, 5.0)
    cursor = ask(feed, 10.0)["cursor"]
    feed.prepend({("GPU-a", "power"): older})
    assert ask(feed, 11.0, cursor)["reset"]
    assert feed.samples("GPU-a", "power").total == 3
