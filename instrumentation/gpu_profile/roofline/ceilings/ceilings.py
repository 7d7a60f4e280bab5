"""The ceilings of a machine: FLOP/s per precision, B/s per cache and memory, seconds of an empty launch. Pure.

They convert to and from plain JSON values, for the cache on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

from gpu_profile.roofline.precision import Precision
from gpu_profile.units import percent

#: `measured`: on this machine. `datasheet`: the vendor's figure. `formula`: computed from clocks and widths.
Source = Literal["measured", "datasheet", "formula"]

#: A measurement above the data sheet's figure by more than this factor is wrong. Clocks above the sheet's boost clock
#: explain some per cent.
IMPOSSIBLE: Final = 1.15
#: A calibration in which a thread waited for a processor for more than this share may have missed its ceiling.
MOST_WAITED: Final = 0.2


class Ceiling(NamedTuple):
    """One limit in base units per second (FLOP/s or B/s), with its source and a note for the user."""

    value: float
    source: Source
    note: str = ""


class Level(NamedTuple):
    """A cache, or the device's memory: bytes per second for working sets of up to `up_to` bytes, None for any size."""

    name: str
    up_to: int | None
    bandwidth: Ceiling


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The ceilings of one machine.

    `compute`: FLOPs per second by precision. `levels`: bytes per second, the smallest cache first, the memory last.
    `launch_s`: seconds that the device takes for an operation on one element, repeated with warm caches.
    `cold_launch_s`: the same for an operation on a few elements after its data and code were evicted from the caches.
    `fault_s`: seconds that the first touch of a page of host memory adds to the time of writing it. `missing`: name of
    a ceiling -> why it is unknown. `machine`: name of the machine. `key`: see `Machine.key`; the ceilings are valid
    only for it. `calibrated_ns`: time of the calibration in ns since the epoch, 0 if nothing was measured. `waited`:
    the share of the least disturbed calibration in which a thread waited for a processor that other programs used.
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
        """Why the ceilings may be too low; empty if there is no sign of it."""
        if self.waited <= MOST_WAITED:
            return ""
        cause = f"others had the processor for {percent(self.waited, 0)} of the time while they were measured"
        return f"the ceilings are uncertain: {cause}: recalibrate when the machine is idle"

    @property
    def memory(self) -> Ceiling | None:
        """Bytes per second of the device's memory."""
        return self.levels[-1].bandwidth if self.levels and self.levels[-1].up_to is None else None

    def cache(self, working_set: int) -> Level | None:
        """The smallest cache of at least `working_set` bytes. None if there is none."""
        return next((each for each in self.levels if each.up_to is not None and working_set <= each.up_to), None)

    def ridge(self, precision: Precision) -> float | None:
        """FLOPs per byte above which arithmetic is the lower ceiling. None if either ceiling is unknown."""
        compute, memory = self.compute.get(precision), self.memory
        return None if compute is None or memory is None else compute.value / memory.value

    def best(self, other: Ceilings) -> Ceilings:
        """The higher ceilings and the shorter launches of two calibrations of one machine, with the time of `other`."""
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
        measured = {*map(str, compute), *(level.name for level in levels)}
        return replace(
            other,
            compute=compute,
            levels=levels,
            launch_s=_least(self.launch_s, other.launch_s),
            cold_launch_s=_least(self.cold_launch_s, other.cold_launch_s),
            fault_s=_least(self.fault_s, other.fault_s),
            waited=min(self.waited, other.waited),
            missing={name: why for name, why in {**self.missing, **other.missing}.items() if name not in measured},
        )

    def to_json(self) -> dict[str, Any]:
        """The ceilings as JSON values."""
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
    def from_json(content: Mapping[str, Any]) -> Ceilings:
        """The inverse of `to_json`.

        Other input raises TypeError, ValueError, LookupError, AttributeError or OverflowError.
        """
        return Ceilings(
            machine=_text(content["machine"]),
            key={_text(name): _text(value) for name, value in content["key"].items()},
            compute={Precision(p): _ceiling(c) for p, c in content["compute"].items()},
            levels=tuple(Level(_text(n), None if u is None else int(u), _ceiling(b)) for n, u, b in content["levels"]),
            launch_s=_maybe(content["launch_s"]),
            cold_launch_s=_maybe(content["cold_launch_s"]),
            fault_s=_maybe(content["fault_s"]),
            missing={_text(name): _text(value) for name, value in content["missing"].items()},
            calibrated_ns=int(content["calibrated_ns"]),
            waited=_share(content.get("waited", 0.0)),  # files without it count as of an idle machine
        )


def _least(a: float | None, b: float | None) -> float | None:
    return min((each for each in (a, b) if each is not None), default=None)


def _ceiling(content: Any) -> Ceiling:
    value, source, note = content
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
