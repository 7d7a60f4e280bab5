import pytest
from support.traces import MS, US, Program

from gpu_profile.kernels import Activity, Call, Idle, Kind, Operation, evidence, measure
from gpu_profile.kernels.joining.idle import KERNEL_WAIT_NS, PER_LAUNCH_NS
from gpu_profile.regimes import Regime, Thresholds, Verdict, classify


def operation(start: int, end: int, correlation: int | None = None, **other: object) -> Operation:
    plain = Operation(Kind.KERNEL, 0, 7, start, end, "gemm", correlation)
    return plain._replace(**other)  # type: ignore[arg-type]


def call(correlation: int, start: int) -> Call:
    return Call(correlation, start, start + 1, 1)


def measured(*records: Operation | Call) -> Activity:
    found = measure(records)
    assert found is not None
    return found


def judged(program: Program) -> Verdict:
    return classify(evidence(measured(*program.records)))


@pytest.fixture
def program() -> Program:
    return Program()


def test_without_gpu_operations_there_is_nothing_to_say() -> None:
    assert measure([]) is None
    assert measure([call(1, 0)]) is None


def test_what_overlaps_counts_once() -> None:
    found = measured(operation(0, 10), operation(5, 20, stream=8), operation(6, 7), operation(30, 40))
    assert (found.span_ns, found.busy_ns, found.idle.total_ns) == (40, 30, 10)


def test_one_operation_is_busy_for_all_of_its_span() -> None:
    found = measured(operation(5, 9))
    assert (found.span_ns, found.busy_ns, found.mean_kernel_ns) == (4, 4, 4.0)
    assert found.idle == Idle()


@pytest.mark.parametrize(
    ("launch", "gap", "idle"),
    [
        # The call begins after the last operation has ended.
        (11, 100, Idle(host_wait_ns=100, launch_ns=100)),
        # In the very moment, or before: it was launched in time.
        (10, 100, Idle(other_ns=100)),
        (-50, 100, Idle(other_ns=100)),
        (-50, KERNEL_WAIT_NS - 1, Idle(kernel_wait_ns=KERNEL_WAIT_NS - 1)),
        (-50, KERNEL_WAIT_NS, Idle(other_ns=KERNEL_WAIT_NS)),
        # A host wait is one however short it is.
        (11, 5, Idle(host_wait_ns=5, launch_ns=5)),
        # Of a long wait, the call until the operation starts and 100 µs before it are launching.
        (9 * MS + 10, 10 * MS, Idle(host_wait_ns=10 * MS, launch_ns=MS + PER_LAUNCH_NS)),
        # Clocks of host and GPU can differ a little.
        (120, 100, Idle(host_wait_ns=100, launch_ns=100)),
        (10 * MS + 60, 10 * MS, Idle(host_wait_ns=10 * MS, launch_ns=PER_LAUNCH_NS)),
        (None, 100, Idle(unknown_ns=100)),
    ],
)
def test_a_gap_has_the_cause_that_the_launch_of_the_next_operation_tells(
    launch: int | None, gap: int, idle: Idle
) -> None:
    calls = [] if launch is None else [call(2, launch)]
    found = measured(operation(0, 10, 1), operation(10 + gap, 20 + gap, 2), call(1, -99), *calls)
    assert found.idle == found.streams[0].idle == idle


def test_of_operations_that_start_together_the_first_launched_ends_the_wait() -> None:
    together = [operation(50, 60, 2), operation(50, 70, 3, stream=8), operation(50, 60, None, stream=9)]
    found = measured(operation(0, 10, 1), *together, call(3, 5), call(2, 20))
    assert found.idle == Idle(other_ns=40)


def test_a_driver_s_call_inside_the_runtime_s_with_the_same_correlation_is_part_of_it() -> None:
    outer, inner = Call(2, 5, 40, 1, "cudaLaunchKernel"), Call(2, 20, 30, 1, "cuLaunchKernel")
    found = measured(operation(0, 10, 1), operation(50, 60, 2), inner, outer)
    assert found.idle == Idle(other_ns=40)


def test_unrelated_calls_with_one_correlation_tell_nothing() -> None:
    found = measured(operation(0, 10, 1), operation(50, 60, 2), call(2, 30), call(2, 5), call(2, 40))
    assert found.idle == Idle(unknown_ns=40)


def test_kernels_of_one_graph_share_its_launch() -> None:
    graph = [operation(100 + 20 * i, 110 + 20 * i, 2) for i in range(5)]
    found = measured(operation(0, 10, 1), call(1, -9), call(2, 90), *graph)
    assert found.idle == Idle(host_wait_ns=90, launch_ns=90, kernel_wait_ns=4 * 10)


def test_streams_are_split_by_themselves() -> None:
    found = measured(
        operation(0, 100, 1), operation(0, 20, 2, stream=8), operation(60, 80, 3, stream=8), call(1, -9), call(3, 30)
    )
    seven, eight = found.streams
    assert found.idle == Idle()
    assert (seven.stream, seven.operations, seven.idle) == (7, 1, Idle())
    assert (eight.stream, eight.span_ns, eight.busy_ns, eight.idle) == (8, 80, 40, Idle(host_wait_ns=40, launch_ns=40))


def test_several_devices_share_the_span_and_add_up() -> None:
    found = measured(operation(0, 100), operation(50, 80, 1, device=1), call(1, 20))
    assert (found.devices, found.span_ns, found.device_ns, found.busy_ns) == ((0, 1), 100, 200, 130)
    # Device 1 waits for its first launch, and gets nothing after it.
    assert found.idle == Idle(host_wait_ns=50 + 20, launch_ns=50)


def test_communication_is_hidden_by_kernels_only() -> None:
    found = measured(
        operation(0, 100, kind=Kind.COMMUNICATION, stream=20),
        operation(10, 40),
        operation(50, 60, kind=Kind.SET),
        operation(60, 90, kind=Kind.TRANSFER),
        operation(100, 130, kind=Kind.TRANSFER),
        operation(130, 140, kind=Kind.COPY),
    )
    assert (found.communication_ns, found.overlap_ns, found.overlap_ratio) == (100, 30, 0.3)
    assert (found.transfer_ns, found.exposed_transfer_ns, found.copy_ns) == (60, 30, 70)
    assert (found.exposed_communication_ns, found.work_ns, found.busy_ns) == (70, 40, 140)


def test_without_communication_there_is_no_share_of_it() -> None:
    assert measured(operation(0, 1)).overlap_ratio is None


def test_without_kernels_there_is_no_mean_kernel() -> None:
    assert measured(operation(0, 1, kind=Kind.SET)).mean_kernel_ns is None


def test_without_calls_no_cause_of_idle_time_is_claimed() -> None:
    found = evidence(measured(operation(0, 10), operation(90, 100)))
    assert not found.values.keys() & {"host_wait", "launch", "other_wait"}
    verdict = classify(evidence(measured(*(operation(100 * i, 100 * i + 10) for i in range(9)))))
    assert (verdict.regime, verdict.rule) == (
        Regime.UNKNOWN,
        "the trace holds no calls of the host: record its activities as well",
    )


def test_idle_time_without_a_known_cause_makes_a_verdict_less_sure() -> None:
    gaps = [operation(100 * US * i, 100 * US * i + 30 * US, i + 1) for i in range(20)]
    calls = [call(i + 1, 100 * US * i - 20 * US) for i in range(20)]
    whole, half = classify(evidence(measured(*gaps, *calls))), classify(evidence(measured(*gaps, *calls[:10])))
    assert whole.coverage == 1.0
    assert half.coverage == pytest.approx(0.65, abs=0.02)
    assert half.confidence < whole.confidence


def test_operations_that_take_no_time_have_no_regime() -> None:
    verdict = classify(evidence(measured(*(operation(5, 5) for _ in range(9)))))
    assert (verdict.regime, verdict.rule) == (Regime.UNKNOWN, "the trace's GPU operations take no time")


# ------------------------------------------------------------ programs whose timing says what bounds them


def starved(kernel_ns: int) -> Program:
    """Loads a batch for 20 ms, then computes for about 2 ms, and waits for the result."""
    program = Program()
    for _ in range(10):
        program.host(20 * MS)
        for _ in range(2 * MS // kernel_ns):
            program.launch(kernel_ns)
        program.join()
    return program


@pytest.mark.parametrize("kernel_ns", [20 * US, 100 * US, MS])
def test_a_gpu_that_waits_for_batches_is_host_bound_however_short_its_kernels_are(kernel_ns: int) -> None:
    assert judged(starved(kernel_ns)).regime is Regime.HOST_BOUND


@pytest.mark.parametrize(("host_us", "kernel_us"), [(15, 4), (40, 10), (10, 8), (80, 2)])
def test_short_kernels_that_take_longer_to_launch_than_to_run_are_overhead_bound(host_us: int, kernel_us: int) -> None:
    program = Program()
    for _ in range(500):
        program.host(host_us * US)
        program.launch(kernel_us * US)
    verdict = judged(program)
    assert verdict.regime is Regime.OVERHEAD_BOUND
    assert "CUDA graph" in verdict.advice


def test_short_kernels_with_the_gpu_s_own_gaps_between_them_are_overhead_bound() -> None:
    graph = [operation(4 * US * i, 4 * US * i + 2 * US, 1) for i in range(500)]
    verdict = classify(evidence(measured(call(1, -9), *graph)))
    assert verdict.regime is Regime.OVERHEAD_BOUND
    assert verdict.confidence > 0.9


@pytest.mark.parametrize("launches", [1, 10])
def test_collectives_that_nothing_hides_are_communication_bound(launches: int, program: Program) -> None:
    for _ in range(20):
        for _ in range(launches):
            program.launch(MS // launches)
        program.launch(3 * MS, Kind.COMMUNICATION, stream=20, after=7)
        program.free[7] = program.free[20]
    assert judged(program).regime is Regime.COMMUNICATION_BOUND


def test_collectives_that_kernels_hide_bound_nothing(program: Program) -> None:
    for _ in range(20):
        program.launch(4 * MS)
        program.launch(3 * MS, Kind.COMMUNICATION, stream=20)
    assert judged(program).regime is Regime.UNKNOWN


def test_copies_from_the_host_that_nothing_hides_are_transfer_bound(program: Program) -> None:
    for _ in range(20):
        program.launch(5 * MS, Kind.TRANSFER)
        program.launch(MS)
    verdict = judged(program)
    assert verdict.regime is Regime.TRANSFER_BOUND
    assert "83 %" in verdict.advice


def test_copies_within_the_gpu_are_work(program: Program) -> None:
    for _ in range(20):
        program.launch(5 * MS, Kind.COPY)
    assert judged(program).regime is Regime.UNKNOWN


def test_a_gpu_that_runs_something_now_and_then_is_idle(program: Program) -> None:
    for _ in range(10):
        program.host(10_000 * MS)
        program.launch(5 * MS)
    assert judged(program).regime is Regime.IDLE


@pytest.mark.parametrize("kernel_us", [8, 200, 5000])
def test_kernels_that_fill_the_span_do_not_tell_memory_from_compute(kernel_us: int, program: Program) -> None:
    for _ in range(200):
        program.launch(kernel_us * US)
    verdict = judged(program)
    assert verdict.regime is Regime.UNKNOWN
    assert verdict.rule.endswith("kernel times alone do not tell what bounds it: activity counters would")


def test_a_handful_of_operations_is_not_judged(program: Program) -> None:
    program.launch(MS)
    program.host(MS)
    program.launch(MS)
    assert judged(program).rule == "only 2 GPU operations, 4 are needed"


def test_the_thresholds_of_traces_are_data() -> None:
    found = evidence(measured(*starved(MS).records))
    assert classify(found, Thresholds(well_fed=0.05)).regime is Regime.UNKNOWN
    assert classify(found, Thresholds(idle_busy=0.2)).regime is Regime.IDLE
    short = evidence(measured(*starved(20 * US).records))
    assert classify(short, Thresholds(short_kernel=1e-6)).regime is Regime.HOST_BOUND
