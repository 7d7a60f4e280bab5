"""The live page in a real browser: of an exporter with two GPUs, and of answers that a test makes."""

import base64
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from integration.browser import Browser, browser
from support.programs import Exporter, exporter

pytestmark = pytest.mark.debian

EVIL = '</script><img src=x onerror="hacked = 1"><b>&amp;${hacked = 1}'
#: The moment of the answers that a test makes, in ms.
NOW = 1_700_000_000_000.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Exporter, Browser]]:
    folder = tmp_path_factory.mktemp("live")
    with exporter("--driver", "simulated") as running, browser(folder) as page:
        page.open(f"{running.url}/")
        yield running, page


@pytest.fixture
def made(served: tuple[Exporter, Browser]) -> Browser:
    """The page, which asks for nothing while a test has its own answers."""
    page = served[1]
    page("if (!page.paused) page.pause(); page.search.value = '';")
    page.until("!page.asking")
    page("page.take(arguments[0]); page.draw();", answer())
    return page


def packed(code: str, values: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(values)}{code}", *values)).decode()


def rows(times: Sequence[float], values: Sequence[float]) -> dict[str, str]:
    """Samples that each last 100 ms; times in s before `NOW`."""
    return {
        "t": packed("d", [NOW - 1e3 * t for t in times]),
        "d": packed("f", [100.0] * len(times)),
        "v": packed("f", values),
    }


def device(uuid: str = "GPU-a", label: str = "0", name: str = "NVIDIA X", **more: Any) -> dict[str, Any]:
    tops = {"power": 700.0, "memory": 80 << 30, "clock": None}
    state = {"uuid": uuid, "label": label, "title": f"GPU {label} {name}", "status": "ok", "reason": "", "gone": False}
    return {**state, "tops": tops, "temperature_c": 61.0, "throttled": [], "processes": [], "holders": [], **more}


def answer(**more: Any) -> dict[str, Any]:
    """60 s of a GPU that is busy for a second out of two, with a gap of 10 s, and one region."""
    times = [t / 10 for t in range(600, -1, -1) if not 20 <= t / 10 < 30]
    busy = [1.0 if int(t) % 2 else 0.0 for t in times]
    row = {"region": 0, "device": "GPU-a", "share": 0.25, "power_w": 12.0, "energy_j": 1500.0, "uncertain": False}
    row |= {"calls_per_s": 3.0, "regime": "MEMORY_BOUND", "confidence": 0.8, "since_ms": NOW - 9e3, "next": "use less"}
    block = {
        "t": packed("d", [NOW - 4e3, NOW - 1e3]),
        "d": packed("f", [1000.0, 2000.0]),
        "region": packed("H", [0, 0]),
    }
    block |= {"n": packed("I", [1, 1]), "fill": packed("B", [255, 255])}
    return {
        "cursor": "made.1", "reset": True, "now_ms": NOW, "poll_ms": 1000, "keep_ms": 300_000, "interval_s": 0.1,
        "version": "0.1.0", "source": "made", "simulated": False, "reason": "", "user_note": "", "region_note": "",
        "devices": [device()], "samples": {"GPU-a": {"busy": rows(times, busy)}}, "blocks": {"GPU-a": block},
        "marks": [[NOW - 5e3, "GPU-a", "bad", "XID 79"]], "names": [[0, "step"]], "running": [],
        "regions": [{**row, "whole": "MEMORY_BOUND"}], "regions_left_out": 0, **more,
    }  # fmt: skip


def engine(name: str = "vllm", *tenants: list[Any]) -> dict[str, Any]:
    """An engine with tenants, in the order of the page's columns, and idle energy."""
    whole = ["", 5, 6000, 12_345, 2000.0, None, 12.5, 480.0, 5040.0]
    unallocated = [["nothing was scheduled", 500.0, "none; it is the cost of free capacity"]]
    made = {"name": name, "whole": whole, "tenants": list(tenants), "unallocated": unallocated}
    return made | {"remark": "", "waiting": [34, 276.0, 8]}


def text(page: Browser, selector: str) -> str:
    shown: str = page("return document.querySelector(arguments[0]).innerText", selector)
    return shown


def test_the_page_shows_the_exporters_gpus_and_renews_itself(served: tuple[Exporter, Browser]) -> None:
    running, page = served
    page.until("page.devices.size === 5 && [...page.devices.values()].every(each => each.charts[0].t1.length > 3)")
    before = page("return page.position")
    page.until(f"page.position !== '{before}' && page.now")
    for name in ("NVIDIA H200", "NVIDIA A10G", "MIG 3g.40gb"):
        assert name in text(page, "#groups")
    assert page("return document.getElementById('simulated').hidden") is False
    assert page("return document.getElementById('state').dataset.state") == "ok"
    # Rows of several answers follow each other, none twice.
    ascending = "each.charts.every(chart => chart.t1.every((t, i) => !i || t > chart.t1[i - 1]))"
    assert page(f"return [...page.devices.values()].every(each => {ascending})")
    # Everything comes from this server, and the policy of the page has refused nothing.
    loads = page("return performance.getEntriesByType('resource').map(each => each.name)")
    assert {re.sub(r"\?.*", "", each) for each in loads} <= {f"{running.url}/api/live", f"{running.url}/favicon.ico"}
    assert [each for each in page.logged() if "favicon" not in each] == []
    # A page that is hidden asks for nothing until it is seen again.
    hide = "Object.defineProperty(document, 'hidden', { value: arguments[0], configurable: true });"
    page(hide + "document.dispatchEvent(new Event('visibilitychange'));", True)
    page.until("!page.asking")
    assert page("return [page.timer, page.ticking]") == [0, 0]
    page(hide + "document.dispatchEvent(new Event('visibilitychange'));", False)
    assert page("return page.asking || page.timer > 0")


def test_the_chart_is_the_picture_of_its_samples(made: Browser) -> None:
    seen = made(
        """
        page.show(page.now - 60000, page.now); page.draw();
        const group = page.groups[0], row = group.rows[0], canvas = group.canvas, ratio = devicePixelRatio;
        const pen = canvas.getContext("2d"), ink = {};
        const colour = text => text.slice(1).match(/../g).map(n => parseInt(n, 16)).join();
        for (const name of ["busy", "gap", "bad"]) ink[colour(page.ink[name])] = name;
        const place = t => Math.round(page.x(page.now - 1000 * t) * ratio);
        const at = (t, share) => [...pen.getImageData(place(t), (row.y + CHART * (1 - share)) * ratio, 1, 1).data];
        const inks = t => {
          const found = {}, all = pen.getImageData(place(t), row.y * ratio, 1, CHART * ratio).data;
          for (let i = 0; i < all.length; i += 4) found[ink[all.slice(i, i + 3).join()]] = all[i + 3];
          return Object.keys(found);
        };
        return {
          high: [1.5, 3.5, 7.5, 51.5].map(t => at(t, 0.5)[3]), low: [2.6, 4.6, 8.6, 50.6].map(t => at(t, 0.5)[3]),
          gap: inks(25), beside: inks(31.5), mark: inks(5),
        };
        """
    )
    # Halfway up, the area is filled where the GPU was busy, and empty where it was not.
    assert min(seen["high"]) > 50
    assert max(seen["low"]) == 0
    assert "gap" in seen["gap"]
    assert "gap" not in seen["beside"]
    assert "bad" in seen["mark"]


def test_the_keyboard_zooms_moves_and_follows_the_newest_samples(made: Browser) -> None:
    press = "page.box.dispatchEvent(new KeyboardEvent('keydown', { key: arguments[0], cancelable: true }));"
    view = "return [page.from, page.to, page.follow, page.said.textContent]"

    def after(key: str) -> Any:
        return made(press + view, key)

    whole = after("0")
    near = after("+")
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 2)
    assert not near[2]
    assert after("End")[2]
    assert "step" in after("n")[3]
    past = after("ArrowLeft")
    made("page.take(arguments[0]);", answer(reset=False, now_ms=NOW + 2e3, samples={}, blocks={}, marks=[], names=[]))
    assert made(view)[:2] == pytest.approx(past[:2]), "a view of the past does not move"
    after("End")
    made("page.take(arguments[0]);", answer(reset=False, now_ms=NOW + 4e3, samples={}, blocks={}, marks=[], names=[]))
    assert made(view)[1] == pytest.approx(whole[1] + 4e3)
    made("dispatchEvent(new KeyboardEvent('keydown', { key: '/', cancelable: true, bubbles: true }));")
    assert made("return document.activeElement.id") == "search"


def test_tables_can_be_searched_and_read_aloud(made: Browser) -> None:
    assert text(made, "#regions tbody td") == "step"
    for part in ("25.0 %", "12.0 W", "1.50 kJ", "MEMORY_BOUND 80 %", "use less"):
        assert part in text(made, "#regions tbody")
    assert "✕ XID 79" in text(made, "#marks tbody")
    assert made("return document.getElementById('costs').hidden"), "no engine has costs"
    label = made("return document.querySelector('#groups canvas').getAttribute('aria-label')")
    assert re.fullmatch(r"GPU 0 NVIDIA X over time: busy .* % · 61 °C", label)
    look = "page.search.value = arguments[0]; page.search.dispatchEvent(new Event('input'));"
    hidden = "return [...document.querySelectorAll('#groups details, tbody tr')].map(each => each.hidden)"
    assert made(look + hidden, "nothing of this name") == [True] * 3
    assert made(look + hidden, "STEP") == [False, False, True]
    made(look, "")
    # A notice is announced once: its text stays the same from second to second.
    made("page.take(arguments[0]); page.tell();", answer(cursor="other.1"))
    assert "The history begins anew" in text(made, "#trouble")
    # Without any history, such as before a program's first region, nothing begins anew.
    made("page.take(arguments[0]); page.remark('', 0);", answer(cursor="empty.1", devices=[], samples={}, blocks={}))
    made("page.take(arguments[0]); page.tell();", answer(cursor="first.1"))
    assert text(made, "#trouble") == ""
    made("page.take(arguments[0]); page.tell();", answer(cursor="other.1"))
    made("page.take(arguments[0]); page.tell();", answer(cursor="other.2", reset=False, now_ms=NOW + 301e3))
    assert text(made, "#trouble") == ""


def test_the_costs_of_engines_add_up_and_can_be_folded_sorted_and_searched(made: Browser) -> None:
    small = ["chat", 4, 1500, 300, 400.0, None, None, None, 3.0]
    large = ["rag", 1, 4500, 12_045, 1100.0, 55.0, 12.5, 480.0, 4.125]
    lines = """
        return [...document.querySelectorAll('#costs tbody tr')].filter(row => row.offsetParent)
          .map(row => [...row.cells].map(cell => cell.innerText));
    """
    costs = {"number": 1, "over_s": 600, "engines": [engine("vllm", large, small)]}
    made("page.take(arguments[0]);", answer(serving=costs))
    rows = made(lines)
    assert [row[:10] for row in rows] == [
        ["all of vllm", "vllm", "5", "6,000", "12.3 k", "2.00 kJ", "100.0 %", "12.5 J", "480 J", "5,040 s"],
        ["rag", "vllm", "1", "4,500", "12.0 k", "1.10 kJ ±55.0 J", "55.0 %", "12.5 J", "480 J", "4.13 s"],
        ["chat", "vllm", "4", "1,500", "300", "400 J", "20.0 %", "–", "–", "3 s"],
        ["unallocated: nothing was scheduled", "vllm", "", "", "", "500 J", "25.0 %", "", "", ""],
    ]
    waits = "costs up to 8 s ago; 34 iterations and 276 J wait"
    assert [row[10] for row in rows] == [waits, "", "", "none; it is the cost of free capacity"]
    assert text(made, "#costs .note").startswith("Sums of the last 10 min: the rows of an engine add up to its energy.")
    # Sorting keeps its order while values are renewed.
    made("document.querySelectorAll('#costs th button')[5].click();")
    assert [row[5] for row in made(lines)] == ["2.00 kJ", "1.10 kJ ±55.0 J", "500 J", "400 J"]
    renewed = {"number": 2, "over_s": 600, "engines": [engine("vllm", [*small[:4], 1200.0, *small[5:]])]}
    made("page.take(arguments[0]);", answer(reset=False, samples={}, blocks={}, serving=renewed))
    assert [row[5] for row in made(lines)] == ["2.00 kJ", "1.20 kJ", "500 J"]
    # A button with a state that is read aloud folds an engine; a search shows what it folds.
    fold = "document.querySelector('#costs .fold').click(); return document.querySelector('#costs .fold').ariaExpanded;"
    assert made(fold) == "false"
    assert [row[0] for row in made(lines)] == ["all of vllm"]
    look = "page.search.value = arguments[0]; page.search.dispatchEvent(new Event('input'));"
    made(look, "chat")
    assert [row[0] for row in made(lines)] == ["chat"]
    made(look, "")
    assert made(fold) == "true"
    # Many rows are folded at first. An engine without prices has a reason, and no energy of 0.
    many = [engine(f"engine-{i}", *([f"tenant {j}", *small[1:]] for j in range(65))) for i in range(7)]
    new = engine("new") | {"whole": ["", 1, 9, 9, *[None] * 5], "unallocated": [], "remark": "no prices yet"}
    mixed = {"number": 3, "over_s": 7, "engines": [*many, new | {"waiting": [1, 5.0, None]}]}
    made("page.tables.costs.unfolded.clear(); page.take(arguments[0]);", answer(serving=mixed))
    rows = made(lines)
    assert len(rows) == 8
    assert rows[-1][5:] == ["–", "–", "–", "–", "–", "no prices yet; 1 iteration and 5.00 J wait"]
    made("document.querySelectorAll('#costs th button')[5].click(); page.take(arguments[0]);", answer())
    assert made(lines) == []


def test_no_name_becomes_markup(made: Browser) -> None:
    users: dict[str, Any] = {
        "processes": [[7, EVIL, None, None]],
        "holders": [[EVIL, EVIL]],
        "reason": EVIL,
        "throttled": [EVIL],
    }
    names = answer(
        names=[[0, EVIL]], source=EVIL, reason=EVIL, region_note=EVIL, user_note=EVIL,
        marks=[[NOW, "GPU-a", "bad", EVIL]], devices=[device(name=EVIL, **users)], running=[["GPU-a", 0, NOW - 500]],
        serving={"number": 1, "over_s": 600, "engines": [engine(EVIL, [EVIL, *[None] * 8]) | {"remark": EVIL}]},
    )  # fmt: skip
    made("page.take(arguments[0]); page.tell(); page.draw(); page.step(true);", names)
    assert made("return document.querySelectorAll('img, td b, p b, #groups summary .title b').length") == 0
    assert made("return typeof hacked") == "undefined"
    assert EVIL in text(made, "#regions tbody")
    assert EVIL in text(made, "#users tbody")
    assert text(made, "#costs tbody").count(EVIL) == 6


def test_a_regime_that_changes_over_time_does_not_differ_between_devices(made: Browser) -> None:
    row = answer()["regions"][0]
    regimes = "page.take(arguments[0]); return [page.regions[0].regime, page.regions[0].regimes];"

    def after(*rows: dict[str, Any]) -> Any:
        return made(regimes, answer(reset=False, samples={}, blocks={}, marks=[], names=[], regions=rows))

    assert after({**row, "regime": "UNKNOWN"}) == ["UNKNOWN", ["UNKNOWN"]]
    assert after({**row, "regime": "COMPUTE_BOUND"}) == ["COMPUTE_BOUND", ["COMPUTE_BOUND"]]
    both = after({**row, "regime": "COMPUTE_BOUND"}, {**row, "device": "GPU-b"})
    assert both == ["DIFFERS", ["COMPUTE_BOUND", "MEMORY_BOUND"]]
    assert after(row) == ["MEMORY_BOUND", ["MEMORY_BOUND"]]


def blocks(*times: tuple[float, float], numbers: Sequence[int] = ()) -> dict[str, str]:
    """Executions, each with its end in s before `NOW` and its length in s."""
    ends, lengths = [NOW - 1e3 * end for end, _ in times], [1e3 * length for _, length in times]
    n = len(times)
    block = {"t": packed("d", ends), "d": packed("f", lengths), "region": packed("H", numbers or [0] * n)}
    return block | {"n": packed("I", [1] * n), "fill": packed("B", [255] * n)}


def test_late_and_overlapping_executions_are_drawn_wherever_one_looks(made: Browser) -> None:
    # By their ends, as they arrive: the long one comes after two that began later. Then a late one.
    made("page.take(arguments[0]);", answer(blocks={"GPU-a": blocks((30, 1), (20, 2), (10, 45))}, running=[]))
    late = answer(reset=False, samples={}, marks=[], names=[], blocks={"GPU-a": blocks((40, 2))})
    made("page.take(arguments[0]); page.choose(0);", {**late, "running": [["GPU-a", 0, NOW - 500]]})
    seen = made(
        """
        const group = page.groups[0], lanes = group.data.lanes[0], row = group.rows.find(each => each.kind === "lane");
        const pen = group.canvas.getContext("2d"), ratio = devicePixelRatio, found = [];
        const inks = (from, to, t) => {
          page.show(page.now - 1000 * from, page.now - 1000 * to); page.draw();
          const x = Math.round(page.x(page.now - 1000 * t) * ratio);
          return pen.getImageData(x, (row.y + 2) * ratio, 1, 1).data[3] > 0;
        };
        return {
          begins: lanes.t0.map(t => Math.round((page.now - t) / 100) / 10),
          long: [inks(54, 34, 50), inks(28, 8, 12)], late: inks(60, 25, 41), none: inks(60, 5, 7),
          hover: group.block(page, row.y + 2, page.now - 15000).i,
        };
        """
    )
    assert seen["begins"] == [55.0, 42.0, 31.0, 22.0, 0.5]
    assert seen["long"] == [True, True]
    assert seen["late"]
    assert not seen["none"]
    assert seen["hover"] == 0
    # A picked execution has its frame only where it is.
    frame = """
        page.show(page.now - 1000 * arguments[0], page.now); page.draw();
        const group = page.groups[0], row = group.rows.find(each => each.kind === "lane"), ratio = devicePixelRatio;
        const pen = group.canvas.getContext("2d");
        return pen.getImageData((GUTTER - 1) * ratio, (row.y + 9) * ratio, 1, 1).data[3] > 0;
    """
    made("page.picked = { lanes: page.groups[0].data.lanes[0], i: 1 };")
    assert [made(frame, 8), made(frame, 41)] == [False, True]
    # Once it has ended, the running one is drawn as it was; the others stay.
    made("page.take(arguments[0]);", {**late, "blocks": {}, "running": [], "now_ms": NOW + 1e3})
    assert made("return page.groups[0].data.lanes[0].t0.length") == 4


def test_lanes_without_room_are_counted_and_a_click_in_the_table_shows_them(made: Browser) -> None:
    names = [[i, f"region {i}"] for i in range(40)]
    # The first is the shortest of all.
    lanes = blocks(*((1, 1 + i / 10) for i in range(40)), numbers=range(40))
    made("page.take(arguments[0]);", answer(names=names, blocks={"GPU-a": lanes}))
    shown = "return page.groups[0].data.lanes.map(lanes => lanes.own);"
    assert made(shown) == list(range(12, 40))
    assert text(made, "#groups .more").startswith("12 more regions without a lane")
    assert made("document.querySelector('#regions tbody button').click();" + shown) == [0, *range(13, 40)]
    made("page.choose(0);")


def test_a_name_that_comes_in_the_place_of_another_takes_nothing_over(made: Browser) -> None:
    made("page.choose(0);")
    row = answer()["regions"][0]
    after = answer(reset=False, names=[[0, "other step"]], samples={}, marks=[], regions=[row], blocks={})
    made("page.take(arguments[0]);", after)
    assert text(made, "#regions tbody td") == "other step"
    assert made("return [page.region, page.groups[0].data.lanes.length]") == [-1, 0]


def test_a_node_without_gpus_says_so(made: Browser) -> None:
    made("page.take(arguments[0]); page.tell();", answer(devices=[], samples={}, blocks={}, region_note="No regions."))
    assert text(made, "#lanes-note") == "No GPU is listed. No regions."


def test_a_lost_gpu_keeps_its_rows_and_says_since_when(made: Browser) -> None:
    gone = device(label="1", status="failed", reason="it fell off the bus", gone=True)
    later = answer(reset=False, samples={}, marks=[], names=[], blocks={}, now_ms=NOW + 20e3, devices=[gone])
    made("page.take(arguments[0]); page.draw();", later)
    since = made("return clock(arguments[0])", NOW)
    assert text(made, "#groups summary") == f"GPU 1 NVIDIA Xgone since {since}it fell off the bus"
    look = "return [+getComputedStyle(page.groups[0].canvas).opacity, page.groups[0].data.charts.length]"
    assert made(look) == [0.5, 1]
    # Its rows may be older than those that are kept.
    made("page.take(arguments[0]);", {**later, "now_ms": NOW + 900e3})
    assert f"gone since {since}" in text(made, "#groups summary")
    made("page.take(arguments[0]);", {**later, "devices": [device()]})
    assert made(look)[0] == 1
    assert "gone" not in text(made, "#groups summary")


@pytest.mark.parametrize(("interval_s", "gaps"), [(10.0, 0), (0.1, 3)])
def test_rows_at_the_interval_of_the_readings_have_no_gaps(made: Browser, interval_s: float, gaps: int) -> None:
    samples = {"GPU-a": {"memory": rows([30, 20, 10, 0], [1e9] * 4)}}
    made("page.take(arguments[0]);", answer(interval_s=interval_s, samples=samples))
    chart = "[...page.devices.values()][0].charts.find(each => each.key === 'memory')"
    assert made(f"return {chart}.gaps.length / 2") == gaps


def test_a_page_whose_address_has_a_password_gets_its_answers(served: tuple[Exporter, Browser]) -> None:
    running, page = served
    page.open(f"{running.url}/".replace("//", "//someone:secret@", 1))
    page.until("page.position || page.failures")
    assert page("return page.error") == ""
    page.open(f"{running.url}/")


def test_it_fits_a_narrow_screen_in_both_themes(made: Browser) -> None:
    made.resize(400, 900)
    try:
        assert made("return document.documentElement.scrollWidth <= innerWidth")
        ground = "return [getComputedStyle(document.body).backgroundColor, page.ink.ink]"
        light = made(ground)
        assert made("theme.click();" + ground) != light
        assert made("theme.click();" + ground) == light
    finally:
        made.resize(1400, 1200)


def test_a_server_that_is_gone_is_said_and_asked_less_and_less(served: tuple[Exporter, Browser]) -> None:
    running, page = served
    page("if (page.paused) page.pause();")
    page.until("page.devices.size === 5")
    running.end()
    page.until("page.failures >= 2")
    assert page("return document.getElementById('state').dataset.state") == "lost"
    assert text(page, "#trouble") == "The server does not answer (no connection): these values are old."
    assert re.search(r"no answer: last update \d.* s ago, next try in \d", text(page, "#age"))
    pauses = page("return [page.next - performance.now()]")
    assert pauses[0] > 500
