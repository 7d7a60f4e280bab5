import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from gpu_profile.errors import UsageError
from gpu_profile.roofline.ceilings.ceilings import Ceiling, Ceilings, Level
from gpu_profile.roofline.doubling import RUNS
from gpu_profile.roofline.machines.machine import Memory
from gpu_profile.roofline.plots import panels
from gpu_profile.roofline.plots.panels import create_performance_plots, panels_figure
from gpu_profile.roofline.precision import Precision
from gpu_profile.roofline.profiler import GPUProfiler
from gpu_profile.roofline.sweep import Row, _Cost, _runs, sweep
from gpu_profile.roofline.workloads import Workload
from gpu_profile.testing import FakeClock

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

CEILINGS = Ceilings(
    "A CPU",
    {},
    compute={Precision.FP32: Ceiling(100e9, "measured")},
    levels=(Level("L2", 2 << 20, Ceiling(90e9, "measured")), Level("memory", None, Ceiling(10e9, "measured"))),
    launch_s=2e-6,
)


class Machine:
    kind = "cpu"
    device = "cpu"
    name = "A CPU"

    def __init__(self, free: int = 64 << 30) -> None:
        self._free = free

    def memory(self) -> Memory:
        return Memory(allocated=0, reserved=0, peak=0, free=self._free, total=64 << 30)


def a_profile(runtime_s: float, **found: Any) -> dict[str, Any]:
    """As the profiler gives it."""
    ms = runtime_s * 1e3
    return {
        "runtime_ms": ms,
        "runs": {"n": 7, "median_ms": ms, "low_ms": 0.9 * ms, "high_ms": 1.2 * ms},
        "regime": "MEMORY_BOUND",
        "confidence": 0.8,
        "flops_utilization": 0.02,
        "bandwidth_utilization": 0.8,
        "precision": "fp32",
        "residency": "memory",
        "reasons": {},
    } | found


class Profiler:
    """Takes a nanosecond for each element, and as many times longer as `slow` says."""

    def __init__(
        self, clock: FakeClock, *, free: int = 64 << 30, slow: float = 1.0, breaks_at: float = math.inf
    ) -> None:
        self.machine = Machine(free)
        self.ceilings = CEILINGS
        self.calls: list[tuple[str, int, Mapping[str, Any]]] = []
        self._clock, self._slow, self._breaks_at = clock, slow, breaks_at

    def profile_operation(self, function: object, size: int, *, name: str, **options: Any) -> dict[str, Any]:
        self.calls.append((name, size, options))
        if size >= self._breaks_at:
            raise RuntimeError("out of\nmemory")
        call_s = size * 1e-9 * self._slow
        # The doubling test runs the size and twice the size.
        doubling = 3 * max(RUNS, options["repeats"]) if options["growth"] else 0
        self._clock.advance(call_s * (options["warmup"] + options["repeats"] + doubling))
        return a_profile(call_s)


def prepared(name: str, size: int, *, device: str) -> Workload:
    assert device == "cpu"
    return Workload(name, len, (size,), {}, f"{size}", "float32", size)


def swept(clock: FakeClock, profiler: Profiler, budget_s: float = 20.0) -> list[Row]:
    return sweep(cast(GPUProfiler, profiler), budget_s=budget_s, prepare=prepared, clock=clock)


def test_every_operation_is_measured_at_every_size_what_takes_least_first(clock: FakeClock) -> None:
    profiler = Profiler(clock)
    rows = swept(clock, profiler)
    assert [row.skipped for row in rows] == [""] * len(rows)
    sizes = {name: [row.size for row in rows if row.operation == name] for name in ("cos", "add", "sum", "matmul")}
    assert sizes["cos"] == sizes["add"] == sizes["sum"]
    assert (sizes["cos"][0], sizes["cos"][-1], len(sizes["cos"])) == (1_000, 100_000_000, 11)
    assert sizes["matmul"] == [side * side for side in (64, 128, 256, 512, 1024, 2048, 4096)]
    cost = [row.size**1.5 / 100 if row.operation == "matmul" else row.size for row in rows]
    assert cost == sorted(cost)
    assert all(options["repeats"] >= 5 for _, _, options in profiler.calls)


@pytest.mark.parametrize("slow", [1.0, 10.0, 100.0, 10_000.0])
def test_the_budget_is_kept_and_what_does_not_fit_into_it_has_the_reason(slow: float, clock: FakeClock) -> None:
    began = clock.now_ns()
    rows = swept(clock, Profiler(clock, slow=slow), budget_s=10.0)
    # The first of each operation cannot be foreseen.
    first_s = 4 * 4096e-9 * slow * 30
    assert (clock.now_ns() - began) / 1e9 <= 10.0 + first_s
    skipped = [row for row in rows if row.skipped]
    assert all("time that is left allows" in row.skipped or row.skipped == "no time was left" for row in skipped)
    assert all(row.profile.get("regime") is None for row in skipped)
    assert bool(skipped) is (slow > 1)
    assert len(rows) == 40


@pytest.mark.parametrize("share_s", [0.0105, 0.0265, 0.0275, 0.0285, 0.0505, 0.1035, 10.0])
def test_the_runs_of_an_operation_with_its_doubling_test_take_no_more_than_its_share(share_s: float) -> None:
    options = _runs(_Cost(1, 1e-3, 0.0), share_s + 2e-3)
    runs = options["repeats"] + (3 * max(RUNS, options["repeats"]) if options["growth"] else 0)
    assert runs * 1e-3 <= max(share_s, 5e-3) * 1.0001
    assert 5 <= options["repeats"] <= 25
    assert options["growth"] is (share_s >= 0.026)


def test_what_would_take_more_than_half_of_the_free_memory_is_not_tried(clock: FakeClock) -> None:
    profiler = Profiler(clock, free=1 << 30)
    rows = swept(clock, profiler)
    assert max(size for name, size, _ in profiler.calls if name == "add") < (1 << 29) / 12
    (why,) = {row.skipped for row in rows if row.skipped and row.operation == "add"}
    assert why == "would take 1.20 GB of the 1.07 GB that are free"


def test_what_fails_is_not_tried_again_with_more_and_the_others_go_on(clock: FakeClock) -> None:
    profiler = Profiler(clock, breaks_at=10_000_000)
    rows = swept(clock, profiler)
    failed = [row for row in rows if row.skipped]
    assert {row.skipped for row in failed} == {"RuntimeError: out of memory"}
    assert min(row.size for row in failed) == 10_000_000
    assert len([size for _, size, _ in profiler.calls if size >= 10_000_000]) == 4


def test_a_machine_that_is_not_pytorchs_is_refused(clock: FakeClock) -> None:
    profiler = Profiler(clock)
    profiler.machine.kind = "cupy"
    with pytest.raises(UsageError, match="named operations are PyTorch's, which does not run on 'cupy'"):
        swept(clock, profiler)


def rows_of(*profiles: Mapping[str, Any], name: str = "cos") -> list[Row]:
    return [Row(name, 10 ** (3 + i), "", profile) for i, profile in enumerate(profiles)]


def drawn(rows: list[Row], ceilings: Ceilings = CEILINGS) -> Any:
    return panels_figure(rows, machine="A CPU", ceilings=ceilings)


def words(figure: Any) -> str:
    from matplotlib.text import Text

    return "\n".join(text.get_text() for text in figure.findobj(Text))


def test_the_figure_has_the_four_panels_each_axis_with_its_unit() -> None:
    figure = drawn(rows_of(a_profile(1e-5), a_profile(1e-4)))
    assert [axes.get_title("left") for axes in figure.axes] == [
        "Execution time scaling",
        "Throughput efficiency",
        "Memory bandwidth utilisation",
        "Performance regime classification",
    ]
    assert {axes.get_xlabel() for axes in figure.axes} == {"elements of the input"}
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "time per call",
        "FLOP/s, share of the compute ceiling",
        "B/s, share of the bandwidth ceiling",
        "",
    ]
    assert "100 %: fp32 100 GFLOP/s" in words(figure)
    assert "100 %: memory 10.0 GB/s" in words(figure)
    assert "an empty launch, 2.00 µs" in words(figure)


def test_what_is_not_known_is_a_gap_and_what_was_not_measured_is_told_beneath() -> None:
    broken = a_profile(1e-4, flops_utilization=None)
    skipped = {"reasons": {"runtime_ms": "would take a year"}}
    figure = drawn(rows_of(a_profile(1e-5), broken, a_profile(1e-3), skipped))
    time, throughput = (axes.lines[0].get_ydata() for axes in figure.axes[:2])
    assert [math.isnan(value) for value in time] == [False, False, False, True]
    assert [math.isnan(value) for value in throughput] == [False, True, False, True]
    assert list(time[:3]) == pytest.approx([1e-5, 1e-4, 1e-3])
    assert throughput[0] == pytest.approx(2.0)
    assert "Not measured: cos of 1.00 M elements: would take a year" in words(figure)


def test_a_panel_of_which_nothing_is_known_says_why() -> None:
    figure = drawn(rows_of(a_profile(1e-5, flops_utilization=None, reasons={"flops": "needs passes=2"})))
    assert [text.get_text() for text in figure.axes[1].texts] == ["not known: needs passes=2"]
    assert [text.get_text() for text in figure.axes[2].texts] == []


def test_what_was_in_a_cache_is_a_ring_and_the_cache_is_named() -> None:
    figure = drawn(rows_of(a_profile(1e-5, residency="L2"), a_profile(1e-3)))
    faces = [line.get_markerfacecolor() for line in figure.axes[2].lines if line.get_marker() == "o"]
    assert len(set(faces)) == 2
    assert "rings: data in a cache (L2 90.0 GB/s)" in words(figure)


def test_time_for_new_memory_is_told_and_a_stem_leads_to_the_bandwidth_without_it() -> None:
    fresh = a_profile(1e-2, bandwidth_utilization=0.2, first_touch_ratio=0.6)
    figure = drawn(rows_of(a_profile(1e-5, first_touch_ratio=0.19), fresh))
    stems = [line for line in figure.axes[2].lines if list(line.get_xdata()) == [10_000, 10_000]]
    assert [list(line.get_ydata()) for line in stems] == [pytest.approx([20, 50])]
    assert "New memory: up to 60 % of the time of cos goes to pages" in words(figure)
    assert "New memory" not in words(drawn(rows_of(a_profile(1e-5, first_touch_ratio=0.19))))
    unknown = a_profile(1e-2, bandwidth_utilization=None, first_touch_ratio=0.6)
    assert "New memory" not in words(drawn(rows_of(a_profile(1e-5), unknown)))


@pytest.mark.parametrize(
    "rows",
    [
        [],
        rows_of({"reasons": {"runtime_ms": "failed $\\frac{$"}}, name="$\\frac{$"),
        rows_of(a_profile(1e-5, regime=None, confidence=None, bandwidth_utilization=7.5, runs=None)),
        [row for i in range(9) for row in rows_of(a_profile(1e-5), a_profile(1e-3, regime="NEW"), name=f"op{i}")],
    ],
    ids=["none", "failed", "odd", "many"],
)
@pytest.mark.parametrize("ceilings", [CEILINGS, Ceilings("A CPU", {})], ids=["known", "unknown"])
def test_whatever_the_rows_are_there_is_a_figure_with_text_of_8_points(rows: list[Row], ceilings: Ceilings) -> None:
    from matplotlib.text import Text

    figure = drawn(rows, ceilings)
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert all(text.get_fontsize() >= 8 for text in figure.findobj(Text) if text.get_text())


def test_titles_do_not_run_into_each_other() -> None:
    figure = drawn(rows_of(*(a_profile(1e-5, residency="L2") for _ in range(6))))
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert not axes._left_title.get_window_extent().overlaps(axes._right_title.get_window_extent())


def test_the_seeds_function_writes_the_file_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clock: FakeClock
) -> None:
    rows = rows_of(a_profile(1e-5), a_profile(1e-4))
    monkeypatch.setattr(panels, "sweep", lambda profiler, budget_s: rows)
    target = tmp_path / "figure.png"
    assert create_performance_plots(target, profiler=cast(GPUProfiler, Profiler(clock))) == target
    assert target.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"Performance figure written to {target}\n"


def test_where_no_figure_can_be_written_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiler = Profiler(FakeClock())
    with pytest.raises(UsageError, match="there is no directory"):
        create_performance_plots(tmp_path / "missing" / "a.png", profiler=cast(GPUProfiler, profiler))
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(UsageError, match="pip install matplotlib"):
        create_performance_plots(tmp_path / "a.png", profiler=cast(GPUProfiler, profiler))
    assert profiler.calls == []
