import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from integration.browser import found_in
from support.analysis import EVIL, GPU, Run, hostile, two_devices, with_gap

from gpu_profile.analysis import analyse
from gpu_profile.analysis.views.page import render_page
from gpu_profile.recording import Recording

pytestmark = pytest.mark.debian

#: What acts as people do.
TOOLS = """
const point = (type, place, x, y, more = {}) => {
  const box = canvas(place).getBoundingClientRect();
  const where = { clientX: box.left + x, clientY: box.top + y, pointerId: 1 };
  const event = new PointerEvent(type, { ...where, bubbles: true, ...more });
  canvas(place).setPointerCapture = () => {};
  canvas(place).dispatchEvent(event);
};
const view = () => [page.from, page.to].map(t => t * page.data.step_s);
const text = id => document.getElementById(id).innerText;
const row = (place, kind) => page.groups[place].rows.find(each => each.kind === kind);
"""


@pytest.fixture
def browse(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def look(recording: Recording, script: str, *options: str, link: str = "") -> dict[str, Any]:
        page = render_page(analyse(recording), title="a", recording=recording)
        return found_in(page, script, tmp_path, *options, tools=TOOLS, link=link)

    return look


def test_signals_regions_and_gaps_are_painted_in_both_themes(browse: Callable[..., dict[str, Any]]) -> None:
    script = """
        const lane = row(0, "lane"), chart = row(0, "chart");
        return { lane: pixels(0, lane.y + 1, LANE - 2), chart: pixels(0, chart.y, CHART), ink: page.ink,
          regimes: page.regions.map(region => region.regime), colours: page.byRegime };
    """
    for scheme in (1, 0):
        found = browse(with_gap(Run()), script, f"--blink-settings=preferredColorScheme={scheme}")
        assert found["ink"]["ink"] == ("#1c2024" if scheme else "#edeef0")
        # A gap of 4 of 18 s is hatched: its ground and its lines are there.
        assert found["chart"].get(found["ink"]["gap"], 0) > 2000
        assert found["chart"].get(found["ink"]["busy"], 0) > 50
        assert sum(found["lane"].values()) > 5000


def test_keys_zoom_move_and_step_through_executions(browse: Callable[..., dict[str, Any]]) -> None:
    found = browse(
        Run().recording(),
        """
        const all = view();
        key("+"); key("+"); const near = view();
        key("ArrowRight"); const right = view();
        key("0"); const back = view();
        document.querySelector("button[data-region]").click();
        const pressed = document.querySelector("button[data-region]").getAttribute("aria-pressed");
        const after = name => { key(name); return text("said"); };
        const first = after("n"), second = after("n"), again = after("p");
        key("Escape");
        const left = document.querySelectorAll("button[aria-pressed=true]").length;
        return { all, near, right, back, pressed, first, second, again, left };
        """,
    )
    length = found["all"][1] - found["all"][0]
    assert found["near"][1] - found["near"][0] == pytest.approx(length / 4)
    assert found["right"][0] - found["near"][0] == pytest.approx(length / 20)
    assert found["back"] == found["all"]
    assert (found["pressed"], found["left"]) == ("true", 0)
    assert "region load" in found["first"]
    assert found["first"] != found["second"]
    assert found["again"] == found["first"]


def test_the_pointer_shows_values_zooms_by_dragging_and_moves_with_shift(browse: Callable[..., dict[str, Any]]) -> None:
    found = browse(
        with_gap(Run()),
        """
        const x = seconds => page.x(seconds / page.data.step_s), lane = row(0, "lane"), length = page.data.length;
        point("pointermove", 0, x(7), 10);
        const gap = text("tip");
        const i = page.groups[0].data.lanes[0].t0.findIndex((_, k) => k > 3);
        const lanes = page.groups[0].data.lanes[0], middle = (lanes.t0[i] + lanes.t1[i]) / 2;
        point("pointermove", 0, page.x(middle), lane.y + LANE / 2);
        const block = text("tip");
        point("pointerdown", 0, x(2), 10); point("pointermove", 0, x(6), 10); point("pointerup", 0, x(6), 10);
        const dragged = view();
        const shift = (type, x) => point(type, 0, x, 10, { shiftKey: true });
        shift("pointerdown", 700); shift("pointermove", 600); shift("pointerup", 600);
        const moved = view();
        canvas(0).dispatchEvent(new MouseEvent("dblclick", { bubbles: true }));
        const whole = page.to - page.from === length;
        point("pointerleave", 0, 0, 0);
        return { gap, block, dragged, moved, whole, hidden: page.tip.hidden };
        """,
    )
    assert re.search(r"GPU busy\s+not measured", found["gap"])
    for told in ("GPU busy", "power", "region", "on the GPU", "regime", "all of it\n60 executions"):
        assert told in found["block"]
    assert found["dragged"] == pytest.approx([2, 6], abs=0.05)
    assert found["moved"][0] > found["dragged"][0] + 0.2
    assert found["whole"]
    assert found["hidden"]


def test_colours_theme_and_links_can_be_chosen(browse: Callable[..., dict[str, Any]]) -> None:
    found = browse(
        Run().recording(),
        """
        const lane = row(0, "lane"), of = () => Object.keys(pixels(0, lane.y + 1, LANE - 2)).sort().join();
        const linked = view(), before = of(), by = text("colours");
        document.getElementById("colours").click(); page.draw();
        const after = of();
        const light = page.ink.ink;
        theme.click(); page.draw();
        const now = text("colours"), said = theme.textContent;
        return { linked, by, now, same: before === after, light, dark: page.ink.ink, said };
        """,
        "--blink-settings=preferredColorScheme=1",
        link="#2-5",
    )
    assert found["linked"] == pytest.approx([2, 5], abs=1e-3)
    assert {found["by"], found["now"]} == {"colour: regime", "colour: region"}
    assert not found["same"]
    assert (found["light"], found["dark"], found["said"]) == ("#1c2024", "#edeef0", "light")


def test_names_stay_text_in_a_browser_too(browse: Callable[..., dict[str, Any]]) -> None:
    found = browse(
        hostile(Run()),
        """
        key("n");
        const bold = document.querySelectorAll("h3 b, td b, dd b").length;
        const scripts = document.querySelectorAll("script").length;
        return { names: page.regions.map(region => region.name), bold, scripts };
        """,
    )
    assert EVIL.encode("unicode_escape", "backslashreplace").decode("ascii") in found["names"]
    assert found["bold"] == 0
    # Those of the page, and this test's two.
    assert found["scripts"] == 4


def test_a_long_recording_with_many_executions_is_drawn_at_once(browse: Callable[..., dict[str, Any]]) -> None:
    run = Run(calls=30)
    bare = [span._replace(device_intervals=(), span_id="", parent_span_id=None) for span in run.spans]
    spans = [
        span._replace(start_ns=span.start_ns + i * 10**10, end_ns=span.end_ns + i * 10**10, devices=(uuid,))
        for uuid in (GPU.uuid, "GPU-b")
        for i in range(400)
        for span in bare
    ]
    found = browse(
        replace(two_devices(run), spans=tuple(spans)),
        """
        const lanes = page.groups[0].data.lanes[0], blocks = lanes.t0.length;
        const most = [...lanes.n].reduce((a, b) => Math.max(a, b));
        const i = [...lanes.n].findIndex(n => n > 1);
        const many = page.about({ lanes, i }).map(pair => pair.join(" ")).join("; ");
        const start = performance.now();
        for (let i = 0; i < 20; i++) { page.from = i; page.draw(); }
        return { blocks, most, many, frame_ms: (performance.now() - start) / 20 };
        """,
    )
    assert found["blocks"] <= 16_000
    assert found["most"] > 1
    assert "executions within" in found["many"]
    assert found["frame_ms"] >= 0


def test_tables_sort_by_a_column_and_keep_the_rows_that_match(browse: Callable[..., dict[str, Any]]) -> None:
    run = Run()
    spans = [span._replace(name=f"{span.name} {i % 4}") for i, span in enumerate(run.recording().spans)]
    found = browse(
        replace(run.recording(), spans=tuple(spans)),
        """
        const table = [...document.querySelectorAll("table")].find(each => each.tBodies[0].rows.length > 7);
        const heads = [...table.tHead.rows[0].cells];
        const shown = () => [...table.tBodies[0].rows].filter(row => !row.hidden);
        const place = name => heads.findIndex(each => each.textContent === name);
        const column = name => shown().map(row => row.cells[place(name)].textContent);
        const click = name => heads[place(name)].firstChild.click();
        click("energy"); const falling = column("energy"), arrow = heads[place("energy")].ariaSort;
        click("energy"); const rising = column("energy");
        click("region"); const names = column("region");
        const field = document.querySelector("input[type=search]");
        field.value = "FORWARD"; field.dispatchEvent(new Event("input"));
        document.body.style.width = "800px";
        const range = document.createRange(), right = each => each.getBoundingClientRect().right;
        const wider = [...table.querySelectorAll("td")].filter(cell => {
          range.selectNodeContents(cell);
          return right(range) > right(cell);
        });
        const amounts = ["1.234e+04", "5e-07 s", "~3.98 ms", "-2.4 %", "3 of 4", "eager"].map(amount);
        return { falling, rising, names, arrow, amounts, kept: column("region"),
          wider: wider.map(cell => cell.textContent) };
        """,
    )
    assert found["wider"] == []
    scale = {"m": 1e-3, "k": 1e3}

    def joules(cell: str) -> float:
        number, unit = cell.lstrip("~").split()
        return float(number) * scale.get(unit[:-1], 1.0)

    known = [joules(cell) for cell in found["falling"] if cell != "–"]
    assert len(known) > 4
    assert known == sorted(known, reverse=True)
    assert [joules(cell) for cell in found["rising"] if cell != "–"] == sorted(known)
    assert found["rising"][len(known) :] == ["–"] * (len(found["rising"]) - len(known))
    assert found["arrow"] == "descending"
    assert found["amounts"] == [12_340, 5e-7, pytest.approx(0.00398), -2.4, 3, None]
    assert found["names"] == sorted(found["names"])
    assert [name.split()[0] for name in found["kept"]] == ["forward"] * 4


def test_every_value_of_a_table_is_on_a_narrow_screen(browse: Callable[..., dict[str, Any]]) -> None:
    found = browse(
        two_devices(Run()),
        """
        const frame = document.createElement("iframe"), copy = document.documentElement.outerHTML;
        frame.style.cssText = "width: 400px; border: 0";
        document.body.append(frame);
        const inner = frame.contentDocument;
        inner.open(); inner.write("<!doctype html>" + copy.replace(/<script[^]*?<.script>/g, "")); inner.close();
        const right = each => each.getBoundingClientRect().right, cells = [...inner.querySelectorAll("td")];
        const regime = cells.find(cell => cell.dataset.name === "regime, confidence").getBoundingClientRect();
        return { right: Math.max(...[...inner.querySelectorAll("body *")].map(right)), cells: cells.length,
          regime: regime.width, wide: inner.documentElement.scrollWidth };
        """,
    )
    assert found["cells"] > 20
    assert found["regime"] > 0
    assert found["right"] <= 400
    assert found["wide"] <= 400
