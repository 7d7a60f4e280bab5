"""The alerts about the exporter: whether the GPUs are watched, and whether the readings arrive."""

from __future__ import annotations

from typing import Final

from queries import NODE, TARGET, by, increase, parents, rate, series
from rulefiles import Alert, Group, Urgency
from subjects import GPU
from subjects import NODE as NODE_NAME

from gpu_profile.catalogue.allocation import ATTRIBUTION_UP
from gpu_profile.catalogue.http import CERTIFICATE_END
from gpu_profile.catalogue.metric import label
from gpu_profile.catalogue.metrics import (
    ACTIVITY_OBSERVED,
    BUILD_INFO,
    DEVICE_INFO,
    DEVICE_UP,
    DRIVER_UP,
    OBSERVED,
    REGION_DURATION,
    SAMPLE_AGE,
    SAMPLES,
    UNIT,
)
from gpu_profile.catalogue.metrics import DROPPED as SAMPLES_DROPPED
from gpu_profile.catalogue.push import DROPPED, FAILURES, SENT
from gpu_profile.catalogue.self_metrics import READER_RESTARTS, SERIES_DROPPED

#: Restarts of a reader that nobody asked for.
_FAULTS: Final = ("died", "hung", "stale_library")
#: Reasons for which a source of attribution is silent without a fault: it is absent, has no answer, or is not set up.
_QUIET: Final = "missing_package|no_devices|no_processes|not_found|pid_namespace|starting"
#: Reasons that leave gaps. Repeated samples of the driver and those that a reset drops leave none.
_LOST_SAMPLES: Final = ("late", "implausible")
_RELEASED: Final = series(READER_RESTARTS, {"reason": "released"})
_WEEK_S: Final = 7 * 86_400
_GPU_KEYS: Final = f"{TARGET}, hw_id"
_MEASURED: Final = by(_GPU_KEYS, rate(series(OBSERVED), "30m"))
_MEASURED_UNITS: Final = by(f"{_GPU_KEYS}, {label(UNIT)}", rate(series(ACTIVITY_OBSERVED), "30m"))


def _scraped_twice() -> str:
    """The number of targets with the same GPU, or with the regions of the same program."""
    up = series(DEVICE_UP)
    gpus = f"0 * {up} + on (cluster, hw_id) group_left () {by('cluster, hw_id', up, 'count')}"
    # Programs with one instance may be two services on a node: their regions tell them apart.
    region = "service_name, region"
    jobs = by(f"{TARGET}, {region}", rate(series(REGION_DURATION, part="_count"), "5m"), "count")
    programs = by(f"{NODE}, {region}", jobs, "count")
    return f"{gpus} > 1\nor\n{programs} > 1"


GROUP: Final = Group(
    "gpu-profile-exporter",
    (
        Alert(
            "GpuProfileTargetDown",
            Urgency.TICKET,
            "10m",
            # Targets that ever served our build information: so the scrape job may have any name.
            f"up == 0\nand on ({TARGET})\nlast_over_time({BUILD_INFO.prometheus}[1d])\n"
            # Another job may scrape it under the same name.
            f"unless on ({NODE})\n{BUILD_INFO.prometheus}",
            f"gpu-profile on {NODE_NAME} cannot be scraped",
            "Prometheus cannot scrape an exporter that served GPU metrics within the last day. The GPUs of its node "
            "are not watched until it answers again. Work on them may continue.",
            "Is the node up? Then read the status and the log of the exporter's service.",
            "Restart the exporter, or open its port for Prometheus. Lost GPUs or a hung driver do not stop it from "
            "answering.",
        ),
        Alert(
            "GpuDriverDown",
            Urgency.PAGE,
            "5m",
            # Somebody who has the GPUs released works on them: an hour is enough to reset or reconfigure them.
            f"{DRIVER_UP.prometheus} == 0\nunless on ({TARGET}) (\n"
            f"  {increase(_RELEASED, '1h')} > 0\n"
            # An exporter that was restarted, such as for its upgrade, may count them from its first scrape on.
            f"  or {_RELEASED} > 0 and on ({TARGET}) time() - process_start_time_seconds < 3600\n)",
            f"The GPU driver on {NODE_NAME} does not answer",
            "The exporter runs, but cannot reach the GPU driver. No GPU of the node is watched, and most likely none "
            "is usable.",
            "Read the reason at the exporter's /-/ready, and run nvidia-smi on the node. A node without NVIDIA GPUs "
            "needs no exporter.",
            "A version mismatch means that the driver was upgraded under running programs: stop them and reload the "
            "driver. Else read the kernel log for NVRM and Xid lines. In a container, check that the driver's library "
            "is still mounted. The exporter recovers by itself.",
        ),
        Alert(
            "GpuSamplesStale",
            Urgency.TICKET,
            "5m",
            f"{SAMPLE_AGE.prometheus} > 30\nand on ({_GPU_KEYS})\n{DEVICE_UP.prometheus} == 1",
            f"{GPU} is up, but its samples are old",
            "The device counts as up, but its newest sample is more than 30 s old. Its other series have ended.",
            "Does nvidia-smi answer promptly? The exporter's log and its panel “Time spent reading the driver” show a "
            "slow or hung driver.",
            "A profiler or a GPU reset can hold the driver: wait for its end. Else drain and reset the GPU.",
            "The newest sample is {{ $value | humanizeDuration }} old.",
        ),
        Alert(
            "GpuBusyTimeMissing",
            Urgency.TICKET,
            "10m",
            # A GPU that is cut into MIG instances has no busy time, nor have these without GPM: it is not missing.
            f"{DEVICE_UP.prometheus} == 1\nand on ({_GPU_KEYS}) (\n"
            f'  {DEVICE_INFO.prometheus}{{kind="gpu"}} or increase({OBSERVED.prometheus}[1d]) > 0\n'
            f")\nunless on ({_GPU_KEYS})\n"
            f"{parents(series(DEVICE_INFO, {'kind': 'mig'}))}\n"
            f"unless on ({_GPU_KEYS})\nrate({OBSERVED.prometheus}[5m]) > 0.5",
            f"{GPU} is up, but its busy time is missing",
            "The device answers, but the driver has reported its busy time for less than half of the last five "
            "minutes. Everything that rests on busy time, such as utilisation in dashboards, is missing.",
            "Does a profiler or DCGM use the GPU's counters? The exporter's log names the source that stopped, and the "
            "driver's error.",
            "The exporter requests the source again by itself, at least every five minutes. If it stays away, restart "
            "the exporter, then reset the GPU.",
        ),
        Alert(
            "GpuCoverageLow",
            Urgency.TICKET,
            "15m",
            # Below half, busy time counts as missing. Gaps from a loss or a restart are reported as these. A series
            # that goes on under other labels is a part of the sum.
            f"min by ({_GPU_KEYS}) (\n  {_MEASURED} or {_MEASURED_UNITS}\n) < 0.8\n"
            f"and on ({_GPU_KEYS})\n{_MEASURED} > 0.5\n"
            f"and on ({_GPU_KEYS})\n{DEVICE_UP.prometheus} == 1\n"
            f"unless on ({_GPU_KEYS})\nmin_over_time({DEVICE_UP.prometheus}[1h]) == 0\n"
            f"unless on ({TARGET})\nmin_over_time(up[1h]) == 0",
            f"{GPU} is measured for a part of the time only",
            "Readings cover less than 80 % of the time, although the GPU answers. Busy time, activity and the numbers "
            "of regions rest on the part that was measured.",
            "Compare gpu_profile_observed_seconds_total and gpu_profile_activity_observed_seconds_total: which one "
            "grows by less than a second per second?",
            "For activity, stop other users of the GPU's counters, such as a profiler or DCGM. For busy time, look for "
            "a slow driver or a node without free CPU time.",
            "Measured: {{ $value | humanizePercentage }} of the last 30 minutes.",
        ),
        Alert(
            "GpuSamplesDropped",
            Urgency.TICKET,
            "15m",
            f"{by(TARGET, increase(series(SAMPLES_DROPPED, {'reason': _LOST_SAMPLES}), '30m'))}\n  /\n"
            f"{by(TARGET, increase(series(SAMPLES), '30m'))} > 0.01",
            f"The exporter on {NODE_NAME} drops samples",
            "Samples came too late or with impossible values. They are missing from the counters.",
            "The label reason of gpu_profile_samples_dropped_total has the cause. Does the node's clock jump?",
            "For late, repair the synchronisation of the node's clock and look for a slow driver. For implausible, the "
            "exporter's log names the signal: upgrade the driver, and report it if it stays.",
            "Dropped: {{ $value | humanizePercentage }} of the samples of the last 30 minutes.",
        ),
        Alert(
            "GpuReadersRestarting",
            Urgency.TICKET,
            "5m",
            f"{by(f'{TARGET}, reason', increase(series(READER_RESTARTS, {'reason': _FAULTS}), '15m'))} > 3",
            f"Readers of the GPUs on {NODE_NAME} restart again and again ({{{{ $labels.reason }}}})",
            "The exporter had to restart a process that reads the driver more than three times within 15 minutes. "
            "Between two restarts there are gaps in the samples of the affected GPU, or of all.",
            "The exporter's log names the GPU. For hung, does nvidia-smi hang as well? For died, was the process "
            "killed for its memory?",
            "For hung, reset the GPU. For stale_library, restart the container: its mounted library is older than the "
            "node's driver. For died, raise the memory limit or report the crash.",
            "Restarts: {{ $value | humanize }}.",
        ),
        Alert(
            "GpuProfilePushFailing",
            Urgency.TICKET,
            "10m",
            f"{by(f'{TARGET}, signal', increase(series(FAILURES), '10m'))} > 0\n"
            f"unless on ({TARGET}, signal)\n"
            f"{by(f'{TARGET}, signal', increase(series(SENT), '10m'))} > 0",
            f"{NODE_NAME} cannot push its {{{{ $labels.signal }}}} over OTLP",
            "Every try of the last ten minutes failed. Batches wait in memory, for about an hour at the usual rate. A "
            "scrape is not affected.",
            "The exporter's log has the endpoint's answer, and gpu_profile_push_failures_total the kind of error.",
            "Check the collector, then the endpoint's address, its certificate and the credentials.",
        ),
        Alert(
            "GpuProfilePushLosing",
            Urgency.TICKET,
            "0m",
            f"{by(f'{TARGET}, signal, reason', increase(series(DROPPED), '15m'))} > 0",
            f"{NODE_NAME} dropped {{{{ $labels.signal }}}} instead of pushing them ({{{{ $labels.reason }}}})",
            "Batches were dropped within the last 15 minutes and will not be sent again.",
            "Read the label reason and the endpoint's answers in the exporter's log.",
            "For queue_full the endpoint was away for too long: repair it. For not_taken it refuses the batches for "
            "good, most often for missing credentials or a wrong path.",
            "Dropped: {{ $value | humanize }} batches.",
        ),
        Alert(
            "GpuAttributionDown",
            Urgency.TICKET,
            "15m",
            f"{series(ATTRIBUTION_UP, scope=f'reason!~{chr(34)}{_QUIET}{chr(34)}')} == 0",
            f"{NODE_NAME} gets no users of its GPUs from {{{{ $labels.source }}}} ({{{{ $labels.reason }}}})",
            "The series with the pod, container or job of each GPU are missing. The GPUs themselves are still watched.",
            "For timeout or unreachable, is the kubelet healthy? Else read the exporter's log.",
            "For denied, give the exporter access to the kubelet's socket, which is root's. For unsupported, upgrade "
            "the kubelet.",
        ),
        Alert(
            "GpuProfileSeriesDropped",
            Urgency.TICKET,
            "10m",
            f"{by(f'{TARGET}, reason', increase(series(SERIES_DROPPED), '10m'))} > 0",
            f"{NODE_NAME} leaves series out of its scrapes ({{{{ $labels.reason }}}})",
            "The exporter has more series than it publishes. For over_budget, series of processes are left out first, "
            "then single links, allocations and requested groups.",
            "Read the label reason; gpu_profile_series has the number of published series.",
            "For over_budget raise --series-budget, or collect fewer groups. For not_a_number and duplicate please "
            "report it: neither should happen.",
        ),
        Alert(
            "GpuProfileScrapedTwice",
            Urgency.TICKET,
            "1h",
            _scraped_twice(),
            f"{NODE_NAME} is scraped {{{{ $value }}}} times",
            "Several scrape jobs read the same GPUs or regions. Dashboards then have each region several times, and "
            "sums over regions or over nodes are too high.",
            "Query up for the instance: the label job names the scrape jobs. Do an annotation of the pod and a "
            "PodMonitor both select it? Do two exporters run on the node?",
            "Leave one scrape job for each exporter and each program.",
        ),
        Alert(
            "GpuProfileCertificateEnds",
            Urgency.TICKET,
            "1h",
            f"{series(CERTIFICATE_END)} - time() < {_WEEK_S}",
            f"The certificate of the exporter on {NODE_NAME} ends soon",
            "The certificate ends within a week. From then on Prometheus refuses to scrape, and the GPUs are not "
            "watched.",
            "Look at the end date of the certificate's file on the node: was it renewed there?",
            "Renew the file. The exporter reads it again by itself; gpu_profile_http_config_reloads_total counts "
            "successes and failures.",
            "It ends in {{ $value | humanizeDuration }}.",
        ),
    ),
)
