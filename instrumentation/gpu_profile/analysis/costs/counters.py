"""An engine's counters in a scrape of the exporter."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Final

from gpu_profile.catalogue import Metric, label, metrics, serving
from gpu_profile.clock import Alarm, Clock
from gpu_profile.errors import UsageError, few
from gpu_profile.units import nanoseconds

#: The reason of unallocated energy for time without requests.
IDLE: Final = "idle"
#: Seconds between two scrapes, and for how long the counters must rest. The exporter shares energy out after up to 5 s.
STEP_S: Final = 1.0
REST_S: Final = 7.0
_ENGINE: Final = label("engine")
_SIMULATED: Final = "simulated"
_DEVICE_ID: Final = label("hw.id")
_DEVICE_NAME: Final = label("hw.name")


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """An engine's counters at one moment, summed over tenants.

    By phase (`prefill`, `decode`): `energy_j` and `device_s` of requests, `tokens`, and `half_widths`, halves of the
    95 % intervals of the energies as shares of them. `unallocated_j` is by reason. `waiting` are iterations whose
    energy is not shared out yet. Tokens and requests are 0 without spans of requests.
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

    @property
    def at_work(self) -> tuple[object, ...]:
        """The counters that rest while the engine has no requests."""
        lost = {reason: joules for reason, joules in self.unallocated_j.items() if reason != IDLE}
        return self.energy_j, lost, self.tokens, self.requests


def engine_counters(text: str, engine: str = "") -> EngineCounters:
    """The counters of an engine in a scrape in Prometheus' text format. Without a name: of the only one.

    Raises UsageError if the text has another format, or not this engine.
    """
    sums: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
    simulated, models, owners = False, {}, {}
    for name, labels, value in _samples(text):
        if name == metrics.BUILD_INFO.prometheus:
            simulated |= labels.get("driver", "").startswith(_SIMULATED)
        elif name == metrics.DEVICE_INFO.prometheus:
            models[labels.get(_DEVICE_ID, "")] = labels.get(_DEVICE_NAME, "")
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


def settled(read: Callable[[], EngineCounters], clock: Clock, wait_s: float) -> EngineCounters:
    """The counters once all energy of requests is shared out: they rest, and the energy of idle time grows.

    Reads them again and again for `wait_s` at most; a scrape that fails in between is tried again. Raises UsageError
    after that, and at once if there are no costs yet.
    """
    end_ns = clock.elapsed_ns() + nanoseconds(wait_s)
    resting, rests_ns = read(), clock.elapsed_ns()
    problem = ""
    while True:
        if not (resting.energy_j or resting.waiting):
            raise UsageError(f"engine {resting.engine} has no costs yet: run the benchmark once to warm up")
        if clock.elapsed_ns() >= end_ns:
            raise UsageError(f"{problem or 'other requests are running'}, after {wait_s:g} s")
        clock.wait(Alarm(), STEP_S)
        try:
            now = read()
        except UsageError as error:
            problem = str(error)
            continue
        grows = now.unallocated_j.get(IDLE, 0.0) > resting.unallocated_j.get(IDLE, 0.0)
        problem = _problem(now, grows=grows)
        if now.waiting or now.at_work != resting.at_work:
            resting, rests_ns = now, clock.elapsed_ns()
        elif grows and clock.elapsed_ns() - rests_ns >= nanoseconds(REST_S):
            return now


def _problem(now: EngineCounters, *, grows: bool) -> str:
    """Why the counters are not settled, as far as one scrape shows it."""
    if now.waiting:
        return f"{now.waiting:,.0f} iterations of {now.engine} still wait for the ends of their requests"
    return "" if grows else f"the energy of {now.engine} is not shared out: is it never idle?"
