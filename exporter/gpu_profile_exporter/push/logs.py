"""Events of devices as OTLP log records: XID errors, and devices that are lost or come back."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_profile.catalogue import event_text
from gpu_profile.catalogue.samples import Event
from gpu_profile.protobuf import fixed64, message, number, string
from gpu_profile_exporter.push.batch import Batch, Envelope, attribute, value


def log_batch(envelope: Envelope, events: Iterable[Event], now_ns: int) -> Batch:
    """One request for these events, with `now_ns` as observed time. They have no trace: there are no regions here."""
    records = [_record(event, now_ns) for event in events]
    return Batch.of(envelope.around(records), len(records))


def _record(event: Event, now_ns: int) -> bytes:
    level = event_text.severity(event)
    return message(
        2,
        fixed64(1, event.t_ns),
        fixed64(11, now_ns),
        number(2, level.number),
        string(3, level.text),
        value(5, event_text.body(event)),
        *(attribute(6, key, text) for key, text in event_text.attributes(event).items()),
        string(12, event_text.name(event)),
    )
