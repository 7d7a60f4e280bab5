"""The regimes of regions over time: each period by its own windows."""

import numpy as np
import pytest
from support.analysis import RATES, T0, Run

from gpu_profile.analysis import Analysis, analyse
from gpu_profile.analysis.views.data import of_analysis
from gpu_profile.analysis.views.page import render_page
from gpu_profile.analysis.views.text import happened, render
from gpu_profile.join.unmixing.pools.period_sums import PeriodSums
from gpu_profile.join.unmixing.solving.unmix import LOCK_STEP
from gpu_profile.regimes import Regime

CALLS, CHANGED = 300, 150


class ChangedRun(Run):
    """A run whose `forward` gets other rates, those of `streaming`, after half of its calls."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.streaming_ns = self.spans[3 * CHANGED].start_ns
        at = T0
        for i, (name, length) in enumerate(self.stretches):
            if name == "forward" and at >= self.streaming_ns:
                self.stretches[i] = "streaming", length
            at += length


@pytest.fixture(scope="module")
def changed() -> tuple[ChangedRun, Analysis]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RATES, "streaming", (0.98, 0.95, 0.1, 0.75, 400.0))
        run = ChangedRun(calls=CALLS)
        return run, analyse(run.recording())


def test_a_change_of_one_regions_work_is_dated_within_ten_seconds(changed: tuple[ChangedRun, Analysis]) -> None:
    run, analysis = changed
    (found,) = [each for each in analysis.changes if each.region == "forward"]
    assert (found.change.before, found.change.after) == (Regime.COMPUTE_BOUND, Regime.MEMORY_BOUND)
    assert abs(found.change.t_ns - run.streaming_ns) <= 10e9
    assert "load" not in {each.region for each in analysis.changes}


def test_work_that_does_not_change_has_no_changes() -> None:
    assert analyse(Run(calls=CALLS).recording()).changes == ()


def test_every_view_has_the_changes(changed: tuple[ChangedRun, Analysis]) -> None:
    _, analysis = changed
    (line,) = [line for line in happened(analysis) if line.startswith("forward")]
    assert line.startswith("forward on device 0: COMPUTE_BOUND until 00:0")
    assert line.endswith(" s), then MEMORY_BOUND")
    assert line in render(analysis)
    assert line in render_page(analysis, title="x")
    data = of_analysis(analysis)
    assert isinstance(data, dict)
    (row,) = [row for row in data["changes"] if row["region"] == "forward"]
    assert (row["before"], row["after"], row["device"], row["parts"]) == ("COMPUTE_BOUND", "MEMORY_BOUND", "GPU-a", [])
    assert 0.6 <= row["confidence"] <= 1
    assert row["rule"]


# ---------------------------------------------------------------------- the equations of a period


def test_a_periods_rates_are_those_of_least_squares_with_their_interval() -> None:
    rng = np.random.default_rng(3)
    errors = []
    for _ in range(200):
        shares = rng.dirichlet((1, 1, 1), 90)
        sums = PeriodSums()
        for part in np.array_split(np.arange(90), 3):
            sums.add(shares[part], shares[part] @ [[0.0, 5.0], [0.5, 7.0], [0.9, 1.0]] + rng.normal(0, 0.02, (30, 2)))
        first, second = sums.rates(np.array([0.0, 0.5, 0.5]), 10.0)
        assert not first.reason
        assert not second.reason
        errors += [(first.value - 0.7) / first.half_width, (second.value - 4.0) / second.half_width]
    assert 0.9 <= np.mean(np.abs(errors) <= 1) <= 0.99


def test_regions_in_lock_step_have_a_rate_together_and_none_alone() -> None:
    sums = PeriodSums()
    busy = np.linspace(0.2, 1.0, 50)
    sums.add(np.stack([1 - busy, busy / 2, busy / 2], axis=1), busy[:, None] * 0.8)
    (alone,) = sums.rates(np.array([0.0, 1.0, 0.0]), 1.0)
    assert alone.reason == LOCK_STEP
    (together,) = sums.rates(np.array([0.0, 0.5, 0.5]), 1.0)
    assert together.reason == ""
    assert together.value == pytest.approx(0.8)


def test_a_column_in_no_window_and_too_few_windows_give_no_rate() -> None:
    sums = PeriodSums()
    sums.add(np.ones((3, 1)), np.ones((3, 1)))
    assert sums.rates(np.array([1.0]), 1.0)[0].reason == "too few samples (3)"
    sums.add(np.ones((3, 1)), np.ones((3, 1)))
    assert sums.rates(np.array([1.0]), 1.0)[0].reason == ""
    assert sums.rates(np.array([0.5, 0.5]), 1.0)[0].reason == LOCK_STEP


def test_a_small_share_has_a_rate_where_its_interval_is_small_beside_the_thresholds() -> None:
    sums, rng = PeriodSums(), np.random.default_rng(5)
    sums.add(np.ones((90, 1)), rng.choice([0.0, 0.8], (90, 1), p=[0.8, 0.2]))
    (busy,) = sums.rates(np.ones(1), 1.0)
    assert busy.half_width > 0.25 * busy.value
    assert busy.reason == ""
