"""How far the demonstration's numbers are from the simulator's truth, with device intervals and with host intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpu_profile.join.unmixing.activities import DeviceExecution, segments
from gpu_profile.join.unmixing.pooled import Pooled
from gpu_profile.join.unmixing.pooling import Pool
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.session.session import Session

if TYPE_CHECKING:
    from gpu_profile.driver.simulated import Truth

#: What is compared is kept in memory: longer demonstrations (of about six minutes) are not.
MOST_EXECUTIONS: Final = 50_000


@dataclass(frozen=True, slots=True)
class RegionComparison:
    """One region: seconds of GPU busy time and joules, as they were and as the two joins saw them. None: not given."""

    region: str
    true_busy_s: float
    device_busy_s: float | None
    host_busy_s: float | None
    true_energy_j: float
    device_energy_j: float | None
    host_energy_j: float | None


class HostTwin:
    """Collects the executions of a session, to join them once more as if only the host's clock were known.

    `complete` is False once there were too many: the session's totals then hold what this does not know.
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
        """What was collected, by the host's clock or by the device's."""
        if not host:
            known = ((e, e.active()) for e in self.executions if e.device in (None, device))
            return [_activity(e, *active) for e, active in known if active is not None]
        return [_activity(e, e.start_ns, e.end_ns) for e in self.executions]


def _activity(execution: Execution, start_ns: int, end_ns: int | None) -> DeviceExecution:
    parent = None if execution.parent is None else id(execution.parent)
    return DeviceExecution(id(execution), parent, execution.name, start_ns, end_ns)


def compare(session: Session, twin: HostTwin, truth: Truth) -> list[RegionComparison]:
    """Every region on the device that the service used, over the time that the session's pool has taken in.

    True busy time is that of the kernels which the region launched. True energy is what the device drew while the
    region was the innermost one on it, idle draw included, as the join defines it.
    """
    result = []
    for uuid, pool in session.joiner.pools.items():
        host = Pool(pool.timeline, start_ns=pool.start_ns)
        host.advance(twin.activities(uuid, host=True), pool.frontier_ns, final=True)
        energy = _true_energy(twin.activities(uuid, host=False), truth, uuid, pool.start_ns, pool.frontier_ns)
        for name in pool.regions:
            seen, blind = pool.pooled(name), host.pooled(name)
            launched = name in truth.tags
            result.append(
                RegionComparison(
                    region=name,
                    true_busy_s=truth.tag(uuid, name, pool.start_ns, pool.frontier_ns).busy_s if launched else 0.0,
                    device_busy_s=_value(seen.busy_s, seen),
                    host_busy_s=_value(blind.busy_s, blind),
                    true_energy_j=energy.get(name, 0.0),
                    device_energy_j=_value(seen.energy_j, seen),
                    host_energy_j=_value(blind.energy_j, blind),
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
    """A region that was never active on the device has a share of nothing: 0, not unknown."""
    return 0.0 if shared is None and pooled.active_s == 0.0 else shared
