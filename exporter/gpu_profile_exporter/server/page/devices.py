"""The JSON of /api/devices: one object per device, in base units. Unknown values are null."""

from __future__ import annotations

from typing import Protocol, TypedDict, runtime_checkable

from gpu_profile.catalogue import BUSY_SOURCES, Signal
from gpu_profile.catalogue.signals import MEMORY_USED, POWER, POWER_AVERAGE, TEMPERATURE
from gpu_profile.units import NS_PER_S
from gpu_profile_exporter.readings.health import (
    DeviceStatus,
    SampleSource,
    Status,
    down_reason,
    fresh,
    interval_s,
    newest_ns,
    silence,
    status,
)
from gpu_profile_exporter.readings.readings import Identity, base


class DeviceData(TypedDict):
    """The state of one device. `busy`: mean ratio (0 to 1) of the last second. `age_s`: age of the newest sample."""

    uuid: str
    index: int | None
    name: str
    kind: str
    parent: str | None
    status: Status
    reason: str
    busy: float | None
    busy_source: str | None
    power_w: float | None
    memory_used_bytes: float | None
    memory_bytes: int | None
    temperature_c: float | None
    age_s: float | None


class PageData(TypedDict):
    """The state of the node. `reason`: why it is not ready, or ""."""

    version: str
    driver: str
    driver_version: str
    simulated: bool
    reason: str
    devices: list[DeviceData]


@runtime_checkable
class BusyColumn(Protocol):
    """A column that contains the rows of the last second."""

    def integral(self, a_ns: int, b_ns: int) -> tuple[int, int]:
        """The sum of the rows over `(a, b]` and the ns of the interval that they cover."""
        ...


def describe(sampler: SampleSource, identity: Identity, now_ns: int, *, simulated: bool) -> PageData:
    """The node and its devices at `now_ns`."""
    return PageData(
        version=identity.version,
        driver=identity.driver,
        driver_version=identity.driver_version,
        simulated=simulated,
        reason=silence(sampler, now_ns),
        devices=[_device(state, sampler, now_ns) for state in list(sampler.states.values())],
    )


def _device(state: DeviceStatus, sampler: SampleSource, now_ns: int) -> DeviceData:
    device, timeline = state.device, state.timeline
    every_s = interval_s(state, sampler)
    reason = down_reason(state, sampler, now_ns)

    def last(*rows: Signal) -> float | None:
        samples = (fresh(timeline.column(row), now_ns, every_s) for row in rows)
        return next(
            (base(sample.signal, sample.value) for sample in samples if sample is not None and not reason), None
        )

    busy, mean = timeline.best(BUSY_SOURCES), None
    until = fresh(busy, now_ns, every_s)
    if until is not None and isinstance(busy, BusyColumn) and not reason:
        mass, covered_ns = busy.integral(until.t_end_ns - NS_PER_S, until.t_end_ns)
        mean = base(busy.signal, mass, covered_ns) if covered_ns else None
    newest = newest_ns(timeline)
    return DeviceData(
        uuid=device.uuid,
        index=device.index,
        name=device.name,
        kind=device.kind.value,
        parent=device.parent,
        status=status(state, sampler, now_ns),
        reason=reason,
        busy=mean,
        busy_source=busy.signal.key if busy is not None else None,
        power_w=last(POWER, POWER_AVERAGE),
        memory_used_bytes=last(MEMORY_USED),
        memory_bytes=device.memory_bytes,
        temperature_c=last(TEMPERATURE),
        age_s=None if newest is None else max(0, now_ns - newest) / NS_PER_S,
    )
