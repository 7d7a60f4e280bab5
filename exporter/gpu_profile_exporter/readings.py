"""What a node has to say at a moment, in the catalogue's terms: metric, OpenTelemetry attributes, value.

Pure: it reads timelines and never the driver. Every way out (a scrape, a push) starts from these readings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from gpu_profile.catalogue import BUSY_SOURCES, Metric, Signal, metric_of
from gpu_profile.catalogue import metrics as m
from gpu_profile.catalogue.signals import MEMORY_USED
from gpu_profile.device_state import DeviceState
from gpu_profile.sampler import Sampler
from gpu_profile.units import NS_PER_S
from gpu_profile_exporter.health import STATES, down_reason, fresh, newest_ns, silence, status

#: What the sampler and the columns count; published from 0 on, so that the first one is seen by increase().
_ERRORS: Final = ("device lost", "driver", "internal")
_LEFT_OUT: Final = ("duplicate", "implausible", "late", "reset")


class Reading(NamedTuple):
    """One value of one metric. An attribute that is not known is left out."""

    metric: Metric
    attributes: Mapping[str, str]
    value: float


class Identity(NamedTuple):
    """Who is being read by whom: the driver's name in the grammar of `--driver`, and two versions."""

    driver: str
    driver_version: str
    version: str


def base(row: Signal, quanta: int, per: int = 1) -> float:
    """`quanta / per` in the row's base unit, rounded once: 57 whole per cents are 0.57."""
    if row.quantum >= 1:
        return quanta * int(row.quantum) / per
    return quanta / (round(1 / row.quantum) * per)


def readings(sampler: Sampler, identity: Identity, now_ns: int) -> Iterator[Reading]:
    """Everything that is known of the node and its devices at `now_ns`, devices in the driver's order."""
    silent = silence(sampler, now_ns)
    for state in list(sampler.states.values()):
        yield from _device(state, sampler, identity, now_ns)
    for error in _ERRORS:
        yield Reading(m.READ_ERRORS, {"error.type": error.replace(" ", "_")}, sampler.stats.errors[error])
    for tier, busy_ns in sorted(dict(sampler.stats.busy_ns).items()):
        if tier != "events":
            yield Reading(m.READ_TIME, {"tier": tier}, busy_ns / NS_PER_S)
    yield Reading(m.DRIVER_UP, {}, float(not silent))
    driver = f"{identity.driver} {identity.driver_version}".strip()
    yield Reading(m.BUILD_INFO, _known({"version": identity.version, "driver": driver}), 1)


def _device(state: DeviceState, sampler: Sampler, identity: Identity, now_ns: int) -> Iterator[Reading]:
    device, timeline = state.device, state.timeline
    hw_id = {"hw.id": device.uuid}
    busy = timeline.best(BUSY_SOURCES)
    about = {
        **hw_id,
        "hw.name": device.name,
        "hw.parent": device.parent or "",
        "hw.driver_version": identity.driver_version,
        "pci.bus_id": device.pci_bus_id,
        "index": "" if device.index is None else str(device.index),
        "kind": device.kind.value,
        "busy.source": busy.signal.key if busy is not None else "",
    }
    yield Reading(m.DEVICE_INFO, _known(about), 1)
    if state.up and not sampler.stats.rounds:
        return  # nothing is known yet, not even whether it answers
    up = not down_reason(state, sampler, now_ns)
    yield Reading(m.DEVICE_UP, hw_id, float(up))
    current = status(state, up=up)
    for name in STATES:
        yield Reading(m.STATUS, {**hw_id, "hw.state": name, "hw.type": "gpu"}, float(name == current))
    if not up:
        return
    yield from _signals(state, sampler.interval_s, now_ns)
    if busy is not None and fresh(busy, now_ns, sampler.interval_s):
        yield Reading(m.BUSY, hw_id, base(busy.signal, busy.total_mass, NS_PER_S))
        yield Reading(m.OBSERVED, hw_id, busy.total_covered_ns / NS_PER_S)
    newest = newest_ns(timeline)
    if newest is not None:
        yield Reading(m.SAMPLE_AGE, hw_id, max(0, now_ns - newest) / NS_PER_S)
    yield Reading(m.SAMPLES, hw_id, state.samples)
    columns = list(timeline.columns.values())
    for reason in _LEFT_OUT:
        yield Reading(m.DROPPED, {**hw_id, "reason": reason}, sum(column.dropped[reason] for column in columns))


def _signals(state: DeviceState, interval_s: float, now_ns: int) -> Iterator[Reading]:
    device = state.device
    hw_id = {"hw.id": device.uuid}
    if device.memory_bytes is not None:
        yield Reading(m.MEMORY_LIMIT, hw_id, device.memory_bytes)
    for row, column in list(state.timeline.columns.items()):
        last = fresh(column, now_ns, interval_s)
        if last is None:
            continue
        # A counter that starts again at 0 every few seconds is of no use at a scrape's distance: its growth is.
        metric, value = metric_of(row), base(row, column.total_mass if row.wraps_at else last.value)
        attributes = {**hw_id, **dict(row.attributes)}
        if "hw.type" in metric.labels:
            attributes["hw.type"] = "gpu"
        yield Reading(metric, attributes, value)
        if row is MEMORY_USED and device.memory_bytes:
            yield Reading(m.MEMORY_UTILIZATION, hw_id, value / device.memory_bytes)


def _known(attributes: Mapping[str, str]) -> Mapping[str, str]:
    return {key: value for key, value in attributes.items() if value}
