"""The dashboard of trust: are the numbers complete, and does the exporter work."""

from __future__ import annotations

from typing import Any, Final

import board
from links import TO_NODE
from panels import COUNT, SMALL, Column, Panel, Query, Section
from queries import GPU_NAME, NODE, RANGE, TARGET, by, fraction, increase, named, of_gpus, of_nodes, over, rate

from gpu_profile.catalogue.allocation import ATTRIBUTION_UP
from gpu_profile.catalogue.http import REJECTED, REQUEST_TIME, REQUESTS
from gpu_profile.catalogue.metrics import (
    BUILD_INFO,
    DEVICE_UP,
    DRIVER_UP,
    DROPPED,
    OBSERVED,
    READ_ERRORS,
    READ_TIME,
    SAMPLE_AGE,
)
from gpu_profile.catalogue.push import DROPPED as PUSH_DROPPED
from gpu_profile.catalogue.push import DROPPED_ITEMS as PUSH_DROPPED_ITEMS
from gpu_profile.catalogue.push import FAILURES as PUSH_FAILURES
from gpu_profile.catalogue.push import ITEMS as PUSH_ITEMS
from gpu_profile.catalogue.push import QUEUE_ITEMS
from gpu_profile.catalogue.push import REJECTED as PUSH_REJECTED
from gpu_profile.catalogue.receive import LEFT_OUT, RECEIVED, REFUSED, WAITING
from gpu_profile.catalogue.self_metrics import (
    LAG,
    READER_CPU,
    READER_MEMORY,
    READER_RESTARTS,
    SERIES,
    SERIES_DROPPED,
    STALE,
)

_SCRAPES: Final = {"http.route": "/metrics"}
_SILENT: Final = "No exporter was scraped in this time range: check the scrape configuration"
_NO_GPU: Final = "No exporter here publishes a GPU"
_NOT_PUSHED: Final = "Nothing is pushed here: docs/otlp.md"
_NOT_RECEIVED: Final = "No spans are received here: docs/sidecar.md"
_EXPORTERS: Final = over("last_over_time", of_nodes(BUILD_INFO).selector, RANGE)
_UP: Final = 'up{cluster=~"$cluster", instance=~"$instance"}'
_SEEN: Final = rate(of_gpus(OBSERVED))
_RESTARTS: Final = by("instance", increase(of_nodes(READER_RESTARTS)))


def _small(title: str, unit: str, *queries: Query, **rest: Any) -> Panel:
    return Panel(title=title, unit=unit, queries=queries, **SMALL | rest)


def _count(title: str, part: str, whole: str, **rest: Any) -> Panel:
    return Panel(title=title, queries=(Query(fraction(part, whole), ""),), **COUNT | rest)


NOW: Final = Section(
    "Verdict",
    (
        _count(
            "Exporters silent",
            by("instance", f"{_UP} == 0 and on ({TARGET}) {_EXPORTERS} unless on ({NODE}) {of_nodes(BUILD_INFO)}"),
            by("instance", _EXPORTERS),
            shows="Exporters of this time range that Prometheus cannot scrape now.",
            conclude="Red: all values of that node end there. They are gaps, not zeros.",
            do="The first table on the fleet's dashboard names the node. Look at the pod or the unit there: `systemctl "
            "status gpu-profile-exporter`.",
            empty=_SILENT,
        ),
        _count(
            "Drivers silent",
            f"{of_nodes(DRIVER_UP)} == 0",
            of_nodes(DRIVER_UP),
            shows="Exporters whose GPU driver does not answer.",
            conclude="Red: the exporter works, the driver does not. An upgrade of the driver takes seconds.",
            do="Read the reason at `/-/ready`; run `nvidia-smi` on the node.",
            empty=_SILENT,
        ),
        _count(
            "GPUs with old samples",
            f"{of_gpus(SAMPLE_AGE)} > 5",
            of_gpus(SAMPLE_AGE),
            shows="Devices whose newest sample is older than five seconds, of those that answer.",
            conclude="Red: values are left out, because they are no longer true.",
            do="See “Time spent reading the driver”: a slow call delays all signals of its GPU.",
            empty=_NO_GPU,
        ),
        _count(
            "GPUs with gaps",
            f"{_SEEN} < 0.95",
            _SEEN,
            shows="Devices whose busy counter covers less than 95 % of the time.",
            conclude="Orange: utilisation is too low by as much as is missing.",
            do="Give the exporter CPU time; see “Readers started again”.",
            empty="No GPU here reports busy time",
            alarm="orange",
        ),
        _count(
            "Readers restarted",
            f"{_RESTARTS} > 0",
            by("instance", _EXPORTERS),
            shows="Exporters that restarted a process which reads the driver, in this time range.",
            conclude="Orange: a call hung or crashed, or somebody released the GPUs.",
            do="The reason is in “Readers started again” and in the exporter's log.",
            empty=_SILENT,
            alarm="orange",
        ),
        _count(
            "Series left out",
            f"{by('instance', increase(of_nodes(SERIES_DROPPED)))} > 0",
            by("instance", of_nodes(SERIES)),
            shows="Exporters that left series out of a scrape in this range, because of their budget.",
            conclude="Orange: some GPU or process is missing without being lost.",
            do="Raise the budget, or collect fewer groups: docs/exporter-configuration.md.",
            empty=_SILENT,
            alarm="orange",
        ),
    ),
)

TRUST: Final = Section(
    "How far to trust the numbers",
    (
        _small(
            "Answering",
            "none",
            Query(named(of_gpus(DEVICE_UP)), GPU_NAME),
            shows="1 while the device answers, 0 while it does not.",
            conclude="A line that ends: the exporter itself was not scraped.",
            do="At 0, open the dashboard of the node.",
            empty=_NO_GPU,
            maximum=1,
        ),
        _small(
            "Age of the newest sample",
            "s",
            Query(named(of_gpus(SAMPLE_AGE)), GPU_NAME),
            shows="Age of the newest sample when the exporter was scraped.",
            conclude="Above a second: the driver is slow. Stale values are left out of all panels.",
            do="Compare with “Time spent reading the driver”.",
            empty=_NO_GPU,
        ),
        _small(
            "Time seen by the busy counter",
            "percentunit",
            Query(named(_SEEN), GPU_NAME),
            shows="Share of time that the busy counter has covered.",
            conclude="Below 100 % there are gaps in the sampling, and utilisation is too low by as much.",
            do="Give the exporter CPU time.",
            empty=_NO_GPU,
        ),
        _small(
            "Signals that fail",
            "none",
            Query(named(f"{of_gpus(STALE)}"), GPU_NAME),
            shows="Signals that the device supports and has not reported for three of their periods.",
            conclude="Their panels have gaps; other signals are not affected.",
            do="`gpu-profile doctor` on the node lists the signals and the reasons.",
            empty=_NO_GPU,
        ),
        _small(
            "Samples left out",
            "cps",
            Query(by("instance, reason", rate(of_nodes(DROPPED))), "{{reason}} on {{instance}}"),
            shows="Samples a second that were not used, by reason.",
            conclude="“duplicate” is usual: the driver had nothing new. “reset” follows a reload of the driver.",
            do="“implausible” or “late” all the time: report the model and the driver's version.",
            empty="No sample was left out",
        ),
        _small(
            "Driver calls that failed",
            "cps",
            Query(by("instance, error_type", rate(of_nodes(READ_ERRORS))), "{{error_type}} on {{instance}}"),
            shows="Calls of the driver a second that ended in an error, by error.",
            conclude="A few at the start are usual: signals that the model does not support.",
            do="For a steady rate, look for the error's name in docs/troubleshooting.md.",
            empty="No call has failed",
        ),
        _small(
            "Time spent reading the driver",
            "percentunit",
            Query(by("instance, tier", rate(of_nodes(READ_TIME))), "{{tier}} on {{instance}}"),
            shows="Seconds a second that the exporter waits for the driver, by tier of signals. It is no CPU time.",
            conclude="Above a half, rounds come late. No scrape ever waits for it.",
            do="Collect fewer groups, or lengthen the interval.",
            empty=_SILENT,
        ),
        _small(
            "Lateness of rounds",
            "s",
            Query(by("instance", of_nodes(LAG), "max"), "{{instance}}"),
            shows="How late the last round of fast signals started.",
            conclude="Above 0.1 s, the machine has no CPU time for the exporter.",
            do="Raise its CPU request, or its nice value.",
            empty=_SILENT,
        ),
    ),
)

EXPORTER: Final = Section(
    "The exporter itself",
    (
        Panel(
            title="Versions",
            shows="The version of each exporter, and the driver that it reads through.",
            conclude="“simulated” is no real GPU.",
            do="Upgrade the odd one out.",
            empty=_SILENT,
            queries=(Query(by("cluster, instance, version, driver", of_nodes(BUILD_INFO), "max"), ""),),
            kind="table",
            columns=(
                Column("instance", "Node", link=TO_NODE),
                Column("cluster", "Cluster"),
                Column("version", "Version"),
                Column("driver", "Driver"),
            ),
            **SMALL,
        ),
        _small(
            "Readers started again",
            "cps",
            Query(by("instance, reason", rate(of_nodes(READER_RESTARTS))), "{{reason}} on {{instance}}"),
            shows="Restarts a second of processes that read the driver, by reason.",
            conclude="“hung”: a call to a GPU did not come back. “released”: somebody asked for the GPUs.",
            do="For “hung”, look for XID errors of that node.",
            empty=_SILENT,
        ),
        _small(
            "Duration of a scrape",
            "s",
            Query(
                f"{by('instance', rate(of_nodes(REQUEST_TIME, _SCRAPES)))} / "
                f"{by('instance', rate(of_nodes(REQUESTS, _SCRAPES)))}",
                "{{instance}}",
            ),
            shows="Mean time between a request for the metrics and its answer, as the exporter sees it.",
            conclude="Above 50 ms, the machine has no CPU time for the exporter.",
            do="Raise its CPU request.",
            empty=_SILENT,
        ),
        _small(
            "Requests turned away",
            "cps",
            Query(by("instance", rate(of_nodes(REJECTED))), "{{instance}}"),
            shows="Requests and connections a second that the exporter refused.",
            conclude="Clients are too slow, too large, too many, or without a right certificate.",
            do="The log names the client and the reason.",
            empty=_SILENT,
        ),
        _small(
            "Series",
            "none",
            Query(by("instance", of_nodes(SERIES)), "{{instance}}"),
            Query(by("instance", rate(of_nodes(SERIES_DROPPED))), "{{instance}}, left out", thin=True),
            shows="Series in the last scrape, and (dashed) the number left out a second because of the budget.",
            conclude="A GPU has at most 60 series by default.",
            do="Collect fewer groups if Prometheus has too many series.",
            empty=_SILENT,
        ),
        _small(
            "CPU of the readers",
            "percentunit",
            Query(by("instance", rate(of_nodes(READER_CPU))), "{{instance}}"),
            shows="Share of one core that the processes take which read the driver.",
            conclude="A few per cent for eight GPUs is usual.",
            do="Lengthen the interval if that is too much.",
            empty=_SILENT,
        ),
        _small(
            "Memory of the readers",
            "bytes",
            Query(by("instance", of_nodes(READER_MEMORY)), "{{instance}}"),
            shows="Memory of the processes that read the driver; shared memory counts once.",
            conclude="It should not grow over days.",
            do="Report a line that grows, with the driver's version.",
            empty=_SILENT,
        ),
        _small(
            "Sources of holders",
            "none",
            Query(of_nodes(ATTRIBUTION_UP), "{{source}} on {{instance}} {{reason}}"),
            shows="1 while a source of attribution answers, 0 with the reason while it does not.",
            conclude="Without one, nobody knows which pod or job holds a GPU. No kubelet outside Kubernetes is right.",
            do="docs/attribution.md has the remedy for each reason.",
            empty="No source of attribution is on: docs/attribution.md",
            maximum=1,
        ),
        _small(
            "Push",
            "cps",
            Query(
                by("instance, signal, error_type", rate(of_nodes(PUSH_FAILURES))),
                "{{signal}} on {{instance}}: {{error_type}}",
            ),
            Query(
                by("instance, signal, reason", rate(of_nodes(PUSH_DROPPED))),
                "{{signal}} on {{instance}}: given up, {{reason}}",
                thin=True,
            ),
            shows="Tries a second to push over OTLP that failed, and (dashed) batches that were given up.",
            conclude="Dashed lines are lost data.",
            do="Check the address, the certificate and the load of the receiver.",
            empty=_NOT_PUSHED,
            width=12,
            legend="right",
        ),
    ),
)

RECEIVING: Final = Section(
    "Receiving spans of any program",
    (
        _small(
            "Spans received",
            "cps",
            Query(by("instance, outcome", rate(of_nodes(RECEIVED))), "{{outcome}} on {{instance}}"),
            shows="Spans a second that programs sent here, by outcome. “passed” ones are no regions.",
            conclude="“unjoined” ones count as regions without values of GPUs.",
            do="For many unjoined ones, check the clocks of the nodes and the names of their devices.",
            empty=_NOT_RECEIVED,
        ),
        _small(
            "Spans that wait",
            "none",
            Query(by("instance", of_nodes(WAITING)), "samples on {{instance}}"),
            Query(by("instance, signal", of_nodes(QUEUE_ITEMS)), "{{signal}} on {{instance}}", thin=True),
            shows="Spans that wait for the samples of their time, and (dashed) data that waits for the next receiver.",
            conclude="A dashed line that grows: the receiver is away or too slow.",
            do="Bring the receiver back before the queue is full.",
            empty=_NOT_RECEIVED,
        ),
        _small(
            "Sent on and lost",
            "cps",
            Query(by("instance, signal", rate(of_nodes(PUSH_ITEMS))), "{{signal}} on {{instance}}"),
            Query(
                by("instance, signal, reason", rate(of_nodes(PUSH_DROPPED_ITEMS))),
                "{{signal}} on {{instance}}: given up, {{reason}}",
                thin=True,
            ),
            Query(
                by("instance, signal", rate(of_nodes(PUSH_REJECTED))), "{{signal}} on {{instance}}: refused", thin=True
            ),
            shows="Spans, data points and log records a second that the next receiver took, and (dashed) those given "
            "up or refused.",
            conclude="Dashed lines are lost data.",
            do="Read the receiver's log for refused ones; make the queue longer for others.",
            empty=_NOT_RECEIVED,
        ),
        _small(
            "Refused, and not in the numbers",
            "cps",
            Query(by("instance, reason", rate(of_nodes(REFUSED))), "{{reason}} on {{instance}}"),
            Query(by("instance, reason", rate(of_nodes(LEFT_OUT))), "left out: {{reason}} on {{instance}}", thin=True),
            shows="Requests a second that were turned away, and (dashed) spans that came too late, or were too many, "
            "for their region's numbers.",
            conclude="The regions of that program are incomplete.",
            do="Send smaller batches, sooner; docs/sidecar.md has the limits.",
            empty=_NOT_RECEIVED,
        ),
    ),
)

BOARD: Final = board.Board(
    "trust",
    "trust and the exporter",
    "Are the numbers complete, and does the exporter work.",
    (*board.nodes(), board.gpus()),
    (NOW, TRUST, EXPORTER, RECEIVING),
    (board.xids(),),
)
