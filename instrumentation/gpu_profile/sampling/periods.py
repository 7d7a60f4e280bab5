"""The periods of the kinds of reads, and how much earlier each may be done. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from gpu_profile.catalogue import Tier
from gpu_profile.units import nanoseconds

#: Time between drains of the driver's own buffers. The shortest buffer seen so far covers about 2 s.
DRAIN_S: Final = 0.25
SLOW_S: Final = 1.0
#: The period of signals that hardly ever change: limits, the widest link, remapped rows.
RARE_S: Final = 10.0
#: The period of memory in use and temperature while a caller requests an interval of its own: its run is short.
ASKED_SLOW_S: Final = 0.2
#: The period of queries for the processes on a device, if they are enabled.
PROCESSES_S: Final = 5.0
#: The period in which devices are listed: they come and go (hot-plug, MIG).
DEVICES_S: Final = 5.0
#: GPM refuses windows that are not longer than its refresh of 100 ms. The rest allows for an early wake-up.
GPM_S: Final = 0.105

_DRAIN_NS, _SLOW_NS, _RARE_NS, _ASKED_SLOW_NS, _PROCESSES_NS, _GPM_NS = map(
    nanoseconds, (DRAIN_S, SLOW_S, RARE_S, ASKED_SLOW_S, PROCESSES_S, GPM_S)
)

#: Reads, between rounds, counters that restart too soon to be read once a round. Drivers that have some do it.
CATCH_UP: Final = "catch_up"


class ReadPeriod(NamedTuple):
    """A kind of read: a tier or a name, its period, and the time by which it may be early in a round, in ns."""

    tier: str
    period_ns: int
    slack_ns: int


@lru_cache(maxsize=64)
def read_periods(
    interval_ns: int,
    *,
    batch_ns: int,
    asked: bool,
    have_gpm: tuple[bool, ...],
    gpm_ns: int,
    drain_ns: int,
    devices_ns: int,
    catch_up_ns: int,
    processes: bool,
) -> tuple[ReadPeriod, ...]:
    """The kinds of reads of a sampler, in their order within a round. Cached, because each round asks for them.

    `batch_ns`: the useful time between reads of a driver that passes on other samples, else 0. `asked`: a caller
    requests an interval of its own. `have_gpm`: whether each device has GPM. Its windows last at least `gpm_ns`; if all
    devices have it, buffers are drained every `drain_ns`. `catch_up_ns`: 0 without reads between rounds.
    """
    periods: list[tuple[str, int]] = [(Tier.FAST, interval_ns)]
    if any(have_gpm):
        periods.append((Tier.GPM, max(interval_ns, gpm_ns)))
    periods += (
        ("drain", drain_ns if have_gpm and all(have_gpm) else _DRAIN_NS),
        (Tier.SLOW, max(interval_ns, _ASKED_SLOW_NS if asked else _SLOW_NS)),
        (Tier.RARE, max(interval_ns, _RARE_NS)),
        ("events", _SLOW_NS),
        ("devices", devices_ns),
    )
    if catch_up_ns:
        periods.append((CATCH_UP, catch_up_ns))
    if processes:
        periods.append(("processes", _PROCESSES_NS))
    if batch_ns:
        # Multiples of the time between reads: waking up for the rest alone costs as much as reading.
        periods = [(tier, -(-period // batch_ns) * batch_ns) for tier, period in periods]
    # Reads due within half of the next interval are done now: waking up costs as much as reading.
    half = max(interval_ns, batch_ns) // 2
    alone = (Tier.FAST, Tier.GPM) if gpm_ns <= _GPM_NS else (Tier.FAST,)
    return tuple(ReadPeriod(tier, period, 0 if tier in alone else min(half, period // 2)) for tier, period in periods)
