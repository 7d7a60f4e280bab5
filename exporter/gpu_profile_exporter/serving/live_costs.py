"""The costs of engines over the last minutes, as part of the live page's answers."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any, Final

from gpu_profile.catalogue import serving as rows
from gpu_profile.clock import Clock
from gpu_profile.units import NS_PER_S
from gpu_profile_exporter.serving.engine import ServedEngine

#: The time that the rows sum up. It is that of the half-widths, which fade with this time constant.
OVER_S: Final = 600.0
#: Rows are renewed every 5 s: they cover minutes, and energy is some seconds behind. Sums are kept every 30 s.
_EVERY_S, _KEPT_EVERY_S = 5.0, 30.0
_PHASES: Final = ("prefill", "decode")
#: The place of J in a row.
_JOULES: Final = 4
#: Sums by the name of their metric. The last two have none: J and tokens of the requests with a complete cost.
_ENERGY, _DEVICE_TIME, _TOKENS, _REQUESTS, _UNALLOCATED, _HALF_WIDTH = (
    metric.otel
    for metric in (
        rows.SERVING_ENERGY, rows.SERVING_DEVICE_TIME, rows.SERVING_TOKENS, rows.SERVING_REQUESTS,
        rows.SERVING_UNALLOCATED, rows.SERVING_HALF_WIDTH,
    )
)  # fmt: skip
_PRICED_J, _PRICED_TOKENS = "priced J", "priced tokens"
_OF_TENANTS: Final = frozenset({_ENERGY, _DEVICE_TIME, _TOKENS, _REQUESTS})

#: The name of a sum, the tenant or the reason, and the phase. Empty where there is none.
SumKey = tuple[str, str, str]
CostRow = list[str | float | None]


class LiveCosts:
    """The rows of all engines. One thread calls `take`; any thread may call `state`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ns = clock.elapsed_ns()
        self._over_s, self._number = 0.0, 0
        self._sums: dict[str, _EngineSums] = {}
        self._engines: dict[str, dict[str, Any]] = {}

    def take(self, engine: ServedEngine, problem: str) -> None:
        """Renew an engine's rows if it is time. `problem`: why it has no GPUs, or ""."""
        sums = self._sums.setdefault(engine.name, _EngineSums(self._began_ns))
        now_ns = self._clock.elapsed_ns()
        if not sums.is_due(now_ns):
            return
        self._over_s = sums.take(engine, now_ns)
        whole, progress = sums.whole(), engine.progress
        described: dict[str, Any] = {
            "name": engine.name,
            "whole": whole,
            "tenants": sums.tenants(),
            "unallocated": sums.unallocated(),
            "remark": problem,
            "waiting": None,
        }
        if progress is not None:
            behind_s = round((self._clock.now_ns() - progress.until_ns) / NS_PER_S) if whole[_JOULES] else None
            waiting = progress.iterations, _figure(progress.joules), behind_s
            described |= {"remark": progress.remark, "waiting": waiting}
        self._engines[engine.name] = described
        self._number += 1

    def state(self) -> dict[str, Any]:
        """The rows as JSON: `over_s`, the time in s that they sum up, and the engines. Missing values are None.
        `number` changes with the rows.

        A row is: tenant, requests, tokens of prefill and of decode, J, half-width in J, J per 1,000 tokens of prefill
        and of decode, GPU-seconds. The tenant is empty for requests without a span. `whole` is the row of the engine,
        with all energy. A row of unallocated energy is: the reason in words, J, remedy. `waiting`: iterations and J
        that are not shared out yet, and the time in s by which costs are behind.
        """
        return {"number": self._number, "over_s": round(self._over_s), "engines": list(self._engines.values())}


class _EngineSums:
    """The sums of one engine over the last minutes. All were 0 at `began_ns`, by a clock that is never set."""

    def __init__(self, began_ns: int) -> None:
        #: The place of each sum in arrays, and arrays with their times: dictionaries would take 20 times the memory.
        self._places: dict[SumKey, int] = {}
        self._kept: deque[tuple[int, array[float]]] = deque([(began_ns, array("d"))])
        self._taken_ns: int | None = None
        self._grown: dict[SumKey, float] = {}
        self._half_widths: dict[str, float] = {}
        self._names: Collection[str] = ()

    def is_due(self, now_ns: int) -> bool:
        """Whether rows must be renewed."""
        return self._taken_ns is None or now_ns - self._taken_ns >= _EVERY_S * NS_PER_S

    def take(self, engine: ServedEngine, now_ns: int) -> float:
        """Take the sums of the engine's last step. Returns the time in s that rows then cover."""
        sums, places = array("d", bytes(8 * len(self._places))), self._places
        self._half_widths, self._taken_ns = {}, now_ns
        for key, value in self._read(engine):
            place = places.setdefault(key, len(places))
            if place == len(sums):
                sums.append(value)
            else:
                sums[place] += value  # a tenant's models are in one row
        while len(self._kept) > 1 and now_ns - self._kept[1][0] >= OVER_S * NS_PER_S:
            self._kept.popleft()
        since_ns, before = self._kept[0]
        if now_ns - self._kept[-1][0] >= _KEPT_EVERY_S * NS_PER_S:
            self._kept.append((now_ns, sums))
        # A sum that is not in the older array was 0.
        first = [*before, *[0.0] * (len(sums) - len(before))]
        self._grown = {key: sums[place] - first[place] for key, place in places.items()}
        self._names = dict.fromkeys(tenant for name, tenant, _ in places if name in _OF_TENANTS)
        return (now_ns - since_ns) / NS_PER_S

    def _read(self, engine: ServedEngine) -> Iterator[tuple[SumKey, float]]:
        """The sums, each with its key. Keeps the half-widths, which are none."""
        for metric, about, value in engine.latest:
            name = metric.otel
            if name in _OF_TENANTS:
                yield (name, about.get("tenant", ""), about.get("phase", "")), value
            elif name == _UNALLOCATED:
                yield (name, about["reason"], ""), value
            elif name == _HALF_WIDTH:
                tenant = about.get("tenant", "")
                self._half_widths[tenant] = max(value, self._half_widths.get(tenant, 0.0))
        for (tenant, phase), (joules, tokens) in engine.priced.items():
            yield (_PRICED_J, tenant, phase), joules
            yield (_PRICED_TOKENS, tenant, phase), tokens

    def tenants(self) -> list[CostRow]:
        """The row of each tenant with requests or energy in this time, the largest energy first."""
        made = ([name, *self._values([name], self._half_widths.get(name))] for name in self._names)
        return _falling([row for row in made if any(row[1:])], _JOULES)

    def whole(self) -> CostRow:
        """The row of the engine."""
        row = ["", *self._values(self._names, None)]
        joules = sum(value for (name, _, _), value in self._grown.items() if name in (_ENERGY, _UNALLOCATED))
        row[_JOULES] = _figure(joules or None)
        return row

    def unallocated(self) -> list[CostRow]:
        """The row of each reason with energy in this time."""
        energies = ((self._grown.get((_UNALLOCATED, reason, "")), text)
                    for reason, text in rows.UNALLOCATED_REASONS.items())  # fmt: skip
        return _falling([[text.meaning, _figure(joules), text.remedy] for joules, text in energies if joules], 1)

    def _values(self, names: Collection[str], half_width: float | None) -> list[float | None]:
        """The values of some tenants together. An energy that has not grown was not estimated yet."""
        joules = self._sum(_ENERGY, names, *_PHASES) or None
        priced = [name for name in names if name in self._half_widths]
        return [
            self._sum(_REQUESTS, names, ""),
            *(self._sum(_TOKENS, names, phase) for phase in _PHASES),
            _figure(joules),
            None if joules is None or half_width is None else _figure(half_width * joules),
            *(self._price(priced, phase) for phase in _PHASES),
            _figure(self._sum(_DEVICE_TIME, names, *_PHASES) or None),
        ]

    def _price(self, names: Collection[str], phase: str) -> float | None:
        """J per 1,000 tokens."""
        joules, tokens = (self._sum(each, names, phase) for each in (_PRICED_J, _PRICED_TOKENS))
        return _figure(1000 * joules / tokens) if joules and tokens else None

    def _sum(self, metric: str, names: Collection[str], *phases: str) -> float | None:
        keys = [(metric, name, phase) for name in names for phase in phases]
        present = [self._grown[key] for key in keys if key in self._grown]
        return sum(present) if present else None


def _falling(some: list[CostRow], place: int) -> list[CostRow]:
    return sorted(some, key=lambda row: float(row[place] or 0), reverse=True)


def _figure(value: float | None) -> float | None:
    """The value with six digits, so that answers are short."""
    return None if value is None else float(f"{value:.6g}")
