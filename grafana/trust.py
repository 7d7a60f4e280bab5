"""The part of the dashboard that tells how far to trust it: gaps in the sampling, and how the exporter is."""

from __future__ import annotations

from typing import Final

from panels import SMALL, Query, Section, panel
from queries import GPU_NAME, by, named, of_gpus, rate

from gpu_profile.catalogue.allocation import ATTRIBUTION_UP
from gpu_profile.catalogue.http import REJECTED, REQUEST_TIME, REQUESTS
from gpu_profile.catalogue.metrics import DEVICE_UP, DROPPED, OBSERVED, READ_TIME, SAMPLE_AGE
from gpu_profile.catalogue.push import DROPPED as PUSH_DROPPED
from gpu_profile.catalogue.push import DROPPED_ITEMS as PUSH_DROPPED_ITEMS
from gpu_profile.catalogue.push import FAILURES as PUSH_FAILURES
from gpu_profile.catalogue.push import ITEMS as PUSH_ITEMS
from gpu_profile.catalogue.push import QUEUE_ITEMS
from gpu_profile.catalogue.push import REJECTED as PUSH_REJECTED
from gpu_profile.catalogue.receive import LEFT_OUT, RECEIVED, REFUSED, WAITING
from gpu_profile.catalogue.self_metrics import READER_CPU, READER_MEMORY, READER_RESTARTS, SERIES, SERIES_DROPPED

_SCRAPES: Final = {"http.route": "/metrics"}

TRUST: Final = Section(
    "How far to trust the numbers",
    (
        panel(
            "Answering",
            "1 while the device answers, 0 while it does not. A line that ends means that the exporter "
            "itself was not scraped.",
            "none",
            Query(named(of_gpus(DEVICE_UP)), GPU_NAME),
            maximum=1,
            **SMALL,
        ),
        panel(
            "Age of the newest sample",
            "How long ago the newest sample was taken when the exporter was scraped. What is stale is "
            "left out of the panels above.",
            "s",
            Query(named(of_gpus(SAMPLE_AGE)), GPU_NAME),
            **SMALL,
        ),
        panel(
            "Time seen by the busy counter",
            "Share of time that the busy counter has covered. Below 100 % there are gaps in the sampling, "
            "and utilisation is too low by as much.",
            "percentunit",
            Query(named(rate(of_gpus(OBSERVED))), GPU_NAME),
            **SMALL,
        ),
        panel(
            "Time spent reading the driver",
            "Seconds a second that the exporter waits for the driver, by tier of signals. It is not CPU "
            "time, and no scrape ever waits for it.",
            "percentunit",
            Query(by("instance, tier", rate(of_gpus(READ_TIME))), "{{tier}} on {{instance}}"),
            **SMALL,
        ),
    ),
)

EXPORTER: Final = Section(
    "The exporter itself",
    (
        panel(
            "Readers started again",
            "How often a process that reads the driver was started again, a second, by reason. “hung”: a "
            "call to a GPU did not come back; “released”: somebody asked for the GPUs to be let go of.",
            "cps",
            Query(by("instance, reason", rate(of_gpus(READER_RESTARTS))), "{{reason}} on {{instance}}"),
            **SMALL,
        ),
        panel(
            "Duration of a scrape",
            "Mean time between a request for the metrics and its answer, as the exporter sees it. It never "
            "waits for the driver.",
            "s",
            Query(
                f"{by('instance', rate(of_gpus(REQUEST_TIME, _SCRAPES)))} / "
                f"{by('instance', rate(of_gpus(REQUESTS, _SCRAPES)))}",
                "{{instance}}",
            ),
            **SMALL,
        ),
        panel(
            "Samples left out",
            "Samples a second that were not used, by reason. “duplicate” is usual: the driver had nothing "
            "new. “implausible” and “late” should be rare; “reset” follows a reload of the driver.",
            "cps",
            Query(by("instance, reason", rate(of_gpus(DROPPED))), "{{reason}} on {{instance}}"),
            **SMALL,
        ),
        panel(
            "Requests turned away",
            "Requests and connections a second that the exporter refused: too slow, too large, too many, "
            "or without a right certificate.",
            "cps",
            Query(by("instance", rate(of_gpus(REJECTED))), "{{instance}}"),
            **SMALL,
        ),
        panel(
            "Series",
            "Series in the last scrape, and (dashed) how many a second were left out because there were "
            "more than the budget allows.",
            "none",
            Query(by("instance", of_gpus(SERIES)), "{{instance}}"),
            Query(by("instance", rate(of_gpus(SERIES_DROPPED))), "{{instance}}, left out", thin=True),
            **SMALL,
        ),
        panel(
            "CPU of the readers",
            "Share of one core that the processes take that read the driver.",
            "percentunit",
            Query(by("instance", rate(of_gpus(READER_CPU))), "{{instance}}"),
            **SMALL,
        ),
        panel(
            "Memory of the readers",
            "Memory of the processes that read the driver. It should not grow over days.",
            "bytes",
            Query(by("instance", of_gpus(READER_MEMORY)), "{{instance}}"),
            **SMALL,
        ),
        panel(
            "Who uses the GPUs: sources",
            "1 while a source of attribution answers, 0 with the reason while it does not. That there is "
            "no kubelet on a machine that is no Kubernetes node is as it should be.",
            "none",
            Query(of_gpus(ATTRIBUTION_UP), "{{source}} on {{instance}} {{reason}}"),
            maximum=1,
            **SMALL,
        ),
        panel(
            "Push",
            "Tries a second to push over OTLP that failed, by error, and (dashed) batches that were given "
            "up. Empty where nothing is pushed.",
            "cps",
            Query(
                by("instance, signal, error_type", rate(of_gpus(PUSH_FAILURES))),
                "{{signal}} on {{instance}}: {{error_type}}",
            ),
            Query(
                by("instance, signal, reason", rate(of_gpus(PUSH_DROPPED))),
                "{{signal}} on {{instance}}: given up, {{reason}}",
                thin=True,
            ),
            width=12,
            height=7,
            legend="right",
        ),
    ),
)

RECEIVING: Final = Section(
    "Receiving spans of any program",
    (
        panel(
            "Spans received",
            "Spans a second that programs sent here, by what came of them. “unjoined” ones count as regions, but "
            "nothing is known of them yet; “passed” ones are no regions. Empty where nothing is received.",
            "cps",
            Query(by("instance, outcome", rate(of_gpus(RECEIVED))), "{{outcome}} on {{instance}}"),
            **SMALL,
        ),
        panel(
            "Spans that wait",
            "Spans that wait for the samples of their time, and (dashed) data that waits for the next receiver. What "
            "waits grows while that one is away.",
            "none",
            Query(by("instance", of_gpus(WAITING)), "samples on {{instance}}"),
            Query(by("instance, signal", of_gpus(QUEUE_ITEMS)), "{{signal}} on {{instance}}", thin=True),
            **SMALL,
        ),
        panel(
            "Sent on and lost",
            "Spans, data points and log records a second that the next receiver took, and (dashed) those that were "
            "given up or that it refused.",
            "cps",
            Query(by("instance, signal", rate(of_gpus(PUSH_ITEMS))), "{{signal}} on {{instance}}"),
            Query(
                by("instance, signal, reason", rate(of_gpus(PUSH_DROPPED_ITEMS))),
                "{{signal}} on {{instance}}: given up, {{reason}}",
                thin=True,
            ),
            Query(
                by("instance, signal", rate(of_gpus(PUSH_REJECTED))), "{{signal}} on {{instance}}: refused", thin=True
            ),
            **SMALL,
        ),
        panel(
            "Refused, and not in the numbers",
            "Requests a second that were turned away, by reason, and (dashed) spans that came too late, or were too "
            "many, to be in their region's numbers.",
            "cps",
            Query(by("instance, reason", rate(of_gpus(REFUSED))), "{{reason}} on {{instance}}"),
            Query(by("instance, reason", rate(of_gpus(LEFT_OUT))), "left out: {{reason}} on {{instance}}", thin=True),
            **SMALL,
        ),
    ),
)

SECTIONS: Final = (TRUST, EXPORTER, RECEIVING)
