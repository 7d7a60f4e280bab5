"""An hour of a region on a simulated clock, over a history of a minute: what it is told, and what is kept."""

import gc
import sys

import pytest
from benchmarks.long_run_worlds import Day, run

from gpu_profile.catalogue.signals import ENERGY, UTILIZATION

HZ, RETENTION_S, SECONDS = 10, 60.0, 3600


@pytest.fixture(scope="module")
def measured() -> tuple[Day, list[int]]:
    """An hour at 10 Hz with 60 s of history, and the interpreter's memory blocks after every ten minutes."""
    held: list[int] = []

    def note() -> None:
        gc.collect()
        held.append(sys.getallocatedblocks())

    day = run(SECONDS, hz=HZ, settle_s=20, retention_s=RETENTION_S, note=note, note_s=600)
    return day, held


def test_a_region_that_outlives_the_history_is_told_as_if_all_of_it_were_there(measured: tuple[Day, list[int]]) -> None:
    day, _ = measured
    assert day.busy.coverage == pytest.approx(1.0, abs=1e-3)
    assert day.errors() == {
        "energy": pytest.approx(0, abs=1e-5),
        "mean power": pytest.approx(0, abs=1e-4),
        "busy time": pytest.approx(0, abs=1e-9),
        "p50": pytest.approx(0, abs=0.01),
        "p95": pytest.approx(0, abs=0.01),
        "highest": pytest.approx(0, abs=1e-9),
        "peak memory": pytest.approx(0, abs=1e-9),
    }


def test_only_the_retention_is_kept_of_the_rows(measured: tuple[Day, list[int]]) -> None:
    day, _ = measured
    for signal in (UTILIZATION, ENERGY):
        column = day.timeline.columns[signal]
        assert RETENTION_S * HZ <= len(column) <= 4 * RETENTION_S * HZ


def test_memory_does_not_grow_once_the_history_is_full(measured: tuple[Day, list[int]]) -> None:
    _, held = measured
    assert len(held) == 6
    assert max(held[2:]) - held[1] < 1_000


def test_short_regions_beside_the_long_one_are_counted_and_rated_throughout(measured: tuple[Day, list[int]]) -> None:
    day, _ = measured
    short, long = day.regions["short"].summary, day.regions["long"].summary
    assert short.durations.calls == SECONDS // 10
    assert long.power_w == pytest.approx(day.truth["mean power"], rel=0.01)
    shares = [summary.energy_j for summary in (short, long)]
    assert None not in shares
    assert sum(share or 0 for share in shares) == pytest.approx(day.truth["energy"], rel=1e-3)
