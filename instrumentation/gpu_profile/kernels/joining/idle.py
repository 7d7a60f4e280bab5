"""Why a GPU was idle: the gaps between its operations, each with its cause. Pure; times in ns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpu_profile.kernels.joining.columns import NONE, Numbers
from gpu_profile.kernels.joining.intervals import Cover

#: A shorter gap is the hardware's way from one operation to the next: HTA's `consecutive_kernel_delay`.
KERNEL_WAIT_NS: Final = 30
#: How long the host may take between operations, before the launching call, for the framework's own work on each
#: operation; HTA reports operations whose launch takes longer than this as outliers. The rest is something else.
PER_LAUNCH_NS: Final = 100_000
#: Before and after all times that records can have.
_EVER: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Idle:
    """Idle time by cause.

    `host_wait_ns`: the call that launched the next operation began after the last one had ended, so there was nothing
    to do. `kernel_wait_ns`: gaps below 30 ns that are no host wait. `other_ns`: the operation was launched in time and
    waited for something else, such as an event of another stream. `unknown_ns`: the trace has no call for it. After
    the last operation of a device nothing was launched: that is `host_wait_ns`, too.
    `launch_ns` is the part of `host_wait_ns` from the call on, and of the time before it at most 100 µs each.
    """

    host_wait_ns: int = 0
    kernel_wait_ns: int = 0
    other_ns: int = 0
    unknown_ns: int = 0
    launch_ns: int = 0

    @property
    def total_ns(self) -> int:
        """All idle time."""
        return self.host_wait_ns + self.kernel_wait_ns + self.other_ns + self.unknown_ns

    def by_cause(self, *, causes: bool) -> dict[str, int | None]:
        """Nanoseconds by cause. Without `causes`, the calls of the host, only how long all of it was is known."""
        known = {
            "host_wait": self.host_wait_ns,
            "launch": self.launch_ns,
            "kernel_wait": self.kernel_wait_ns,
            "other": self.other_ns,
            "unknown": self.unknown_ns,
        }
        return {**known} if causes else {**dict.fromkeys(known), "unknown": self.total_ns}

    def __add__(self, other: Idle) -> Idle:
        return Idle(*(getattr(self, cause) + getattr(other, cause) for cause in self.__slots__))


class _Gaps(NamedTuple):
    """Gaps before operations: where they begin and end, whether of each cause, and from when on it is launching."""

    starts: Numbers
    ends: Numbers
    host: NDArray[np.bool_]
    kernel: NDArray[np.bool_]
    other: NDArray[np.bool_]
    unknown: NDArray[np.bool_]
    launching: Numbers


def _gaps(starts: Numbers, ends: Numbers, launched: Numbers, first: int) -> _Gaps:
    """The gaps from `first` on, before operations sorted by start; of those that start together, the first launched."""
    until = np.concatenate(([first], np.maximum.accumulate(ends)[:-1]))
    some = starts > until
    until, starts, launched = until[some], starts[some], launched[some]
    unknown = launched == NONE
    host = ~unknown & (launched > until)
    short = ~unknown & ~host & (starts - until < KERNEL_WAIT_NS)
    # A call that seems to begin after its operation (clocks differ a little) leaves the whole gap before it.
    launching = np.maximum(until, np.minimum(launched, starts) - PER_LAUNCH_NS)
    return _Gaps(until, starts, host, short, ~unknown & ~host & ~short, unknown, launching)


def idle_between(starts: Numbers, ends: Numbers, launched: Numbers, first: int, last: int) -> Idle:
    """Idle time from `first` to `last`, by operations that are sorted by start, then by launch."""
    gaps = _gaps(starts, ends, launched, first)
    lengths = gaps.ends - gaps.starts
    return Idle(
        host_wait_ns=int(lengths[gaps.host].sum()) + last - int(ends.max()),
        kernel_wait_ns=int(lengths[gaps.kernel].sum()),
        other_ns=int(lengths[gaps.other].sum()),
        unknown_ns=int(lengths[gaps.unknown].sum()),
        launch_ns=int((gaps.ends - gaps.launching)[gaps.host].sum()),
    )


class IdleTimes:
    """The idle times of one device by cause, at all times, for any part of them."""

    def __init__(self, starts: Numbers, ends: Numbers, launched: Numbers) -> None:
        gaps = _gaps(starts, ends, launched, -_EVER)
        host = np.append(gaps.starts[gaps.host], ends.max()), np.append(gaps.ends[gaps.host], _EVER)
        #: In the order of `Idle`.
        self._covers = (
            Cover(*host),
            *(Cover(gaps.starts[part], gaps.ends[part]) for part in (gaps.kernel, gaps.other, gaps.unknown)),
            Cover(gaps.launching[gaps.host], gaps.ends[gaps.host]),
        )

    def within(self, windows: Cover) -> Idle:
        """Idle time inside the windows."""
        return Idle(*(cover.within(windows) for cover in self._covers))
