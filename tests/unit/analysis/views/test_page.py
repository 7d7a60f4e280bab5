import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.analysis import (
    EMPTY,
    EVIL,
    GAP,
    GPU,
    T0,
    B,
    Run,
    analysed,
    drawn,
    hostile,
    loads_nothing,
    parsed,
    to_columns,
    two_devices,
    unpacked,
    with_gap,
)

from gpu_profile.analysis.views.page import render_page
from gpu_profile.analysis.views.perfetto import perfetto_packets
from gpu_profile.analysis.views.tables import regions_csv
from gpu_profile.catalogue.samples import Sample
from gpu_profile.catalogue.signals import CLOCK_SM, MEMORY_USED
from gpu_profile.recording import DeviceInterval, ProcessInfo, Recording, SpanRecord


def test_the_page_is_one_file_that_loads_nothing() -> None:
    recording = Run().recording()
    text = render_page(analysed(recording), title="a", recording=recording)
    page = loads_nothing(text)
    assert "prefers-color-scheme: dark" in text
    assert {"canvas", "table", "noscript"} <= {*page.seen}


def test_names_cannot_break_out_of_the_page_or_of_its_data() -> None:
    recording = hostile(Run())
    text = render_page(analysed(recording), title="<i>", recording=recording)
    page = parsed(text)
    assert page.seen.count("script") == 2
    assert "<i>" not in text
    assert "<b>\\x07" not in text
    assert "\x1b" not in text
    text.encode("utf-8")
    names = [region["name"] for region in drawn(text)["regions"]]
    assert EVIL.encode("unicode_escape", "backslashreplace").decode("ascii") in names


def test_every_execution_of_a_short_recording_is_drawn_where_it_was_and_inside_its_parent() -> None:
    run = Run()
    recording = run.recording()
    data = drawn(render_page(analysed(recording), title="a", recording=recording))
    gpu, host = data["groups"]
    assert (gpu["title"], host["title"]) == ("GPU 0 NVIDIA H200", "Host")
    (lanes,) = gpu["lanes"]
    assert (lanes["executions"], lanes["count"], lanes["folded"]) == (180, 2, False)
    names = np.array([region["name"] for region in data["regions"]])[unpacked(lanes, "region")]
    assert {*names[unpacked(lanes, "lane") == 1]} == {"forward"}
    assert {*names[unpacked(lanes, "lane") == 0]} == {"load", "step"}
    step_ns = data["step_s"] * 1e9
    start_ns = int(data["start_ns"])
    expected = sorted((span.start_ns - start_ns, span.end_ns - start_ns) for span in run.spans)
    found = sorted(zip(unpacked(lanes, "t0") * step_ns, unpacked(lanes, "t1") * step_ns, strict=True))
    assert np.allclose(found, expected, atol=2 * step_ns)
    assert {*unpacked(lanes, "n")} == {1}


def test_without_the_recording_each_region_has_a_lane_with_its_name() -> None:
    data = drawn(render_page(analysed(Run().recording()), title="a"))
    (lanes,) = data["groups"][-1]["lanes"]
    assert (data["groups"][-1]["title"], lanes["names"]) == ("Regions", ["load", "step", "forward"])
    assert [*np.bincount(unpacked(lanes, "lane"))] == [60, 60, 60]


def test_what_was_not_measured_is_a_gap_and_not_zero() -> None:
    recording = with_gap(Run())
    data = drawn(render_page(analysed(recording), title="a", recording=recording))
    (group, _) = data["groups"]
    step_ns = data["step_s"] * 1e9
    charts = {chart["key"]: chart for chart in group["charts"]}
    ((left, right),) = unpacked(charts["busy"], "gaps").reshape(-1, 2) * step_ns
    assert left == pytest.approx(GAP[0], abs=2e8)
    assert right == pytest.approx(GAP[1], abs=2e8)
    starts, ends = (unpacked(charts["busy"], key) * step_ns for key in ("t0", "t1"))
    assert not ((starts < right - 1e3) & (ends > left + 1e3)).any()
    # What the energy counter grew by meanwhile was measured: its mean is drawn.
    assert len(unpacked(charts["power"], "gaps")) == 0
    starts, ends = (unpacked(charts["power"], key) * step_ns for key in ("t0", "t1"))
    assert ((starts <= left + 1e3) & (ends >= right - 2e8)).any()
    ((at, text),) = group["events"]
    assert at * step_ns == pytest.approx(GAP[0], abs=step_ns)
    assert text.endswith("device 0: xid 79 GPU has fallen off the bus")


def test_a_signal_is_drawn_with_its_own_values_and_one_scale_for_all_devices() -> None:
    recording = two_devices(Run())
    samples = {
        uuid: {
            **columns,
            "memory_used": to_columns(
                [Sample(MEMORY_USED, T0 + i * 10**9, T0 + i * 10**9, 1024 * (i + 1) * scale) for i in range(9)]
            ),
            "clock_sm": to_columns(
                [Sample(CLOCK_SM, T0 + i * 10**9, T0 + i * 10**9, CLOCK_SM.quanta(1.5e9)) for i in range(9)]
            ),
        }
        for (uuid, columns), scale in zip(recording.samples.items(), (1, 4), strict=True)
    }
    recording = replace(recording, samples=samples)
    data = drawn(render_page(analysed(recording), title="a", recording=recording))
    charts = [{chart["key"]: chart for chart in group["charts"]} for group in data["groups"][:2]]
    assert [*charts[0]] == ["busy", "power", "memory", "clock"]
    for key in charts[0]:
        assert charts[0][key]["top"] == charts[1][key]["top"]
    tops = [float((unpacked(each["memory"], "mean") / 65535 * each["memory"]["top"]).max()) for each in charts]
    assert sorted(tops) == pytest.approx([9 * 2**30, 36 * 2**30], rel=1e-3)
    assert charts[0]["clock"]["top"] == 2e9
    assert unpacked(charts[0]["clock"], "mean")[3] / 65535 * 2e9 == pytest.approx(1.5e9, rel=1e-3)
    assert charts[0]["power"]["unit"] == "W"


def test_energy_is_shown_by_region_with_what_belongs_to_none() -> None:
    analysis = analysed(Run().recording())
    text = render_page(analysis, title="a")
    (device,) = analysis.devices
    assert device.energy_j
    assert device.unattributed_j
    bar = text.split('<div class="share">')[1].split("</div>")[0]
    widths = [float(part.split("%")[0]) for part in bar.split("width:")[1:]]
    assert sum(widths) == pytest.approx(100, abs=0.1)
    assert widths[-1] == pytest.approx(100 * device.unattributed_j / device.energy_j, abs=0.01)
    assert "in no region 47.6 J (0.7 %)" in text


def test_each_region_tells_its_regime_why_and_what_to_do() -> None:
    analysis = analysed(Run().recording())
    text = render_page(analysis, title="a")
    cards = text.split("<article")[1:]
    assert len(cards) == len(analysis.regions)
    for card, use in zip(cards, analysis.regions, strict=True):
        for told in (use.summary.region, str(use.verdict.regime), f"{use.verdict.confidence:.0%}".replace("%", " %")):
            assert told in card
        assert f"{use.verdict.n:,} sensor windows" in card
        assert use.verdict.advice.split(",")[0].split("<")[0] in card.replace("&#x27;", "'")


def test_a_page_of_very_many_executions_stays_small_and_counts_them_all() -> None:
    run = Run(calls=30)
    copies = []
    for i in range(400):
        late = i * 10**10
        moved = (s._replace(start_ns=s.start_ns + late, end_ns=s.end_ns + late) for s in run.spans)
        copies += [s._replace(device_intervals=(), span_id="", parent_span_id=None) for s in moved]
    recording = replace(run.recording(), spans=tuple(copies))
    text = render_page(analysed(recording), title="a", recording=recording)
    assert len(text) < 1_000_000
    (lanes,) = drawn(text)["groups"][0]["lanes"]
    assert unpacked(lanes, "n").sum() == len(copies)
    assert len(unpacked(lanes, "n")) <= 30_000


def test_devices_on_which_nothing_ran_are_shut_and_others_open() -> None:
    recording = Run().recording()
    columns = recording.samples[GPU.uuid]
    recording = replace(recording, devices=(GPU, B), samples={GPU.uuid: columns, B.uuid: columns})
    text = render_page(analysed(recording), title="a", recording=recording)
    assert text.count("<details open>") == 2
    assert text.count("<details>") == 1


def test_ranks_have_lanes_of_their_own() -> None:
    run = Run(calls=8)
    spans = [span._replace(rank=rank, trace_id=f"{rank:032x}") for span in run.spans for rank in (0, 1)]
    recording = replace(run.recording(), spans=tuple(spans))
    data = drawn(render_page(analysed(recording), title="a", recording=recording))
    assert [group["title"] for group in data["groups"]] == ["GPU 0 NVIDIA H200", "Host, rank 0", "Host, rank 1"]


def test_a_page_of_nothing_says_so_and_has_no_timeline() -> None:
    text = render_page(analysed(EMPTY), title="a", recording=EMPTY)
    parsed(text)
    assert '<section id="timeline"' not in text
    assert "no samples of any device" in text


def test_simulated_devices_are_marked_as_such() -> None:
    recording = Run().recording()
    simulated = replace(recording, processes=(ProcessInfo("0.1.0", "node", 1, T0, "simulated"),))
    assert "SIMULATED" in render_page(analysed(simulated), title="a")
    assert "SIMULATED" not in render_page(analysed(recording), title="a")


MOMENTS = st.integers(T0 - 10**9, T0 + 3 * 10**9) | st.sampled_from((0, 1, T0 + 10**15, (1 << 62) - 1, 1 << 62))
SPANS = st.builds(
    lambda name, a, b, ids, marks, items, device: SpanRecord(
        name,
        a,
        b,
        span_id=ids[0],
        parent_span_id=ids[1],
        device_intervals=tuple(DeviceInterval(uuid, 0, *edges) for uuid, edges in marks),
        items=items,
        devices=device,
        assumed=len(device) > 1,
    ),
    st.text(max_size=3) | st.just(EVIL),
    MOMENTS,
    MOMENTS,
    st.tuples(st.sampled_from(("", "1", "2")), st.sampled_from((None, "1", "2"))),
    st.lists(st.tuples(st.sampled_from(("GPU-a", "GPU-x", "")), st.tuples(MOMENTS, MOMENTS)), max_size=2),
    st.none() | st.floats(),
    st.sampled_from(((), ("GPU-a",), ("GPU-x",), ("GPU-a", "GPU-b"))),
)
SAMPLES = Run(calls=8).recording().samples


@settings(max_examples=30)
@given(st.lists(SPANS, max_size=8), st.booleans())
def test_whatever_a_recording_holds_its_page_trace_and_tables_are_valid(spans: list[SpanRecord], sampled: bool) -> None:
    recording = Recording((), (GPU,), SAMPLES if sampled else {}, tuple(spans), (), ())
    analysis = analysed(recording)
    text = render_page(analysis, title="x", recording=recording)
    parsed(text)
    text.encode("utf-8")
    groups = drawn(text)["groups"] if analysis.end_ns > analysis.start_ns else []
    for lanes in (lanes for group in groups for lanes in group["lanes"]):
        assert (unpacked(lanes, "t0") <= unpacked(lanes, "t1")).all()
        assert unpacked(lanes, "n").sum() == lanes["executions"]
    assert b"".join(perfetto_packets(recording, analysis))
    assert regions_csv(analysis).count("\n") == len(analysis.regions) + 1


def test_a_notebook_displays_the_page_in_a_frame_of_its_own() -> None:
    analysis = analysed(Run().recording())
    (frame,) = re.findall(r'<iframe sandbox="allow-scripts" [^>]*srcdoc="([^"]*)"></iframe>', analysis._repr_html_())
    assert unescape(frame) == render_page(analysis, title="gpu-profile")
