"""The part of the dashboard that tells how far to trust it: gaps in the sampling, and how the exporter is."""

from __future__ import annotations

from typing import Final

from panels import Panel, Query, Section
from queries import GPU_NAME, by, named, of_gpus, rate

from gpu_profile.catalogue.allocation import ATTRIBUTION_UP
from gpu_profile.catalogue.http import REJECTED, REQUEST_TIME, REQUESTS
from gpu_profile.catalogue.metrics import DEVICE_UP, DROPPED, OBSERVED, READ_TIME, SAMPLE_AGE
from gpu_profile.catalogue.push import DROPPED as PUSH_DROPPED
from gpu_profile.catalogue.push import FAILURES as PUSH_FAILURES
from gpu_profile.catalogue.self_metrics import (
    READER_CPU,
    READER_MEMORY,
    READER_RESTARTS,
    SERIES,
    SERIES_DROPPED,
)

_SCRAPES: Final = {"http.route": "/metrics"}

TRUST: Final = Section(
    "How far to trust the numbers",
    (
        Panel(
            title="Answering",
            description="1 while the device answers, 0 while it does not. A line that ends means that the exporter "
            "itself was not scraped.",
            unit="none",
            width=6,
            height=7,
            maximum=1,
            queries=(Query(named(of_gpus(DEVICE_UP)), GPU_NAME),),
        ),
        Panel(
            title="Age of the newest sample",
            description="How long ago the newest sample was taken when the exporter was scraped. What is stale is "
            "left out of the panels above.",
            unit="s",
            width=6,
            height=7,
            queries=(Query(named(of_gpus(SAMPLE_AGE)), GPU_NAME),),
        ),
        Panel(
            title="Time seen by the busy counter",
            description="Share of time that the busy counter has covered. Below 100 % there are gaps in the sampling, "
            "and utilisation is too low by as much.",
            unit="percentunit",
            width=6,
            height=7,
            queries=(Query(named(rate(of_gpus(OBSERVED))), GPU_NAME),),
        ),
        Panel(
            title="Time spent reading the driver",
            description="Seconds a second that the exporter waits for the driver, by tier of signals. It is not CPU "
            "time, and no scrape ever waits for it.",
            unit="percentunit",
            width=6,
            height=7,
            queries=(Query(by("instance, tier", rate(of_gpus(READ_TIME))), "{{tier}} on {{instance}}"),),
        ),
    ),
)

EXPORTER: Final = Section(
    "The exporter itself",
    (
        Panel(
            title="Readers started again",
            description="How often a process that reads the driver was started again, a second, by reason. “hung”: a "
            "call to a GPU did not come back; “released”: somebody asked for the GPUs to be let go of.",
            unit="cps",
            width=6,
            height=7,
            queries=(Query(by("instance, reason", rate(of_gpus(READER_RESTARTS))), "{{reason}} on {{instance}}"),),
        ),
        Panel(
            title="Duration of a scrape",
            description="Mean time between a request for the metrics and its answer, as the exporter sees it. It never "
            "waits for the driver.",
            unit="s",
            width=6,
            height=7,
            queries=(
                Query(
                    f"{by('instance', rate(of_gpus(REQUEST_TIME, _SCRAPES)))} / "
                    f"{by('instance', rate(of_gpus(REQUESTS, _SCRAPES)))}",
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            title="Samples left out",
            description="Samples a second that were not used, by reason. “duplicate” is usual: the driver had nothing "
            "new. “implausible” and “late” should be rare; “reset” follows a reload of the driver.",
            unit="cps",
            width=6,
            height=7,
            queries=(Query(by("instance, reason", rate(of_gpus(DROPPED))), "{{reason}} on {{instance}}"),),
        ),
        Panel(
            title="Requests turned away",
            description="Requests and connections a second that the exporter refused: too slow, too large, too many, "
            "or without a right certificate.",
            unit="cps",
            width=6,
            height=7,
            queries=(Query(by("instance", rate(of_gpus(REJECTED))), "{{instance}}"),),
        ),
        Panel(
            title="Series",
            description="Series in the last scrape, and (dashed) how many a second were left out because there were "
            "more than the budget allows.",
            unit="none",
            width=6,
            height=7,
            queries=(
                Query(by("instance", of_gpus(SERIES)), "{{instance}}"),
                Query(by("instance", rate(of_gpus(SERIES_DROPPED))), "{{instance}}, left out", thin=True),
            ),
        ),
        Panel(
            title="CPU of the readers",
            description="Share of one core that the processes take that read the driver.",
            unit="percentunit",
            width=6,
            height=7,
            queries=(Query(by("instance", rate(of_gpus(READER_CPU))), "{{instance}}"),),
        ),
        Panel(
            title="Memory of the readers",
            description="Memory of the processes that read the driver. It should not grow over days.",
            unit="bytes",
            width=6,
            height=7,
            queries=(Query(by("instance", of_gpus(READER_MEMORY)), "{{instance}}"),),
        ),
        Panel(
            title="Who uses the GPUs: sources",
            description="1 while a source of attribution answers, 0 with the reason while it does not. That there is "
            "no kubelet on a machine that is no Kubernetes node is as it should be.",
            unit="none",
            width=6,
            height=7,
            maximum=1,
            queries=(Query(of_gpus(ATTRIBUTION_UP), "{{source}} on {{instance}} {{reason}}"),),
        ),
        Panel(
            title="Push",
            description="Tries a second to push over OTLP that failed, by error, and (dashed) batches that were given "
            "up. Empty where nothing is pushed.",
            unit="cps",
            width=12,
            height=7,
            legend="right",
            queries=(
                Query(
                    by("instance, signal, error_type", rate(of_gpus(PUSH_FAILURES))),
                    "{{signal}} on {{instance}}: {{error_type}}",
                ),
                Query(
                    by("instance, signal, reason", rate(of_gpus(PUSH_DROPPED))),
                    "{{signal}} on {{instance}}: given up, {{reason}}",
                    thin=True,
                ),
            ),
        ),
    ),
)

SECTIONS: Final = (TRUST, EXPORTER)
