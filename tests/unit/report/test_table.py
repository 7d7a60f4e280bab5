from io import StringIO

import pytest

from gpu_profile.catalogue.samples import Device
from gpu_profile.join.summary import Durations, RegionSummary
from gpu_profile.regimes import Regime, Verdict
from gpu_profile.regimes.evidence import Evidence
from gpu_profile.report import REGION_COLUMNS, region_row, text_table
from gpu_profile.report.table import UNKNOWN, fitted_table, folded, terminal_width

NOTHING = Evidence("coarse", {}, 0, 0.0)


def summary(**changes: object) -> RegionSummary:
    values: dict[str, object] = {
        "region": "train",
        "device": Device("GPU-a"),
        "durations": Durations(),
        "interval_s": 0.0,
        "interval_source": "host",
        "executions": 0,
        "busy": None,
        "busy_half_width": None,
        "busy_source": "",
        "busy_s": None,
        "busy_s_half_width": None,
        "power_w": None,
        "power_half_width": None,
        "energy_source": "",
        "energy_j": None,
        "energy_half_width": None,
        "call_energy_j": None,
        "memory_max": None,
        "evidence": NOTHING,
    }
    return RegionSummary(**(values | changes))  # type: ignore[arg-type]


def verdict(regime: Regime, confidence: float = 0.0) -> Verdict:
    return Verdict(regime, confidence, "coarse", "a rule", 0.1, 9, 1.0)


def cells(row: RegionSummary, judged: Verdict) -> dict[str, str]:
    return dict(zip(REGION_COLUMNS, region_row(row, judged), strict=True))


def test_what_is_not_known_is_a_dash_and_never_a_number() -> None:
    shown = cells(summary(), verdict(Regime.UNKNOWN))
    assert shown.pop("region") == "train"
    assert shown.pop("calls") == "0"
    assert shown.pop("regime, confidence") == "UNKNOWN"
    assert set(shown.values()) == {UNKNOWN}


def test_a_region_that_is_known_reads_in_units_of_its_size() -> None:
    known = summary(
        durations=Durations(calls=1200, total_s=6.0, p95_s=0.0082),
        executions=1200,
        busy=0.713,
        busy_half_width=0.021,
        busy_s=4.278,
        busy_s_half_width=0.01,
        power_w=400.0,
        power_half_width=10.4,
        energy_j=2400.0,
        energy_half_width=5.0,
        call_energy_j=2.0,
    )
    assert cells(known, verdict(Regime.HOST_BOUND, 0.456)) == {
        "region": "train",
        "calls": "1,200",
        "mean": "5.00 ms",
        "p95": "8.20 ms",
        "GPU busy": "71.3 % ±2.1",
        "busy time": "4.28 s",
        "energy": "2.40 kJ",
        "per call": "2.00 J",
        "per call ±": "±2.6 %",
        "regime, confidence": "HOST_BOUND 46 %",
    }


def test_a_measured_zero_is_shown_as_zero() -> None:
    idle = summary(
        executions=3,
        busy=0.0,
        busy_s=0.0,
        busy_s_half_width=0.0,
        energy_j=0.0,
        energy_half_width=0.0,
        call_energy_j=0.0,
    )
    shown = cells(idle, verdict(Regime.IDLE, 0.9))
    assert (shown["GPU busy"], shown["busy time"], shown["energy"], shown["per call"]) == ("0.0 %", "0 s", "0 J", "0 J")


def test_a_regressed_rate_above_the_ceiling_is_shown_at_it() -> None:
    assert cells(summary(busy=1.04), verdict(Regime.UNKNOWN))["GPU busy"] == "100.0 %"


def test_energy_per_call_needs_calls() -> None:
    assert cells(summary(energy_j=5.0), verdict(Regime.UNKNOWN))["per call"] == UNKNOWN


def test_columns_are_aligned_under_their_names() -> None:
    table = text_table(("name", "n"), [("a", "1"), ("longer", "12345")])
    assert table.splitlines() == ["name        n", "──────  ─────", "a           1", "longer  12345"]


def test_a_table_without_rows_is_its_head() -> None:
    assert text_table(("name", "n"), []).splitlines() == ["name  n", "────  ─"]


def test_a_row_that_does_not_fit_the_columns_is_refused() -> None:
    with pytest.raises((ValueError, IndexError)):
        text_table(("name", "n"), [("a",)])


@pytest.mark.parametrize(("width", "columns"), [(None, "a bb ccc"), (10, "a bb ccc"), (9, "a ccc"), (5, "a"), (0, "a")])
def test_a_table_goes_without_the_columns_that_keep_it_from_fitting(width: int | None, columns: str) -> None:
    table = fitted_table(("a", "bb", "ccc"), [("1", "2", "3")], [[1], [2]], width=width)
    assert table.splitlines()[0].split() == columns.split()
    assert len(set(map(len, table.splitlines()))) == 1


def test_the_omitted_columns_are_named_where_they_can_be_found() -> None:
    table = fitted_table(("a", "bb", "ccc"), [("1", "2", "3")], [[1], [2]], width=9, more="--json has all")
    assert "".join(table.split()).endswith("notshownin9columns:bb(--jsonhasall)")


def test_a_name_that_does_not_fit_continues_and_keeps_every_letter() -> None:
    name = "attention.query_key_value.projection"
    table = fitted_table(("region", "time"), [(name, "31.4 ms"), ("short", "1 s")], [], width=30)
    assert max(map(len, table.splitlines())) <= 30
    assert "".join(line[:21].strip() for line in table.splitlines()[2:4]) == name
    assert "31.4 ms" in table.splitlines()[2]


def test_long_lines_are_folded_and_short_ones_left_alone() -> None:
    assert folded("one two three\nfour", 8) == "one two\n  three\nfour"
    assert folded("one two three", None) == "one two three"


def test_a_pipe_has_no_width_unless_the_environment_gives_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal_width(StringIO()) is None
    monkeypatch.setenv("COLUMNS", "80")
    assert terminal_width(StringIO()) == 80


def test_a_word_that_is_longer_than_the_line_is_broken() -> None:
    assert folded("MIG-4fcd5654-1bc6 is", 8) == "MIG-4fcd\n  5654-1\n  bc6 is"
    text = folded(f"two {'x' * 50} words", 20)
    assert max(map(len, text.splitlines())) <= 20
    assert "".join(text.split()) == f"two{'x' * 50}words"
