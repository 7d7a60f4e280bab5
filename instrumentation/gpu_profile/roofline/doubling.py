"""The doubling test: how much longer twice the work takes. An operation bound by overhead takes hardly longer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from gpu_profile.errors import UsageError
from gpu_profile.roofline.machines.machine import Machine
from gpu_profile.roofline.repeats import Repeats

#: Runs of each size: enough for a 95 % interval of the median.
RUNS: Final = 7

#: Arguments, by position or by name.
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
    """`(growth, "")`: the additional time of twice the work, relative to the time of once the work.

    `(None, reason)` if the function refuses larger arguments. Runs the function at least `RUNS` times with each size.
    `flush` overwrites the caches before each run. Exceptions of the function with its own arguments propagate.
    """
    once, reason = partial(function, *args, **kwargs), ""
    for places in choices(args, kwargs):
        try:
            given, named = doubled(args, kwargs, places)
            twice = partial(function, *given, **named)
            machine.run(twice)
        except Exception as error:  # noqa: BLE001 - twice the size is our choice: not every function accepts it
            text = str(error).strip().partition("\n")[0]
            reason = f"arguments of twice the size were refused: {type(error).__name__}: {text[:160]}"
            continue
        machine.run(once)
        return _ratio(once, twice, machine, runs, flush=flush) - 1.0, ""
    return None, reason


def choices(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Places]:
    """Alternative sets of arguments to double, the likeliest first. The next is for a function that refuses the first.

    The first set: the first array and all others of its shape, such as the operands of an elementwise operation, or
    queries, keys and values. The second: the first array alone, for example for a product of two square matrices.
    Raises UsageError if no argument is an array with a dimension.
    """
    arrays = [(place, value) for place, value in _by_place(args, kwargs).items() if _is_array(value)]
    if not arrays:
        raise UsageError("the doubling test needs an argument that is itself a tensor with at least one dimension")
    shape = tuple(arrays[0][1].shape)
    same_shape: Places = [place for place, value in arrays if tuple(value.shape) == shape]
    return [same_shape] if len(same_shape) == 1 else [same_shape, same_shape[:1]]


def doubled(args: Sequence[Any], kwargs: Mapping[str, Any], places: Places) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments; the arrays in `places` are repeated once along their first dimension.

    An array that is passed in several of these places is doubled once and stays one array.
    """
    given = _by_place(args, kwargs)
    twice = {id(array): _twice(array) for array in (given[place] for place in places)}
    arguments = {place: twice[id(value)] if place in places else value for place, value in given.items()}
    return tuple(arguments[i] for i in range(len(args))), {name: arguments[name] for name in kwargs}


def _by_place(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int | str, Any]:
    return dict((*enumerate(args), *kwargs.items()))


def _ratio(once: Callable[[], Any], twice: Callable[[], Any], machine: Machine, runs: int, *, flush: bool) -> float:
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(max(RUNS, runs)):
        # Alternating, so that a change of the clock affects both sizes. Once the work runs last, because the caller's
        # next timed run then finds its own data in the caches.
        for big, run in ((True, twice), (False, once)):
            if flush:
                machine.flush()
            times[big].append(machine.run(run)[1].device_s)
    small = Repeats.of(times[False]).median_s
    return Repeats.of(times[True]).median_s / small if small else 1.0


def _is_array(value: Any) -> bool:
    return bool(getattr(value, "shape", ())) and hasattr(value, "dtype")


def _twice(array: Any) -> Any:
    """A copy that repeats the array once along its first dimension."""
    if hasattr(array, "detach"):
        copy = array.detach().repeat(2, *(1,) * (array.dim() - 1))
        return copy.requires_grad_(array.requires_grad)
    return array.repeat(2, axis=0)
