"""One operation, run and judged: how often, at which times, and what passes through."""

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest
from support.roofline import CEILINGS, FakeMachine

from gpu_profile.regions.session import process
from gpu_profile.roofline import doubling
from gpu_profile.roofline.call import BoundCall, name_of
from gpu_profile.roofline.machines.machine import Timing
from gpu_profile.roofline.measurement import RunCount, measure
from gpu_profile.roofline.profile import as_profile


class Counted:
    """A user's function that says how often it ran."""

    def __init__(self, result: object = "result") -> None:
        self.runs = 0
        self.result = result

    def __call__(self, *_: object, **__: object) -> object:
        self.runs += 1
        return self.result


def profile(function: Callable[..., Any], *, machine: FakeMachine | None = None, **options: Any) -> dict[str, Any]:
    work = {key: options.pop(key) for key in ("flops", "bytes") if key in options}
    _, found = measure(
        BoundCall(function, (), {}, **work), machine or FakeMachine(), CEILINGS, runs=RunCount(**options)
    )
    return as_profile(found)


@pytest.mark.parametrize(
    ("runs", "options"),
    [
        (1, {}),
        (5, {"repeats": 5}),
        (8, {"repeats": 5, "warmup": 3}),
        (2, {"passes": 2}),
        (6, {"repeats": 5, "passes": 2}),
    ],
)
def test_it_runs_more_often_only_as_asked(runs: int, options: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    function = Counted()
    profile(function, **options)
    assert function.runs == runs


def test_what_is_given_needs_no_second_pass() -> None:
    function = Counted()
    profile(function, passes=2, flops=10, bytes=10)
    assert function.runs == 1


def test_the_median_of_the_timed_runs_counts_and_warm_up_does_not() -> None:
    machine = FakeMachine(lambda run: [9.0, 9.0, 1e-3, 2e-3, 3e-3, 4e-3, 100.0][run - 1])
    found = profile(Counted(), machine=machine, warmup=2, repeats=5, flops=1, bytes=1)
    assert found["runtime_ms"] == 3.0
    assert found["runs"] == {"n": 5, "median_ms": 3.0, "low_ms": 1.0, "high_ms": 1e5, "caches": "warm"}


@pytest.mark.parametrize("warmup", [0, 1])
def test_the_doubling_test_is_told_and_with_a_warm_up_the_regions_have_it(warmup: int) -> None:
    import numpy as np

    machine = FakeMachine()
    call = BoundCall(np.sum, (np.ones(8),), {}, flops=7, bytes=64)
    runs = RunCount(growth=True, warmup=warmup)
    _, found = measure(call, machine, CEILINGS, runs=runs)
    assert found.position.growth == 0.0
    session = process.session()
    session.settle()
    growth = session.joiner.verdicts.operations["sum"].evidence().values.get("growth")
    assert growth == (0.0 if warmup else None)


def test_the_doubling_test_comes_between_the_warm_up_and_the_flush_of_the_first_timed_run() -> None:
    import numpy as np

    done: list[str] = []

    class Noting(FakeMachine):
        def run(self, call: Callable[[], Any]) -> tuple[Any, Timing]:
            result, timing = super().run(call)
            done.append(f"run {int(result)}")
            return result, timing

        def flush(self) -> None:
            done.append("flush")

    runs = RunCount(growth=True, warmup=1, flush=True)
    measure(BoundCall(np.sum, (np.ones(8),), {}, flops=7, bytes=64), Noting(), CEILINGS, runs=runs)
    assert done[:2] == ["flush", "run 8"]
    assert done[-4:] == ["flush", "run 8", "flush", "run 8"], "once the work ends the test, then the timed run is cold"
    assert done.count("run 16") == 1 + doubling.RUNS


def test_caches_are_flushed_before_each_run_if_asked_for() -> None:
    machine = FakeMachine()
    found = profile(Counted(), machine=machine, warmup=1, repeats=3, flush=True, flops=1, bytes=1)
    assert machine.flushed == 4
    assert found["runs"]["caches"] == "cold"


@pytest.mark.parametrize(
    ("regime", "seconds", "flops", "moved"),
    [
        ("COMPUTE_BOUND", 1e-3, 90_000_000, 400_000),
        ("MEMORY_BOUND", 1e-3, 1_000_000, 19_000_000),
        ("OVERHEAD_BOUND", 3e-6, 1_000, 1_000),
        ("BALANCED", 1e-3, 90_000_000, 18_000_000),
        ("UNKNOWN", 1e-3, 1_000, 1_000),
    ],
)
def test_given_flops_and_bytes_are_judged_against_the_ceilings(
    regime: str, seconds: float, flops: int, moved: int
) -> None:
    found = profile(Counted(), machine=FakeMachine(seconds), repeats=9, flush=True, flops=flops, bytes=moved)
    assert found["regime"] == f"{found['regime']}" == regime
    assert (found["confidence"] is None) == (regime == "UNKNOWN")


def test_one_run_is_less_sure_than_many_that_agree() -> None:
    once, often = (
        profile(Counted(), flops=1_000_000, bytes=16_000_000, flush=True, repeats=repeats) for repeats in (1, 20)
    )
    assert once["regime"] == often["regime"] == "MEMORY_BOUND"
    assert once["confidence"] < often["confidence"]


def test_a_profile_has_the_seed_s_keys_and_json_takes_it() -> None:
    found = profile(Counted(), flops=10**7, bytes=10**6)
    seed = {
        "runtime_ms",
        "achieved_flops",
        "achieved_bandwidth",
        "flops_utilization",
        "bandwidth_utilization",
        "regime",
        "compute_intensity",
        "memory",
    }
    assert seed <= found.keys()
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_what_is_not_known_is_none_and_has_a_reason() -> None:
    found = profile(Counted(), flops=10**7)
    assert (found["bytes"], found["bandwidth_utilization"], found["achieved_bandwidth"]) == (None, None, None)
    assert found["reasons"]["bytes"] == "not given"


@pytest.mark.parametrize("result", [None, (), (1, None), [], {}], ids=str)
def test_any_result_comes_back_as_it_is(result: object) -> None:
    returned, _ = measure(
        BoundCall(Counted(result), (), {}, flops=1, bytes=1), FakeMachine(), CEILINGS, runs=RunCount()
    )
    assert returned is result


@pytest.mark.parametrize("options", [{"repeats": 0}, {"repeats": True}, {"warmup": -1}, {"passes": 3}, {"passes": 0}])
def test_a_number_of_runs_that_is_none_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        RunCount(**options)  # type: ignore[arg-type]


def test_an_operation_is_named_after_its_function() -> None:
    assert name_of(functools.partial(functools.partial(sorted, key=len))) == "sorted"
    assert name_of(Counted()) == "Counted"
