"""What the simulated sensors promise for any work: exact integrals, and the same device for every reader."""

import tempfile
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_profile.driver.simulated import SimulatedQueue, Truth, Work, create, installed
from gpu_profile.driver.simulated.activity import LoggedActivity, Shifted
from gpu_profile.driver.simulated.models import MODELS
from gpu_profile.driver.simulated.node import PUBLISHED_NS, Node
from gpu_profile.driver.simulated.physics import WIDTH, SimulatedQuantity, limited, rates
from gpu_profile.driver.simulated.script import Phase, script, step
from gpu_profile.driver.simulated.sensors import GPM_REFRESH_NS, Sensors
from gpu_profile.driver.simulated.worklog import RECORD, LogReader, LogWriter, Records
from gpu_profile.testing import START_NS, FakeClock

H200 = MODELS["H200 SXM"]
S = 1_000_000_000
MOMENT = 100_000_000

spans = st.tuples(st.integers(0, 30), st.integers(1, 12), st.sampled_from([0, 1, 2]), st.floats(0, 1e14))
lists_of_work = st.lists(spans, min_size=1, max_size=25)
phases = st.lists(
    st.builds(
        Phase,
        duration_s=st.integers(1, 30).map(lambda n: n / 10),
        flops=st.floats(0, 5e12),
        bytes=st.floats(0, 5e10),
        launches=st.integers(1, 4),
        launch_gap_s=st.sampled_from([0.0, 1e-5, 3e-3]),
        host_wait_s=st.sampled_from([0.0, 1e-2]),
        pcie_bytes=st.sampled_from([0.0, 1e8]),
    ),
    min_size=1,
    max_size=3,
)


def records(work: list[tuple[int, int, int, float]]) -> Records:
    """Work on a grid of `MOMENT`, so that a sum over the grid's cells is the exact integral."""
    rows = [(a * MOMENT, (a + n) * MOMENT, 0, k, 3, 0, f, f / 100, f / 1e4, f / 1e5, 1, 0.5) for a, n, k, f in work]
    made = np.array(rows, RECORD)
    return made[np.argsort(made["start"], kind="stable")]


def node_of(chosen: list[Phase], directory: str, clock: FakeClock) -> Path:
    """A node with one H200 that goes through the phases."""
    tables = [
        "[[device.phase]]\n"
        + "".join(f"{key} = {value}\n" for key, value in asdict(phase).items() if value not in (None, ""))
        for phase in chosen
    ]
    text = '[[device]]\nmodel = "H200 SXM"\n' + "".join(tables).replace("precision = bf16", 'precision = "bf16"')
    return create(directory, text, clock=clock)


def graphics(before: object, after: object) -> float:
    """GPM's graphics activity between two samples, as a ratio."""
    request = pynvml.c_nvmlGpmMetricsGet_t(version=1, numMetrics=1, sample1=before, sample2=after)
    request.metrics[0].metricId = pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL
    pynvml.nvmlGpmMetricsGet(request)
    assert request.metrics[0].nvmlReturn == pynvml.NVML_SUCCESS
    return float(request.metrics[0].value) / 100


def brute_force(work: Records, start_ns: int, end_ns: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    total = np.zeros(WIDTH)
    for cell in range(start_ns, end_ns, MOMENT):
        running = work[(work["start"] <= cell) & (cell < work["end"])]
        together = rates(H200, running).sum(axis=0, keepdims=True)
        total += limited(H200, together)[0] * (MOMENT / S)
    return total


@given(work=lists_of_work, cuts=st.lists(st.integers(0, 25), max_size=4), window=st.tuples(*[st.integers(0, 45)] * 2))
def test_any_window_of_logged_work_is_the_brute_force_integral(
    work: list[tuple[int, int, int, float]], cuts: list[int], window: tuple[int, int]
) -> None:
    made, activity = records(work), LoggedActivity(H200)
    # In batches, as a reader sees it. All lie within the time that a device keeps open.
    edges = [0, *sorted(min(cut, len(made)) for cut in cuts), len(made)]
    for first, last in pairwise(edges):
        if last > first:
            assert activity.extend(made[first:last], 0)
    start, end = (moment * MOMENT for moment in sorted(window))
    exact = brute_force(made, start, end)
    error = np.abs(activity.totals(end) - activity.totals(start) - exact)
    assert (error <= 1e-12 * activity.totals(1 << 60) + 1e-9).all()


@given(phases=phases, loop=st.booleans(), end_ns=st.integers(1, 5 * S))
@settings(max_examples=40)
def test_script_is_the_sum_of_the_work_of_its_steps(phases: list[Phase], loop: bool, end_ns: int) -> None:
    flops, t, number = 0.0, 0, 0
    while t < end_ns and (loop or number < len(phases)):
        phase = phases[number % len(phases)]
        one, until = step(phase, H200), min(end_ns, t + round(phase.duration_s * S))
        for begin in range(t, until, one.length_ns):
            if begin + one.length_ns <= until:
                flops += one.records["flops"].sum()
                continue
            ran = np.clip(until - begin - one.records["start"], 0, one.records["end"] - one.records["start"])
            flops += float((one.records["flops"] * ran / (one.records["end"] - one.records["start"])).sum())
        t, number = t + round(phase.duration_s * S), number + 1
    assert script(phases, H200, loop=loop).totals(end_ns)[SimulatedQuantity.FLOPS] == pytest.approx(
        flops, rel=1e-9, abs=1e-3
    )


@given(phases=phases, steps=st.lists(st.integers(1, 400_000_000), min_size=2, max_size=30))
@settings(max_examples=40)
def test_counters_never_decrease(phases: list[Phase], steps: list[int]) -> None:
    sensors = Sensors(H200, Shifted(script(phases, H200, loop=True), START_NS), START_NS)
    moments = [START_NS + int(moment) for moment in np.cumsum(steps)]
    for read in (
        lambda t: sensors.energy_mj(t, START_NS),
        sensors.throttled_ns,
        lambda t: sensors.counted(SimulatedQuantity.PCIE_RX, t),
    ):
        seen = [read(t) for t in moments]
        assert seen == sorted(seen)


@given(phases=phases, steps=st.lists(st.integers(100_000_000, 900_000_000), min_size=2, max_size=12))
@settings(max_examples=40)
def test_consecutive_gpm_windows_add_up_to_the_exact_total(phases: list[Phase], steps: list[int]) -> None:
    clock = FakeClock()
    with tempfile.TemporaryDirectory() as directory, installed(node_of(phases, directory, clock), clock=clock):
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        before, total, first, last = pynvml.nvmlGpmSampleGet(gpu, pynvml.nvmlGpmSampleAlloc()), 0.0, START_NS, START_NS
        for pause in steps:
            clock.advance(pause / S)
            after = pynvml.nvmlGpmSampleGet(gpu, pynvml.nvmlGpmSampleAlloc())
            refreshed = START_NS + (clock.now_ns() - START_NS - PUBLISHED_NS) // GPM_REFRESH_NS * GPM_REFRESH_NS
            if refreshed > last:
                total += graphics(before, after) * (refreshed - last) / S
                before, last = after, refreshed
        assert total == pytest.approx(Truth(directory, clock=clock).device(0, first, last).busy_s, abs=1e-9)


@given(phases=phases, t=st.integers(0, 60 * S))
@settings(max_examples=40)
def test_sample_buffer_holds_what_utilisation_reported_then(phases: list[Phase], t: int) -> None:
    sensors = Sensors(H200, Shifted(script(phases, H200, loop=True), START_NS), START_NS)
    ends, busy, memory = sensors.utilization_samples(START_NS + t, 0)
    for end, *values in list(zip(ends.tolist(), busy.tolist(), memory.tolist(), strict=True))[-5:]:
        assert tuple(values) == sensors.utilization(end)


@given(
    launches=st.lists(
        st.tuples(st.integers(0, 2), st.floats(0, 2e13), st.integers(0, 50), st.booleans()), min_size=1, max_size=40
    )
)
@settings(max_examples=30)
def test_readers_agree_with_each_other_and_with_the_truth(launches: list[tuple[int, float, int, bool]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        clock = FakeClock()
        node = create(Path(directory) / "node", clock=clock)
        queues = [SimulatedQueue(node, clock=clock) for _ in range(3)]
        often, late = Node(node, clock), Node(node, clock)
        for number, flops, pause_ms, read in launches:
            queues[number].launch(Work(flops=flops), tag=str(number))
            clock.advance(pause_ms / 1000)
            if read:
                often.refresh(clock.now_ns())
        clock.advance(1.0)
        often.refresh(clock.now_ns())
        late.refresh(clock.now_ns())
        truth = Truth(node, clock=clock)
        for t in range(START_NS, clock.now_ns(), 97_000_000):
            seen = [reader.sensors[0].totals(t) for reader in (often, late)]
            assert seen[0] == pytest.approx(seen[1], rel=1e-9, abs=1e-3)
            exact = truth.device(0, START_NS, t)
            assert float(seen[0][SimulatedQuantity.BUSY]) == pytest.approx(exact.busy_s, abs=1e-9)
            assert float(seen[0][SimulatedQuantity.FLOPS]) == pytest.approx(exact.flops, rel=1e-9, abs=1e-3)
        for queue in queues:
            queue.close()
        often.close()
        late.close()


@given(
    sizes=st.lists(st.integers(1, 200), min_size=1, max_size=12), starts=st.lists(st.integers(0, 1 << 40), max_size=8)
)
@settings(max_examples=40)
def test_log_that_arrives_in_any_pieces_is_read_whole(sizes: list[int], starts: list[int]) -> None:
    whole = np.array([(t, t + 1, 0, 0, 0, 0, 1, 1, 0, 0, 1, 0.5) for t in starts], RECORD).tobytes()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        writer, reader, seen, place = LogWriter(directory), LogReader(directory, 1), [], 0
        for size in [*sizes, len(whole)]:
            writer.append(whole[place : place + size])
            place += size
            seen += [int(start) for batch in reader.poll() for start in batch.records["start"]]
        assert seen == starts
        writer.close()
        reader.close()
