import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from integration.browser import found_in
from support.kernels import EVIL, counted, hostile, on_cpu, operation, report, steps

from gpu_profile.kernels.records import Kind, Range
from gpu_profile.kernels.render.page import render_page
from gpu_profile.kernels.views import KernelReport

pytestmark = pytest.mark.debian

#: What acts as people do.
TOOLS = """
const rows = (place, kind) => page.groups[place].rows.filter(each => each.kind === kind);
const said = () => document.getElementById("said").innerText;
const buttons = () => [...document.querySelectorAll("button[data-region]")];
const press = name => buttons().find(each => each.innerText === name).click();
"""


@pytest.fixture
def browse(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def look(found: KernelReport, script: str, *options: str) -> dict[str, Any]:
        return found_in(render_page(found, title="a"), script, tmp_path, *options, tools=TOOLS)

    return look


def test_streams_regions_and_memory_are_painted_in_both_themes(browse: Callable[..., dict[str, Any]]) -> None:
    script = """
        const [first, second] = rows(0, "lane"), [busy, memory] = rows(0, "chart");
        const of = row => pixels(0, row.y + 1, row.height - 2);
        return { first: of(first), second: of(second), busy: of(busy), memory: of(memory), ink: page.ink,
          host: pixels(1, rows(1, "lane")[0].y + 1, LANE - 2), colours: page.byRegime,
          entries: page.regions.map(each => each.what) };
    """
    for scheme in (1, 0):
        found = browse(report(counted=counted()), script, f"--blink-settings=preferredColorScheme={scheme}")
        assert found["ink"]["ink"] == ("#1c2024" if scheme else "#edeef0")
        assert sum(found["first"].values()) > 1000
        assert sum(found["second"].values()) > 1000
        assert sum(found["host"].values()) > 5000
        # The edges of the busy stretches; what they fill lets the paper through.
        assert sum(count for colour, count in found["busy"].items() if colour != found["ink"]["grid"]) > 100
        assert found["memory"].get(found["ink"]["memory"], 0) > 50
        assert {"region", "kernel", "communication", "transfer"} == {*found["entries"]}


def test_keys_step_through_what_a_button_chose_and_words_tell_operations_from_regions(
    browse: Callable[..., dict[str, Any]],
) -> None:
    found = browse(
        report(),
        """
        press("forward");
        key("n"); const region = said();
        key("Escape");
        press("ncclDevKernel_AllReduce_Sum_f32_RING_LL");
        key("n"); const first = said();
        key("n"); const second = said();
        key("+"); key("+");
        return { region, first, second, shown: (page.to - page.from) / page.data.length };
        """,
    )
    assert "region forward" in found["region"]
    assert "took 20.0 ms" in found["region"]
    assert "communication ncclDevKernel" in found["first"]
    assert "on the GPU 10.0 ms" in found["first"]
    assert found["first"] != found["second"]
    assert found["shown"] == pytest.approx(0.25)


def test_a_theme_can_be_chosen_and_colours_of_kernels_stay_when_regions_change_theirs(
    browse: Callable[..., dict[str, Any]],
) -> None:
    found = browse(
        report(),
        """
        const kernels = () => page.regions.flatMap((each, i) => each.what === "kernel" ? [page.colour(i)] : []).join();
        const regions = () => page.regions.flatMap((each, i) => each.what === "region" ? [page.colour(i)] : []).join();
        const before = [kernels(), regions()];
        document.getElementById("colours").click();
        const after = [kernels(), regions()];
        theme.click();
        return { before, after, dark: page.ink.ink, theme: kernels() };
        """,
        "--blink-settings=preferredColorScheme=1",
    )
    assert found["before"][0] == found["after"][0]
    assert found["before"][1] != found["after"][1]
    assert found["dark"] == "#edeef0"
    assert found["theme"] != found["before"][0]


def test_names_stay_text_in_a_browser_too(browse: Callable[..., dict[str, Any]]) -> None:
    found = browse(
        report(hostile()),
        """
        key("n");
        return { names: page.regions.map(each => each.name), bold: document.querySelectorAll("h3 b, td b, dd b").length,
          scripts: document.querySelectorAll("script").length };
        """,
    )
    assert EVIL.encode("unicode_escape", "backslashreplace").decode("ascii") in found["names"]
    assert found["bold"] == 0
    # Those of the page, and this test's two.
    assert found["scripts"] == 4


def test_small_amounts_of_memory_have_a_small_unit(browse: Callable[..., dict[str, Any]]) -> None:
    found = browse(
        report(),
        """
        const chart = rows(0, "chart")[1].chart;
        return { all: [0, 5, 2048, 3 * 2 ** 20, 5 * 2 ** 30].map(value => reading(chart, value)) };
        """,
    )
    assert found["all"] == ["0.00 B", "5.00 B", "2.00 KiB", "3.00 MiB", "5.00 GiB"]


def test_many_operations_are_told_as_such_and_a_cpus_page_works(browse: Callable[..., dict[str, Any]]) -> None:
    records = [*steps(), *(operation(Kind.KERNEL, 200 + 2 * i, 201 + 2 * i, "k", None) for i in range(50_000))]
    found = browse(
        report(records),
        """
        const lanes = page.groups[0].data.lanes[0], i = [...lanes.n].findIndex(n => n > 1);
        return { words: page.about({ lanes, i }).map(pair => pair.join(" ")).join("; ") };
        """,
    )
    assert re.search(r"kernel k; here [\d,]+ operations within .*; mostly this one", found["words"])
    cpu = browse(report(on_cpu()), "key('n'); return { said: said(), lanes: rows(0, 'lane').length };")
    assert "region step" in cpu["said"]
    assert cpu["lanes"] == 2


@pytest.mark.parametrize("width", ["400px", "1200px"])
def test_nothing_sticks_out_and_a_long_name_begins_beside_its_colour(
    width: str, browse: Callable[..., dict[str, Any]]
) -> None:
    names = {"load": "x" * 300, "forward": "DistributedDataParallel.forward"}
    records = [
        each._replace(name=names.get(each.name, each.name)) if isinstance(each, Range) else each for each in steps()
    ]
    found = browse(
        report(records),
        f"document.body.style.width = '{width}';"
        """
        const edge = element => element.getBoundingClientRect();
        const cards = [...document.querySelectorAll(".card")], names = buttons();
        return { cards: cards.map(each => edge(each).right - edge(each.closest("section")).right),
          lower: names.map(each => edge(each).top - edge(each.previousSibling).top) };
        """,
    )
    assert len(found["cards"]) == 3
    assert max(found["cards"]) < 0
    assert max(found["lower"]) < 10


def test_parts_of_a_bar_have_colours_of_their_own_whatever_regions_are_coloured_by(
    browse: Callable[..., dict[str, Any]],
) -> None:
    found = browse(
        report(),
        """
        const bar = [...document.querySelector(".card .share").children];
        const colours = () => bar.map(each => getComputedStyle(each).backgroundColor);
        const before = colours();
        document.getElementById("colours").click();
        return { before, after: colours() };
        """,
    )
    assert found["before"] == found["after"]
    assert len({*found["before"]}) == len(found["before"]) > 2
