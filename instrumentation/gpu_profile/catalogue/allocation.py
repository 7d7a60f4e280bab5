"""The metrics of who holds a device: pods, containers, jobs, units and processes.

Attributes are OpenTelemetry's where it has one (`k8s.*`, `container.*`, `process.*`); `slurm.*` and `systemd.*` are
ours, as it has none for them. An attribute that is not known is left out.
"""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue.metric import Instrument, Metric

#: Where a process runs, as its cgroup tells.
PLACE: Final = (
    "container.id",
    "container.runtime.name",
    "k8s.pod.uid",
    "slurm.job.id",
    "slurm.step.id",
    "systemd.unit.name",
)
_PROCESS: Final = ("hw.id", "process.pid", "process.executable.name", *PLACE)

ALLOCATION_INFO: Final = Metric(
    "gpu_profile.allocation.info",
    "",
    Instrument.GAUGE,
    "Who holds a device, by the source that says so; join it on hw_id",
    ("hw.id", "source", "k8s.namespace.name", "k8s.pod.name", "k8s.container.name", "claim", *PLACE),
)
PROCESS_COUNT: Final = Metric(
    "gpu_profile.process.count", "{process}", Instrument.GAUGE, "Processes that the driver sees on a device"
)
PROCESS_MEMORY: Final = Metric(
    "gpu_profile.process.memory",
    "By",
    Instrument.UPDOWNCOUNTER,
    "Device memory that a process holds; all of a device's together hold no more than the device has",
    _PROCESS,
)
PROCESS_UTILIZATION: Final = Metric(
    "gpu_profile.process.utilization",
    "1",
    Instrument.GAUGE,
    "Share of the driver's sample period in which a process's kernels ran; a device's add up to 1 at most",
    _PROCESS,
)
ATTRIBUTION_UP: Final = Metric(
    "gpu_profile.attribution.up",
    "",
    Instrument.GAUGE,
    "1 while a source of attribution answers, else 0 with the reason",
    ("source", "reason"),
)
LEFT_OUT: Final = Metric(
    "gpu_profile.attribution.left_out",
    "{item}",
    Instrument.COUNTER,
    "What a source said and was not published, by reason; counted at each refresh",
    ("source", "reason"),
)

ALLOCATION_METRICS: Final = (
    ALLOCATION_INFO,
    PROCESS_COUNT,
    PROCESS_MEMORY,
    PROCESS_UTILIZATION,
    ATTRIBUTION_UP,
    LEFT_OUT,
)
