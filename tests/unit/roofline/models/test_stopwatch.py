"""How long modules take: exact on a model of CUDA's streams, without the hooks' own cost on the host."""

from collections.abc import Callable
from typing import Any

import pytest
from support.concurrency import in_threads

torch = pytest.importorskip("torch")

from support.cuda import FakeCuda  # noqa: E402
from torch import nn  # noqa: E402
from unit.roofline.models.streams import Waiting  # noqa: E402

from gpu_profile.errors import UsageError  # noqa: E402
from gpu_profile.roofline.machines.cupy_machine import CupyDevice  # noqa: E402
from gpu_profile.roofline.machines.torch_machine import TorchCpu  # noqa: E402
from gpu_profile.roofline.models.hooks import Submodule, submodules, watched  # noqa: E402
from gpu_profile.roofline.models.stopwatch import HookCost, Lap, Stopwatch, hook_cost  # noqa: E402
from gpu_profile.roofline.models.timers import EventTimer, HostTimer, timer_for  # noqa: E402


class Kernel(nn.Module):  # type: ignore[misc]
    """Launches work of so many seconds, then calls what is inside of it, then launches as much again."""

    def __init__(self, cuda: FakeCuda, seconds: float, *inside: Any) -> None:
        super().__init__()
        self.cuda = cuda
        self.seconds = seconds
        self.inside = nn.ModuleList(inside)

    def forward(self, value: Any = None) -> Any:
        self.cuda.launch(self.seconds)
        for module in self.inside:
            module(value)
        self.cuda.launch(self.seconds)
        return value


def timed(cuda: FakeCuda, model: Any, call: Callable[[Any], object] | None = None) -> dict[str, Lap]:
    watch = Stopwatch(EventTimer(Waiting(cuda), 0), HookCost())
    watch.start()
    with watched(submodules(model), watch):
        (call or (lambda module: module()))(model)
    watch.stop()
    assert watch.failure is None
    return {submodule.path: lap for submodule, lap in watch.laps.items()}


def seconds(expected: float) -> Any:
    return pytest.approx(expected, abs=5e-6)


def test_own_time_is_the_whole_without_the_modules_inside(cuda: FakeCuda) -> None:
    laps = timed(cuda, Kernel(cuda, 0.001, Kernel(cuda, 0.010, Kernel(cuda, 0.100)), Kernel(cuda, 1.0)))
    assert laps[""].own_s == seconds(0.002)
    assert laps[""].total_s == seconds(2.222)
    assert laps["inside.0"].own_s == seconds(0.020)
    assert laps["inside.0"].total_s == seconds(0.220)
    assert laps["inside.0.inside.0"].own_s == seconds(0.200)
    assert laps["inside.1"].own_s == seconds(2.0)
    assert [laps[path].nested for path in ("", "inside.0", "inside.1")] == [2, 1, 0]


def test_the_host_does_not_wait_for_the_device_while_the_model_runs(cuda: FakeCuda) -> None:
    def call(model: Any) -> None:
        model()
        waits.extend(cuda.waits)

    waits: list[str] = []
    timed(cuda, Kernel(cuda, 0.5, Kernel(cuda, 0.5)), call)
    assert waits == []
    assert cuda.waits == ["device 0"]


def test_a_shared_module_is_one_with_all_its_calls(cuda: FakeCuda) -> None:
    shared = Kernel(cuda, 0.010)
    laps = timed(cuda, Kernel(cuda, 0.001, shared, shared, shared))
    assert laps["inside.0"].calls == 3
    assert laps["inside.0"].own_s == seconds(0.060)
    assert set(laps) == {"", "inside.0"}


def test_the_total_of_a_module_that_calls_itself_is_of_the_outermost_call(cuda: FakeCuda) -> None:
    class Countdown(nn.Module):  # type: ignore[misc]
        def forward(self, left: int) -> None:
            cuda.launch(0.010)
            if left:
                self(left - 1)

    laps = timed(cuda, Countdown(), lambda model: model(3))
    assert laps[""].calls == 4
    assert laps[""].own_s == laps[""].total_s == seconds(0.040)


def test_a_call_that_failed_and_was_caught_is_timed_and_those_after_it(cuda: FakeCuda) -> None:
    class Failing(Kernel):
        def forward(self, value: Any = None) -> Any:
            super().forward(value)
            raise LookupError("no")

    class Careful(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Failing(cuda, 0.010), Kernel(cuda, 0.100)

        def forward(self) -> None:
            with pytest.raises(LookupError, match="no"):
                self.first()
            self.second()

    laps = timed(cuda, Careful())
    assert (laps["first"].own_s, laps["second"].own_s, laps[""].own_s) == (seconds(0.02), seconds(0.2), seconds(0.0))


def test_a_call_that_was_left_by_an_interrupt_does_not_confuse_the_others(cuda: FakeCuda) -> None:
    class Interrupted(nn.Module):  # type: ignore[misc]
        def forward(self) -> None:
            raise KeyboardInterrupt

    class Careful(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Interrupted(), Kernel(cuda, 0.1)

        def forward(self) -> None:
            with pytest.raises(KeyboardInterrupt):
                self.first()
            self.second()

    laps = timed(cuda, Careful())
    assert (laps["second"].calls, laps[""].calls, laps["first"].calls) == (1, 1, 0)
    assert laps[""].total_s == seconds(0.2)


def test_calls_that_other_threads_make_are_not_taken_for_this_ones(cuda: FakeCuda) -> None:
    def call(model: Any) -> None:
        in_threads(model.inside[0])
        model()

    laps = timed(cuda, Kernel(cuda, 0.001, Kernel(cuda, 0.010)), call)
    assert laps["inside.0"].calls == 1


def test_calls_are_counted_by_the_shapes_that_they_work_on(cuda: FakeCuda) -> None:
    def call(model: Any) -> None:
        for rows in (1, 2, 1):
            model(torch.ones(rows, 3))

    laps = timed(cuda, Kernel(cuda, 0.001), call)
    assert sorted(laps[""].kinds.values()) == [1, 2]


def test_a_run_forgets_the_one_before(cuda: FakeCuda) -> None:
    model = Kernel(cuda, 0.001)
    watch = Stopwatch(EventTimer(Waiting(cuda), 0), HookCost())
    for _ in range(2):
        watch.start()
        with watched(submodules(model), watch):
            model()
        watch.stop()
    assert [lap.calls for lap in watch.laps.values()] == [1]


def test_on_the_host_the_hooks_own_time_is_in_no_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each reading of the clock takes a second, so hooks cost what the readings in them do.
    ticks = iter(range(10_000))
    monkeypatch.setattr(HostTimer, "now", staticmethod(lambda: float(next(ticks))))
    monkeypatch.setattr("gpu_profile.roofline.models.stopwatch.perf_counter", lambda: float(next(ticks)))
    watch = Stopwatch(HostTimer(), HookCost())
    model = nn.Sequential(nn.Identity(), nn.Identity())
    watch.start()
    with watched(submodules(model), watch):
        model(None)
    watch.stop()
    laps = {submodule.path: lap for submodule, lap in watch.laps.items()}
    inner = laps["0"].own_s
    assert laps["1"].own_s == inner
    # From hook to hook at most two readings are between each two of three calls.
    assert laps[""].total_s == laps[""].own_s + 2 * inner <= 12
    assert watch.hooks_s > 0


def test_what_pytorch_takes_for_hooks_is_measured_and_left_out() -> None:
    cost = hook_cost()
    assert cost.inside >= 0
    assert 0 < cost.inside + cost.outside < 1e-3
    submodule = Submodule("", nn.Identity(), "hooks")

    def own_s(cost: HookCost) -> float:
        watch = Stopwatch(HostTimer(), cost)
        watch.start()
        with watched([submodule], watch):
            submodule.module(None)
        watch.stop()
        return watch.laps[submodule].own_s

    assert own_s(HookCost(inside=1.0)) == 0.0


def test_a_failure_of_the_clock_is_not_the_models(cuda: FakeCuda) -> None:
    class Broken(HostTimer):
        now = staticmethod(lambda: 1 / 0)

    watch = Stopwatch(Broken(), HookCost())
    watch.start()
    model = nn.Identity()
    with watched(submodules(model), watch):
        assert model(5) == 5
    watch.stop()
    assert isinstance(watch.failure, ZeroDivisionError)


def test_a_machine_whose_modules_cannot_be_told_apart_is_refused() -> None:
    assert isinstance(timer_for(TorchCpu()), HostTimer)
    cupy = object.__new__(CupyDevice)
    with pytest.raises(UsageError, match="not on cupy"):
        timer_for(cupy)


class Touching(HostTimer):
    """Each look finds three more pages touched."""

    def __init__(self) -> None:
        self.looks = 0

    def faults(self) -> int:
        self.looks += 1
        return 3 * self.looks


def test_first_touches_are_those_of_a_module_s_own_time() -> None:
    model = nn.Sequential(nn.Identity(), nn.Sequential(nn.Identity()))
    submodules_of_model = submodules(model)
    stopwatch = Stopwatch(Touching())
    stopwatch.start()
    with watched(submodules_of_model, stopwatch):
        model(torch.ones(2))
    stopwatch.stop()
    faults = {submodule.path: lap.faults for submodule, lap in stopwatch.laps.items()}
    # Looks: outer, first, first, inner, last, last, inner, outer.
    assert faults == {"": 3 * 7 - 3 - 9, "0": 3, "1": 6, "1.0": 3}
