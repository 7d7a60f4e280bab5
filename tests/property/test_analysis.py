import json
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st
from support.analysis import GPU, Run

from gpu_profile.analysis import Gate, analyse, parse_gate, parse_thresholds
from gpu_profile.analysis.views.data import of_analysis
from gpu_profile.analysis.views.page import render_page
from gpu_profile.analysis.views.text import render
from gpu_profile.errors import UsageError
from gpu_profile.recording import DeviceInterval, Recording, SpanRecord
from gpu_profile.regimes import Thresholds
from gpu_profile.report.as_json import to_json

WORDS = ["decode", ".", "energy", "p95", "/item", " ", ">", "<", "+", "-", "5", "%", "ms", "J", "'", '"', "²"]
PIECES = st.lists(st.sampled_from(WORDS)).map("".join)
MARKS = ["[thresholds]", "\n", "ceiling", "least_n", " = ", "0.5", "nan", "-1", "{", "}", "[", "]", "'", "1e999"]
TOML = st.lists(st.sampled_from([*MARKS, "9" * 400])).map("".join)
TIMES = st.integers(-(1 << 70), 1 << 70) | st.integers(1_767_225_600_000_000_000, 1_767_225_620_000_000_000)
IDS = st.sampled_from(["", "1", "2", "3"])
SPANS = st.builds(
    SpanRecord,
    name=st.text(max_size=4),
    start_ns=TIMES,
    end_ns=TIMES,
    trace_id=st.sampled_from(["", "t"]),
    span_id=IDS,
    parent_span_id=st.none() | IDS,
    device_intervals=st.lists(
        st.builds(DeviceInterval, st.sampled_from([GPU.uuid, "GPU-z"]), st.just(0), TIMES, TIMES), max_size=2
    ).map(tuple),
    items=st.none() | st.floats() | st.integers(0, 9),
    id=IDS,
    parent=st.none() | IDS,
    failed=st.none() | st.booleans(),
    devices=st.lists(st.sampled_from([GPU.uuid, "GPU-z"]), max_size=2).map(tuple),
    assumed=st.booleans(),
    attributes=st.just({}),
)
SAMPLES = Run(calls=8).recording().samples


@given(st.text() | PIECES)
def test_a_condition_is_read_or_refused_with_one_line(text: str) -> None:
    with suppress(UsageError):
        assert isinstance(parse_gate(text), Gate)


@given(st.text() | TOML)
def test_thresholds_are_read_or_refused_with_one_line(text: str) -> None:
    with suppress(UsageError):
        assert isinstance(parse_thresholds(text), Thresholds)


@settings(max_examples=30)
@given(st.lists(SPANS, max_size=12), st.booleans())
def test_whatever_spans_a_recording_holds_it_is_analysed_and_shown(spans: list[SpanRecord], sampled: bool) -> None:
    samples = SAMPLES if sampled else {}
    analysis = analyse(Recording((), (GPU,), samples, tuple(spans), (), ()))
    json.loads(to_json(of_analysis(analysis)))
    render(analysis).encode("utf-8")
    render_page(analysis, title="x").encode("utf-8")
