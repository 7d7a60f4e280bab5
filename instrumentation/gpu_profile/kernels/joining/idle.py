"""The causes of a GPU's idle time: the gaps between its operations, each with its cause. Pure; times in ns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpu_profile.kernels.joining.columns import NONE, Numbers
from gpu_profile.kernels.joining.intervals import Cover

#: A shorter gap is the hardware's delay between two operations: HTA's `consecutive_kernel_delay`.
KERNEL_WAIT_NS: Final = 30
#: The host's time before a launching call that counts as the framework's own work on the operation. HTA reports
#: operations with a longer launch as outliers. Time beyond this limit has another cause.
PER_LAUNCH_NS: Final = 100_000
#: Beyond all times that records can have.
_EVER: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Idle:
    """Idle time by cause.

    `host_wait_ns`: the call that launched the next operation began after the last operation had ended, so there was
    nothing to do. `kernel_wait_ns`: gaps below 30 ns that are no host wait. `other_ns`: the operation was launched in
    time and waited for another condition, such as an event of another stream. `unknown_ns`: the trace has no call for
    it. After the last operation of a device nothing was launched: this time is `host_wait_ns`, too.
    `launch_ns` is a part of `host_wait_ns`: the time from each call on, and at most 100 µs before it.
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
        """Nanoseconds by cause. Without `causes`, as without calls of the host, all is `unknown`, the rest None."""
        times = {
            "host_wait": self.host_wait_ns,
            "launch": self.launch_ns,
            "kernel_wait": self.kernel_wait_ns,
            "other": self.other_ns,
            "unknown": self.unknown_ns,
        }
        return {**times} if causes else {**dict.fromkeys(times), "unknown": self.total_ns}

    def __add__(self, other: Idle) -> Idle:
        return Idle(*(getattr(self, cause) + getattr(other, cause) for cause in self.__slots__))


class _Gaps(NamedTuple):
    """Gaps before operations: where they begin and end, a flag for each cause, and from when on launching counts."""

    starts: Numbers
    ends: Numbers
    host: NDArray[np.bool_]
    kernel: NDArray[np.bool_]
    other: NDArray[np.bool_]
    unknown: NDArray[np.bool_]
    launching: Numbers


def _gaps(starts: Numbers, ends: Numbers, launched: Numbers, first: int) -> _Gaps:
    """The gaps from `first` on, before operations sorted by start. For equal starts, the first launched counts."""
    until = np.concatenate(([first], np.maximum.accumulate(ends)[:-1]))
    some = starts > until
    until, starts, launched = until[some], starts[some], launched[some]
    unknown = launched == NONE
    host = ~unknown & (launched > until)
    short = ~unknown & ~host & (starts - until < KERNEL_WAIT_NS)
    # If a call seems to begin after its operation (clocks differ a little), the whole gap is before the call.
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
    """The idle times of one device by cause, at all times; `within` sums any part of them."""

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
