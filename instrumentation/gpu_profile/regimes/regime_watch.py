"""From the verdicts of one region over time to its changes of regime. Pure."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from gpu_profile.regimes.evidence import Basis
from gpu_profile.regimes.rule import Regime
from gpu_profile.regimes.thresholds import FIRM
from gpu_profile.regimes.verdict import Verdict
from gpu_profile.units import NS_PER_S

#: Verdicts of less confidence are marginal and count as none: a threshold that moves a little may change them, or the
#: evidence is a hint that suits other causes too. All numbers here are ours.
LEAST_CONFIDENCE: Final = FIRM
#: A regime is a new one after this many verdicts in a row that cover this much time: three periods of 10 s.
LEAST_VERDICTS: Final = 3
HELD_NS: Final = 20 * NS_PER_S
#: Two regimes take turns at the third change between them within this time.
_TURNS: Final = 3
_TURNS_NS: Final = 600 * NS_PER_S
#: Regimes that take turns too fast to hold: at least this many of the newest verdicts, a regime's least share of them,
#: and the number of returns to a regime that had ended.
_NEWEST: Final = 12
_FEWEST: Final = 8
_LEAST_SHARE: Final = 0.25
_RETURNS: Final = 2
#: Turns are over once one of the regimes has held for this long.
LASTING_NS: Final = 300 * NS_PER_S


@dataclass(frozen=True, slots=True)
class RegimeChange:
    """A change that lasted, or the beginning of turns: then `after` is MIXED, and `parts` are the regimes by turns.

    `t_ns`: the beginning of the first verdict of the new regime. `before` is None if no regime had held. `confidence`
    is 0-1, for turns that of the latest part. `reason` is the rule.
    """

    before: Regime | None
    after: Regime
    t_ns: int
    confidence: float
    basis: Basis
    reason: str
    parts: tuple[Regime, ...] = ()


@dataclass(slots=True)
class _Run:
    """Verdicts of one regime in a row."""

    regime: Regime
    start_ns: int
    n: int = 0
    held_ns: int = 0

    @property
    def holds(self) -> bool:
        return self.n >= LEAST_VERDICTS and self.held_ns >= HELD_NS


class RegimeWatch:
    """The regime of one region on one device. `take` returns each change once.

    Verdicts that are UNKNOWN or marginal neither end a regime nor begin one. The first regime that holds is no change.
    """

    def __init__(self) -> None:
        #: The regime that held last, MIXED during turns; None before the first.
        self.regime: Regime | None = None
        #: The regimes that take turns now.
        self.parts: tuple[Regime, ...] = ()
        self._run: _Run | None = None
        self._newest: deque[Regime] = deque(maxlen=_NEWEST)
        #: The times of the latest changes, with both regimes.
        self._changes: deque[tuple[int, frozenset[Regime | None]]] = deque(maxlen=_NEWEST)

    def take(self, verdict: Verdict, start_ns: int, end_ns: int) -> RegimeChange | None:
        """Take in the verdict on the time from `start_ns` to `end_ns`. Verdicts arrive in the order of time."""
        now = verdict.regime
        if now is Regime.UNKNOWN or verdict.confidence < LEAST_CONFIDENCE:
            return None
        if self._run is None or self._run.regime is not now:
            self._run = _Run(now, start_ns)
        run = self._run
        run.n, run.held_ns = run.n + 1, run.held_ns + end_ns - start_ns
        self._newest.append(now)
        if self.parts:
            over = run.held_ns >= LASTING_NS if now in self.parts else run.holds
            return self._changed(verdict, run, ()) if over else None
        parts = self._turns()
        if not parts and (now is self.regime or not run.holds):
            return None
        if not parts and self.regime is not None:
            both = frozenset((self.regime, now))
            self._changes.append((end_ns, both))
            often = sum(each == both and end_ns - t_ns <= _TURNS_NS for t_ns, each in self._changes)
            parts = (self.regime, now) if often >= _TURNS else ()
        return self._changed(verdict, run, parts)

    def _changed(self, verdict: Verdict, run: _Run, parts: tuple[Regime, ...]) -> RegimeChange | None:
        before, self.regime, self.parts = self.regime, Regime.MIXED if parts else run.regime, parts
        if parts or before is Regime.MIXED:
            self._newest.clear()
            self._changes.clear()
        if before is self.regime or (before is None and not parts):
            return None
        names = " and ".join(map(str, parts))
        reason = f"{names} take turns" if parts else verdict.rule
        return RegimeChange(before, self.regime, run.start_ns, verdict.confidence, verdict.basis, reason, parts)

    def _turns(self) -> tuple[Regime, ...]:
        """The regimes that take turns among the newest verdicts; none if they do not."""
        counts = Counter(self._newest)
        parts = [regime for regime, n in counts.items() if n >= _LEAST_SHARE * len(self._newest)]
        if len(self._newest) < _FEWEST or len(parts) < 2:
            return ()
        runs = [regime for regime, _ in groupby(each for each in self._newest if each in parts)]
        return tuple(parts) if len(runs) - len(parts) >= _RETURNS else ()
