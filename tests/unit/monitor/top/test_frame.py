import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.monitor.top.scene import TopScene
from unit.monitor.top.test_cells import TEXTS

from gpu_profile.monitor.top.cells import cell_width, plain
from gpu_profile.monitor.top.frame import ViewState, draw
from gpu_profile.monitor.top.snapshot import (
    BIN_NS,
    BINS,
    DeviceLine,
    HolderLine,
    LastMinute,
    ProcessLine,
    RegionLine,
    TopSnapshot,
)
from gpu_profile.monitor.top.tables import TABLES

PAGE = Path(__file__).parents[4] / "docs" / "top.md"
NUMBERS = st.none() | st.floats(0, 1e15) | st.just(0.0)
HISTORIES = st.builds(
    lambda first, bins: LastMinute(first, [mean for mean, _ in bins], [ns for _, ns in bins]),
    st.integers(0, 1 << 34),
    st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, BIN_NS)), max_size=BINS),
)
DEVICES = st.builds(
    DeviceLine,
    uuid=TEXTS,
    label=TEXTS,
    name=TEXTS,
    order=st.integers(0, 99),
    **dict.fromkeys(("utilisation", "sm", "dram", "tensor"), st.none() | st.floats(0, 1)),
    **dict.fromkeys(("memory_bytes", "memory_total_bytes", "power_w", "power_limit_w", "power_scale_w"), NUMBERS),
    **dict.fromkeys(("temperature", "temperature_memory", "clock_hz", "pcie_rx", "pcie_tx"), NUMBERS),
    throttles=st.none()
    | st.lists(st.tuples(st.sampled_from(["power cap", "sw heat"]), st.floats(0, 1)), max_size=3).map(tuple),
    up=st.booleans(),
    reason=TEXTS,
    xid=st.none() | st.integers(1, 200),
    busy=HISTORIES,
    power=HISTORIES,
)
PROCESSES = st.builds(
    ProcessLine, TEXTS, st.integers(0, 9), st.integers(0, 1 << 22), TEXTS, st.none() | st.integers(0, 1 << 40), NUMBERS
)
HOLDERS = st.builds(HolderLine, TEXTS, st.integers(0, 9), TEXTS, TEXTS)
REGIONS = st.builds(RegionLine, TEXTS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, TEXTS)
SNAPSHOTS = st.builds(
    TopSnapshot,
    source=TEXTS,
    time=st.just("12:00:00"),
    problem=TEXTS,
    devices=st.lists(DEVICES, max_size=3).map(tuple),
    processes=st.lists(PROCESSES, max_size=3).map(tuple),
    holders=st.lists(HOLDERS, max_size=2).map(tuple),
    regions=st.lists(REGIONS, max_size=3).map(tuple),
    process_note=TEXTS,
    region_note=TEXTS,
)
STATES = st.builds(
    ViewState,
    table=st.sampled_from(list(TABLES)),
    sort=st.fixed_dictionaries({name: st.integers(0, len(each.columns) - 1) for name, each in TABLES.items()}),
    reverse=st.frozensets(st.sampled_from(list(TABLES))),
    filter=st.just("") | TEXTS,
    paused=st.booleans(),
)


@settings(deadline=None)
@given(SNAPSHOTS, STATES, st.integers(40, 200))
def test_every_line_has_exactly_the_width_of_the_screen(snapshot: TopSnapshot, state: ViewState, width: int) -> None:
    frame = draw(snapshot, state, width)
    assert {cell_width(plain(line)) for line in (frame.title, *frame.body)} == {width}
    assert all(plain(line).isprintable() for line in frame.body)
    assert all(0 <= start <= len(frame.body) for start in frame.starts.values())


START = ViewState()


def lines(snapshot: TopSnapshot, state: ViewState = START, width: int = 100) -> list[str]:
    return draw(snapshot, state, width).text.splitlines()


def test_an_unknown_value_is_a_dash_and_a_measured_0_is_0() -> None:
    zero = DeviceLine("GPU-a", "0", "one", utilisation=0.0, power_w=0.0, memory_bytes=0, throttles=())
    row = lines(TopSnapshot(devices=(zero,)), width=80)[2]
    assert row.split() == ["0", "one", "0%", "–", "–", "0.0/–", "0/–", "–", "–", "none", "ok"]
    row = lines(TopSnapshot(devices=(DeviceLine("GPU-a", "0", "one"),)), width=80)[2]
    assert row.split() == ["0", "one", *["–"] * 8, "ok"]


def test_a_narrow_screen_keeps_the_important_columns_and_a_wide_one_has_more() -> None:
    devices = TopSnapshot(devices=(DeviceLine("GPU-a", "0", "NVIDIA H200"),))
    assert lines(devices, width=40)[1].split() == ["GPU▲", "name", "util", "memory", "GiB", "status"]
    assert lines(devices, width=80)[1].split() == (
        ["GPU▲", "name", "util", "SM", "DRAM", "memory", "GiB", "power", "W", "°C", "MHz", "throttle", "status"]
    )
    assert "PCIe rx MB/s" in lines(devices, width=160)[1]


def test_a_chart_leaves_a_gap_blank_and_draws_zero() -> None:
    means, covered = [1.0] * 80 + [0.0] * 80 + [0.5] * 80, [BIN_NS] * 80 + [0] * 80 + [BIN_NS] * 80
    device = DeviceLine(
        "GPU-a", "0", busy=LastMinute(240, means, covered), power=LastMinute(240, [0.0] * 240, [BIN_NS] * 240)
    )
    text = lines(TopSnapshot(devices=(device,)), width=125)
    assert text[5] == "  0 " + "█" * 20 + " " * 20 + "▅" * 20 + " " + "▁" * 60


def test_steps_of_a_chart_begin_at_the_same_moments_for_all_devices_and_at_any_time() -> None:
    history = LastMinute(1000, [float(n) for n in range(BINS)], [BIN_NS] * BINS)
    later = LastMinute(1001, [float(n + 1) for n in range(BINS)], [BIN_NS] * BINS)
    assert history.columns(30, 1240)[1:] == later.columns(30, 1241)[:-1]
    assert history.columns(30, 1240)[-1] == pytest.approx(235.5)
    assert history.columns(30, 1244)[-1] is None, "a step that this device has no samples of yet"
    assert history.columns(0, 1240) == []


def test_power_is_drawn_against_the_limit_and_else_against_its_own_peak() -> None:
    power = LastMinute(240, [50.0] * 240, [BIN_NS] * 240)
    limited = DeviceLine("a", "0", power=power, power_scale_w=100.0)
    text = lines(TopSnapshot(devices=(limited,)), width=125)
    assert text[4].endswith("power of limit")
    assert text[5].endswith(" " + "▅" * 60)
    text = lines(TopSnapshot(devices=(DeviceLine("a", "0", power=power),)), width=125)
    assert "power of limit or peak" in text[4]
    assert text[5].endswith(" " + "█" * 60)


def test_a_device_that_is_down_says_why_once() -> None:
    down = DeviceLine("GPU-a", "3", "H200", up=False, reason="it fell off the bus")
    text = "\n".join(lines(TopSnapshot(devices=(down,))))
    assert text.count("it fell off the bus") == 1
    assert "GPU 3 is down: it fell off the bus" in text
    text = "\n".join(lines(TopSnapshot(devices=(down,), problem="it fell off the bus")))
    assert text.count("it fell off the bus") == 1
    assert "no driver: it fell off the bus" in text


def test_without_devices_it_says_so() -> None:
    assert "no devices: the driver lists none" in lines(TopSnapshot())
    assert "waiting for the driver" in lines(TopSnapshot(waiting=True))
    assert "no driver: not installed" in lines(TopSnapshot(problem="not installed"))


THREE = tuple(
    DeviceLine(f"GPU-{n}", str(n), f"card {n}", n, utilisation=share) for n, share in enumerate((0.2, None, 0.7))
)


def order(state: ViewState) -> str:
    return "".join(re.findall(r"card (\d)", "\n".join(lines(TopSnapshot(devices=THREE), state)[1:])))


def test_sorting_puts_the_unknown_last_in_both_directions() -> None:
    assert order(ViewState()) == "012"
    assert order(ViewState().reversed()) == "210"
    by_use = ViewState().with_next_sort().with_next_sort()
    assert order(by_use) == "201"
    assert order(by_use.reversed()) == "021"
    assert "util▼" in lines(TopSnapshot(devices=THREE), by_use)[1]
    assert "util▲" in lines(TopSnapshot(devices=THREE), by_use.reversed())[1]


def test_sorting_by_each_column_returns_to_the_first() -> None:
    state = ViewState()
    for _ in TABLES[state.table].columns:
        state = state.with_next_sort()
    assert state.sort[state.table] == 0


def test_a_filter_selects_devices_processes_holders_and_regions() -> None:
    snapshot = TopSnapshot(
        devices=THREE,
        processes=(ProcessLine("0", 0, 17, "trainer"), ProcessLine("1", 1, 18, "server")),
        holders=(HolderLine("0", 0, "pod", "team/trainer-0"),),
        regions=(RegionLine("Train step"), RegionLine("load")),
    )
    text = "\n".join(lines(snapshot, ViewState(filter="TRAIN")))
    assert "filter: TRAIN" in text
    assert "none matches 'TRAIN'" in text
    assert all(word in text for word in ("trainer", "team/trainer-0", "Train step"))
    assert all(word not in text for word in ("card", "server", "load"))
    assert order(ViewState(filter="card 2")) == "2"


def test_tab_selects_the_tables_that_are_shown() -> None:
    state, names = ViewState(), []
    for _ in range(3):
        names.append(state.table)
        state = state.with_next_table(TopSnapshot())
    assert names == ["devices", "processes", "regions"]
    assert state == ViewState()
    assert state.with_next_table(TopSnapshot(), -1).table == "regions"
    held = TopSnapshot(holders=(HolderLine("0", 0, "pod", "a/b"),))
    assert replace(state, table="processes").with_next_table(held).table == "holders"
    assert replace(state, table="holders").with_next_table(TopSnapshot()).table == "processes"


def test_uncertain_joules_are_marked_and_explained() -> None:
    regions = (RegionLine("a", 2.0, 10.0, 5.0, 0.5, 0.0, "HOST_BOUND"), RegionLine("b", joules_uncertain=7.0))
    text = lines(TopSnapshot(regions=regions))
    assert re.search(r"^a +2\.00 +10\.0 ~5\.00 +– +0\.50 HOST_BOUND$", "\n".join(text), re.MULTILINE)
    assert re.search(r"^b +– +~7\.00 +– +– –$", "\n".join(text), re.MULTILINE)
    assert any(line.startswith("~ uncertain:") for line in text)
    sure = lines(TopSnapshot(regions=(RegionLine("a", 2.0, 10.0, 0.0),)))
    assert any(re.match(r"a +2\.00 +10\.0 +5\.00", line) for line in sure)
    assert not any(line.startswith("~") for line in sure)


def test_a_small_amount_does_not_look_like_none() -> None:
    text = "\n".join(lines(TopSnapshot(regions=(RegionLine("a", 0.001, 0.0),))))
    assert re.search(r"^a +<0\.01 +0 ", text, re.MULTILINE)


def test_only_a_known_regime_has_a_tone() -> None:
    regions = tuple(RegionLine(str(n), 1.0, regime=name) for n, name in enumerate(("HOST_BOUND", "bad", "title")))
    rows = draw(TopSnapshot(regions=regions), START, 100).body[-3:]
    assert [row[-1].tone if row[-1].text.strip() else row[-2].tone for row in rows] == ["HOST_BOUND", "", ""]
    assert [plain(row).split()[-1] for row in rows] == ["HOST_BOUND", "bad", "title"]


def test_a_sum_or_a_ratio_that_is_infinite_is_unknown() -> None:
    huge, small = RegionLine("huge", 1e-10, 1.5e308, 0.0), RegionLine("small", 2.0, 10.0, 0.0)
    assert re.search(
        r"^huge +<0\.01 +1\.5e\+308 +– ", "\n".join(lines(TopSnapshot(regions=(huge, small)))), re.MULTILINE
    )
    both = replace(huge, joules_uncertain=1.5e308)
    ranked = TABLES["regions"].chosen(TopSnapshot(regions=(both, small)), sort=2, reverse=False, filter_="")
    assert ranked == [small, both]


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("utc")
def test_the_page_shows_the_frame_of_a_simulated_node(scene: TopScene) -> None:
    frame = draw(replace(scene.source.snapshot(), source="simulated:/tmp/node"), ViewState(), 80).text
    page = PAGE.read_text(encoding="utf-8")
    begin = page.index("```text\n") + len("```text\n")
    end = page.index("```", begin)
    if os.environ.get("GPU_PROFILE_UPDATE_GOLDEN"):
        PAGE.write_text(page[:begin] + frame + page[end:], encoding="utf-8")
    else:
        assert page[begin:end] == frame, "GPU_PROFILE_UPDATE_GOLDEN=1 writes it anew"
