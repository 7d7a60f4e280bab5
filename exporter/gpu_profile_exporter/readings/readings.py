"""The readings of a node at one time, in the catalogue's terms: metric, OpenTelemetry attributes, value.

No I/O: the readings come from timelines, never from the driver. Scrapes and pushes start from these readings.

Attributes are cached, so that a series has the same mapping each time. Callers may cache by its identity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from gpu_profile.catalogue import BUSY_SOURCES, ENERGY_SOURCES, Metric, Signal, metric_of
from gpu_profile.catalogue import metrics as m
from gpu_profile.catalogue import self_metrics as own
from gpu_profile.catalogue.samples import Device, DeviceKind
from gpu_profile.catalogue.signals import ENERGY, INTEGRATED, MEMORY_USED, POWER_AVERAGE
from gpu_profile.units import NS_PER_S
from gpu_profile_exporter.readings.health import (
    STATES,
    DeviceStatus,
    SampleSource,
    down_reason,
    fresh,
    interval_s,
    lifetime_ns,
    silence,
    status,
)

if TYPE_CHECKING:
    from gpu_profile_exporter.readings.health import Column

#: Errors and dropped samples that are counted. Published from 0, so that increase() sees the first one.
_ERRORS: Final = ("device lost", "driver", "internal")
_LEFT_OUT: Final = ("duplicate", "implausible", "late", "reset")
#: Drivers that never report XID errors. A count of 0 would be misleading for them.
_NO_EVENTS: Final = frozenset({"none", "smi"})
#: Device-signal pairs with cached attributes: 64 devices, MIG instances included, with 250 signals each.
_KEPT: Final = 1 << 14

Attributes = Mapping[str, str]
_NONE: Final[Attributes] = {}


class MetricReading(NamedTuple):
    """One value of one metric. Attributes without a value are left out. The mapping is never changed afterwards."""

    metric: Metric
    attributes: Attributes
    value: float


class ValueWithExemplar(float):
    """A value with an `exemplar`, in OpenMetrics' format: labels, value and time."""

    __slots__ = ("exemplar",)
    exemplar: str

    @classmethod
    def of(cls, value: float, exemplar: str) -> ValueWithExemplar:
        """The value with this exemplar."""
        made = cls(value)
        made.exemplar = exemplar
        return made


class DriverFacts(NamedTuple):
    """A driver. `origin`: the driver that made the recording it replays, else its own name. `versions`: by the
    attributes of `gpu_profile.driver.info`.
    """

    name: str
    version: str
    origin: str
    versions: Mapping[str, str]


class Identity(NamedTuple):
    """The driver's name in the grammar of `--driver`, its version, and the exporter's version.

    `versions`: further versions that the driver reports, by the attributes of `gpu_profile.driver.info`.
    """

    driver: str
    driver_version: str
    version: str
    versions: tuple[tuple[str, str], ...] = ()


def base(row: Signal, quanta: int, per: int = 1) -> float:
    """`quanta / per` in the row's base unit, rounded once: a utilisation of 57 % is 0.57."""
    times, over = _ratio(row)
    return quanta * times / (over * per)


@cache
def _ratio(row: Signal) -> tuple[int, int]:
    """A row's quantum as a ratio of two integers."""
    return (int(row.quantum), 1) if row.quantum >= 1 else (1, round(1 / row.quantum))


def readings(sampler: SampleSource, identity: Identity, now_ns: int) -> Iterator[MetricReading]:
    """The readings of the devices at `now_ns`, in the driver's order, then those of the driver and the sampler."""
    silent = silence(sampler, now_ns)
    stats = sampler.stats
    dropped = Counter(stats.dropped)
    for state in list(sampler.states.values()):
        yield from _device(state, sampler, identity, now_ns)
        state.timeline.count_dropped(dropped)
    for reason in _LEFT_OUT:
        yield MetricReading(m.DROPPED, _labelled("reason", reason), dropped[reason])
    for error in _ERRORS:
        yield MetricReading(m.READ_ERRORS, _labelled("error.type", error.replace(" ", "_")), stats.errors[error])
    for tier, busy_ns in sorted(dict(stats.busy_ns).items()):
        if tier != "events":
            yield MetricReading(m.READ_TIME, _labelled("tier", tier), busy_ns / NS_PER_S)
    yield MetricReading(own.ROUNDS, _NONE, stats.rounds)
    if stats.rounds:
        yield MetricReading(own.LAG, _NONE, stats.late_ns / NS_PER_S)
    yield MetricReading(m.DRIVER_UP, _NONE, float(not silent))
    if versions := _versions(identity):
        yield MetricReading(m.DRIVER_INFO, versions, 1)
    yield MetricReading(m.BUILD_INFO, _build(identity), 1)


def _device(state: DeviceStatus, sampler: SampleSource, identity: Identity, now_ns: int) -> Iterator[MetricReading]:
    device, timeline = state.device, state.timeline
    hw_id = _labelled("hw.id", device.uuid)
    busy = timeline.busy
    busy_source = busy.signal.key if busy.signal is not None else ""
    sources = ((row, timeline.column(row)) for row in ENERGY_SOURCES)
    energy_source = next((row.key for row, column in sources if column is not None and not column.stuck), "")
    yield MetricReading(m.DEVICE_INFO, _about(device, identity.driver_version, busy_source, energy_source), 1)
    if state.up and not sampler.stats.rounds:
        return  # not read yet: it may or may not answer
    if identity.driver not in _NO_EVENTS:
        yield from _xids(state, hw_id)
    up = not down_reason(state, sampler, now_ns)
    yield MetricReading(m.DEVICE_UP, hw_id, float(up))
    current = status(state, sampler, now_ns)
    for name in STATES:
        yield MetricReading(
            m.STATUS, _labelled("hw.id", device.uuid, "hw.state", name, "hw.type", "gpu"), float(name == current)
        )
    if not up:
        return
    every_s = interval_s(state, sampler)
    yield from _signals(state, every_s, now_ns)
    # After the source has stopped, the counter keeps its value until another source takes over.
    if busy.signal is not None and any(fresh(timeline.column(row), now_ns, every_s) for row in BUSY_SOURCES):
        yield MetricReading(m.BUSY, hw_id, sum(base(row, mass, NS_PER_S) for row, mass in busy.masses.items()))
        yield MetricReading(m.OBSERVED, hw_id, busy.covered_ns / NS_PER_S)
    if state.spinning_ns is not None:
        yield MetricReading(m.SPINNING, hw_id, state.spinning_ns / NS_PER_S)
    yield MetricReading(m.SAMPLES, hw_id, state.samples)


def _signals(state: DeviceStatus, every_s: float, now_ns: int) -> Iterator[MetricReading]:
    device, uuid = state.device, state.device.uuid
    hw_id = _labelled("hw.id", uuid)
    if device.memory_bytes is not None:
        yield MetricReading(m.MEMORY_LIMIT, hw_id, device.memory_bytes)
    columns: Mapping[Signal, Column] = state.timeline.columns
    newest, stale = None, 0
    counter = columns.get(ENERGY)
    counted = counter is not None and not counter.stuck
    for row, column in list(columns.items()):
        last = column.last
        if last is None:
            stale += 1
            continue
        metric, attributes, times, over, life_ns, unit = _published(row, uuid, every_s)
        _, _, end_ns, quanta = last
        if newest is None or end_ns > newest:
            newest = end_ns
        if now_ns - end_ns > life_ns:
            stale += 1
            continue
        if row is ENERGY and not counted:
            continue
        # A counter that wraps every few seconds is useless at the interval of scrapes: its growth is published instead.
        value = (column.total_mass if row.wraps_at else quanta) * times / over
        yield MetricReading(metric, attributes, value)
        if row is POWER_AVERAGE and not counted:
            energy = _published(ENERGY, uuid, every_s)
            yield MetricReading(energy.metric, energy.attributes, column.total_mass * times / (over * NS_PER_S))
        if unit is not None:
            # Both are sums over windows: time outside all windows is in neither.
            yield MetricReading(m.ACTIVITY, unit, column.total_mass * times / (over * NS_PER_S))
            yield MetricReading(m.ACTIVITY_OBSERVED, unit, column.total_covered_ns / NS_PER_S)
        if row is MEMORY_USED and device.memory_bytes:
            yield MetricReading(m.MEMORY_UTILIZATION, hw_id, value / device.memory_bytes)
    if newest is not None:
        yield MetricReading(m.SAMPLE_AGE, hw_id, max(0, now_ns - newest) / NS_PER_S)
    yield MetricReading(own.STALE, hw_id, stale)


def _xids(state: DeviceStatus, hw_id: Attributes) -> Iterator[MetricReading]:
    """The counts of all XID errors and of each code that occurred. The driver reports errors of a MIG instance as its
    GPU's, so only GPUs have a counter at 0."""
    counts, last, uuid = dict(state.xids), state.last_xid, state.device.uuid
    if counts or state.device.kind is DeviceKind.GPU:
        yield MetricReading(own.XID_ANY, hw_id, sum(counts.values()))
    for code, n in sorted(counts.items()):
        yield MetricReading(own.XID_ERRORS, _labelled("hw.id", uuid, "nvidia.gpu.xid", str(code)), n)
    if last is not None:
        yield MetricReading(own.XID_LAST, _labelled("hw.id", uuid, "nvidia.gpu.xid", str(last[0])), last[0])
        yield MetricReading(own.XID_LAST_TIME, hw_id, last[1] / NS_PER_S)
    elif state.device.kind is DeviceKind.GPU:
        yield MetricReading(own.XID_LAST, hw_id, 0)


class _Published(NamedTuple):
    """How a device's signal is published: the value is quanta * `times` / `over`, until the age of `life_ns`.

    `unit`: the attributes of its integral. None if that is not published.
    """

    metric: Metric
    attributes: Attributes
    times: int
    over: int
    life_ns: int
    unit: Attributes | None


@lru_cache(maxsize=_KEPT)
def _published(row: Signal, uuid: str, every_s: float) -> _Published:
    metric = metric_of(row)
    attributes = {"hw.id": uuid, **dict(row.attributes)}
    if "hw.type" in metric.labels:
        attributes["hw.type"] = "gpu"
    unit = _labelled("hw.id", uuid, m.UNIT, row.key) if row in INTEGRATED else None
    return _Published(metric, attributes, *_ratio(row), lifetime_ns(row, every_s), unit)


@lru_cache(maxsize=_KEPT)
def _labelled(*names_and_values: str) -> Attributes:
    """The mapping for `name, value, name, value, …`. The same object each time."""
    return dict(zip(names_and_values[::2], names_and_values[1::2], strict=True))


@lru_cache(maxsize=1024)
def _about(device: Device, driver_version: str, busy_source: str, energy_source: str) -> Attributes:
    attributes = device.identity | {
        "hw.driver_version": driver_version,
        "busy.source": busy_source,
        "energy.source": energy_source,
    }
    return {name: attributes[name] for name in m.DEVICE_INFO.labels if attributes.get(name)}


@lru_cache(maxsize=16)
def _versions(identity: Identity) -> Attributes:
    return _non_empty({"hw.driver_version": identity.driver_version} | dict(identity.versions))


@lru_cache(maxsize=16)
def _build(identity: Identity) -> Attributes:
    driver = f"{identity.driver} {identity.driver_version}".strip()
    return _non_empty({"version": identity.version, "driver": driver})


def _non_empty(attributes: Mapping[str, str]) -> Attributes:
    return {key: value for key, value in attributes.items() if value}
