"""What happens to devices as OTLP log records: XID errors, devices that are lost and that come back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gpu_profile.catalogue import event_text
from gpu_profile.catalogue.events import TRACE_IDS
from gpu_profile.catalogue.samples import Event
from gpu_profile_exporter.push import wire
from gpu_profile_exporter.push.batch import Batch, Envelope

#: Trace and span ids of what ran on a device (its UUID) at a time (ns since the epoch), innermost first.
Active = Callable[[str, int], Sequence[tuple[bytes, bytes]]]


def none_active(device: str, t_ns: int) -> Sequence[tuple[bytes, bytes]]:  # noqa: ARG001 - the contract's arguments
    """For those who know of no regions."""
    return ()


class LogEncoder:
    """Turns events into requests. `active` tells the regions that ran on a device when something happened to it."""

    def __init__(self, envelope: Envelope, active: Active = none_active) -> None:
        self._envelope = envelope
        self._active = active

    def batch(self, events: Iterable[Event], now_ns: int) -> Batch:
        """One request for these events, which were noticed at `now_ns`."""
        records = [self._record(event, now_ns) for event in events]
        return Batch.of(self._envelope.around(records), len(records))

    def _record(self, event: Event, now_ns: int) -> bytes:
        level = event_text.severity(event)
        contexts = list(dict.fromkeys(self._active(event.device, event.t_ns)))
        parts = [
            wire.fixed64(1, event.t_ns),
            wire.fixed64(11, now_ns),
            wire.number(2, level.number),
            wire.string(3, level.text),
            wire.value(5, event_text.body(event)),
            *(wire.attribute(6, key, text) for key, text in event_text.attributes(event).items()),
            wire.string(12, event_text.name(event)),
        ]
        traces = list(dict.fromkeys(trace_id.hex() for trace_id, _ in contexts))
        if len(traces) > 1:  # a record is of one trace; the others are named
            parts.append(wire.attribute(6, TRACE_IDS.name, traces))
        if contexts:
            parts += [wire.message(9, contexts[0][0]), wire.message(10, contexts[0][1])]
        return wire.message(2, *parts)
