"""The metrics of the users of a device: pods, containers, jobs, units and processes.

Attributes are OpenTelemetry's where it defines one (`k8s.*`, `container.*`, `process.*`). It has none for `slurm.*` and
`systemd.*`, so these are ours. Unknown attributes are left out.
"""

from __future__ import annotations

from typing import Final

from gpu_profile.catalogue.metric import Family

#: The place of a process, from its cgroup.
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
    "Allocations of a device, by the source that reports them; join it on hw_id",
    "hw.id",
    "source",
    "k8s.namespace.name",
    "k8s.pod.name",
    "k8s.container.name",
    "claim",
    *PLACE,
)
#: The attributes that identify a holder of a device: a pod, a job, a container or a unit.
HOLDER: Final = (
    "k8s.namespace.name",
    "k8s.pod.name",
    "slurm.job.id",
    "container.id",
    "container.runtime.name",
    "k8s.pod.uid",
    "systemd.unit.name",
)
#: Labels for a device's own series, with the attributes of its holders.
HOLDER_LABELS: Final = {
    "pod": "k8s.pod.name",
    "namespace": "k8s.namespace.name",
    "container": "k8s.container.name",
    "pod_uid": "k8s.pod.uid",
    "container_id": "container.id",
    "job": "slurm.job.id",
    "unit": "systemd.unit.name",
}
HELD_ENERGY: Final = _HOLDERS.counter(
    "gpu_profile.allocation.energy",
    "J",
    "Energy of a device while a pod, job, container or unit was its only holder, idle time included, or its MIG "
    "instances' part above idle; with the unallocated energy, the growth of the device's energy",
    "hw.id",
    *HOLDER,
)
UNHELD_ENERGY: Final = _HOLDERS.counter(
    "gpu_profile.allocation.energy.unallocated",
    "J",
    "Energy of a device that no holder has, by reason",
    "hw.id",
    "reason",
)
HELD_TIME: Final = _HOLDERS.counter(
    "gpu_profile.allocation.time", "s", "Time for which a holder held a device, alone or not", "hw.id", *HOLDER
)
PROCESS_COUNT: Final = _HOLDERS.gauge(
    "gpu_profile.process.count", "{process}", "Processes that the driver lists on a device", "hw.id"
)
PROCESS_MEMORY: Final = _HOLDERS.updowncounter(
    "gpu_profile.process.memory",
    "By",
    "Device memory in use by a process; the sum over a device's processes is at most the device's memory",
    *_PROCESS,
)
PROCESS_UTILIZATION: Final = _HOLDERS.gauge(
    "gpu_profile.process.utilization",
    "1",
    "Share of the driver's sample period in which a process's kernels ran; the sum over a device is at most 1",
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
    "Items of a source that were not published, by reason; counted at each refresh",
    "source",
    "reason",
)

ALLOCATION_METRICS: Final = tuple(_HOLDERS)
