"""The model of the simulation study: idle power, regions of 2-20 ms in random order, 100 ms windows, 60 s, seeded."""

import math
import re
from typing import Any, NamedTuple

import numpy as np
import pytest

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.unmixing.solving.equations import Equations
from gpu_profile.join.unmixing.solving.rate import Z95, Rate, biased, not_yet
from gpu_profile.join.unmixing.solving.stamps import StampErrors
from gpu_profile.join.unmixing.solving.unmix import LOCK_STEP, ROUNDED, Fit
from gpu_profile.join.unmixing.windows.probes import Probe, ProbeKind

WINDOW_MS = 100.0
K = 6
SEEDS = range(12)


def solve(equations: Equations, output: int = 0, **options: Any) -> list[Rate]:
    fit = Fit(equations, output, **options)
    return [fit.rate(column) for column in np.eye(equations.columns)]


def of(shares: Floats, values: Floats) -> Equations:
    equations = Equations()
    equations.add(shares, values)
    return equations


class Experiment(NamedTuple):
    shares: Floats
    values: Floats
    truth: Floats

    def solve(self) -> list[Rate]:
        return solve(of(self.shares, self.values))

    def overlap_means(self) -> Floats:
        """What an exact time-weighted join answers: every window's value, weighed by its overlap with the region."""
        return np.asarray(self.shares.T @ self.values / self.shares.sum(axis=0), np.float64)


def shares_of(starts: Floats, ends: Floats, owners: Ints, n: int) -> Floats:
    """The share of each of `n` windows in which each column was active; column 0 is nobody."""
    edges = np.arange(n + 1) * WINDOW_MS
    shares = np.zeros((n, K + 1))
    for k in range(K):
        mine = owners == k
        times = np.column_stack([starts[mine], ends[mine]]).ravel()
        active = np.column_stack([np.zeros(mine.sum()), (ends - starts)[mine]]).ravel().cumsum()
        shares[:, k + 1] = np.diff(np.interp(edges, times, active)) / WINDOW_MS
    shares[:, 0] = 1.0 - shares[:, 1:].sum(axis=1)
    return shares


def experiment(seed: int, *, seconds: float = 60, spread: float = 0.05, noise_w: float = 3.0) -> Experiment:
    rng = np.random.default_rng(seed)
    truth = np.concatenate(([90.0], rng.uniform(120, 650, K)))
    typical = np.exp(rng.uniform(np.log(2), np.log(20), K))
    count = int(seconds * 1000 / (typical.mean() + 1) * 1.2)
    owners = rng.integers(K, size=count)
    lengths = typical[owners] * rng.uniform(0.5, 1.5, count)
    ends = np.cumsum(lengths + rng.uniform(0, 2, count))
    n = int(min(seconds * 1000, ends[-1]) / WINDOW_MS)
    shares = shares_of(ends - lengths, ends, owners, n)
    # Every execution draws a little more or less; over the tens of them in a window that is part of the noise.
    drawn = np.sqrt((shares[:, 1:] * WINDOW_MS * typical) @ (truth[1:] * spread) ** 2) / WINDOW_MS
    values = shares @ truth + rng.normal(0, 1, n) * np.hypot(noise_w, drawn)
    return Experiment(shares, np.round(values), truth)


def errors(rates: Floats, truth: Floats) -> float:
    return float(np.mean(np.abs(rates - truth) / truth))


@pytest.fixture
def equations() -> Equations:
    return Equations()


def test_rates_of_regions_far_shorter_than_the_window_come_back_while_the_overlap_mean_is_tens_of_percent_off() -> None:
    unmixed, overlap = [], []
    for seed in SEEDS:
        trial = experiment(seed)
        rates = np.array([rate.value for rate in trial.solve()])
        unmixed.append(errors(rates[1:], trial.truth[1:]))
        overlap.append(errors(trial.overlap_means()[1:], trial.truth[1:]))
    assert np.median(unmixed) < 0.02
    assert max(unmixed) < 0.05
    assert np.median(overlap) > 0.2
    assert np.median(overlap) > 10 * np.median(unmixed)


def test_more_time_brings_the_unmixed_rates_nearer_and_leaves_the_overlap_mean_where_it_was() -> None:
    short, long = ([experiment(seed, seconds=s) for seed in range(4)] for s in (20, 320))

    def mean_error(trials: list[Experiment]) -> float:
        return float(np.mean([errors(np.array([r.value for r in t.solve()])[1:], t.truth[1:]) for t in trials]))

    assert mean_error(long) < 0.5 * mean_error(short)
    stays = [errors(t.overlap_means()[1:], t.truth[1:]) for t in long]
    assert min(stays) > 0.1


def test_95_percent_intervals_hold_the_truth_in_at_least_nine_runs_of_ten() -> None:
    inside = []
    for seed in range(40):
        trial = experiment(seed, seconds=30)
        inside += [
            abs(rate.value - true) <= rate.half_width for rate, true in zip(trial.solve(), trial.truth, strict=True)
        ]
    assert np.mean(inside) > 0.9


def locked(jitter: float, seed: int = 3) -> Experiment:
    """A loop of 50 ms under a window of 100 ms: six regions in fixed order, each as long as always but for `jitter`."""
    rng = np.random.default_rng(seed)
    truth = np.array([90.0, 600, 150, 400, 250, 500, 120])
    typical = np.array([4.0, 9, 6, 12, 8, 7])
    rounds = 1200
    lengths = np.tile(typical, rounds) * (1 + jitter * rng.uniform(-1, 1, K * rounds))
    pauses = np.tile([0.0, 0, 0, 0, 0, 50.0 - typical.sum()], rounds)
    ends = np.cumsum(lengths + pauses) - pauses
    shares = shares_of(ends - lengths, ends, np.tile(np.arange(K), rounds), int(ends[-1] / WINDOW_MS))
    return Experiment(shares, shares @ truth + rng.normal(0, 3, len(shares)), truth)


def test_a_loop_in_lock_step_with_the_window_is_not_identifiable_and_gives_no_number() -> None:
    rates = locked(jitter=0.0).solve()
    assert all("lock-step" in rate.reason for rate in rates)


def test_the_same_loop_with_jitter_is_identifiable_within_its_intervals() -> None:
    trial = locked(jitter=0.3)
    rates = trial.solve()
    assert [rate.reason for rate in rates] == [""] * (K + 1)
    assert all(abs(r.value - t) < 2 * r.half_width for r, t in zip(rates, trial.truth, strict=True))


@pytest.mark.parametrize("jitter", [0.0, 0.0001, 0.001, 0.01, 0.1])
def test_near_lock_step_no_number_without_a_reason_is_far_off(jitter: float) -> None:
    trial = locked(jitter)
    for rate, true in zip(trial.solve(), trial.truth, strict=True):
        assert rate.reason or abs(rate.value - true) < 3 * rate.half_width


# ---------------------------------------------------------------------- streaming


def test_windows_that_come_in_pieces_weigh_the_same_as_all_at_once() -> None:
    trial = experiment(0, seconds=20)
    pieces = Equations()
    for part in np.array_split(np.arange(len(trial.values)), 17):
        pieces.add(trial.shares[part], trial.values[part])
    for a, b in zip(solve(pieces), trial.solve(), strict=True):
        assert (a.value, a.half_width) == pytest.approx((b.value, b.half_width))
        assert a.n == b.n


def test_a_region_that_appears_later_joins_the_equations(equations: Equations) -> None:
    rng = np.random.default_rng(0)
    early = rng.uniform(0, 1, 50)
    equations.add(np.column_stack([1 - early, early]), 100 * (1 - early) + 300 * early)
    late = rng.dirichlet([1, 1, 1], 50)
    equations.add(late, late @ [100, 300, 500])
    assert [rate.value for rate in solve(equations)] == [pytest.approx(v) for v in (100, 300, 500)]
    assert [rate.n for rate in solve(equations)] == [100, 100, 50]


def test_a_rate_is_the_same_when_asked_for_again_and_a_mixture_of_nothing_has_none(equations: Equations) -> None:
    shares = np.random.default_rng(0).dirichlet([1, 1], 100)
    equations.add(shares, shares @ [100, 300])
    fit = Fit(equations)
    assert fit.rate(np.array([0.0, 1.0])) == fit.rate(np.array([0.0, 1.0])) == Fit(equations).rate(np.array([0.0, 1.0]))
    assert fit.rate(np.zeros(2)).reason


def test_signals_that_share_their_windows_are_solved_side_by_side(equations: Equations) -> None:
    rng = np.random.default_rng(0)
    shares = rng.dirichlet([1, 1], 100)
    equations.add(shares, np.column_stack([shares @ [1, 2], shares @ [30, 0]]))
    assert [rate.value for rate in solve(equations, 0)] == [pytest.approx(1), pytest.approx(2)]
    assert [rate.value for rate in solve(equations, 1)] == [pytest.approx(30), pytest.approx(0, abs=1e-9)]


def test_ratios_end_at_their_bound() -> None:
    rng = np.random.default_rng(0)
    shares = rng.dirichlet([1, 1], 200)
    equations = of(shares, np.minimum(1, shares @ [0.0, 1.0] + rng.normal(0, 0.05, 200)))
    assert all(0 <= rate.value <= 1 for rate in solve(equations, most=1.0))


# ---------------------------------------------------------------------- nothing to go by


def test_without_windows_there_is_no_rate_but_a_reason() -> None:
    assert [rate.reason for rate in solve(Equations())] == ["no samples yet"]


def test_an_empty_slice_of_windows_changes_nothing(equations: Equations) -> None:
    equations.add(np.zeros((0, 2)), np.zeros(0))
    assert equations.n == 0
    equations.add(np.eye(2)[[0, 1] * 10], np.array([3.0, 5.0] * 10))
    equations.add(np.zeros((0, 2)), np.zeros((0, 1)))
    assert [rate.value for rate in solve(equations)] == [pytest.approx(3), pytest.approx(5)]


def test_the_rate_of_time_outside_regions_is_its_mean_over_pauses_of_all_lengths() -> None:
    rng = np.random.default_rng(0)
    outside, log = rng.uniform(0.1, 0.9, 400), rng.uniform(0, 5, 400)
    shares = np.column_stack([outside, 1 - outside])
    equations = Equations((Probe(ProbeKind.GAP, 0),))
    drawn = 60 + 20 * log
    equations.add(shares, shares[:, 0] * drawn + shares[:, 1] * 300 + rng.normal(0, 1, 400), (outside * log)[:, None])
    rate = Fit(equations).rate(np.array([1.0, 0.0]))
    assert rate.reason == ""
    assert rate.value == pytest.approx(np.average(drawn, weights=outside), rel=0.01)


def test_a_handful_of_windows_is_too_few(equations: Equations) -> None:
    equations.add(np.array([[0.0, 1.0], [0.5, 0.5], [0.2, 0.8]]), np.array([1.0, 2.0, 3.0]))
    assert all(rate.reason.startswith("too few samples") for rate in solve(equations))


def test_a_region_that_was_hardly_met_is_too_rare_even_among_many_windows(equations: Equations) -> None:
    shares = np.zeros((100, 2))
    shares[:, 0] = 1
    shares[:3] = [0.8, 0.2]
    equations.add(shares, shares @ [100, 300])
    assert solve(equations)[1].reason == "too few samples (3)"


def test_a_region_that_never_ran_has_no_rate(equations: Equations) -> None:
    shares = np.random.default_rng(0).dirichlet([1, 1], 50)
    equations.add(np.column_stack([shares, np.zeros(50)]), shares @ [1, 2])
    known, _, never = solve(equations)
    assert not known.reason
    assert never.reason == "too few samples (0)"
    assert never.half_width == float("inf")


def test_noise_that_hides_a_rate_leaves_it_not_identifiable_yet(equations: Equations) -> None:
    rng = np.random.default_rng(0)
    shares = np.column_stack([1 - (rare := rng.uniform(0, 0.02, 100)), rare])
    equations.add(shares, shares @ [100, 300] + rng.normal(0, 30, 100))
    assert re.fullmatch(r"not identifiable yet: ±\S+ around \S+", solve(equations)[1].reason)


#: Seeds whose hundred windows give the rate already, or are too few to name a length.
WITHOUT_LENGTH = {16}


@pytest.mark.parametrize("seed", range(20))
def test_a_refusal_names_the_order_of_the_length_that_gives_the_rate(equations: Equations, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def run(windows: int) -> str:
        rare = rng.uniform(0, 0.2, windows)
        shares = np.column_stack([1 - rare, rare])
        equations.add(shares, shares @ [100, 300] + rng.normal(0, 100, windows))
        return solve(equations)[1].reason

    reason, needed = run(100), 1
    longer = re.search(r"^not identifiable yet: .*; a run (a few|of the order of (10|100)) times as long", reason)
    if longer is None:  # by chance of a hundred windows
        assert seed in WITHOUT_LENGTH
        return
    while run(100):
        needed += 1
    predicted = int(longer[2] or 3)
    assert predicted / 10 <= needed + 1 <= predicted * 10


@pytest.mark.parametrize(
    ("noise", "half_width", "ends"),
    [
        (0.15, 0.15, "; a run a few times as long is needed"),
        (0.30, 0.30, "; a run of the order of 10 times as long is needed"),
        (0.30, 0.38, "; a run of the order of 100 times as long is needed"),
        (0.30, 0.58, "±0.58 around 1"),  # the rest alone is too wide
        (3.0, 3.0, "±3 around 1"),
    ],
)
def test_only_the_noise_averages_out(noise: float, half_width: float, ends: str) -> None:
    assert not_yet(1.0, half_width, noise, 0.125).endswith(ends)


def test_one_region_that_never_stops_needs_no_rest(equations: Equations) -> None:
    equations.add(np.column_stack([np.zeros(50), np.ones(50)]), np.full(50, 7.0) + np.tile([-1, 1], 25))
    rest, region = solve(equations)
    assert rest.reason
    assert not region.reason
    assert region.value == pytest.approx(7)


def test_another_timing_that_fits_widens_every_interval_by_what_it_would_change() -> None:
    trial = experiment(1)
    equations = of(trial.shares, trial.values)
    moved = np.linspace(-20.0, 20.0, K + 1)
    sure = solve(equations)
    other = np.array([rate.value for rate in sure]) + moved
    for one, doubtful, moves in zip(sure, solve(equations, others=[np.array([other, other])]), moved, strict=True):
        assert doubtful.half_width == pytest.approx(one.half_width + abs(moves), abs=1e-6)
        assert one.value == doubtful.value


def test_windows_that_repeat_each_other_widen_every_interval_as_if_they_were_fewer() -> None:
    trial = experiment(1)
    equations = of(trial.shares, trial.values)
    once, repeated = Fit(equations), Fit(equations, effect=4.0)
    for column in np.eye(K + 1):
        assert repeated.rate(column).half_width > 1.5 * once.rate(column).half_width


def test_rates_that_another_timing_moves_against_each_other_are_sure_together() -> None:
    trial = experiment(1)
    equations = of(trial.shares, trial.values)
    other = np.array([rate.value for rate in solve(equations)])
    other += [0.0, 30.0, -30.0, 0, 0, 0, 0]
    both = np.array([0.0, 0.5, 0.5, 0, 0, 0, 0])
    doubtful, sure = Fit(equations, others=[np.array([other, other])]).rate(both), Fit(equations).rate(both)
    assert doubtful.half_width == pytest.approx(sure.half_width, abs=1e-6)


def test_what_windows_have_in_common_with_their_neighbours_widens_the_intervals() -> None:
    trial = experiment(1, seconds=120)
    # For 6 s at a time the device draws more or less than usual.
    drift = np.repeat(np.random.default_rng(0).normal(0, 30, len(trial.values) // 60 + 1), 60)[: len(trial.values)]

    def together(values: Floats) -> list[Rate]:
        equations = Equations()
        whole = of(trial.shares, values)
        equations.refer(Fit(whole).solution[:, None], whole.seen)
        equations.add(trial.shares, values)
        return solve(equations)

    steady, slow = together(trial.values), together(trial.values + drift)
    assert np.mean([r.half_width for r in slow]) > 2 * np.mean([r.half_width for r in steady])


def test_shares_that_may_be_nothing_but_errors_of_stamps_give_no_number() -> None:
    trial = locked(jitter=0.01)
    steady = trial.shares.mean(axis=0)
    errors = (trial.shares - steady).T @ (trial.shares - steady)
    # What the device drew never varied: so all regions draw the same, or their shares did not vary either.
    values = np.full(len(trial.values), steady @ trial.truth)
    assert not any(rate.reason for rate in solve(of(trial.shares, values)))
    assert all(rate.reason == LOCK_STEP for rate in solve(of(trial.shares, values), errors=StampErrors(errors))[1:])


def test_an_interval_covers_a_value_whose_stamps_are_late_by_the_bound_without_adding_it_to_all_chance() -> None:
    trial = experiment(0)
    equations, shared = of(trial.shares, trial.values), np.zeros((len(trial.truth),) * 2)
    shared[1, 0] = shared[0, 1] = 0.0005
    late = StampErrors(np.zeros_like(shared), shared=shared, overlapping=np.zeros_like(shared))
    alone, both = Fit(equations), Fit(equations, errors=late)
    weights = np.eye(len(shared))[1]
    half_width, moved = alone.rate(weights).half_width, late.moved(weights, both.rates, equations.total / equations.n)
    assert moved > 0
    assert both.rate(weights).half_width == biased(half_width, moved)


@pytest.mark.parametrize("bias", [0.0, 0.1, 0.25, 0.5, 1.0, 3.0])
def test_an_interval_with_a_bias_covers_95_percent_under_the_worst_bias(bias: float) -> None:
    half_width = biased(1.0, bias)

    def below(value: float) -> float:
        return (1 + math.erf(value * Z95 / math.sqrt(2))) / 2

    assert below(half_width - bias) - below(-half_width - bias) == pytest.approx(0.95, abs=0.006)


def test_a_mixture_with_a_column_that_no_window_had_is_not_told_by_those_that_were_seen() -> None:
    shares, values = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([380.0, 380.0])
    mixture = np.array([0.75, 0.25])
    assert Fit(of(shares, values)).rate(mixture).reason
    # With a highest possible rate there are bounds, and they hold it.
    bounded = Fit(of(shares, values), most=400.0).rate(mixture)
    assert bounded.reason or abs(bounded.value - (0.75 * 380 + 0.25 * 400)) <= bounded.half_width + 1e-9
    assert bounded.reason or abs(bounded.value - 0.75 * 380) <= bounded.half_width + 1e-9


@pytest.mark.parametrize("most", [1050.0, math.inf])
def test_what_overlaps_for_nanoseconds_leaves_nothing_else_open(most: float) -> None:
    """Marks are rounded: two regions that follow each other overlap for a millionth of their time, in which no window
    says what is drawn."""
    trial = experiment(1)
    overlaps = np.zeros((len(trial.shares), 2))
    overlaps[::40, 0], overlaps[::40, 1] = 2e-6, 1e-6
    overlaps[40, 1] = 3e-6
    shares = np.column_stack((trial.shares, overlaps))
    fit, plain = Fit(of(shares, trial.values), most=most), Fit(of(trial.shares, trial.values), most=most)
    for column in range(1, K + 1):
        weights = np.zeros(K + 3)
        weights[column], weights[-2:] = 1 - 1e-6, 5e-7
        found, alone = fit.rate(weights), plain.rate(np.eye(K + 1)[column])
        assert not found.reason
        assert found.value == pytest.approx(alone.value, rel=0.01)
        assert found.half_width == pytest.approx(alone.half_width, rel=0.1)
    assert all(fit.rate(column).reason for column in np.eye(K + 3)[-2:])


def test_a_mixture_that_every_window_has_is_told_with_its_least_part() -> None:
    """Only as a whole: without it, nothing says that it is not the least part that draws all."""
    weights = np.array([1 - 3e-10, 3e-10])
    values = 500 + np.random.default_rng(1).normal(0, 1e-3, 40)
    assert Fit(of(np.tile(weights, (40, 1)), values)).rate(weights).value == pytest.approx(500, abs=0.01)
    assert not Fit(of(np.tile(weights, (40, 1)), values)).rate(weights).reason


@pytest.mark.parametrize("most", [1050.0, math.inf])
def test_only_a_millionth_that_no_window_had_leaves_nothing_open(most: float) -> None:
    trial = experiment(1)
    shares = np.column_stack((trial.shares, np.zeros(len(trial.shares))))
    fit = Fit(of(shares, trial.values), most=most)
    for unseen, told in ((1e-6, True), (0.01, False)):
        weights = np.append(np.eye(K + 1)[1] * (1 - unseen), unseen)
        assert fit.rate(weights).reason == ("" if told else LOCK_STEP)


@pytest.mark.parametrize(("varies_w", "ruled_out"), [(8.0, False), (80.0, True)])
def test_an_interval_holds_the_rate_under_steady_idle_power_unless_the_windows_rule_that_out(
    varies_w: float, ruled_out: bool
) -> None:
    rng = np.random.default_rng(5)
    outside = rng.uniform(0.1, 0.9, 400)
    probe = outside * outside * rng.uniform(1.5, 2.5, 400)
    equations = Equations((Probe(ProbeKind.GAP, 0),))
    values = 90 * outside + 300 * (1 - outside) + varies_w * probe + rng.normal(0, 6.0, 400)
    equations.add(np.column_stack([outside, 1 - outside]), values, probe[:, None])
    region = np.array([0.0, 1.0])
    narrow, wide = Fit(equations).rate(region), Fit(equations, idle="steady").rate(region)
    moved = abs(Fit(equations).rates[1] - Fit(equations).steady[1])
    assert wide.value == narrow.value
    if ruled_out:
        assert wide.half_width == narrow.half_width < moved
    else:
        assert wide.half_width >= moved > 0
        assert wide.half_width > narrow.half_width


@pytest.mark.parametrize("follows_w", [0.0, 120.0])
def test_an_interval_holds_the_rate_that_follows_if_work_goes_on_after_the_region_that_launched_it(
    follows_w: float,
) -> None:
    """What follows the region is more where it ran more, as its ends are, and so is taken for its own."""
    rng = np.random.default_rng(3)
    share = rng.uniform(0.1, 0.9, 400)
    follows = 0.3 * share * rng.uniform(0.6, 1.4, 400)
    probe = follows - 0.3 * share.mean()
    equations = Equations((Probe(ProbeKind.TAIL, 1),))
    values = 90 * (1 - share) + 300 * share + follows_w * probe + rng.normal(0, 3.0, 400)
    equations.add(np.column_stack([1 - share, share]), values, probe[:, None])
    region = np.array([0.0, 1.0])
    narrow, wide = Fit(equations).rate(region), Fit(equations, idle="steady").rate(region)
    assert wide.value == narrow.value
    assert abs(wide.value - 300) < wide.half_width
    if follows_w:
        assert abs(narrow.value - 300) > 2 * narrow.half_width
    else:
        assert wide.half_width < 1.5 * narrow.half_width


@pytest.mark.parametrize(("outside", "ruled_out"), [(0.01, False), (0.2, True)])
def test_an_interval_holds_the_rate_that_follows_if_nothing_works_outside_regions_unless_the_windows_rule_that_out(
    outside: float, ruled_out: bool
) -> None:
    rng = np.random.default_rng(8)
    share = rng.uniform(0.05, 0.1, 400)
    values = outside * share + 0.6 * (1 - share) + rng.normal(0, 0.001, 400)
    equations = of(np.column_stack([share, 1 - share]), values)
    region = np.array([0.0, 1.0])
    steady, none = (Fit(equations, idle=idle) for idle in ("steady", "none"))
    moved = abs(float(values @ (1 - share) / ((1 - share) @ (1 - share))) - steady.rates[1])
    assert none.rate(region).value == steady.rate(region).value
    if ruled_out:
        assert none.rate(region).half_width == steady.rate(region).half_width < moved
    else:
        assert (
            none.rate(region).half_width
            >= steady.rate(region).half_width + 0.9 * moved
            > steady.rate(region).half_width
        )


# ---------------------------------------------------------------------- readings that are rounded


@pytest.mark.parametrize("seed", range(6))
def test_what_readings_are_rounded_by_in_one_direction_is_in_the_interval(seed: int) -> None:
    """Two regions whose shares hardly vary: every reading is 87 %."""
    rng = np.random.default_rng(seed)
    first = 0.4 + rng.uniform(-0.01, 0.01, 200)
    shares = np.column_stack((np.zeros(200), first, 1 - first))
    true = np.array([0.0, 0.84, 0.89])
    readings = np.round(shares @ true, 2)
    assert len(set(readings.tolist())) == 1
    for rate, value in zip(solve(of(shares, readings), most=1.0, step=0.01)[1:], true[1:], strict=True):
        assert rate.reason == ROUNDED or abs(rate.value - value) <= rate.half_width


def test_a_few_windows_far_off_do_not_show_that_rounding_averages_out() -> None:
    """Nearly every reading is 180 W, and idle windows at both ends of the program leave a large residual."""
    rng = np.random.default_rng(0)
    first = 0.4 + rng.uniform(-0.01, 0.01, 200)
    shares = np.column_stack((np.zeros(200), first, 1 - first))
    shares[:6] = (0.4, 0.3, 0.3)
    true = np.array([60.0, 140.0, 205.0])
    readings = np.round(shares @ true / 10.0) * 10.0
    readings[:6] += (-60.0, 60.0, -40.0, 40.0, -20.0, 20.0)
    equations = of(shares, readings)
    for one, other in zip(
        solve(equations, most=900.0, step=10.0)[1:],
        solve(equations, most=900.0, step=10.0, alike=True)[1:],
        strict=True,
    ):
        assert other.reason == ROUNDED or other.half_width > one.half_width + 5.0


def test_readings_that_are_alike_show_their_mean_only() -> None:
    """Any timing fits them with equal rates. Under a wrong one shares may vary, as if they told the regions apart."""
    first = 0.4 + np.random.default_rng(0).uniform(-0.3, 0.3, 200)
    equations = of(np.column_stack((np.zeros(200), first, 1 - first)), np.full(200, 180.0))
    for rate in solve(equations, most=900.0, step=10.0, alike=True)[1:]:
        assert rate.reason == ROUNDED
    filling = of(np.column_stack((np.zeros(200), np.ones(200))), np.full(200, 180.0))
    assert solve(filling, most=900.0, step=10.0, alike=True)[1].half_width <= 6.0


def test_rounding_evens_out_where_readings_differ() -> None:
    trial = experiment(1)
    rounded = of(trial.shares, np.round(trial.values / 10.0) * 10.0)
    for one, other in zip(solve(rounded)[1:], solve(rounded, step=10.0)[1:], strict=True):
        assert other.half_width == pytest.approx(one.half_width)


def test_rounding_takes_no_rate_beyond_what_the_mean_allows() -> None:
    """A device that is busy all the time has no region that is not."""
    rng = np.random.default_rng(1)
    first = 0.5 + rng.uniform(-1e-4, 1e-4, 200)
    shares = np.column_stack((np.zeros(200), first, 1 - first))
    for rate in solve(of(shares, np.ones(200)), most=1.0, step=0.01)[1:]:
        assert rate.reason == ""
        assert rate.value == pytest.approx(1.0)
        assert 0.005 < rate.half_width < 0.05


def test_what_no_window_tells_apart_is_analysed_once_however_many_rates_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For many regions, an analysis for each rate took minutes on a busy machine."""
    pairs = np.random.default_rng(2).dirichlet(np.ones(3), 50)
    shares = np.column_stack((pairs[:, 0], pairs[:, 1] / 2, pairs[:, 1] / 2, pairs[:, 2] / 2, pairs[:, 2] / 2))
    equations = Equations()
    equations.add(shares, shares @ np.array([90.0, 300, 300, 500, 500]))
    fit = Fit(equations, most=700.0)

    def refuse(*_: object) -> None:
        raise AssertionError("decomposed again")

    monkeypatch.setattr(np.linalg, "qr", refuse)
    assert [bool(fit.rate(weights).reason) for weights in np.eye(5)] == [False, True, True, True, True]


def test_no_mean_of_windows_is_more_certain_than_programs_and_sensors_are_steady() -> None:
    """In a loop as long as the time between readings, a sensor that weights the latest time most is off by a little."""
    shares, values = np.tile([0.0, 0.999, 0.001], (60, 1)), np.full((60, 1), 300.0)
    rate = solve(of(shares, values), most=700.0)[1]
    assert (rate.reason, rate.method) == ("", "overlap")
    assert rate.half_width >= 0.003 * rate.value


def test_of_columns_in_step_with_the_windows_only_the_total_is_known() -> None:
    rng = np.random.default_rng(5)
    idle, second = rng.uniform(0, 0.2, 300), rng.uniform(0, 0.02, 300)
    shares = np.column_stack((idle, 1 - idle - second, second))
    equations = of(shares, shares @ [50.0, 300.0, 280.0] + rng.normal(0, 0.5, 300))
    plain = Fit(equations, most=700.0)
    alone = Fit(equations, most=700.0, in_step=np.array([True, True, False]))
    both = Fit(equations, most=700.0, in_step=np.array([True, True, True]))
    assert [rate.reason for rate in solve(equations, most=700.0)] == ["", "", ""]
    # Pauses draw from 0 to the most of any window, 300 W, for a ninth of the region's time.
    moved = float(max(equations.highest[0] - plain.rates[0], plain.rates[0]) * idle.mean() / shares[:, 1].mean())
    _, region, other = np.eye(3)
    assert alone.rate(region).half_width == pytest.approx(plain.rate(region).half_width + moved, rel=0.1)
    assert alone.rate(region).value == plain.rate(region).value
    assert alone.rate(other) == plain.rate(other)
    assert both.rate(other).reason == LOCK_STEP
    together = 1 - np.array([1.0, 0.0, 0.0])
    mixed = together * shares.mean(axis=0) / shares[:, 1:].mean(axis=0).sum()
    assert both.rate(mixed).half_width < 1.3 * alone.rate(region).half_width


def test_rates_are_refused_if_pauses_draw_more_than_the_busiest_window() -> None:
    """A wrong timing took the work of regions for work in pauses, of 1.13 kW beside windows of 540 W at most."""
    rng = np.random.default_rng(6)
    idle = rng.uniform(0, 0.2, 300)
    shares = np.column_stack((idle, 1 - idle))
    for outside, reason in ((400.0, ""), (900.0, "outside regions is not possible")):
        _, rate = solve(of(shares, shares @ [outside, 300.0] + rng.normal(0, 1, 300)), most=4000.0)
        assert rate.reason.endswith(reason), rate
        assert bool(rate.reason) == bool(reason)


@pytest.mark.parametrize("seed", range(3))
def test_power_that_neither_the_number_nor_the_presence_of_executions_explains_widens_the_interval(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet((2, 2), 400)
    probes = 0.5 * (shares[:, 1:] - 0.5) * [1.0, -1.0] + 0.1 * rng.normal(size=(400, 2))
    noise = rng.normal(size=400)

    def half_width(*coefficients: float) -> float:
        equations = Equations((Probe(ProbeKind.OPEN, 1), Probe(ProbeKind.PRESENT, 1)), 2)
        equations.add(shares, shares @ [100.0, 300.0] + probes @ coefficients + noise, probes)
        return Fit(equations, most=900.0).rate(np.array([0.0, 1.0])).half_width

    number, presence, both = half_width(60.0, 0.0), half_width(0.0, 60.0), half_width(60.0, 60.0)
    assert both > 5 * max(number, presence)
    assert max(number, presence) < 5
