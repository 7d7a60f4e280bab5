import json
from math import isfinite

from hypothesis import given, settings
from hypothesis import strategies as st
from support.analysis import drawn, parsed, unpacked

from gpu_profile.kernels.records import Allocation, Call, Kind, Operation, Operator, Range, RangeCounters, Record
from gpu_profile.kernels.render.document import document
from gpu_profile.kernels.render.page import render_page
from gpu_profile.kernels.render.perfetto import perfetto_trace
from gpu_profile.kernels.render.table_file import kernels_csv
from gpu_profile.kernels.render.text import render
from gpu_profile.kernels.views import report_of

#: From before the epoch to moments far apart.
TIMES = st.one_of(st.integers(-100, 100), st.integers(-(1 << 61), 1 << 61))
LENGTHS = st.one_of(st.integers(0, 50), st.integers(0, 1 << 60))
NAMES = st.one_of(
    st.sampled_from(["a", "void f<1>(int)", "void f<2>(int)", "", "Memcpy HtoD (a -> b)"]), st.text(max_size=9)
)
SHARES = st.none() | st.floats(0, 1)
THREADS = st.one_of(st.integers(0, 3), st.sampled_from(["t", "\x1b"]))


@st.composite
def records(draw: st.DrawFn) -> Record:
    start, name, thread = draw(TIMES), draw(NAMES), draw(THREADS)
    end, cause = start + draw(LENGTHS), draw(st.integers(0, 5))
    moved = draw(st.none() | st.integers(0, 1 << 50))
    match draw(st.integers(0, 5)):
        case 0:
            kind, device = draw(st.sampled_from(Kind)), draw(st.integers(0, 2))
            shares = draw(SHARES), draw(SHARES)
            return Operation(kind, device, thread, start, end, name, cause or None, moved, *shares, draw(st.booleans()))
        case 1:
            return Call(cause, start, end, thread, name, moved)
        case 2:
            return Range(name, thread, start, end)
        case 3:
            return Operator(name, thread, start, end, draw(st.none() | st.integers(0, 3)), draw(st.booleans()))
        case 4:
            taken = draw(st.integers(-(1 << 40), 1 << 40))
            return Allocation(start, thread, draw(st.integers(-1, 1)), taken, moved, source=draw(NAMES))
        case _:
            return RangeCounters(name, 0, {"x.sum": draw(st.floats(0, 1e300)), "y.pct": draw(st.floats(-1e3, 1e3))})


@settings(max_examples=150)
@given(st.lists(records(), max_size=25))
def test_whatever_was_recorded_every_view_of_it_is_sound(found: list[Record]) -> None:
    report = report_of(found, source="x", notes={"odd": 2})
    regions = [None, *(region.name for region in report.regions)]
    for region in regions:
        assert all(line.isprintable() for line in render(report, region=region).splitlines())
        text = json.dumps(document(report, region=region), allow_nan=False)
        json.loads(text, parse_float=lambda number: float(number) if isfinite(float(number)) else 1 / 0)
    kernels_csv(report).encode("utf-8")
    page = render_page(report, title="x")
    parsed(page)
    if 'id="data"' in page:
        data = drawn(page)
        for lanes in (lanes for group in data["groups"] for lanes in group["lanes"]):
            assert int(unpacked(lanes, "n").sum()) == lanes["executions"]
            assert all(entry < len(data["regions"]) for entry in unpacked(lanes, "region"))
            assert all(lane < lanes["count"] for lane in unpacked(lanes, "lane"))
    perfetto_trace(report, base_ns=1 << 60)
