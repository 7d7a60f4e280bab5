"""The metrics of who holds a device: pods, containers, jobs, units and processes.

Attributes are OpenTelemetry's where it has one (`k8s.*`, `container.*`, `process.*`); `slurm.*` and `systemd.*` are
ours, as it has none for them. An attribute that is not known is left out.
"""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue.metric import Family

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

_HOLDERS: Final = Family()
ALLOCATION_INFO: Final = _HOLDERS.gauge(
    "gpu_profile.allocation.info",
    "",
    "Who holds a device, by the source that says so; join it on hw_id",
    "hw.id",
    "source",
    "k8s.namespace.name",
    "k8s.pod.name",
    "k8s.container.name",
    "claim",
    *PLACE,
)
PROCESS_COUNT: Final = _HOLDERS.gauge(
    "gpu_profile.process.count", "{process}", "Processes that the driver sees on a device", "hw.id"
)
PROCESS_MEMORY: Final = _HOLDERS.updowncounter(
    "gpu_profile.process.memory",
    "By",
    "Device memory that a process holds; all of a device's together hold no more than the device has",
    *_PROCESS,
)
PROCESS_UTILIZATION: Final = _HOLDERS.gauge(
    "gpu_profile.process.utilization",
    "1",
    "Share of the driver's sample period in which a process's kernels ran; a device's add up to 1 at most",
    *_PROCESS,
)
ATTRIBUTION_UP: Final = _HOLDERS.gauge(
    "gpu_profile.attribution.up",
    "",
    "1 while a source of attribution answers, else 0 with the reason",
    "source",
    "reason",
)
LEFT_OUT: Final = _HOLDERS.counter(
    "gpu_profile.attribution.left_out",
    "{item}",
    "What a source said and was not published, by reason; counted at each refresh",
    "source",
    "reason",
)

ALLOCATION_METRICS: Final = tuple(_HOLDERS)
