"""What a machine can do at most: FLOPs per second by precision, bytes per second by cache, one empty launch. Pure.

Read and written as plain JSON values, so that they can be kept between runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

from gpu_profile.roofline.precision import Precision
from gpu_profile.units import percent

#: `measured` on this machine; `datasheet`: the vendor's figure; `formula`: worked out from clocks and widths.
Source = Literal["measured", "datasheet", "formula"]

#: Of what data sheets promise, more than this cannot be: the measurement is wrong. Clocks above the sheet's boost clock
#: give some per cent.
IMPOSSIBLE: Final = 1.15
#: A thread of a calibration that had to wait for a processor for more than this share may have missed its ceiling.
MOST_WAITED: Final = 0.2


class Ceiling(NamedTuple):
    """One limit in base units per second, where it comes from, and what is to be said about it."""

    value: float
    source: Source
    note: str = ""


class Level(NamedTuple):
    """Bytes per second while all that is touched fits into `up_to` bytes; None: the device's memory, for any size."""

    name: str
    up_to: int | None
    bandwidth: Ceiling


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The ceilings of one machine.

    `compute`: FLOPs per second by precision. `levels`: bytes per second, the smallest cache first, the memory last.
    `launch_s`: how long the device needs for an operation that does nothing, when it did the same just before, and
    `cold_launch_s` for one on a few elements when the caches hold other things, code among them. `fault_s`: how long a
    page of the host's memory takes that is touched for the first time, beyond what is written. `missing`: why a ceiling
    is not known, by its name. `machine`: its name; `key`: what they hold for, as in `Machine.key`. `calibrated_ns`:
    when they were measured, ns since the epoch, 0 if they were not. `waited`: how much of its time the least disturbed
    of their calibrations waited for a processor that others used.
    """

    machine: str
    key: Mapping[str, str]
    compute: Mapping[Precision, Ceiling] = field(default_factory=dict)
    levels: tuple[Level, ...] = ()
    launch_s: float | None = None
    cold_launch_s: float | None = None
    fault_s: float | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    calibrated_ns: int = 0
    waited: float = 0.0

    @property
    def doubt(self) -> str:
        """Why they may be too low; empty if nothing says so."""
        if self.waited <= MOST_WAITED:
            return ""
        others = f"others had the processor for {percent(self.waited, 0)} of the time while they were measured"
        return f"the ceilings are uncertain: {others}: recalibrate when the machine is idle"

    @property
    def memory(self) -> Ceiling | None:
        """Bytes per second of the device's memory."""
        return self.levels[-1].bandwidth if self.levels and self.levels[-1].up_to is None else None

    def cache(self, working_set: int) -> Level | None:
        """The smallest cache that holds so many bytes; None if none does."""
        return next((each for each in self.levels if each.up_to is not None and working_set <= each.up_to), None)

    def ridge(self, precision: Precision) -> float | None:
        """FLOPs per byte from which on arithmetic is the lower ceiling; None if either is unknown."""
        compute, memory = self.compute.get(precision), self.memory
        return None if compute is None or memory is None else compute.value / memory.value

    def best(self, other: Ceilings) -> Ceilings:
        """The higher ceilings and the shorter launches of two calibrations of one machine; the later one's time."""
        compute = {
            each: max(c for c in (self.compute.get(each), other.compute.get(each)) if c is not None)
            for each in (*self.compute, *(new for new in other.compute if new not in self.compute))
        }
        more, fewer = (self, other) if len(self.levels) >= len(other.levels) else (other, self)
        same = {level.name: level.bandwidth for level in fewer.levels}
        levels = tuple(
            level._replace(bandwidth=max(level.bandwidth, same.get(level.name, level.bandwidth)))
            for level in more.levels
        )
        known = {*map(str, compute), *(level.name for level in levels)}
        return replace(
            other,
            compute=compute,
            levels=levels,
            launch_s=_least(self.launch_s, other.launch_s),
            cold_launch_s=_least(self.cold_launch_s, other.cold_launch_s),
            fault_s=_least(self.fault_s, other.fault_s),
            waited=min(self.waited, other.waited),
            missing={name: why for name, why in {**self.missing, **other.missing}.items() if name not in known},
        )

    def to_json(self) -> dict[str, Any]:
        """As values that JSON has."""
        return {
            "machine": self.machine,
            "key": dict(self.key),
            "compute": {str(p): list(c) for p, c in self.compute.items()},
            "levels": [[each.name, each.up_to, list(each.bandwidth)] for each in self.levels],
            "launch_s": self.launch_s,
            "cold_launch_s": self.cold_launch_s,
            "fault_s": self.fault_s,
            "missing": dict(self.missing),
            "calibrated_ns": self.calibrated_ns,
            "waited": self.waited,
        }

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Ceilings:
        """The reverse. TypeError, ValueError, LookupError, AttributeError or OverflowError if it is something else."""
        return Ceilings(
            machine=_text(found["machine"]),
            key={_text(name): _text(value) for name, value in found["key"].items()},
            compute={Precision(p): _ceiling(c) for p, c in found["compute"].items()},
            levels=tuple(Level(_text(n), None if u is None else int(u), _ceiling(b)) for n, u, b in found["levels"]),
            launch_s=_maybe(found["launch_s"]),
            cold_launch_s=_maybe(found["cold_launch_s"]),
            fault_s=_maybe(found["fault_s"]),
            missing={_text(name): _text(value) for name, value in found["missing"].items()},
            calibrated_ns=int(found["calibrated_ns"]),
            waited=_share(found.get("waited", 0.0)),  # files of before it was kept are of an idle machine
        )


def _least(a: float | None, b: float | None) -> float | None:
    return min((each for each in (a, b) if each is not None), default=None)


def _ceiling(found: Any) -> Ceiling:
    value, source, note = found
    if source not in ("measured", "datasheet", "formula"):
        raise ValueError(f"{source!r} is no source of a ceiling")
    return Ceiling(_positive(value), source, _text(note))


def _positive(value: Any) -> float:
    number = float(value)
    if not 0 < number < float("inf"):
        raise ValueError(f"{value!r} is no positive number")
    return number


def _share(value: Any) -> float:
    number = float(value)
    if not 0 <= number <= 1:
        raise ValueError(f"{value!r} is no share")
    return number


def _maybe(value: Any) -> float | None:
    return None if value is None else _positive(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value
