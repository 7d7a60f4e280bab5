"""One timing and a regime per call, by the same rules as a whole measurement."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.roofline import CEILINGS, FakeMachine

from gpu_profile.regimes import DEFAULT_THRESHOLDS
from gpu_profile.regions.session import process
from gpu_profile.roofline import call, light
from gpu_profile.roofline.counting.known import known_work
from gpu_profile.roofline.light import Light
from gpu_profile.roofline.machines.machine import Timing
from gpu_profile.roofline.profiler import GPUProfiler
from gpu_profile.roofline.work import Work

torch = pytest.importorskip("torch")


def made(seconds: float, *, regions: bool = False) -> Light:
    return Light(FakeMachine(seconds), CEILINGS, DEFAULT_THRESHOLDS, regions=regions)


@pytest.mark.parametrize(
    ("regime", "seconds", "size"), [("OVERHEAD_BOUND", 3e-6, 64), ("MEMORY_BOUND", 7e-3, 10**7), ("UNKNOWN", 10.0, 640)]
)
def test_the_regime_is_that_of_the_rules(regime: str, seconds: float, size: int) -> None:
    a = torch.ones(size)
    _, found = made(seconds).profile(torch.cos, (a,), {})
    assert found == {"runtime_ms": seconds * 1e3, "regime": regime}


def test_the_function_runs_once_and_its_result_comes_back() -> None:
    runs = []

    def theirs(a: Any, *, b: int) -> int:
        runs.append((a, b))
        return b

    result, found = made(1e-3).profile(theirs, (1,), {"b": 5})
    assert (result, runs) == (5, [(1, 5)])
    assert found["regime"] == "UNKNOWN"


def test_a_shape_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def known(function: Any, args: Any, kwargs: Any) -> Work | None:
        asked.append(args[0].shape)
        return known_work(function, args, kwargs)

    known_work = call.known_work
    monkeypatch.setattr(call, "known_work", known)
    profile = made(1e-3).profile
    for size in (10, 20, 10, 20, 10):
        profile(torch.cos, (torch.ones(size),), {})
    assert asked == [(10,), (20,)]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(light, "_MOST_CACHED", 10)
    lightly = made(1e-3)
    for size in range(35):
        lightly.profile(torch.cos, (torch.ones(size),), {})
    assert len(lightly._cache) <= 10


def test_functions_and_arguments_that_cannot_be_looked_up_run_all_the_same() -> None:
    class Odd:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, argument: object) -> object:
            return argument

    argument = [object()]
    assert made(1e-3).profile(Odd(), (argument,), {})[0] is argument


def test_region_metrics_have_each_call_with_its_flops() -> None:
    lightly = made(7e-3, regions=True)
    for _ in range(3):
        lightly.profile(torch.cos, (torch.ones(10**7),), {})
    session = process.session()
    session.settle()
    assert session.joiner.verdicts.operations["cos"].flops == 3 * 10**7


@given(st.floats(1e-9, 1e4))
def test_durations_that_share_an_answer_are_within_an_eighth(seconds: float) -> None:
    lightly = made(seconds)
    cached = light._CachedOperation("x", known_work(torch.cos, (torch.ones(100),), {}))  # type: ignore[arg-type]
    for faults in (0, 100):
        lightly._answer(cached, Timing(seconds, seconds, faults), None)
        lightly._answer(cached, Timing(seconds * 1.2 + 2e-9, seconds, faults), None)
    assert len(cached.answers) == 4


def test_a_profiler_takes_lightweight_as_an_option() -> None:
    profiler = GPUProfiler("cpu", quiet=True, ceilings=CEILINGS, regions=False)
    result, found = profiler.profile_with_result(torch.add, torch.ones(3), torch.ones(3), lightweight=True)
    assert result.tolist() == [2.0, 2.0, 2.0]
    assert set(found) == {"runtime_ms", "regime"}


@pytest.mark.parametrize(
    "option", [{"repeats": 3}, {"passes": 2}, {"growth": True}, {"flops": 1}, {"name": "x"}], ids=str
)
def test_other_options_beside_it_are_refused_before_anything_runs(option: dict[str, Any]) -> None:
    profiler = GPUProfiler("cpu", quiet=True, ceilings=CEILINGS, regions=False)
    ran: list[int] = []
    with pytest.raises(ValueError, match="takes none of the other options"):
        profiler.profile_with_result(ran.append, 1, lightweight=True, **option)
    assert ran == []
