import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from unit.analysis.costs.runs import BEFORE, DURING, after, run

from gpu_profile.analysis.costs import BenchmarkResult, costs_of, read_runs, render_costs
from gpu_profile.errors import UsageError

RESULT = BenchmarkResult(100, 100_000, 10_000, 50.0, {"model_id": "m", "max_concurrency": 8})


def test_a_runs_costs_are_the_growth_of_the_counters() -> None:
    costs = costs_of(BEFORE, after(), DURING, RESULT)
    assert costs.energy_j == {"requests": 1000.0, "prefill": 200.0, "decode": 800.0}
    assert costs.tokens == {"requests": 10_000, "prefill": 100_000, "decode": 10_000}
    assert [costs.token_j(part) for part in ("requests", "prefill", "decode")] == [0.1, 0.002, 0.08]
    assert (costs.per_request(1000.0), costs.per_request(costs.device_s)) == (10.0, 0.2)
    assert (costs.idle_j, costs.unallocated_j, costs.half_widths) == (200.0, {}, {"prefill": 0.02, "decode": 0.01})
    assert (costs.counted_by, costs.settings, costs.reasons, costs.notes) == ("exporter", RESULT.settings, {}, ())
    assert read_runs(costs.line() + "\n\n" + run(1.1).line(), "f") == [costs, run(1.1)]


def test_a_line_may_come_twice_and_contain_any_character() -> None:
    costs = run(settings={"model_id": "m\u2028\x1b\ud800"}, notes=("\x07",))
    raw = costs.line().replace("\\u2028", "\u2028")
    assert raw != costs.line()
    assert read_runs(raw + "\r\n" + costs.line(), "f") == [
        replace(costs, settings={"model_id": r"m\u2028\x1b\ud800"}, notes=(r"\x07",))
    ]


def test_every_key_of_a_line_is_explained() -> None:
    page = (Path(__file__).parents[4] / "docs" / "serving.md").read_text(encoding="utf-8")
    assert [key for key in json.loads(run().line()) if f"`{key}`" not in page] == []


def test_a_little_unallocated_energy_widens_the_intervals_and_more_refuses() -> None:
    little = costs_of(BEFORE, after(unallocated_j={"idle": 700.0, "unexplained": 23.0, "iterations_lost": 5.0}), DURING)
    assert little.energy_j["requests"] == 1025.0
    assert little.half_widths == pytest.approx({"prefill": 0.02 + 25 / 1025, "decode": 0.01 + 25 / 1025})
    much = costs_of(BEFORE, after(unallocated_j={"idle": 700.0, "unexplained": 103.0}), DURING)
    assert much.energy_j == {"requests": 1100.0, "prefill": None, "decode": None}
    assert much.half_widths == {}
    assert much.device_s is None
    assert much.reasons["decode"] == "9 % of the requests' energy is unallocated, mostly unexplained"
    text = render_costs(much)
    assert re.search("^prefill +100,000 +unallocated +unallocated", text, re.MULTILINE)
    assert re.search("^unallocated, unexplained +100 J$", text, re.MULTILINE)


def test_energy_that_other_programs_may_have_used_is_not_certainly_the_requests() -> None:
    little = costs_of(BEFORE, after(unallocated_j={"idle": 700.0, "unexplained": 3.0, "other_programs": 25.0}), DURING)
    assert little.half_widths["requests"] == pytest.approx(25 / 1025)
    much = costs_of(BEFORE, after(unallocated_j={"idle": 700.0, "unexplained": 3.0, "other_programs": 250.0}), DURING)
    assert much.energy_j == {"requests": None, "prefill": None, "decode": None}
    assert much.reasons["requests"] == "other programs may have used 20 % of the energy"
    assert "requests" not in much.half_widths
    assert "requests: other programs may have used 20 %" in render_costs(much)


def test_without_spans_the_result_gives_the_tokens_and_without_both_nothing_does() -> None:
    grown = after(tokens={}, requests=0.0)
    before = replace(BEFORE, tokens={}, requests=0.0)
    costs = costs_of(before, grown, DURING, RESULT)
    assert (costs.counted_by, costs.token_j("decode"), costs.requests) == ("result", 0.08, 100)
    assert "prefix cache" in costs.notes[0]
    none = costs_of(before, grown, DURING)
    assert (none.counted_by, none.token_j("decode"), none.per_request(1.0)) == ("", None, None)
    assert none.reasons["tokens"] == "no spans of requests arrived and there is no --result: give one of both"
    assert "tokens: no spans" in render_costs(none)
    assert read_runs(none.line(), "f") == [none]


def test_with_spans_missing_the_result_gives_the_tokens() -> None:
    lost = after(
        tokens={"prefill": 51_000.0, "decode": 5_100.0}, requests=60.0,
        unallocated_j={"idle": 700.0, "unexplained": 3.0, "request_not_known": 500.0},
    )  # fmt: skip
    costs = costs_of(BEFORE, lost, DURING, RESULT)
    assert (costs.counted_by, costs.requests, costs.token_j("requests")) == ("result", 100, 0.15)
    assert costs.notes[0] == "the exporter counted 50 requests and the result 100: spans are missing"
    alone = costs_of(BEFORE, lost, DURING)
    assert (alone.counted_by, alone.requests, alone.token_j("requests")) == ("", None, None)
    assert alone.reasons["tokens"].startswith("many spans of requests are missing")


def test_series_beyond_the_budget_may_be_missing_costs() -> None:
    assert "series beyond --series-budget" in costs_of(BEFORE, after(left_out=1.0), DURING).notes[0]


def test_requests_beside_the_benchmarks_own_are_pointed_out() -> None:
    costs = costs_of(BEFORE, after(requests=120.0), DURING, RESULT)
    assert costs.notes == (
        "the exporter counted 110 requests and the result 100: warm-up and others' are in the costs",
    )
    failing = costs_of(BEFORE, after(gpus="1 x H200"), DURING, replace(RESULT, failed=3))
    assert failing.notes[0].startswith("3 requests failed: their energy is in the costs")
    assert failing.settings == {"GPUs": "1 x H200", **RESULT.settings}
    long = costs_of(BEFORE, after(), DURING, replace(RESULT, duration_s=90.0))
    assert long.notes == ("the result is of 90.0 s, and the command took 60.0 s: another run?",)


def test_the_text_has_the_load_the_parts_and_the_intervals() -> None:
    lines = render_costs(run(simulated=True)).splitlines()
    assert lines[0] == "SIMULATED GPUs"
    assert (
        lines[1]
        == "engine e, 60.0 s, 100 requests, 100,000 tokens in prefill and 10,000 in decode, counted by the exporter"
    )
    assert lines[2] == "Settings: 1,000 tokens in per request, 100 tokens out per request"
    assert [line.split() for line in lines[6:]] == [
        ["requests", "10,000", "1.00", "kJ", "100", "mJ", "10.0", "J", "200", "ms"],
        ["prefill", "100,000", "200", "J", "2.00", "mJ", "±2.0", "%", "2.00", "J"],
        ["decode", "10,000", "800", "J", "80.0", "mJ", "±1.0", "%", "8.00", "J"],
        ["idle", "200", "J"],
    ]


@pytest.mark.parametrize(
    ("grown", "says"),
    [
        (BEFORE, "engine e: no iteration ran during the command; did it send requests there?"),
        (after(requests=1.0), "engine e: its counters fell during the run; run it again"),
        (after(energy_j={"decode": 900.0}), "engine e: its counters fell during the run"),
    ],
)
def test_counters_without_a_run_are_an_error(grown: object, says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("?", r"\?")):
        costs_of(BEFORE, grown, DURING)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "f: no runs in it"),
        ("{", "f: line 1: not the costs of a run"),
        ("[]", "f: line 1: not the costs of a run"),
        ('{"engine": "e"}', "f: line 1: not the costs of a run"),
        (run().line() + "\n" + run().line().replace('"format": 1', '"format": 9'), "f: line 2: not the costs of a run"),
        (run().line().replace("1000.0", "-1"), "f: line 1: not the costs of a run"),
        (run().line().replace("1000.0", "1" * 400), "f: line 1: not the costs of a run"),
        (run().line().replace("1000.0", "1e308"), "f: line 1: not the costs of a run"),
        (run().line().replace("1000.0", '"x"'), "f: line 1: not the costs of a run"),
    ],
)
def test_a_file_without_runs_is_an_error(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_runs(text, "f")
    assert str(caught.value).startswith(says)
