"""An engine's counters in a scrape of the exporter."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Final

from gpu_profile.catalogue import Metric, label, metrics, serving
from gpu_profile.errors import UsageError, few

#: The reason of unallocated energy for time without requests.
IDLE: Final = "idle"
_ENGINE: Final = label("engine")
_SIMULATED: Final = "simulated"
_DEVICE_ID: Final = label("hw.id")
_DEVICE_NAME: Final = label("hw.name")
#: The exporter's own metrics: when its process started, and series that a scrape has no room for.
_STARTED: Final = "process_start_time_seconds"
_LEFT_OUT: Final = "gpu_profile_series_dropped_total"


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """An engine's counters at one moment, summed over tenants.

    By phase (`prefill`, `decode`): `energy_j` and `device_s` of requests, `tokens`, and `half_widths`, halves of the
    95 % intervals of the energies as shares of them. `unallocated_j` is by reason. `waiting` are iterations whose
    energy is not shared out yet. Tokens and requests are 0 without spans of requests. `started_s` is when the exporter
    started, in s since the epoch, and `left_out` the number of series without room in its scrapes so far.
    """

    engine: str
    energy_j: Mapping[str, float] = field(default_factory=dict)
    device_s: Mapping[str, float] = field(default_factory=dict)
    tokens: Mapping[str, float] = field(default_factory=dict)
    half_widths: Mapping[str, float] = field(default_factory=dict)
    unallocated_j: Mapping[str, float] = field(default_factory=dict)
    requests: float = 0.0
    waiting: float = 0.0
    simulated: bool = False
    #: Numbers and names of its GPUs; empty if the exporter does not publish them.
    gpus: str = ""
    started_s: float = 0.0
    left_out: float = 0.0

    @property
    def idle_j(self) -> float:
        """The energy of the time without requests."""
        return self.unallocated_j.get(IDLE, 0.0)

    @property
    def at_work(self) -> tuple[object, ...]:
        """The counters that rest while the engine has no requests."""
        # In whole J: rounding leaves some µJ of idle windows unexplained.
        lost = {reason: round(joules) for reason, joules in self.unallocated_j.items() if reason != IDLE}
        return self.energy_j, lost, self.tokens, self.requests


def engine_counters(text: str, engine: str = "") -> EngineCounters:
    """The counters of an engine in a scrape in Prometheus' text format. Without a name: of the only one.

    Raises UsageError if the text has another format, or not this engine.
    """
    sums: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
    simulated, models, owners = False, {}, {}
    own: dict[str, float] = {}
    for name, labels, value in _samples(text):
        if name == metrics.BUILD_INFO.prometheus:
            simulated |= labels.get("driver", "").startswith(_SIMULATED)
        elif name == metrics.DEVICE_INFO.prometheus:
            models[labels.get(_DEVICE_ID, "")] = labels.get(_DEVICE_NAME, "")
        elif name == _STARTED or (name == _LEFT_OUT and labels.get("reason") == "over_budget"):
            own[name] = value
        elif _ENGINE in labels and isfinite(value):
            owners[labels.get(_DEVICE_ID, "")] = labels[_ENGINE]
            detail = labels.get("phase", labels.get("reason", ""))
            sums[labels[_ENGINE]][name][detail] += value
    engines = [name for name, own in sums.items() if serving.SERVING_UNALLOCATED.prometheus in own]
    if not engines:
        raise UsageError("it has no engine with GPUs; start the exporter with --serving (docs/serving.md)")
    if not engine and len(engines) > 1:
        raise UsageError(f"it has several engines: choose one with --engine: {few(engines)}")
    if engine and engine not in engines:
        raise UsageError(f"it has no engine {engine!r}: there is {few(engines)}")
    engine = engine or engines[0]

    def of(metric: Metric) -> dict[str, float]:
        return dict(sums[engine].get(metric.prometheus, {}))

    return EngineCounters(
        engine,
        of(serving.SERVING_ENERGY),
        of(serving.SERVING_DEVICE_TIME),
        of(serving.SERVING_TOKENS),
        of(serving.SERVING_PHASE_HALF_WIDTH),
        of(serving.SERVING_UNALLOCATED),
        sum(of(serving.SERVING_REQUESTS).values()),
        sum(of(serving.SERVING_WAITING).values()),
        simulated,
        gpu_names([name for uuid, name in models.items() if name and owners.get(uuid) == engine]),
        own.get(_STARTED, 0.0),
        own.get(_LEFT_OUT, 0.0),
    )


def gpu_names(names: Sequence[str]) -> str:
    """Names of GPUs in words, each with its number."""
    return ", ".join(f"{count} x {name}" for name, count in Counter(names).items())


def _samples(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    from prometheus_client.parser import text_string_to_metric_families

    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                yield sample.name, sample.labels, float(sample.value)
    except Exception as error:  # the parser fails in many ways on text in another format
        raise UsageError(f"not in Prometheus' text format ({type(error).__name__})") from error
