"""The doubling test: how much longer twice the work takes. What is bound by overhead takes hardly longer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from gpu_profile.errors import UsageError
from gpu_profile.roofline.machines.machine import Machine
from gpu_profile.roofline.repeats import Repeats

#: Runs of either size: as many as give a median with a 95 % interval.
RUNS: Final = 7

#: Arguments, by their number or their name.
Places = Sequence[int | str]


def growth(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    machine: Machine,
    *,
    runs: int = RUNS,
    flush: bool = False,
) -> tuple[float | None, str]:
    """How much longer twice the work takes, as a share of the time of once; None, and why, if it cannot be run.

    Runs the function at least `RUNS` times with either; `flush` overwrites the caches before each of them. What it
    raises with its own arguments passes through.
    """
    once, reason = partial(function, *args, **kwargs), ""
    for places in choices(args, kwargs):
        try:
            given, named = doubled(args, kwargs, places)
            twice = partial(function, *given, **named)
            machine.run(twice)
        except Exception as error:  # noqa: BLE001 - twice the size is our wish: not every function takes it
            text = str(error).strip().partition("\n")[0]
            reason = f"arguments of twice the size were refused: {type(error).__name__}: {text[:160]}"
            continue
        machine.run(once)
        return _ratio(once, twice, machine, runs, flush=flush) - 1.0, ""
    return None, reason


def choices(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Places]:
    """Which arguments to double, the likeliest first: try the next ones if the function refuses them.

    The first array, and every other one of the same shape: the operands of an elementwise operation, queries, keys and
    values. Where that does not fit, as in a product of two square matrices, the first alone. UsageError if no argument
    is an array with a dimension.
    """
    arrays = [(place, value) for place, value in _by_place(args, kwargs).items() if _is_array(value)]
    if not arrays:
        raise UsageError("the doubling test needs an argument that is itself a tensor with at least one dimension")
    shape = tuple(arrays[0][1].shape)
    like: Places = [place for place, value in arrays if tuple(value.shape) == shape]
    return [like] if len(like) == 1 else [like, like[:1]]


def doubled(args: Sequence[Any], kwargs: Mapping[str, Any], places: Places) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, with those in `places` repeated once along their first dimension; one array stays one."""
    given = _by_place(args, kwargs)
    twice = {id(array): _twice(array) for array in (given[place] for place in places)}
    found = {place: twice[id(value)] if place in places else value for place, value in given.items()}
    return tuple(found[i] for i in range(len(args))), {name: found[name] for name in kwargs}


def _by_place(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int | str, Any]:
    return dict((*enumerate(args), *kwargs.items()))


def _ratio(once: Callable[[], Any], twice: Callable[[], Any], machine: Machine, runs: int, *, flush: bool) -> float:
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(max(RUNS, runs)):
        # By turns, so that a clock that changes meets both. Once the work comes last: what is timed next finds its own
        # data in the caches.
        for big, run in ((True, twice), (False, once)):
            if flush:
                machine.flush()
            times[big].append(machine.run(run)[1].device_s)
    small = Repeats.of(times[False]).median_s
    return Repeats.of(times[True]).median_s / small if small else 1.0


def _is_array(value: Any) -> bool:
    return bool(getattr(value, "shape", ())) and hasattr(value, "dtype")


def _twice(array: Any) -> Any:
    """The array two times along its first dimension, in memory of its own."""
    if hasattr(array, "detach"):
        copy = array.detach().repeat(2, *(1,) * (array.dim() - 1))
        return copy.requires_grad_(array.requires_grad)
    return array.repeat(2, axis=0)
