"""What executions tell of the errors of their stamps, in programs whose stamps are known to be good or bad."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks.unmixing import estimate
from benchmarks.unmixing_worlds import World
from laboratory.kinds import KIND_ROWS
from laboratory.rows import ROWS

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS, POWER_AVERAGE
from gpu_profile.history.timeline import Ints
from gpu_profile.join.unmixing.solving.equations import Equations
from gpu_profile.join.unmixing.solving.stamp_edges import HOST_NS, _positive
from gpu_profile.join.unmixing.solving.stamps import Stamps
from gpu_profile.join.unmixing.windows.activities import Activities, pieces
from gpu_profile.join.unmixing.windows.probes import Probe, ProbeKind

MS = 1_000_000
SLICE_NS = 500 * MS


def stamped(
    seed: int, order: str, *, late_ms: float, gap_ms: float, spread: float, regions: int = 5, tail: float = 0.0,
    typical_ms: tuple[float, float] = (2.0, 20.0),
) -> Stamps:  # fmt: skip
    """The stamps of executions of these lengths in 60 s. Each is exponentially late, and a share `tail` ten times as
    late."""
    rng = np.random.default_rng(seed)
    typical = rng.uniform(*typical_ms, regions) * MS
    n = 12_000 * round(20 / typical_ms[1])
    owner = {
        "random": rng.integers(regions, size=n),
        "fixed": np.arange(n) % regions,
        "shuffled": np.concatenate([rng.permutation(regions) for _ in range(n // regions)]),
    }[order]
    lengths = typical[owner[:n]] * (1 + rng.normal(0, spread, len(owner)))
    ends = np.cumsum(lengths + gap_ms * MS)
    starts = ends - lengths
    # No stamp is taken before the one before it.
    both = np.column_stack((starts, ends)).ravel()
    if late_ms:
        late_ns = rng.exponential(late_ms, len(both)) * MS
        both += late_ns * np.where(rng.random(len(both)) < tail, 10.0, 1.0)
    both = np.maximum.accumulate(both)
    starts, ends = both[::2].astype(np.int64), both[1::2].astype(np.int64)
    result = Stamps()
    for at in range(0, 60_000 * MS, SLICE_NS):
        inside = np.flatnonzero((ends > at) & (starts < at + SLICE_NS))
        _take(result, starts[inside], ends[inside], owner[inside] + 1, regions + 1, at)
    return result


def _take(stamps: Stamps, starts: Ints, ends: Ints, columns: Ints, count: int, at: int) -> None:
    cut = Activities(np.maximum(starts, at), np.minimum(ends, at + SLICE_NS), np.full(len(starts), -1), columns)
    found = pieces(cut)
    stamps.take(cut, found, columns[found.owners], count, (at, at + SLICE_NS))


def errors_ms(stamps: Stamps) -> tuple[float, float, float]:
    """The standard deviation of a stamp's error, at least, most likely and at most."""
    errors = stamps.errors(2, 100, 1e-8)
    least, likely, most = (float(np.sqrt(share * stamps.variance)) / MS for share in (errors.least, errors.likely, 1.0))
    return least, likely, most


@pytest.mark.parametrize("regions", [1, 2, 5])
@pytest.mark.parametrize("order", ["random", "fixed", "shuffled"])
@pytest.mark.parametrize("seed", range(4))
def test_exact_stamps_are_not_taken_for_late_ones(seed: int, order: str, regions: int) -> None:
    stamps = stamped(seed, order, late_ms=0.0, gap_ms=0.2, spread=0.2, regions=regions)
    assert stamps.variance > 0.0
    least, likely, _ = errors_ms(stamps)
    assert least == 0.0
    # Lengths vary by a fifth, 0.4-4 ms: of that, chance looks like errors of stamps of some tenths of a millisecond.
    assert likely < 0.5


@pytest.mark.parametrize("order", ["random", "fixed", "shuffled"])
@pytest.mark.parametrize("seed", range(4))
def test_late_stamps_are_seen(seed: int, order: str) -> None:
    stamps = stamped(seed, order, late_ms=1.0, gap_ms=4.0, spread=0.05)
    least, likely, most = errors_ms(stamps)
    assert 0.0 < least <= likely <= most <= HOST_NS / MS
    assert likely == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize("seed", range(4))
def test_the_bounds_hold_the_error(seed: int) -> None:
    stamps = stamped(seed, "random", late_ms=0.5, gap_ms=3.0, spread=0.1)
    least, _, most = errors_ms(stamps)
    assert least < 0.6
    assert most > 0.4


@pytest.mark.parametrize("seed", range(4))
def test_stamps_that_are_rarely_very_late_count_in_full(seed: int) -> None:
    """Weights by the variation within each slice of time would count exactly these for less."""
    stamps = stamped(seed, "fixed", late_ms=0.3, gap_ms=4.0, spread=0.01, regions=2, tail=0.02)
    # The variance is 0.98·2·0.3² + 0.02·2·3² - 0.354² ms², most of it from some 60 stamps.
    assert errors_ms(stamps)[1] == pytest.approx(0.64, rel=0.25)


@pytest.mark.parametrize("seed", range(4))
def test_stamps_that_are_later_than_the_next_executions_end_are_bounded_by_lengths(seed: int) -> None:
    """A stamp that is 5 ms late moves those of several executions of 0.3-1.2 ms, and the stretch after it is hardly
    shorter than usual."""
    short = stamped(seed, "fixed", late_ms=0.5, gap_ms=0.16, spread=0.05, tail=0.02, typical_ms=(0.3, 1.2))
    _, likely, most = errors_ms(short)
    # The stretches alone bound it by 0.4 ms, although most stamps are later by more than the exponential's 0.5 ms.
    assert most > 0.6
    assert likely > 0.4


@pytest.mark.parametrize("seed", range(4))
def test_stretches_between_the_executions_inside_another_one_are_no_executions(seed: int) -> None:
    """Their lengths follow from their place: the first and the last one within a request differ from the others, and
    each is always beside the same region. That is no error of stamps."""
    rng = np.random.default_rng(seed)
    requests, typical = 800, np.array([2.0, 6.0, 4.0]) * MS
    lengths = np.tile(typical, (requests, 1)) * rng.uniform(0.95, 1.05, (requests, 3))
    lengths *= np.where(rng.random(lengths.shape) < 0.01, 10.0, 1.0)
    # The time of a request before the first execution inside, between two of them, and after the last one.
    between = np.array([3.0, 0.2, 0.2, 1.0]) * MS * rng.uniform(0.95, 1.05, (requests, 4))
    inside = between[:, :3].cumsum(axis=1) + lengths.cumsum(axis=1)
    begins = np.concatenate(([0.0], (inside[:, -1] + between[:, -1]).cumsum()))
    ends = (begins[:-1, None] + inside).ravel()
    starts = (ends - lengths.ravel()).astype(np.int64)
    stamps = Stamps()
    around = np.repeat(np.arange(requests), 3)
    every = Activities(
        np.concatenate((begins[:-1].astype(np.int64), starts)),
        np.concatenate((begins[1:].astype(np.int64) - 50_000, ends.astype(np.int64))),
        np.concatenate((np.full(requests, -1), around)),
        np.concatenate((np.ones(requests, np.int64), np.tile([2, 3, 4], requests))),
    )
    for at in range(0, int(begins[-1]), SLICE_NS):
        cut = every.during(at, at + SLICE_NS)
        found = pieces(cut)
        stamps.take(cut, found, cut.columns[found.owners], 5, (at, at + SLICE_NS))
    least, likely, most = errors_ms(stamps)
    assert least == 0.0
    assert likely < 0.1
    assert most < 0.3


@pytest.mark.parametrize(("mean", "expected"), [(-20.0, 0.0), (0.0, math.sqrt(2 / math.pi)), (6.0, 6.0)])
def test_a_variance_that_cannot_be_negative_has_the_mean_of_its_positive_part(mean: float, expected: float) -> None:
    assert _positive(mean, 1.0) == pytest.approx(expected, abs=0.2)
    assert _positive(mean, 0.0) == max(0.0, mean)


def bounded(stamps: Stamps, lead: Signal, noise: float, n: int) -> None:
    """A family's windows of 100 ms: three columns whose shares vary by a tenth, rates 100 to 500 and such noise."""
    rng = np.random.default_rng(n)
    shares = np.abs(rng.normal(1 / 3, 0.1, (n, 3)))
    values = shares @ np.array([100.0, 300.0, 500.0]) + rng.normal(0, noise, n)
    equations = Equations()
    equations.add(shares, values[:, None], np.zeros((n, 0)))
    stamps.bound_by(lead, equations, 1 / (100 * MS))


def allowed(stamps: Stamps) -> float:
    """The largest variance of a stamp's error that the windows of all sensors allow, in ns²."""
    return stamps.errors(3, 1, 1 / (100 * MS)).allowed * stamps.variance


def test_the_steadiest_sensor_bounds_the_stamps_for_all() -> None:
    stamps = stamped(1, "random", late_ms=0.0, gap_ms=0.2, spread=0.3, regions=2)
    alone = stamps.variance
    bounded(stamps, ENERGY, noise=1000.0, n=500)
    assert allowed(stamps) == alone
    bounded(stamps, GRAPHICS, noise=0.2, n=500)
    bound = allowed(stamps)
    assert bound < 0.5 * alone
    # A noisy one says nothing against that; nor do a few windows more, or too few to say anything.
    bounded(stamps, ENERGY, noise=1000.0, n=800)
    bounded(stamps, GRAPHICS, noise=5.0, n=550)
    bounded(stamps, POWER_AVERAGE, noise=0.0, n=5)
    assert allowed(stamps) == bound


@pytest.mark.parametrize("seed", range(4))
def test_what_a_steady_sensor_leaves_holds_the_error_of_stamps_that_are_late(seed: int) -> None:
    """The shares of windows are measured by the stamps: what they miss by is in what is left."""
    rng = np.random.default_rng(seed)
    stamps = stamped(seed, "random", late_ms=0.3, gap_ms=0.2, spread=0.5, regions=2)
    n, late_ms = 2000, 0.3
    covariance = stamps.errors(3, n, 1 / (100 * MS)).most / stamps.variance / n * (late_ms * MS) ** 2
    true = np.abs(rng.normal(1 / 3, 0.1, (n, 3)))
    shares = true + rng.multivariate_normal(np.zeros(3), covariance, n)
    values = true @ np.array([100.0, 300.0, 500.0])
    equations = Equations()
    equations.add(shares, values[:, None], np.zeros((n, 0)))
    stamps.bound_by(GRAPHICS, equations, 1 / (100 * MS))
    assert math.sqrt(allowed(stamps)) > 0.9 * late_ms * MS


def test_few_windows_bound_the_stamps_if_each_rate_has_enough() -> None:
    """The bound is that of steady rates: how rates vary is no unknown of it."""
    stamps = stamped(1, "random", late_ms=0.0, gap_ms=0.2, spread=0.3, regions=2)
    alone = stamps.variance
    rng, probes = np.random.default_rng(0), [Probe(ProbeKind.SLOPE, 1), Probe(ProbeKind.BEND, 1)] * 10
    shares = np.abs(rng.normal(1 / 3, 0.1, (60, 3)))
    values = shares @ np.array([100.0, 300.0, 500.0]) + rng.normal(0, 0.2, 60)
    equations = Equations(probes, 3)
    equations.add(shares, values, rng.normal(0, 1, (60, 20)))
    stamps.bound_by(GRAPHICS, equations, 1 / (100 * MS))
    assert allowed(stamps) < 0.5 * alone


def test_a_sensor_that_several_timings_fit_does_not_bound_the_stamps() -> None:
    """In a loop that is locked to its sensor, a wrong timing leaves as little as the right one."""
    loop = next(row for row in ROWS if row.name == "1: loop of 50 ms, late stamps")
    assert [outcome for outcome in loop.outcomes(0) if outcome.confidently_wrong] == []


def test_short_regions_beside_short_ones_bound_the_errors_of_stamps() -> None:
    """Their neighbours on average vary more: by all of these together, the bound was 0.67 ms."""
    programs = [stamped(seed, "random", late_ms=0.0, gap_ms=0.2, spread=0.3, regions=6) for seed in range(4)]
    assert np.mean([errors_ms(program)[2] for program in programs]) < 0.6


def ending_late(late_ms: float, marked: int, *, evenly: bool = False) -> Stamps:
    """A region of 10 ms and then a pause of 5 ms, by turns for 15 s. Its ends are late by 0 or twice `late_ms`, or
    `evenly` by all times between these."""
    stamps, n = Stamps(), 1000
    starts = np.arange(n, dtype=np.int64) * 15 * MS
    late = np.random.default_rng(0).uniform(0, 2, n) if evenly else np.arange(n) // 2 % 2 * 2
    ends = starts + 10 * MS + (late * late_ms * MS).astype(np.int64)
    for at in range(0, 15_000 * MS, SLICE_NS):
        inside = np.flatnonzero((ends > at) & (starts < at + SLICE_NS))
        _take(stamps, starts[inside], ends[inside], np.ones(len(inside), np.int64), 2, at)
    stamps.counted, stamps.marked = n, marked
    return stamps


@pytest.mark.parametrize("late_ms", [0.1, 0.2, 0.4, 0.8])
def test_a_lateness_that_ends_share_moves_a_rate_no_further_than_its_bound(late_ms: float) -> None:
    errors = ending_late(late_ms, marked=0).errors(2, 100, 1e-8)
    true, outside, length = 500.0, 100.0, 10.0 + late_ms
    active = np.array([15.0 - length, length]) / 15.0
    measured = np.array([outside, (true * 10.0 + outside * late_ms) / length])
    moved = errors.moved(np.array([0.0, 1.0]), measured, active)
    # A pair of stretches that a slice of time cuts is not counted.
    assert 0.97 * (true - measured[1]) <= moved <= 2 * (true - measured[1])


@pytest.mark.parametrize("seed", range(4))
def test_stamps_that_are_rarely_very_late_have_little_of_it_in_common(seed: int) -> None:
    """They double the scatter. The mean of all stamps is late by 0.2 ms without them and by 0.24 ms with them."""
    without, rarely = (
        stamped(seed, "fixed", late_ms=0.2, gap_ms=4.0, spread=0.05, regions=2, tail=tail).errors(3, 100, 1e-8)
        for tail in (0.0, 0.02)
    )
    assert 0.24 / 0.2 < rarely.shared[1, 0] / without.shared[1, 0] < 1.6


@pytest.mark.parametrize("seed", range(4))
def test_pauses_as_short_as_a_host_needs_for_the_next_stamp_are_no_evidence_on_it(seed: int) -> None:
    """Executions of 8 ms without pauses, by turns. Ends are late by 0 to 0.8 ms, and the next start is soon after."""
    rng, n = np.random.default_rng(seed), 1500
    ends = np.cumsum(8 * MS * rng.uniform(0.95, 1.05, n)) + rng.uniform(0, 0.8, n) * MS
    starts = np.concatenate(([0.0], ends[:-1])) + rng.uniform(10e3, 30e3, n)
    columns, stamps = np.arange(n) % 2 + 1, Stamps()
    for at in range(0, int(ends[-1]), SLICE_NS):
        inside = np.flatnonzero((ends > at) & (starts < at + SLICE_NS))
        _take(stamps, starts[inside].astype(np.int64), ends[inside].astype(np.int64), columns[inside], 3, at)
    assert stamps.errors(3, 100, 1e-8).shared[1, 0] * stamps.elapsed_ns / (n / 2) / MS > 0.3


def test_stamps_of_two_streams_show_their_errors_although_executions_overlap() -> None:
    """Executions of 2-20 ms and pauses of 4 ms on average, exponential, beside each other for 60 s. Ends that are late
    by 0 to 0.8 ms are late by 0.4 ms on average."""
    exact_ms, late_ms = ([_late_in_two_streams(seed, late_ms) for seed in range(4)] for late_ms in (0.0, 0.4))
    # Only by stamps at pauses between two consecutive executions, it was 0.68 ms.
    assert np.mean(exact_ms) < 0.6
    assert min(late_ms) > 0.4


def _late_in_two_streams(seed: int, late_ms: float) -> float:
    """The mean over the regions of the lateness that the stamps allow, in ms."""
    rng, parts = np.random.default_rng(seed), []
    for stream in range(2):
        owner = rng.integers(3, size=6000)
        lengths = np.array([3.0, 8.0, 15.0])[owner] * MS * rng.uniform(0.5, 1.5, 6000)
        ends = np.cumsum(lengths + rng.exponential(4.0, 6000) * MS)
        both = np.column_stack((ends - lengths, ends + rng.uniform(0, 2 * late_ms, 6000) * MS)).astype(np.int64)
        # No stamp of a stream is taken before the one before it.
        both = np.maximum.accumulate(both.ravel()).reshape(-1, 2)
        parts.append(np.column_stack((both, owner + 1 + 3 * stream)))
    every, stamps = np.concatenate(parts), Stamps()
    starts, ends, columns = every[every[:, 0].argsort(kind="stable")].T
    for at in range(0, 60_000 * MS, SLICE_NS):
        inside = np.flatnonzero((ends > at) & (starts < at + SLICE_NS))
        _take(stamps, starts[inside], ends[inside], columns[inside], 7, at)
    return float(np.sqrt(3 * stamps._edges.scatter(7, math.inf, 0.0)[1:]).mean()) / MS


@pytest.mark.parametrize("seed", range(4))
def test_a_region_whose_ends_scatter_more_has_a_wider_bound(seed: int) -> None:
    """Executions of 8 ms of two regions by turns. Ends are late by 0 to 0.1 ms and by 0 to 0.8 ms: 0.05 and 0.4 ms too
    long on average."""
    rng, n = np.random.default_rng(seed), 1500
    lengths, columns = 8 * MS * rng.uniform(0.98, 1.02, n), np.arange(n) % 2 + 1
    exact = np.cumsum(rng.uniform(2, 4, n) * MS + lengths)
    starts = (exact - lengths).astype(np.int64)
    ends = (exact + rng.uniform(0, 1, n) * np.array([0.1, 0.8])[columns - 1] * MS).astype(np.int64)
    stamps = Stamps()
    for at in range(0, int(ends[-1]), SLICE_NS):
        inside = np.flatnonzero((ends > at) & (starts < at + SLICE_NS))
        _take(stamps, starts[inside], ends[inside], columns[inside], 3, at)
    # By how much executions may be too long, in ms. A slice of time of half a second has 22 of each region.
    steady, scattered = stamps.errors(3, 100, 1e-8).shared[1:, 0] * stamps.elapsed_ns / (n / 2) / MS
    assert 0.04 < steady < 0.15
    assert 0.38 < scattered < 0.5


def test_windows_bound_the_lateness_of_ends_also_if_starts_are_exact() -> None:
    """What the windows leave is the mean of the variances at starts and ends: here half of the ends' own."""
    stamps, n, late_ms = ending_late(0.4, marked=0, evenly=True), 2000, 0.4
    rng, rates = np.random.default_rng(1), np.array([100.0, 500.0])
    mean_ns2 = (2 * late_ms * MS) ** 2 / 12 / 2
    covariance = stamps.errors(2, n, 1 / (100 * MS)).most / stamps.variance / n * mean_ns2
    inside = rng.normal(2 / 3, 0.1, n)
    true = np.stack((1 - inside, inside), axis=1)
    equations = Equations()
    equations.add(true + rng.multivariate_normal(np.zeros(2), covariance, n, method="eigh"), true @ rates)
    stamps.bound_by(GRAPHICS, equations, 1 / (100 * MS))
    errors = stamps.errors(2, 100, 1e-8)
    # The share of all time by which the region's executions are too long. Slices of time cut a few stretches.
    assert 0.97 * late_ms / 15 <= errors.shared[1, 0] <= 1.1 * late_ms / 15


def test_only_stamps_between_work_and_a_pause_move_power_outside_into_a_region() -> None:
    """A region of 10 ms begins and ends while another one runs, every 20 ms."""
    stamps, starts = Stamps(), np.arange(1000, dtype=np.int64) * 20 * MS
    around, inside = (starts, starts + 16 * MS), (starts + 3 * MS, starts + 13 * MS)
    late = np.random.default_rng(0).uniform(0, 0.2 * MS, (2, 1000)).astype(np.int64)
    (a, b), (c, d) = (around[0], around[1] + late[0]), (inside[0], inside[1] + late[1])
    for at in range(0, 20_000 * MS, SLICE_NS):
        here = (a >= at) & (a < at + SLICE_NS)
        columns = np.repeat([1, 2], here.sum())
        _take(stamps, np.concatenate((a[here], c[here])), np.concatenate((b[here], d[here])), columns, 3, at)
    errors = stamps.errors(3, 100, 1e-8)
    assert errors.shared[0, 1] > 0
    assert errors.shared[2].max() == 0
    # A pause has two stamps, of which a slice of time cuts one in 50.
    assert errors.overlapping[2] == pytest.approx([0, errors.shared[0, 1] / 2, 0], rel=0.05)
    assert (errors.overlapping == errors.overlapping.T).all()


@pytest.mark.parametrize("weights", [(0.3, 0.7), (1.0, 0.0)])
def test_a_mixture_of_all_columns_and_time_outside_regions_do_not_move(weights: tuple[float, float]) -> None:
    errors = ending_late(1.0, marked=0).errors(2, 100, 1e-8)
    assert errors.moved(np.array(weights), np.array([100.0, 500.0]), np.array([0.3, 0.7])) == 0.0


def test_executions_as_short_as_the_lateness_have_no_bound() -> None:
    errors = ending_late(1.0, marked=0).errors(2, 100, 1e-8)
    assert errors.moved(np.array([0.0, 1.0]), np.array([100.0, 500.0]), np.array([0.98, 0.02])) == math.inf


def test_stamps_of_the_device_share_no_lateness() -> None:
    errors = ending_late(1.0, marked=1000).errors(2, 100, 1e-8)
    assert errors.moved(np.array([0.0, 1.0]), np.array([100.0, 500.0]), np.array([0.3, 0.7])) == 0.0


def test_intervals_cover_what_stamps_that_are_late_by_region_hide() -> None:
    """With a lateness of 0.4 ms at most, 4 of 6 powers were outside their intervals."""
    row = next(row for row in KIND_ROWS if row.name == "kind: stamps late by region and load")
    outcomes = [outcome for outcome in row.outcomes(10) if outcome.answer.value is not None]
    assert len([outcome for outcome in outcomes if outcome.quantity == "power"]) >= 6
    assert [outcome for outcome in outcomes if outcome.half_widths is not None and outcome.half_widths > 1] == []


def test_stamps_that_are_late_by_region_leave_no_confident_error() -> None:
    row = next(row for row in KIND_ROWS if row.name == "kind: stamps late by region and load")
    assert [outcome for outcome in row.outcomes(0) if outcome.confidently_wrong] == []


def test_windows_bound_the_errors_of_stamps_also_while_several_timings_fit() -> None:
    """The scatter of 0.45 ms that the stamps allow refused a region of 2.2 ms."""
    shortest = estimate(World(2, signal=ENERGY)).regions[4]
    assert shortest.reason == ""
    assert shortest.covers_all_gpus
