"""The metrics of the costs of LLM serving, by engine, the reasons of energy that is no tenant's, and the attributes of
requests' spans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from gpu_profile.catalogue.attributes import Attribute
from gpu_profile.catalogue.metric import Family

_SERVING: Final = Family("engine")
SERVING_ENERGY: Final = _SERVING.counter(
    "gpu_profile.serving.energy",
    "J",
    "Energy of an engine's GPUs by the requests' tenant and phase: with the unallocated energy, the growth of "
    "the energy counters",
    "tenant",
    "model",
    "phase",
)
SERVING_DEVICE_TIME: Final = _SERVING.counter(
    "gpu_profile.serving.device.time",
    "s",
    "GPU-seconds of an engine's iterations by the requests' tenant and phase",
    "tenant",
    "model",
    "phase",
)
SERVING_UNALLOCATED: Final = _SERVING.counter(
    "gpu_profile.serving.energy.unallocated",
    "J",
    "Energy of an engine's GPUs that no tenant has, by reason: `idle`, or why it could not be shared out",
    "reason",
)
SERVING_HALF_WIDTH: Final = _SERVING.gauge(
    "gpu_profile.serving.half_width",
    "1",
    "Half of the 95 % interval of a tenant's energy, as a share of the energy; absent without a value",
    "tenant",
    "model",
)
SERVING_PHASE_HALF_WIDTH: Final = _SERVING.gauge(
    "gpu_profile.serving.phase.half_width",
    "1",
    "Half of the 95 % interval of a phase's energy, as a share of the energy; absent without a value",
    "phase",
)
SERVING_TOKENS: Final = _SERVING.counter(
    "gpu_profile.serving.tokens",
    "{token}",
    "Tokens that an engine computed, by tenant and phase; tokens from the prefix cache are not computed",
    "tenant",
    "model",
    "phase",
)
SERVING_CACHED: Final = _SERVING.counter(
    "gpu_profile.serving.cached",
    "{token}",
    "Tokens of prompts that the prefix cache had, by tenant, as far as the engine reports them",
    "tenant",
    "model",
)
SERVING_SAVED: Final = _SERVING.counter(
    "gpu_profile.serving.cached.energy",
    "J",
    "Estimate of the energy that these tokens would have cost, at the present price of one more token of a prompt; no "
    "part of the energy of GPUs",
    "tenant",
    "model",
)
SERVING_REQUESTS: Final = _SERVING.counter(
    "gpu_profile.serving.requests", "{request}", "Requests that ended, by tenant", "tenant", "model"
)
SERVING_MESSAGES: Final = _SERVING.counter(
    "gpu_profile.serving.messages",
    "{message}",
    "Messages of an engine that arrived: one for each iteration, and some without work",
)
SERVING_LOST: Final = _SERVING.counter(
    "gpu_profile.serving.iterations.lost", "{iteration}", "Iterations of an engine that are missing in the sequence"
)
SERVING_WAITING: Final = _SERVING.gauge(
    "gpu_profile.serving.waiting", "{iteration}", "Iterations of an engine that wait for the end of their requests"
)
SERVING_REFUSED: Final = _SERVING.counter(
    "gpu_profile.serving.rejected",
    "{message}",
    "Messages of an engine, or requests, that were not used, by reason",
    "reason",
)
SERVING_OTHERS: Final = _SERVING.gauge(
    "gpu_profile.serving.programs.other",
    "{program}",
    "Other programs that work on an engine's GPUs: their time is refused; absent where the exporter cannot see it",
)
SERVING_DEVICE: Final = _SERVING.gauge(
    "gpu_profile.serving.device", "", "1 for each GPU of an engine; join it on hw_id", "hw.id"
)

SERVING_METRICS: Final = tuple(_SERVING)


class ReasonText(NamedTuple):
    """A value of the label `reason` in words, and the user's remedy."""

    meaning: str
    remedy: str


#: The reasons of `SERVING_UNALLOCATED`, in the order of the documentation.
UNALLOCATED_REASONS: Final[Mapping[str, ReasonText]] = {
    "idle": ReasonText("nothing was scheduled", "none; it is the cost of free capacity"),
    "not_identifiable_yet": ReasonText(
        "too few windows so far", "wait: at least 300 readings of the counter are needed"
    ),
    "not_identifiable": ReasonText(
        "the windows do not distinguish the tenants' work", "requests with other lengths or batch sizes; a longer time"
    ),
    "model_rejected": ReasonText(
        "windows contradict the estimated prices, as after a change of the language model, or of the clocks by a power "
        "limit; they are then estimated anew",
        "none after a change; else look for other work on the GPUs, and for limits that change",
    ),
    "unexplained": ReasonText(
        "a window's energy is far from the estimate", "none if it is rare; do other programs use the GPU?"
    ),
    "work_not_seen_before": ReasonText(
        "the first windows with work unlike all earlier work, such as much longer prompts",
        "none: its price follows from such windows; or a sweep beforehand",
    ),
    "iterations_lost": ReasonText(
        "messages are missing in the sequence", "more processor time for the exporter and the engine"
    ),
    "request_not_known": ReasonText(
        "spans of requests are missing or do not fit, as of long or interrupted requests, or with another clock",
        "no sampling of traces; send spans to this exporter; a `--serving-wait` above the longest answers; one clock",
    ),
    "devices_shared": ReasonText(
        "several publishers use the GPUs", "an exporter for each publisher, with its own GPUs"
    ),
    "other_programs": ReasonText("another program worked on a GPU of the engine", "a GPU of its own for each program"),
    "counter_restarted": ReasonText("the driver's counter began again", "none"),
    "pipeline_stages": ReasonText(
        "the engine is a pipeline, whose stages do not report when they work", "tensor parallelism has costs"
    ),
}

REQUEST_ENERGY: Final = Attribute(
    "gpu_profile.request.energy", "double", "Energy of the GPUs for the request, its parts of fixed costs included", "J"
)
REQUEST_MARGINAL: Final = Attribute(
    "gpu_profile.request.energy.marginal", "double", "The same without its parts of fixed costs", "J"
)
REQUEST_HALF_WIDTH: Final = Attribute(
    "gpu_profile.request.energy.half_width", "double", "Half of the 95 % interval of the energy", "J"
)
REQUEST_DEVICE_TIME: Final = Attribute(
    "gpu_profile.request.device_time", "double", "The request's share of the time of iterations, summed over GPUs", "s"
)
REQUEST_SAVED: Final = Attribute(
    "gpu_profile.request.cached.energy",
    "double",
    "Estimate of the energy that the tokens from the prefix cache would have cost; no part of the energy",
    "J",
)
REQUEST_REASON: Final = Attribute(
    "gpu_profile.request.reason", "string", "Why the request has no values, such as `not_identifiable_yet`"
)
REQUEST_WORKER: Final = Attribute(
    "gpu_profile.request.worker",
    "string",
    "`prefill` or `decode`, where each is an engine of its own: the values above are of this worker alone",
)
REQUEST_PREFILL: Final = Attribute(
    "gpu_profile.request.prefill.energy",
    "double",
    "Energy of the prefill worker for the request, on the span of the decode worker",
    "J",
)
REQUEST_TOTAL: Final = Attribute(
    "gpu_profile.request.total.energy", "double", "Energy of both workers, on the span of the decode worker", "J"
)
REQUEST_TOTAL_HALF_WIDTH: Final = Attribute(
    "gpu_profile.request.total.half_width", "double", "Half of the 95 % interval of the energy of both workers", "J"
)
REQUEST_TOTAL_REASON: Final = Attribute(
    "gpu_profile.request.total.reason",
    "string",
    "Why there is no energy of both workers: the worker and its reason, such as `prefill: span_missing`",
)
#: The attributes of spans of requests.
REQUEST_ATTRIBUTES: Final[tuple[Attribute, ...]] = (
    REQUEST_ENERGY,
    REQUEST_MARGINAL,
    REQUEST_HALF_WIDTH,
    REQUEST_DEVICE_TIME,
    REQUEST_SAVED,
    REQUEST_REASON,
    REQUEST_WORKER,
    REQUEST_PREFILL,
    REQUEST_TOTAL,
    REQUEST_TOTAL_HALF_WIDTH,
    REQUEST_TOTAL_REASON,
)
