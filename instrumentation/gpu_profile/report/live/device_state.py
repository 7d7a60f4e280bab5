"""The present state of one device, as part of an answer of the live page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Device, ProcessUse, Sample
from gpu_profile.catalogue.signals import POWER_LIMIT, TEMPERATURE
from gpu_profile.report.devices import device_label, holder_name, title
from gpu_profile.units import NS_PER_S

#: A temperature older than this is not shown.
_STALE_NS: Final = 10 * NS_PER_S
#: Processes and holders of one device that are listed.
_MOST_USERS: Final = 32


class NewestRow(Protocol):
    """A column with its newest reading."""

    @property
    def last(self) -> Sample | None:
        """The newest reading; None without one."""
        ...


class NewestRows(Protocol):
    """The columns of a device: a ledger or a timeline."""

    def column(self, signal: Signal) -> NewestRow | None:
        """The column of a signal; None if the device has none."""
        ...


def device_state(
    device: Device,
    columns: NewestRows,
    now_ns: int,
    *,
    status: str,
    reason: str,
    gone: bool,
    throttled: Iterable[str] = (),
    processes: Iterable[tuple[ProcessUse, str]] = (),
    holders: Iterable[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """The state as JSON. `tops` are the highest values of charts by key; an unknown value is None.

    `reason`: why it does not answer, or empty. `gone`: whether it was lost, so that its newest rows are of before.
    `processes` come with their names, `holders` as attributes.
    """
    label = device_label(device)
    limit, heat = _last(columns, POWER_LIMIT), _last(columns, TEMPERATURE)
    warm = heat is not None and abs(now_ns - heat.t_end_ns) <= _STALE_NS
    return {
        "uuid": device.uuid,
        "label": label,
        "title": title(device, label),
        "status": status,
        "reason": reason,
        "gone": gone,
        "tops": {
            "power": None if limit is None else POWER_LIMIT.base(limit.value),
            "memory": device.memory_bytes,
            "clock": device.clock_max_hz,
        },
        "temperature_c": TEMPERATURE.base(heat.value) if heat is not None and warm else None,
        "throttled": list(throttled),
        "processes": [
            [use.pid, name, use.memory_bytes, use.utilization] for use, name in list(processes)[:_MOST_USERS]
        ],
        "holders": [list(holder_name(each)) for each in list(holders)[:_MOST_USERS]],
    }


def _last(columns: NewestRows, signal: Signal) -> Sample | None:
    column = columns.column(signal)
    return None if column is None else column.last
