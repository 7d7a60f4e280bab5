"""Events of Chrome traces as PyTorch's profiler (Kineto) writes them, one at a time, as records. Pure.

`MAKERS` has one function for each supported phase and category: the categories of today and of before 2022, of
NVIDIA and AMD GPUs. The names of the events' arguments and the numbers of the kinds of devices are from the sources of
Kineto (`CudaMetadataFields.h`) and PyTorch (`c10/core/DeviceType.h`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from math import isfinite
from typing import Any, Final

from gpu_profile.kernels.records import HOST, Allocation, Call, Kind, Operation, Operator, Range, RangeCounters, Record

#: Half of int64's range, so that ends and differences fit as well.
LATEST: Final = 1 << 62

#: No single copy or allocation is larger than a petabyte, and no event longer than three months. So sums fit int64,
#: also for a damaged file.
_LARGEST: Final = 1 << 50
_LONGEST: Final = 1 << 53
_NS_PER_US: Final = 1000
_MOST_DEVICES: Final = 1 << 31
#: Names whose kind is remembered.
_NAMES: Final = 4096
_STEP: Final = "ProfilerStep#"
#: PyTorch's own annotations; before 2022 in the category of operators.
_ANNOTATIONS: Final = (_STEP, "enumerate(DataLoader)#", "Optimizer.step#", "Optimizer.zero_grad#")
#: `c10::DeviceType::CPU`; all others are counted by their own device ids.
_CPU: Final = 0
#: Arguments of a range of counters that describe its place and are no counters.
_PLACES: Final = frozenset({"device", "context", "stream", "correlation", "External id", "Ev Idx"})

Event = dict[str, Any]


class UnusableError(Exception):
    """An event cannot be used; the message is the reason."""


def _kernel(event: Event) -> Operation:
    name = _text(event.get("name"))
    return _operation(event, _kind_of_kernel(name), name)


def _copy(event: Event) -> Operation:
    name = _text(event.get("name"))
    return _operation(event, _kind_of_copy(name), name)


@lru_cache(_NAMES)
def _kind_of_kernel(name: str) -> Kind:
    # NVIDIA's and AMD's libraries of collectives: their kernels contain the library's name.
    low = name.lower()
    return Kind.COMMUNICATION if "nccl" in low or "rccl" in low else Kind.KERNEL


@lru_cache(_NAMES)
def _kind_of_copy(name: str) -> Kind:
    low = name.lower()
    return Kind.COPY if "dtod" in low or "devicetodevice" in low else Kind.TRANSFER


def _set(event: Event) -> Operation:
    return _operation(event, Kind.SET, _text(event.get("name")))


def _operation(event: Event, kind: Kind, name: str) -> Operation:
    arguments = _arguments(event)
    start, end = _interval(event)
    get = arguments.get
    stream, moved = get("stream", event.get("tid")), get("bytes")
    occupancy, blocks = get("est. achieved occupancy %"), get("blocks per SM")
    node, graph = get("graph node id"), get("graph id")
    percent = None if occupancy is None else _number(occupancy)
    return Operation(
        kind,
        _device(get("device", event.get("pid"))),
        _thread(stream),
        start,
        end,
        name,
        _correlation(arguments),
        None if moved is None else _amount(moved, _LARGEST),
        # The profiler's estimate is a whole number of per cent.
        percent / 100 if percent is not None and percent <= 100 else None,
        None if blocks is None else _number(blocks),
        (node is not None or graph is not None) and bool(_amount(node) or _amount(graph)),
    )


def _call(event: Event) -> Call | None:
    arguments = event.get("args")
    if type(arguments) is not dict or (correlation := _correlation(arguments)) is None:
        return None
    start, end = _interval(event)
    name = _text(event.get("name"))
    # HIP records the size of a copy in its calls only. An allocation's size is no copied size.
    moved = _amount(arguments["size"], _LARGEST) if "size" in arguments and "emcpy" in name else None
    return Call(correlation, start, end, _thread(event.get("tid")), name, moved)


def _range(event: Event) -> Range:
    name = _text(event.get("name"))
    if not name:
        raise UnusableError("no name")
    if name.startswith(_STEP) and name[len(_STEP) :].isdecimal():
        name = _STEP[:-1]
    start, end = _interval(event)
    return Range(name, _thread(event.get("tid")), start, end)


def _operator(event: Event) -> Operator | Range:
    name = _text(event.get("name"))
    if "#" in name and name.startswith(_ANNOTATIONS):
        return _range(event)
    start, end = _interval(event)
    arguments = _arguments(event)
    thread = _thread(event.get("tid"))
    if "Sequence number" not in arguments:
        return Operator(name, thread, start, end)
    forward = arguments.get("Fwd thread id")
    sequence = _amount(arguments["Sequence number"])
    return Operator(name, thread, start, end, sequence, type(forward) is int and forward != 0)


def _allocation(event: Event) -> Allocation | None:
    if event.get("name") != "[memory]":
        return None
    arguments = _arguments(event)
    moved, kind, device = arguments.get("Bytes"), arguments.get("Device Type"), arguments.get("Device Id")
    if type(moved) is not int or not moved or not -_LARGEST < moved < _LARGEST:
        raise UnusableError("no bytes")
    device = HOST if kind == _CPU and type(kind) is int else _device(device)
    time = nanoseconds(event.get("ts"), "no start time")
    address = arguments.get("Addr")
    return Allocation(
        time,
        _thread(event.get("tid")),
        device,
        moved,
        _amount(arguments.get("Total Allocated"), _LARGEST),
        address if type(address) is int and 0 < address < 1 << 64 else 0,
    )


def _counted(event: Event) -> RangeCounters:
    arguments = _arguments(event)
    device = _device(arguments.get("device", event.get("pid")))
    values = {}
    for name, value in arguments.items():
        number = _finite(value)
        if number is not None and name not in _PLACES:
            values[_text(name)] = number
    if not values:
        raise UnusableError("no counters")
    return RangeCounters(_text(event.get("name")), device, values)


#: By phase and category: the function that makes a record of an event. It returns None for an event of no interest.
MAKERS: Final[Mapping[tuple[Any, Any], Callable[[Event], Record | None]]] = {
    ("X", "kernel"): _kernel,
    ("X", "Kernel"): _kernel,
    ("X", "gpu_memcpy"): _copy,
    ("X", "Memcpy"): _copy,
    ("X", "gpu_memset"): _set,
    ("X", "Memset"): _set,
    ("X", "cuda_runtime"): _call,
    ("X", "cuda_driver"): _call,
    ("X", "Runtime"): _call,
    ("X", "user_annotation"): _range,
    ("X", "cpu_op"): _operator,
    ("X", "Operator"): _operator,
    ("i", None): _allocation,
    ("i", "cpu_instant_event"): _allocation,
    ("X", "cuda_profiler_range"): _counted,
}


def nanoseconds(value: Any, missing: str) -> int:
    """Microseconds, as an integer or as text, in exact nanoseconds. UnusableError with `missing` for anything else."""
    if type(value) is int:
        ns = value * _NS_PER_US
    elif type(value) is str:
        # A float resolves today's microseconds since the epoch to a quarter of a microsecond only.
        try:
            if value[-4:-3] == "." and value[-3:].isdecimal() and len(value) < 20:
                return int(value.replace(".", "", 1))
            if not abs(float(value)) < LATEST:
                raise UnusableError("time out of range")
            ns = round(Decimal(value) * _NS_PER_US)
        except (ValueError, ArithmeticError):
            raise UnusableError(missing) from None
    else:
        raise UnusableError(missing)
    if not -LATEST < ns < LATEST:
        raise UnusableError("time out of range")
    return ns


def _interval(event: Event) -> tuple[int, int]:
    ts, dur = event.get("ts"), event.get("dur")
    if type(ts) is str and type(dur) is str and ts[-4:-3] == "." == dur[-4:-3] and (ts[-3:] + dur[-3:]).isdecimal():
        # Today's form of both: three decimals. Anything unusual about them is left to the checks below.
        try:
            start, length = int(ts.replace(".", "", 1)), int(dur.replace(".", "", 1))
        except ValueError:
            length = -1
        if 0 <= length <= _LONGEST and -LATEST < start < LATEST:
            return start, start + length
    start = nanoseconds(ts, "no start time")
    length = nanoseconds(dur, "no duration")
    if length < 0:
        raise UnusableError("negative duration")
    if length > _LONGEST:
        raise UnusableError("time out of range")
    return start, start + length


def _arguments(event: Event) -> Event:
    arguments = event.get("args")
    return arguments if type(arguments) is dict else {}


def _device(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MOST_DEVICES:
        raise UnusableError("no device")
    return value


def _correlation(arguments: Event) -> int | None:
    correlation = arguments.get("correlation")
    return correlation if type(correlation) is int and 0 < correlation < LATEST else None


def _thread(value: Any) -> int | str:
    """A thread or stream. Old traces write some ids as text, which must equal the same id as a number."""
    if type(value) is int and -LATEST < value < LATEST:
        return value
    if type(value) is not str:
        return ""
    return int(value) if value.isdecimal() and len(value) < 19 else _text(value)


def _text(value: Any) -> str:
    """Text that can be printed and saved: lone surrogates are replaced."""
    if type(value) is not str:
        return ""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _amount(value: Any, largest: int = LATEST) -> int | None:
    """A whole number from 0 on, also as text, below the largest plausible one."""
    if value is None:
        return None
    if type(value) is str and value.isdecimal() and len(value) < 19:
        value = int(value)
    return value if type(value) is int and 0 <= value < largest else None


def _finite(value: Any) -> float | None:
    """A number; fractions come as text, which may also be "inf"."""
    if type(value) is not str and type(value) is not int:
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def _number(value: Any) -> float | None:
    """A number from 0 on."""
    number = _finite(value)
    return number if number is not None and 0 <= number < LATEST else None
