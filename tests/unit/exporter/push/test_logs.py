"""Events of devices as OTLP log records."""

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber
from support.push import ENVELOPE, RESOURCE, attributes, records_of

from gpu_profile.catalogue.samples import Event
from gpu_profile.testing import START_NS
from gpu_profile_exporter.push.logs import log_batch


def record(event: Event) -> LogRecord:
    batch = log_batch(ENVELOPE, [event], event.t_ns + 7)
    (found,) = records_of(batch.unpacked())
    assert batch.items == 1
    return found


@pytest.mark.parametrize(
    ("event", "severity", "body"),
    [
        (Event("GPU-a", START_NS, "xid", 79), "FATAL", "GPU-a: XID 79: The GPU fell off the bus"),
        (Event("GPU-a", START_NS, "xid", 79, "XID 79"), "FATAL", "GPU-a: XID 79: The GPU fell off the bus"),
        (Event("GPU-a", START_NS, "xid", 63), "WARN", None),
        (Event("GPU-a", START_NS, "xid", 31), "WARN", None),
        (Event("GPU-a", START_NS, "xid", 4711, "XID 4711"), "ERROR", "GPU-a: XID 4711"),
        (Event("GPU-a", START_NS, "xid", None, "odd"), "ERROR", "GPU-a: xid: odd"),
        (Event("GPU-a", START_NS, "lost", None, "it fell off"), "ERROR", "GPU-a: lost: it fell off"),
        (Event("GPU-a", START_NS, "back"), "INFO", "GPU-a: back"),
        (Event("GPU-a", START_NS, "reset"), "WARN", "GPU-a: reset"),
        (Event("GPU-a", START_NS, "of tomorrow"), "WARN", "GPU-a: of tomorrow"),
    ],
)
def test_an_event_says_how_bad_it_is_and_what_it_is(event: Event, severity: str, body: str | None) -> None:
    found = record(event)
    assert found.severity_text == severity
    assert found.severity_number == SeverityNumber.Value(f"SEVERITY_NUMBER_{severity}")
    assert body is None or found.body.string_value == body
    assert found.event_name == f"gpu_profile.device.{event.kind}"


def test_an_event_keeps_its_time_and_names_its_device_and_code() -> None:
    found = record(Event("GPU-a", START_NS, "xid", 48))
    assert (found.time_unix_nano, found.observed_time_unix_nano) == (START_NS, START_NS + 7)
    assert attributes(found.attributes) == {"hw.id": "GPU-a", "hw.type": "gpu", "nvidia.gpu.xid": "48"}
    assert "nvidia.gpu.xid" not in attributes(record(Event("GPU-a", START_NS, "lost")).attributes)


def test_without_a_region_an_event_has_no_trace() -> None:
    found = record(Event("GPU-a", START_NS, "xid", 48))
    assert (found.trace_id, found.span_id) == (b"", b"")


def test_records_come_with_the_resource_in_the_order_of_their_events() -> None:
    events = [Event("GPU-a", START_NS + i, "xid", code) for i, code in enumerate((13, 31, 79))]
    batch = log_batch(ENVELOPE, events, START_NS + 9)
    (resource,) = ExportLogsServiceRequest.FromString(batch.unpacked()).resource_logs
    assert attributes(resource.resource.attributes) == dict(RESOURCE)
    codes = [attributes(one.attributes)["nvidia.gpu.xid"] for one in records_of(batch.unpacked())]
    assert codes == ["13", "31", "79"]
    assert batch.items == 3
