"""Compares the demonstration's numbers, by device intervals and by host intervals, with the simulator's truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpu_profile.join.unmixing.pools.pooled import Pooled
from gpu_profile.join.unmixing.pools.pooling import Pool
from gpu_profile.join.unmixing.windows.activities import DeviceExecution, segments
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session.session import Session

if TYPE_CHECKING:
    from gpu_profile.driver.simulated import Truth

#: Compared executions are kept in memory. Longer demonstrations (above about six minutes) are not compared.
MOST_EXECUTIONS: Final = 50_000


@dataclass(frozen=True, slots=True)
class RegionComparison:
    """GPU busy seconds and joules of one region: the truth and the results of two joins. None: no result."""

    region: str
    true_busy_s: float
    device_busy_s: float | None
    host_busy_s: float | None
    true_energy_j: float
    device_energy_j: float | None
    host_energy_j: float | None


class HostTwin:
    """Collects the executions of a session for a second join, by host intervals only.

    `complete` is False after more than `MOST_EXECUTIONS`: the session's totals then contain executions that are missing
    here.
    """

    def __init__(self, session: Session) -> None:
        self.executions: list[Execution] = []
        self.complete = True
        session.joiner.on_end.append(self._collect)

    def _collect(self, execution: Execution) -> None:
        if len(self.executions) < MOST_EXECUTIONS:
            self.executions.append(execution)
        else:
            self.complete = False

    def activities(self, device: str, *, host: bool) -> list[DeviceExecution]:
        """The collected executions with host intervals, or with device intervals where available."""
        if not host:
            intervals = ((e, e.active()) for e in self.executions if e.device in (None, device))
            return [_activity(e, *active) for e, active in intervals if active is not None]
        return [_activity(e, e.start_ns, e.end_ns) for e in self.executions]


def _activity(execution: Execution, start_ns: int, end_ns: int | None) -> DeviceExecution:
    parent = None if execution.parent is None else id(execution.parent)
    return DeviceExecution(id(execution), parent, execution.name, start_ns, end_ns)


def compare(session: Session, twin: HostTwin, truth: Truth) -> list[RegionComparison]:
    """All regions on each device of the session, over the time that its pool covers.

    True busy time is the time of the kernels that the region launched. True energy is the device's energy while the
    region was innermost on it, idle power included, as the join defines it.
    """
    result = []
    for uuid, pool in session.joiner.pools.items():
        host = Pool(pool.timeline, start_ns=pool.start_ns)
        host.advance(twin.activities(uuid, host=True), pool.frontier_ns, final=True)
        energy = _true_energy(twin.activities(uuid, host=False), truth, uuid, pool.start_ns, pool.frontier_ns)
        for name in pool.regions:
            by_device, by_host = pool.pooled(name), host.pooled(name)
            launched = name in truth.tags
            result.append(
                RegionComparison(
                    region=name,
                    true_busy_s=truth.tag(uuid, name, pool.start_ns, pool.frontier_ns).busy_s if launched else 0.0,
                    device_busy_s=_value(by_device.busy_s, by_device),
                    host_busy_s=_value(by_host.busy_s, by_host),
                    true_energy_j=energy.get(name, 0.0),
                    device_energy_j=_value(by_device.energy_j, by_device),
                    host_energy_j=_value(by_host.energy_j, by_host),
                )
            )
    return result


def _true_energy(
    activities: list[DeviceExecution], truth: Truth, uuid: str, start_ns: int, end_ns: int
) -> dict[str, float]:
    result: dict[str, float] = {}
    for cut in segments(activities, start_ns, end_ns):
        for activity in cut.innermost:
            joules = truth.device(uuid, cut.start_ns, cut.end_ns).energy_j / len(cut.innermost)
            result[activity.region] = result.get(activity.region, 0.0) + joules
    return result


def _value(shared: float | None, pooled: Pooled) -> float | None:
    """`shared`, or 0 instead of None for a region that was never active on the device."""
    return 0.0 if shared is None and pooled.active_s == 0.0 else shared
