"""What probes vary by: over an execution, and between pauses of different lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.polynomial import Legendre

from gpu_profile.join.unmixing.windows.probes import BESIDE, PAUSES, PHASES, Gaps, Probe, ProbeKind, choose

MS = 1_000_000


@pytest.mark.parametrize("kind", PHASES)
def test_what_varies_within_an_execution_is_nothing_over_all_of_it(kind: ProbeKind) -> None:
    integral = PHASES[kind]
    assert integral(0.0) == pytest.approx(0.0, abs=1e-12)
    assert integral(1.0) == pytest.approx(0.0, abs=1e-12)
    assert np.abs(integral(np.linspace(0, 1, 101))).max() > 0.04


def test_the_ways_to_vary_within_an_execution_are_orthogonal_and_end_at_one() -> None:
    u = (np.arange(10_000) + 0.5) / 10_000
    levels = np.array([integral.deriv()(u) for integral in PHASES.values()])
    assert levels[:, -1] == pytest.approx(1.0, abs=0.01)
    products = levels @ levels.T / len(u)
    assert products == pytest.approx(np.diag(1 / (2 * np.arange(1, len(PHASES) + 1) + 1)), abs=1e-4)


def level(kind: ProbeKind, length_ms: float) -> float:
    """By how much nobody's power differs, of 1, in a pause of this length that is followed by work and by no more."""
    starts = np.array([0, round((length_ms + 1) * MS)])
    gaps = Gaps(starts, np.array([round(length_ms * MS), starts[1]]))
    integrals = gaps.integrals(np.array([0, round(length_ms * MS)]))[PAUSES.index(kind)]
    return float(integrals[1] - integrals[0]) / (length_ms * MS)


@given(st.floats(0.01, 1e5))
def test_power_goes_from_one_level_to_the_next_over_a_tenfold_length(length_ms: float) -> None:
    for kind, shortest_ms in ((ProbeKind.GAP, 1), (ProbeKind.PAUSE, 10), (ProbeKind.REST, 100)):
        expected = min(1.0, max(0.0, float(np.log10(length_ms / shortest_ms))))
        assert level(kind, length_ms) == pytest.approx(expected, abs=1e-4)


def test_pauses_of_nobody_may_be_heavy_between_light_ones() -> None:
    """Nothing below 1 ms, an unmarked region at 10 ms, nothing again in a pause of seconds."""
    told = {
        ms: np.array([level(kind, ms) for kind in (ProbeKind.GAP, ProbeKind.PAUSE)]) @ [1.0, -1.0]
        for ms in (0.5, 10, 5000)
    }
    assert told == pytest.approx({0.5: 0.0, 10: 1.0, 5000: 0.0})


def test_of_executions_that_are_short_beside_the_window_two_degrees_are_enough() -> None:
    lengths = np.array([0.0, 0.09, 0.11, 3.0])
    chosen = choose(np.array([1.0, 1.0, 1.0, 1.0]), lengths, window=False)
    assert {probe.column for probe in chosen if probe.kind is ProbeKind.BEND} == {1, 2, 3}
    for kind in (ProbeKind.THIRD, ProbeKind.FOURTH):
        assert {probe.column for probe in chosen if probe.kind is kind} == {2, 3}


def test_only_shared_time_has_probes_of_the_regions_beside() -> None:
    shared = np.array([False, False, False, True])
    chosen = choose(np.ones(4), np.ones(4), window=False, shared=shared)
    assert [probe for probe in chosen if probe.kind in BESIDE] == [Probe(kind, 3) for kind in BESIDE]


@pytest.mark.parametrize(("begin", "end"), [(0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1.0), (0.5, 1.0)])
def test_what_a_short_execution_does_in_finer_detail_moves_a_reading_by_little(begin: float, end: float) -> None:
    """Of an execution that works from `begin` to `end` and is cut by a window's edge, as a share of the window."""
    at, short = np.linspace(0, 1, 2001), 0.1
    power = np.where((at >= begin) & (at < end), 1 / (end - begin), 0.0)
    for degree, kind in ((3, ProbeKind.THIRD), (4, ProbeKind.FOURTH)):
        coefficient = (2 * degree + 1) * np.trapezoid(power * Legendre.basis(degree, domain=[0, 1])(at), at)
        assert abs(coefficient * PHASES[kind](at)).max() * short < 0.01
