"""Made `recording-v1/`, which every later version must read as `expected.json` says: kept to show how it was made.

`python tests/golden/make_recording_v1.py DIRECTORY` writes the recording and `expected.json` into DIRECTORY.
"""

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from gpu_profile.catalogue import signal
from gpu_profile.catalogue.samples import Device, DeviceKind, Event, Sample
from gpu_profile.recording import DeviceInterval, RecordingWriter, SpanRecord
from gpu_profile.recording.format import frame

T = 1_700_000_000_000_000_000
MS = 1_000_000
GPU = "GPU-5e3f0a2c-9b1d-4c87-8a6e-2f0d1b3c4a5e"
MIG = "MIG-0c6b1f4e-7d52-5b2a-9e11-6a3f8c2d7b90"

#: device -> signal -> [t_start, t_end, value]
SAMPLES = {
    GPU: {
        "power": [[T + (i - 1) * 25 * MS, T + i * 25 * MS + i % 3, 250_000 + 7_919 * i % 1000] for i in range(40)],
        "energy": [[T + i * 100 * MS, T + i * 100 * MS, 9_000_000_000_000 + 25_000 * i] for i in range(10)],
        "temperature": [[T, T, 61]],
    },
    MIG: {"memory_used": [[T + 5, T + 5, 0], [T + 1_000_000_005, T + 1_000_000_005, 4_096]]},
}
EXPECTED: dict[str, Any] = {
    "processes": [
        {
            "version": "0.1.0",
            "host": "node-a.example",
            "pid": 4242,
            "start_ns": T,
            "driver": "nvml",
            "driver_version": "580.65.06",
            "end_ns": T + 2_000_000_000,
        }
    ],
    "devices": [
        {
            "uuid": GPU,
            "parent": None,
            "kind": "gpu",
            "index": 0,
            "name": "NVIDIA A100-SXM4-40GB",
            "pci_bus_id": "00000000:07:00.0",
            "memory_bytes": 42_949_672_960,
            "clock_max_hz": 1_410_000_000,
            "pcie_bytes_per_s": 31_507_692_307,
        },
        {
            "uuid": MIG,
            "parent": GPU,
            "kind": "mig",
            "index": 0,
            "name": "",
            "pci_bus_id": "",
            "memory_bytes": None,
            "clock_max_hz": None,
            "pcie_bytes_per_s": None,
        },
    ],
    "samples": SAMPLES,
    "spans": [
        {
            "name": "train.step",
            "start_ns": T + 100 * MS,
            "end_ns": T + 350 * MS,
            "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
            "span_id": "00f067aa0ba902b7",
            "parent_span_id": None,
            "device_intervals": [[GPU, 7, T + 110 * MS, T + 349 * MS]],
            "items": 64,
            "attributes": {"epoch": 3, "lr": 0.001, "modèle": "naïve \u2603", "tags": ["a", "b"]},
        },
        {
            "name": "load",
            "start_ns": T,
            "end_ns": T + 1,
            "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
            "span_id": "00f067aa0ba902b8",
            "parent_span_id": "00f067aa0ba902b7",
            "device_intervals": [],
            "items": None,
            "attributes": {},
        },
    ],
    "events": [{"device": GPU, "t_ns": T + 200 * MS, "kind": "xid", "code": 48, "message": "double bit ECC error"}],
    "notes": [{"truth": {"busy_ns": 123_456_789}, "free": "form"}],
    "lost_bytes": 0,
    "unknown": [99],
}


class _Clock:
    now = T

    def __call__(self) -> int:
        return self.now


def write(directory: Path) -> None:
    """Write the recording, with a record type that no version 1 reader knows, and what a reader must find in it."""
    clock = _Clock()
    with (
        mock.patch("socket.gethostname", return_value="node-a.example"),
        mock.patch("os.getpid", return_value=4242),
        mock.patch("importlib.metadata.version", return_value="0.1.0"),
        RecordingWriter(directory, now_ns=clock, driver="nvml", driver_version="580.65.06") as writer,
    ):
        for device in EXPECTED["devices"]:
            writer.device(Device(**{**device, "kind": DeviceKind(device["kind"])}))
        for part in (slice(0, 5), slice(5, None)):
            for device, columns in SAMPLES.items():
                for key, readings in columns.items():
                    writer.samples(device, (Sample(signal(key), *reading) for reading in readings[part]))
            writer.flush()
            with writer.path.open("ab") as file:
                file.write(frame(99, b"from the future") if part.start == 0 else b"")
        for fields in EXPECTED["spans"]:
            intervals = tuple(DeviceInterval(*interval) for interval in fields["device_intervals"])
            writer.span(SpanRecord(**{**fields, "device_intervals": intervals}))
        writer.event(Event(**EXPECTED["events"][0]))
        writer.note(EXPECTED["notes"][0])
        clock.now = T + 2_000_000_000
    (directory / "expected.json").write_text(json.dumps(EXPECTED, indent=1) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
