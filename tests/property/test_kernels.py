import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.traces import US, Program

from gpu_profile.kernels.activity import Activity, evidence, measure
from gpu_profile.kernels.records import Call, Kind, Operation
from gpu_profile.regimes import DEFAULT_THRESHOLDS, Regime, classify
from gpu_profile.regimes.evidence import Evidence

Records = list[Operation | Call]
#: What `evidence` can know.
KEYS = ["busy", "work", "communication", "transfer", "host_wait", "launch", "other_wait", "kernel_s"]
moments = st.integers(0, 60)


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    start, length = draw(moments), draw(st.integers(0, 20))
    correlation = draw(st.none() | st.integers(1, 6))
    streams: st.SearchStrategy[int | str] = st.sampled_from([7, 8, "x"])
    kind, device, stream = draw(st.sampled_from(Kind)), draw(st.integers(0, 1)), draw(streams)
    return Operation(kind, device, stream, start, start + length, "name", correlation)


launches = st.builds(lambda c, start: Call(c, start, start + 1, 1), st.integers(1, 6), st.integers(-9, 60))
records = st.lists(operations(), min_size=1, max_size=12).flatmap(
    lambda found: st.lists(launches, max_size=8).map(lambda calls: [*found, *calls])
)


def measured(found: Records) -> Activity:
    activity = measure(found)
    assert activity is not None
    return activity


def covered(found: Records, device: int, *kinds: Kind) -> set[int]:
    """Every whole moment at which one of these kinds runs on the device."""
    return {
        t
        for r in found
        if isinstance(r, Operation) and r.device == device and r.kind in kinds
        for t in range(r.start_ns, r.end_ns)
    }


@given(records)
def test_sums_are_what_counting_every_moment_gives(found: Records) -> None:
    activity = measured(found)
    busy = work = overlap = communication = transfer = copy = 0
    for device in activity.devices:
        kernels, comm = covered(found, device, Kind.KERNEL), covered(found, device, Kind.COMMUNICATION)
        link = covered(found, device, Kind.TRANSFER)
        near = covered(found, device, Kind.SET, Kind.COPY)
        busy += len(kernels | comm | link | near)
        communication += len(comm)
        overlap += len(comm & kernels)
        transfer += len(link - kernels - comm - near)
        copy += len(link | covered(found, device, Kind.COPY))
        work += len(kernels | (near - comm))
    assert (activity.busy_ns, activity.work_ns, activity.communication_ns) == (busy, work, communication)
    assert (activity.overlap_ns, activity.exposed_transfer_ns, activity.copy_ns) == (overlap, transfer, copy)


@given(records)
def test_busy_and_idle_time_make_the_span(found: Records) -> None:
    activity = measured(found)
    assert activity.busy_ns + activity.idle.total_ns == activity.device_ns
    assert 0 <= activity.busy_ns <= activity.device_ns
    for stream in activity.streams:
        assert stream.busy_ns + stream.idle.total_ns == stream.span_ns <= activity.span_ns


@given(records)
def test_parts_never_exceed_their_wholes(found: Records) -> None:
    activity = measured(found)
    assert 0 <= activity.overlap_ns <= min(activity.communication_ns, activity.busy_ns)
    assert 0 <= activity.exposed_transfer_ns <= activity.transfer_ns <= activity.copy_ns <= activity.busy_ns
    assert 0 <= activity.work_ns <= activity.busy_ns
    for idle in (activity.idle, *(stream.idle for stream in activity.streams)):
        assert min(idle.host_wait_ns, idle.kernel_wait_ns, idle.other_ns, idle.unknown_ns, idle.launch_ns) >= 0
        assert idle.launch_ns <= idle.host_wait_ns
    assert sum(activity.counts.values()) == activity.operations == sum(s.operations for s in activity.streams)


@given(records, st.randoms(use_true_random=False))
def test_the_order_of_the_records_changes_nothing(found: Records, chance: random.Random) -> None:
    mixed = list(found)
    chance.shuffle(mixed)
    assert measured(mixed) == measured(found)
    assert classify(evidence(measured(mixed))) == classify(evidence(measured(found)))


@given(records, st.integers(-(10**18), 10**18))
def test_a_shift_in_time_changes_nothing_but_the_start(found: Records, shift: int) -> None:
    moved = [r._replace(start_ns=r.start_ns + shift, end_ns=r.end_ns + shift) for r in found]
    before, after = measured(found), measured(moved)
    assert after.start_ns == before.start_ns + shift
    assert (after.idle, after.streams, evidence(after)) == (before.idle, before.streams, evidence(before))


@given(records)
def test_the_shares_that_are_judged_make_one(found: Records) -> None:
    values = evidence(measured(found)).values
    if "host_wait" in values:
        activity = measured(found)
        parts = [values[key] for key in ("work", "communication", "transfer", "host_wait", "other_wait")]
        assert sum(parts) + activity.idle.unknown_ns / activity.device_ns == pytest.approx(1.0)


@given(st.dictionaries(st.sampled_from(KEYS), st.one_of(st.floats(0, 1), st.floats())), st.integers(0, 99))
def test_whatever_a_trace_tells_gets_a_verdict_that_it_bears_out(values: dict[str, float], n: int) -> None:
    verdict = classify(Evidence("kernels", values, n, 1.0))
    assert verdict.rule
    assert 0 <= verdict.confidence <= 0.95
    assert verdict.margin >= 0
    known = {key for key, value in values.items() if math.isfinite(value)}
    if not {"work", "host_wait"} <= known or "busy" not in values:
        assert verdict.regime is Regime.UNKNOWN
    if verdict.regime is Regime.IDLE:
        assert values["busy"] <= DEFAULT_THRESHOLDS.idle_busy
    if verdict.regime is Regime.COMMUNICATION_BOUND:
        assert values["communication"] >= values["host_wait"]
    assert verdict.regime not in {Regime.MEMORY_BOUND, Regime.COMPUTE_BOUND, Regime.BALANCED, Regime.LATENCY_BOUND}


@given(st.integers(2, 24), st.floats(1.2, 4), st.integers(0, 2**32))
def test_a_program_that_takes_longer_to_launch_than_to_compute_is_overhead_bound(
    kernel_us: int, factor: float, seed: int
) -> None:
    chance, program = random.Random(seed), Program()  # noqa: S311
    for _ in range(100):
        program.host(round(kernel_us * US * factor * chance.uniform(0.8, 1.2)))
        program.launch(round(kernel_us * US * chance.uniform(0.8, 1.0)))
    assert classify(evidence(measured(program.records))).regime is Regime.OVERHEAD_BOUND


@given(st.sampled_from([Kind.COMMUNICATION, Kind.TRANSFER, None]), st.floats(0.5, 10), st.integers(0, 2**32))
def test_the_one_thing_that_a_program_waits_for_bounds_it(kind: Kind | None, factor: float, seed: int) -> None:
    chance, program = random.Random(seed), Program()  # noqa: S311
    work = 1000 * US
    for _ in range(30):
        wait = round(work * factor * chance.uniform(0.9, 1.1))
        if kind is None:
            program.join() if program.free else None
            program.host(wait + 100 * US)
        else:
            program.launch(wait, kind)
        program.launch(work)
    expected = {Kind.COMMUNICATION: Regime.COMMUNICATION_BOUND, Kind.TRANSFER: Regime.TRANSFER_BOUND}
    wanted = Regime.HOST_BOUND if kind is None else expected[kind]
    assert classify(evidence(measured(program.records))).regime is wanted
