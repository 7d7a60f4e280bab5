"""The alerts about the exporter: whether the GPUs are watched at all, and whether what is seen arrives."""

from __future__ import annotations

from typing import Final

from queries import GPU, by, increase, series
from rulefiles import Alert, Group

from gpu_profile.catalogue.allocation import ATTRIBUTION_UP
from gpu_profile.catalogue.http import CERTIFICATE_END
from gpu_profile.catalogue.metrics import BUILD_INFO, DEVICE_INFO, DEVICE_UP, DRIVER_UP, OBSERVED, SAMPLE_AGE
from gpu_profile.catalogue.push import DROPPED, FAILURES, SENT
from gpu_profile.catalogue.self_metrics import READER_RESTARTS, SERIES_DROPPED

#: Restarts of a reader that nobody asked for.
_FAULTS: Final = ("died", "hung", "stale_library")
#: Why a source of attribution may be silent without a fault: it is not there, has nothing to tell, or is not set up.
_QUIET: Final = "missing_package|no_devices|no_processes|not_found|pid_namespace|starting"
_WEEK_S: Final = 7 * 86_400

GROUP: Final = Group(
    "gpu-profile-exporter",
    (
        Alert(
            "GpuProfileTargetDown",
            "critical",
            "2m",
            # The targets that ever served our build information are known without knowing the scrape job's name.
            f"up == 0\nand on (job, instance)\nlast_over_time({BUILD_INFO.prometheus}[1d])",
            "gpu-profile on {{ $labels.instance }} cannot be scraped",
            "Prometheus has not been able to scrape {{ $labels.instance }}, which served GPU metrics within the last "
            "day. Its GPUs are not watched until it answers again.",
            "Is the node up? Then look at the exporter: its service's status and log, and whether its port answers "
            "from Prometheus's side. Lost GPUs or a hung driver do not stop it from answering.",
        ),
        Alert(
            "GpuDriverDown",
            "critical",
            "2m",
            f"{DRIVER_UP.prometheus} == 0",
            "The GPU driver on {{ $labels.instance }} does not answer",
            "The exporter on {{ $labels.instance }} runs, but is not ready: it cannot reach the GPU driver, so no GPU "
            "of the node is watched and most likely none is usable.",
            "Ask the exporter's /-/ready why. If somebody has it release the GPUs, it takes them up again by itself. "
            "Else run nvidia-smi on the node. If it reports a version mismatch, the driver was upgraded under running "
            "programs: stop them and reload it. Else read the kernel log for NVRM and Xid lines. In a container, "
            "check that the driver's library is still mounted. The exporter recovers by itself.",
        ),
        Alert(
            "GpuSamplesStale",
            "warning",
            "2m",
            f"{SAMPLE_AGE.prometheus} > 30\nand on (instance, hw_id)\n{DEVICE_UP.prometheus} == 1",
            f"{GPU} is up, but its samples are old",
            "The newest sample is {{ $value | humanizeDuration }} old although the device counts as up. Its other "
            "series have ended and say nothing of the present.",
            "Look for a slow or hung driver: the exporter's log, its panel “Time spent reading the driver”, and "
            "whether nvidia-smi answers promptly. A profiler or a GPU reset can hold the driver for a while.",
        ),
        Alert(
            "GpuBusyTimeMissing",
            "warning",
            "5m",
            # A GPU that is cut into MIG instances has no busy time, nor have these without GPM: it is not missing.
            f"{DEVICE_UP.prometheus} == 1\nand on (job, instance, hw_id) (\n"
            f'  {DEVICE_INFO.prometheus}{{kind="gpu"}} or increase({OBSERVED.prometheus}[1d]) > 0\n'
            f")\nunless on (job, instance, hw_id)\n"
            f'label_replace({DEVICE_INFO.prometheus}{{kind="mig"}}, "hw_id", "$1", "hw_parent", "(.+)")\n'
            f"unless on (job, instance, hw_id)\nrate({OBSERVED.prometheus}[5m]) > 0.5",
            f"{GPU} is up, but does not tell how busy it is",
            "For five minutes the driver has told the busy time of less than half of the time, though the device "
            "answers. What rests on busy time, such as utilisation in dashboards, is missing.",
            "The exporter's log names the source that stopped answering and what the driver said. It is asked anew by "
            "itself, at least every five minutes. Does something else use the GPU's counters, such as a profiler or "
            "DCGM? If it stays away, restart the exporter, then reset the GPU.",
        ),
        Alert(
            "GpuReadersRestarting",
            "warning",
            "5m",
            f"{by('job, instance, reason', increase(series(READER_RESTARTS, {'reason': _FAULTS}), '15m'))} > 3",
            "Readers of the GPUs on {{ $labels.instance }} are restarted again and again ({{ $labels.reason }})",
            "The exporter had to start a process that reads the driver {{ $value | humanize }} times within 15 "
            "minutes. Between two of them there are gaps in the samples of the GPU that is concerned, or of all.",
            "The exporter's log names the GPU. For hung: the kernel log for NVRM and Xid lines, and whether nvidia-smi "
            "hangs as well; the GPU needs a reset. For stale_library: restart the container, whose mounted library is "
            "older than the node's driver. For died: read how it ended in the log; was it killed for its memory?",
        ),
        Alert(
            "GpuProfilePushFailing",
            "warning",
            "10m",
            f"{by('job, instance, signal', increase(series(FAILURES), '10m'))} > 0\n"
            f"unless on (job, instance, signal)\n"
            f"{by('job, instance, signal', increase(series(SENT), '10m'))} > 0",
            "{{ $labels.instance }} cannot push its {{ $labels.signal }} over OTLP",
            "Every try of the last ten minutes failed. What is not pushed waits in memory, for about an hour at the "
            "usual rate; a scrape is not concerned.",
            "The exporter's log has the endpoint's own words, and gpu_profile_push_failures_total the kind of error. "
            "Check the collector, then the endpoint's address, its certificate and the credentials.",
        ),
        Alert(
            "GpuProfilePushLosing",
            "warning",
            "0m",
            f"{by('job, instance, signal, reason', increase(series(DROPPED), '15m'))} > 0",
            "{{ $labels.instance }} gave up {{ $labels.signal }} that it should push ({{ $labels.reason }})",
            "Within 15 minutes {{ $value | humanize }} batches were dropped and will not be sent again.",
            "For queue_full the endpoint was away for too long: bring it back. For not_taken it refuses them for good: "
            "look in the exporter's log for what it says, most often missing credentials or a wrong path.",
        ),
        Alert(
            "GpuAttributionDown",
            "warning",
            "15m",
            f"{series(ATTRIBUTION_UP, scope=f'reason!~{chr(34)}{_QUIET}{chr(34)}')} == 0",
            "{{ $labels.instance }} cannot ask {{ $labels.source }} who uses the GPUs ({{ $labels.reason }})",
            "Series that say which pod, container or job holds a GPU are missing. What the GPUs do is still seen.",
            "denied: the exporter may not open the kubelet's socket, which is root's. timeout or unreachable: is the "
            "kubelet well? unsupported: its release is too old. For the others read the exporter's log.",
        ),
        Alert(
            "GpuProfileSeriesDropped",
            "warning",
            "10m",
            f"{by('job, instance, reason', increase(series(SERIES_DROPPED), '10m'))} > 0",
            "{{ $labels.instance }} leaves series out of its scrapes ({{ $labels.reason }})",
            "The exporter knows more than it publishes. For over_budget it has more series than its budget allows: "
            "processes go first, then single links, allocations and groups that were asked for.",
            "For over_budget raise --series-budget, or collect fewer groups. For not_a_number and duplicate please "
            "report it: neither should happen.",
        ),
        Alert(
            "GpuProfileCertificateEnds",
            "warning",
            "1h",
            f"{series(CERTIFICATE_END)} - time() < {_WEEK_S}",
            "The certificate of the exporter on {{ $labels.instance }} ends soon",
            "It ends in {{ $value | humanizeDuration }}. From then on Prometheus will refuse to scrape, and the GPUs "
            "are not watched.",
            "Renew the certificate's file. The exporter reads it again by itself when it has changed; "
            "gpu_profile_http_config_reloads_total tells whether that went well.",
        ),
    ),
)
