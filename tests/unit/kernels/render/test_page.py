import re
from html import unescape
from typing import Any

import numpy as np
import pytest
from support.analysis import drawn, loads_nothing, parsed, unpacked
from support.kernels import EVIL, GEMM, MS, REDUCE, counted, hostile, on_cpu, operation, report, steps

from gpu_profile.kernels.records import Call, Kind, Range, Record
from gpu_profile.kernels.render.page import render_page
from gpu_profile.kernels.views import KernelReport


def page(found: KernelReport | None = None, **more: Any) -> str:
    return render_page(report() if found is None else found, title="a.json", **more)


def entries(data: dict[str, Any], lanes: dict[str, Any]) -> list[str]:
    return [data["regions"][i]["name"] for i in unpacked(lanes, "region")]


def test_the_page_is_one_file_that_loads_nothing() -> None:
    text = page(report(counted=counted()))
    found = loads_nothing(text)
    assert "prefers-color-scheme: dark" in text
    assert {"canvas", "table", "noscript"} <= {*found.seen}


def test_names_cannot_break_out_of_the_page_or_of_its_data() -> None:
    text = render_page(report(hostile()), title="<i>", notes={"<i>": 3})
    found = parsed(text)
    assert found.seen.count("script") == 2
    assert "<i>" not in text
    assert "alert(1)</script>" not in text
    assert "\x1b" not in text
    text.encode("utf-8")
    told = EVIL.encode("unicode_escape", "backslashreplace").decode("ascii")
    assert told in [region["name"] for region in drawn(text)["regions"]]


def test_operations_lie_on_the_lanes_of_their_streams_and_regions_on_those_of_their_threads() -> None:
    data = drawn(page())
    gpu, host = data["groups"]
    assert (gpu["title"], host["title"]) == ("GPU 0", "Host")
    (lanes,) = gpu["lanes"]
    assert lanes["names"] == ["stream 7", "stream 20"]
    start, step = int(data["start_ns"]), data["step_s"] * 1e9
    on_20 = unpacked(lanes, "lane") == 1
    assert (unpacked(lanes, "t0")[on_20] * step + start).tolist() == pytest.approx([24 * MS, 74 * MS], abs=step)
    assert (unpacked(lanes, "t1")[on_20] * step + start).tolist() == pytest.approx([34 * MS, 84 * MS], abs=step)
    named = np.array(entries(data, lanes))
    assert {*named[on_20]} == {REDUCE}
    assert len({*named[~on_20]}) == 4
    (lanes,) = host["lanes"]
    assert lanes["names"] == ["thread 100", ""]
    named = np.array(entries(data, lanes))
    assert {*named[unpacked(lanes, "lane") == 0]} == {"step"}
    assert {*named[unpacked(lanes, "lane") == 1]} == {"load", "forward"}


def test_operations_of_one_stream_that_overlap_have_a_lane_each() -> None:
    records: list[Record] = [operation(Kind.KERNEL, 0, 10, "a", None), operation(Kind.KERNEL, 5, 12, "b", None)]
    (lanes,) = drawn(page(report(records)))["groups"][0]["lanes"]
    assert lanes["names"] == ["stream 7", ""]
    assert sorted(unpacked(lanes, "lane").tolist()) == [0, 1]


def test_more_streams_than_can_be_told_apart_share_the_last_lane() -> None:
    records: list[Record] = [operation(Kind.KERNEL, i, i + 2, "k", None, stream=i) for i in range(100)]
    (lanes,) = drawn(page(report(records)))["groups"][0]["lanes"]
    assert (lanes["count"], lanes["folded"], lanes["executions"]) == (28, True, 100)
    assert lanes["names"][-1] == "and 73 more lanes"
    assert int(unpacked(lanes, "n").sum()) == 100


def test_the_chart_of_the_busy_share_has_the_reports_busy_time() -> None:
    data = drawn(page())
    (busy, memory) = data["groups"][0]["charts"]
    lengths = (unpacked(busy, "t1") - unpacked(busy, "t0").astype(np.int64)) * data["step_s"]
    assert float((unpacked(busy, "mean") / 65535 * lengths).sum()) == pytest.approx(0.05, rel=1e-3)
    assert (memory["unit"], memory["label"]) == ("By", "memory, torch")


def test_the_parts_of_a_bar_make_up_the_whole() -> None:
    text = page()
    (bar,) = re.findall(r'Where the time went</h2><div class="share">(.*?)</div>', text)
    assert sum(float(width) for width in re.findall(r"width:([\d.]+)%", bar)) == pytest.approx(100, abs=0.05)
    for bar in re.findall(r'<article.*?<div class="share">(.*?)</div>', text):
        assert sum(float(width) for width in re.findall(r"width:([\d.]+)%", bar)) == pytest.approx(100, abs=0.05)


def test_a_name_in_a_table_is_a_button_that_finds_its_block() -> None:
    text = page()
    names = [region["name"] for region in drawn(text)["regions"]]
    buttons = re.findall(r'<button data-region="(\d+)"[^>]*>(.*?)</button>', text)
    assert {"step", "load", "forward", REDUCE} <= {name for _, name in buttons}
    assert all(names[int(place)] == name.replace("&lt;", "<").replace("&gt;", ">") for place, name in buttons)


def test_notes_and_what_was_left_out_are_told() -> None:
    bare = report([record for record in steps() if not isinstance(record, Call)] + [Call(1, 0, 1, 100)], dropped=7)
    text = page(bare, notes={"events left out (no duration)": 3})
    for told in (
        "the profiler lost 7 records",
        "11 operations whose launching call",
        "3 events left out (no duration)",
    ):
        assert told in text


def test_a_page_of_a_cpu_shows_operators_and_says_so() -> None:
    text = page(report(on_cpu()))
    assert "no GPU operation in it" in text
    (group,) = drawn(text)["groups"]
    assert group["lanes"][0]["names"] == ["thread 100", "operators, thread 100"]
    assert "Operators that took longest" in text
    assert "GPU busy" not in text.partition("<script")[0]


def test_a_recording_in_which_nothing_lasts_has_a_page_without_a_timeline() -> None:
    text = page(report([Range("a", 1, 0, 0), operation(Kind.KERNEL, 0, 0, "k", None)]))
    parsed(text)
    assert '<section id="timeline"' not in text


def test_a_long_recording_is_drawn_in_few_blocks_that_count_every_operation() -> None:
    records: list[Record] = [operation(Kind.KERNEL, 2 * i, 2 * i + 1, f"k{i % 700}", None) for i in range(60_000)]
    text = page(report(records))
    (lanes,) = drawn(text)["groups"][0]["lanes"]
    assert len(unpacked(lanes, "n")) <= 31_000
    assert int(unpacked(lanes, "n").sum()) == 60_000
    assert "other: kernel" in [region["name"] for region in drawn(text)["regions"]]
    assert GEMM not in text
    assert len(text) < 2_000_000


def test_names_without_end_are_shortened_and_still_lead_to_their_own_blocks() -> None:
    long = {"load": "x" * 10_000 + "a" + "x" * 10_000, "forward": "x" * 10_000 + "b" + "x" * 10_000}
    records = [each._replace(name=long.get(each.name, "step")) if isinstance(each, Range) else each for each in steps()]
    text = page(report(records))
    assert "x" * 121 not in text
    assert len({*re.findall(r'<button data-region="(\d+)"[^>]*>x+…x+</button>', text)}) == 2


def test_of_very_many_regions_those_with_the_longest_busy_time_have_names_in_the_timeline() -> None:
    records = [*steps(), *(Range(f"request {i}", 300, 2 * i, 2 * i + 1) for i in range(3_000))]
    text = page(report(records))
    names = [entry["name"] for entry in drawn(text)["regions"] if entry["what"] == "region"]
    assert len(names) == 2_001
    assert {"step", "load", "forward", "other: region"} <= {*names}
    host = drawn(text)["groups"][1]["lanes"][0]
    assert int(unpacked(host, "n").sum()) == 3_006


def test_a_notebook_displays_the_page_in_a_frame_of_its_own() -> None:
    found = report()
    (frame,) = re.findall(r'<iframe sandbox="allow-scripts" [^>]*srcdoc="([^"]*)"></iframe>', found._repr_html_())
    assert unescape(frame) == render_page(found, title=found.source or "gpu-profile")
