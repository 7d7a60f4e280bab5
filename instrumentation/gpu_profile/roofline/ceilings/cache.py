"""Measures ceilings when they are first needed and stores them, in one file per machine in the user's cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gpu_profile import user_cache
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.regions.session import process
from gpu_profile.roofline.ceilings.calibration import BUDGET_S, HOSTS, NO_MEMORY, calibrate, ignore
from gpu_profile.roofline.ceilings.ceilings import Ceilings
from gpu_profile.roofline.ceilings.contention import Contention
from gpu_profile.roofline.machines.machine import Machine
from gpu_profile.units import NS_PER_S

#: The folder in the user's cache.
_KIND: Final = "ceilings"
#: Increment this whenever the measurements or the file's format change their meaning.
SCHEMA: Final = 1
#: Ceilings older than this are measured again. Their key has the causes of changes that software can read. Others
#: (dust, cooling, firmware, other users of the machine) act over weeks, and a calibration costs seconds.
MOST_AGE_S: Final = 30 * 86_400
#: The same for ceilings that other programs may have lowered: shorter, as further calibrations can only raise them.
MOST_DOUBTED_S: Final = 86_400
#: Calibrations of a processor that other programs use: it shows its ceilings only in their pauses.
ATTEMPTS: Final = 3

#: Two calibrations at once would halve each other's results.
_one_at_a_time = threading.Lock()


def ceilings_for(
    machine: Machine,
    *,
    recalibrate: bool = False,
    say: Callable[[str], None] = ignore,
    budget_s: float = BUDGET_S,
    clock: Clock = SYSTEM_CLOCK,
) -> tuple[Ceilings, str]:
    """`(ceilings, remark)`. The remark has the date of stored ceilings, or why measured ones could not be stored.

    `recalibrate` measures them even if some are stored. `say` and `budget_s` are passed to `calibrate`. Ceilings that
    are incomplete for lack of memory are not stored: the next calibration may have more. Uncertain ceilings, measured
    while other programs used the processor, are stored (see `Ceilings.doubt`). Further calibrations on a busy machine
    raise them, because a ceiling is a maximum: the highest of each counts.
    """
    with _one_at_a_time:
        kept = _recent(load(machine.key), clock)
        if kept is not None and not recalibrate and not (kept.doubt and _age_s(kept, clock) > MOST_DOUBTED_S):
            made = f"kept from {datetime.fromtimestamp(kept.calibrated_ns / NS_PER_S, UTC).date().isoformat()}"
            return kept, "; ".join(filter(None, (made, kept.doubt)))
        ceilings = _calibrated(machine, budget_s, say, clock)
        if not ceilings.calibrated_ns:
            return ceilings, "nothing could be measured"
        if kept is not None and ceilings.doubt:
            ceilings = kept.best(ceilings)
        reason = f"{NO_MEMORY} for all of it" if _short_of_memory(ceilings) else store(ceilings)
        remarks = ("measured now", f"not kept: {reason}" if reason else "", ceilings.doubt)
        return ceilings, "; ".join(filter(None, remarks))


def _recent(kept: Ceilings | None, clock: Clock) -> Ceilings | None:
    return kept if kept is not None and 0 <= _age_s(kept, clock) <= MOST_AGE_S else None


def _age_s(kept: Ceilings, clock: Clock) -> float:
    return (clock.now_ns() - kept.calibrated_ns) / NS_PER_S


def _calibrated(machine: Machine, budget_s: float, say: Callable[[str], None], clock: Clock) -> Ceilings:
    """The best of up to `ATTEMPTS` calibrations; one is enough if other programs did not disturb it."""
    ceilings: Ceilings | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            say("other programs use the processor: measuring again")
        contention = Contention()
        measured = calibrate(machine, budget_s=budget_s, say=say, clock=clock)
        measured = replace(measured, waited=contention.share() if machine.kind in HOSTS else 0.0)
        ceilings = measured if ceilings is None else ceilings.best(measured)
        if not ceilings.doubt or not measured.calibrated_ns:
            break
    assert ceilings is not None  # noqa: S101 - there is at least one attempt
    return ceilings


def _short_of_memory(ceilings: Ceilings) -> bool:
    notes = [each.note for each in (*ceilings.compute.values(), *(level.bandwidth for level in ceilings.levels))]
    return any(NO_MEMORY in text for text in (*notes, *ceilings.missing.values()))


def path_of(key: Mapping[str, str]) -> Path | None:
    """The file of a machine's ceilings. None if there is no folder for it."""
    return user_cache.path_of(_KIND, key, key.get("device") or key.get("processor") or "machine")


def load(key: Mapping[str, str]) -> Ceilings | None:
    """The stored ceilings of the machine with this key. None if there are none, or no readable ones. Never raises."""

    def read(content: Any) -> Ceilings | None:
        ceilings = Ceilings.from_json(content["ceilings"]) if content["schema"] == SCHEMA else None
        # The keys differ if two have the same hash, or if the file was copied from another machine.
        return ceilings if ceilings is not None and dict(ceilings.key) == dict(key) else None

    return user_cache.load(path_of(key), read)


def store(ceilings: Ceilings) -> str:
    """Store the ceilings for their machine. Returns '' if that succeeds, else the reason, in one line. Never raises."""
    return user_cache.store(path_of(ceilings.key), {"schema": SCHEMA, "ceilings": ceilings.to_json()})


@process.in_child
def _forget() -> None:
    """After a fork: a lock that a thread of the parent held for its calibration would stay locked in the child."""
    global _one_at_a_time  # noqa: PLW0603
    _one_at_a_time = threading.Lock()
