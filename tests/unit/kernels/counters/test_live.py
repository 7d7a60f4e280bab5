"""Counters sampled beside regions, on a stand-in for cupti-python that checks every call; and what an H100 gave."""

import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.hardware import H100
from support.pm_sampling import MEAN, SUM, UUID, environment

from gpu_profile import configure, region, stop
from gpu_profile.errors import GpuBackendError, UsageError
from gpu_profile.kernels.counters.live import running, sample_counters
from gpu_profile.kernels.counters.live.overlaps import Samples, sums_of

BYTES, BUSY = "dram__bytes_read.sum", "sm__warps_active.avg.pct_of_peak_sustained_active"
PIPE = "sm__inst_executed_pipe_tensor.sum"
INTERVAL_S = 0.001


@pytest.fixture
def with_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    configure(backend="none")

    def use(fault: str) -> None:
        for name, value in environment(tmp_path, fault=fault).items():
            monkeypatch.setenv(name, value)

    use("")
    yield use
    stop()


@pytest.mark.usefixtures("with_fault")
def test_a_region_has_what_was_counted_while_it_ran() -> None:
    with region("around", span=False), sample_counters([BYTES, BUSY], interval_s=INTERVAL_S) as counters:
        for _ in range(3):
            with region("step", span=False):
                time.sleep(0.03)
            time.sleep(0.01)
    report = counters.report
    assert (report.device, report.chip, report.left_out, report.unplaced) == (UUID, "GH100", 0, 0)
    step, around = report.regions["step"], report.regions["around"]
    assert (step.kernels, around.kernels) == (3, 1)
    found = step.sums[BYTES]
    wanted = SUM * step.kernel_ns * 1e-9 / INTERVAL_S
    assert found.exact + found.low <= wanted <= found.exact + found.high
    assert found.value == pytest.approx(wanted, rel=0.05)
    assert step.coverage(BYTES) == pytest.approx(1, abs=0.05)
    mean = step.means[BUSY]
    assert mean.weighted / mean.ns == pytest.approx(MEAN)
    assert report.total is not None
    assert found.value < around.sums[BYTES].value <= report.total.sums[BYTES].value * 1.5


@pytest.mark.parametrize(
    ("fault", "metrics", "why"),
    [
        ("permission", [BYTES], "the driver keeps counters for administrators"),
        ("busy", [BYTES], "the counters are in use"),
        ("passes", [BYTES, BUSY], "these metrics need 2 passes of the hardware, and a sample is one pass; leave some"),
        ("", [BYTES, PIPE], f"these metrics need 3 passes .*: {PIPE} needs 2 by itself; leave some out"),
        ("host", [BYTES], "Requested PM sampling configuration is not supported"),
        ("", ["nonsense"], "the chip GH100 has no such metric for PM sampling: nonsense$"),
    ],
)
def test_what_refuses_is_said_before_the_block(
    with_fault: Callable[[str], None], fault: str, metrics: list[str], why: str
) -> None:
    with_fault(fault)
    ran = False
    with pytest.raises(GpuBackendError) as refused, sample_counters(metrics):
        ran = True
    assert not ran
    assert re.search(why, str(refused.value))
    assert str(refused.value).startswith("counters: ")


@pytest.mark.usefixtures("with_fault")
def test_another_device_than_there_is_is_refused() -> None:
    with (
        pytest.raises(GpuBackendError, match=r"does not open device 3 \(error 101\)"),
        sample_counters([BYTES], device=3),
    ):
        pass


def test_without_cupti_python_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cupti").mkdir()
    (tmp_path / "cupti" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with pytest.raises(GpuBackendError, match=r"cupti-python 13\.3 or newer: pip install"), sample_counters([BYTES]):
        pass


@pytest.mark.parametrize(
    ("fault", "why"),
    [("crash", "was ended by signal 11"), ("overflow", "samples were lost"), ("hang", "has not ended")],
)
def test_a_sampler_that_fails_costs_the_report_and_not_the_program(
    with_fault: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, fault: str, why: str
) -> None:
    with_fault(fault)
    monkeypatch.setattr(running, "_END_S", 2.0)
    with sample_counters([BYTES], interval_s=INTERVAL_S) as counters:
        time.sleep(0.4)
    with pytest.raises(GpuBackendError, match=why):
        _ = counters.report


@pytest.mark.usefixtures("with_fault")
def test_an_error_of_the_block_goes_on_and_nothing_is_left_behind() -> None:
    counters, samplers = sample_counters([BYTES]), []

    def block() -> None:
        with counters:
            samplers.append(counters._sampler)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    (sampler,) = samplers
    assert sampler is not None
    assert sampler._process.returncode is not None
    assert counters.report.total is not None


@pytest.mark.usefixtures("with_fault")
def test_the_sampler_is_in_a_session_of_its_own_so_that_an_interrupt_is_the_programs() -> None:
    with sample_counters([BYTES]) as counters:
        assert counters._sampler is not None
        assert os.getsid(counters._sampler._process.pid) != os.getsid(0)


@pytest.mark.usefixtures("with_fault")
def test_a_module_of_the_working_directory_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "json.py").write_text("raise SystemExit('executed')")
    monkeypatch.chdir(tmp_path / "here")
    with sample_counters([BYTES]) as counters:
        pass
    assert counters.report.device == UUID


@pytest.mark.usefixtures("with_fault")
def test_a_sampling_may_be_used_again_and_not_while_it_is() -> None:
    counters = sample_counters([BYTES], interval_s=INTERVAL_S)
    for times in (3, 5):
        with counters:
            for _ in range(times):
                with region("step", span=False):
                    time.sleep(0.005)
            with pytest.raises(UsageError, match="has begun already"), counters:
                pass
        assert counters.report.regions["step"].kernels == times


@pytest.mark.usefixtures("with_fault")
def test_a_line_that_is_cut_off_is_an_error_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_MODULE", "support.pm_sampling.broken")
    with sample_counters([BYTES]) as counters:
        pass
    with pytest.raises(GpuBackendError, match="the sampler's process ended with 0: it said nothing"):
        _ = counters.report


@pytest.mark.usefixtures("with_fault")
def test_a_sampler_that_cannot_begin_says_what_it_complained_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_MODULE", "support.pm_sampling.absent")
    with pytest.raises(GpuBackendError, match=r"ended with 1: .*No module named"), sample_counters([BYTES]):
        pass


@pytest.mark.usefixtures("with_fault")
def test_a_handler_of_signals_may_run_a_region_while_one_is_collected() -> None:
    with sample_counters([BYTES]) as counters, counters._lock, region("in a handler", span=False):
        pass
    assert "in a handler" not in counters.report.regions or counters.report.regions["in a handler"].kernels == 1


@pytest.mark.usefixtures("with_fault")
def test_regions_that_run_in_other_threads_are_counted_too() -> None:
    over, ready = threading.Event(), threading.Event()

    def work() -> None:
        with region("elsewhere", span=False):
            ready.set()
            over.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(60)
    with sample_counters([BYTES], interval_s=INTERVAL_S) as counters:
        time.sleep(0.05)
    over.set()
    thread.join()
    assert counters.report.regions["elsewhere"].kernels == 1


def test_there_is_no_report_before_the_end() -> None:
    with pytest.raises(UsageError, match="must end first"):
        _ = sample_counters([BYTES]).report


@pytest.mark.parametrize(
    ("metrics", "interval_s", "device", "why"),
    [
        ([], 1e-4, 0, "metrics is a list"),
        (BYTES, 1e-4, 0, "metrics is a list"),
        (["-c"], 1e-4, 0, "metrics is a list"),
        ([BYTES], 5e-5, 0, "interval_s is between"),
        ([BYTES], float("nan"), 0, "interval_s is between"),
        ([BYTES], 1e-4, -1, "device is a number"),
    ],
)
def test_what_cannot_be_is_refused(metrics: list[str], interval_s: float, device: int, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        sample_counters(metrics, interval_s=interval_s, device=device)


# ---------------------------------------------------------------------- the join

lengths = st.lists(st.integers(1, 50), min_size=1, max_size=30)


@given(lengths, st.data())
def test_parts_of_the_time_add_up_to_all_that_was_counted(sizes: list[int], data: st.DataObject) -> None:
    edges = np.cumsum([1_790_000_000_000_000_000, *sizes]).tolist()
    rows = [(a, b, float(7 * (b - a)), float(i)) for i, (a, b) in enumerate(pairwise(edges))]
    samples = Samples.of([BYTES, BUSY], rows)
    cut = data.draw(st.integers(edges[0], edges[-1]))
    parts = [sums_of(samples, [(edges[0], cut)]), sums_of(samples, [(cut, edges[-1])])]
    found = [part.sums[BYTES] for part in parts if part is not None]
    assert sum(each.value for each in found) == pytest.approx(7 * sum(sizes))
    for part in parts:
        if part is not None:
            whole, mean = part.sums[BYTES], part.means[BUSY]
            assert whole.exact + whole.low <= whole.value <= whole.exact + whole.high
            # What grows with the time is shared out exactly.
            assert whole.value == pytest.approx(7 * part.kernel_ns)
            assert mean.least <= mean.weighted / mean.ns <= mean.most + 1e-9
            assert part.coverage(BYTES) == 1.0


def test_regions_without_samples_have_no_sums_and_gaps_lower_the_coverage() -> None:
    samples = Samples.of([BYTES], [(0, 10, 9.0), (1, 11, 5.0), (21, 31, 5.0), (26, 41, 5.0), (31, 31, 9.0)])
    assert len(samples.starts) == 2, "one has no beginning, one begins before the end of another, one has no length"
    assert sums_of(samples, [(12, 18)]) is None
    assert sums_of(samples, []) is None
    assert sums_of(Samples.of([BYTES], []), [(0, 10)]) is None
    found = sums_of(samples, [(1, 31)])
    assert found is not None
    assert found.coverage(BYTES) == pytest.approx(2 / 3)
    assert found.sums[BYTES].exact == 10


def test_executions_at_the_same_time_are_one_stretch_of_it() -> None:
    samples = Samples.of([BYTES], [(1, 11, 5.0), (11, 21, 5.0)])
    found = sums_of(samples, [(1, 21), (1, 21), (6, 16)])
    assert found is not None
    assert (found.kernels, found.kernel_ns, found.coverage(BYTES)) == (3, 20, 1.0)
    assert found.sums[BYTES].exact == found.sums[BYTES].value == 10
    shared = sums_of(samples, [(3, 6), (3, 6)])
    assert shared is not None
    assert shared.sums[BYTES].value == pytest.approx(1.5), "not twice"
    neighbours = sums_of(samples, [(1, 6), (6, 11)])
    assert neighbours is not None
    assert neighbours.sums[BYTES].exact == 5, "together they are all of the sample"


def test_what_is_no_number_is_no_sample_of_that_metric_alone() -> None:
    samples = Samples.of([BYTES, BUSY], [(1, 11, 5.0, math.nan), (11, 21, 5.0, 30.0), (21, 31, math.inf, 50.0)])
    found = sums_of(samples, [(1, 31)])
    assert found is not None
    assert found.sums[BYTES].value == 10
    assert found.coverage(BYTES) == pytest.approx(2 / 3)
    mean = found.means[BUSY]
    assert (mean.weighted / mean.ns, mean.least, mean.most) == (40, 30, 50)


def test_an_h100_moves_three_terabytes_a_second_while_it_copies() -> None:
    """Copies of 256 MiB for 20 ms, products for 20 ms, by turns: the copies are where most is written."""
    with np.load(H100 / "pm_sampling.npz") as found:
        names, base = [str(name) for name in found["metrics"]], int(found["base_ns"][0])
        table = np.cumsum(found["values"], axis=1)
    samples = Samples(tuple(names), base + table[0], base + table[1], table[2:].astype(np.float64))
    written = samples.values[names.index("dram__bytes_write.sum")]
    copies = written > 100e6
    edges = np.flatnonzero(np.diff(copies.astype(int)))
    stretches = [(a + 1, b) for a, b in pairwise(edges.tolist()) if copies[a + 1] and b - a > 100]
    assert len(stretches) >= 2
    of_copies = sums_of(samples, [(int(samples.starts[a]), int(samples.ends[b])) for a, b in stretches])
    assert of_copies is not None
    figures = of_copies.figures()
    assert figures["dram.bandwidth"].value == pytest.approx(3.03e12, rel=0.02)
    assert figures["dram.bandwidth"].exact
    assert figures["dram.bandwidth"].coverage == pytest.approx(1, abs=0.01)
