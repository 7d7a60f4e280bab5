"""Ceilings, measured when they are first needed and kept between runs: one file per machine in the user's cache."""

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

#: The folder's name.
_KIND: Final = "ceilings"
#: Raised whenever what is measured, or how it is written, changes its meaning.
SCHEMA: Final = 1
#: Ceilings older than this are measured again. The key holds what is known to change them; what it cannot hold (dust,
#: cooling, firmware, who else is on the machine) changes over weeks, and a calibration costs seconds.
MOST_AGE_S: Final = 30 * 86_400
#: The same of ceilings that others may have kept low: more often, as every further calibration can only raise them.
MOST_DOUBTED_S: Final = 86_400
#: Calibrations of a processor that others use: what can be reached only shows when they pause.
ATTEMPTS: Final = 3

#: Two calibrations at once would halve each other's ceilings.
_one_at_a_time = threading.Lock()


def ceilings_for(
    machine: Machine,
    *,
    recalibrate: bool = False,
    say: Callable[[str], None] = ignore,
    budget_s: float = BUDGET_S,
    clock: Clock = SYSTEM_CLOCK,
) -> tuple[Ceilings, str]:
    """The machine's ceilings, and whether they were kept from when, or measured now and why they could not be kept.

    `recalibrate` measures them whatever is kept; `say` and `budget_s` are `calibrate`'s. Ceilings that lack something
    because memory was short are not kept: the next time may be better. Those of a processor that others used meanwhile
    are kept and say so (`Ceilings.doubt`). A ceiling is a maximum, so those of further calibrations on a busy machine
    are added to them: the highest counts.
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
    """The best of up to `ATTEMPTS` calibrations; further ones only where others disturbed those before."""
    found: Ceilings | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            say("others use the processor: measuring again")
        contention = Contention()
        measured = calibrate(machine, budget_s=budget_s, say=say, clock=clock)
        measured = replace(measured, waited=contention.share() if machine.kind in HOSTS else 0.0)
        found = measured if found is None else found.best(measured)
        if not found.doubt or not measured.calibrated_ns:
            break
    assert found is not None  # noqa: S101 - there is at least one attempt
    return found


def _short_of_memory(ceilings: Ceilings) -> bool:
    notes = [each.note for each in (*ceilings.compute.values(), *(level.bandwidth for level in ceilings.levels))]
    return any(NO_MEMORY in text for text in (*notes, *ceilings.missing.values()))


def folder() -> Path | None:
    """Where ceilings are kept; None if the user has no home."""
    return user_cache.folder(_KIND)


def path_of(key: Mapping[str, str]) -> Path | None:
    """The file that a machine's ceilings are kept in; None if there is no folder for it."""
    return user_cache.path_of(_KIND, key, key.get("device") or key.get("processor") or "machine")


def load(key: Mapping[str, str]) -> Ceilings | None:
    """What was kept for the machine with this key; None if nothing was, or it cannot be read. Never raises."""

    def read(content: Any) -> Ceilings | None:
        ceilings = Ceilings.from_json(content["ceilings"]) if content["schema"] == SCHEMA else None
        # By another key's hash, or copied from another machine.
        return ceilings if ceilings is not None and dict(ceilings.key) == dict(key) else None

    return user_cache.load(path_of(key), read)


def store(ceilings: Ceilings) -> str:
    """Keep these for their machine. '' if that went well, else one line that says why not. Never raises."""
    return user_cache.store(path_of(ceilings.key), {"schema": SCHEMA, "ceilings": ceilings.to_json()})


@process.in_child
def _forget() -> None:
    """A child has one thread: a calibration that another one of its parent's had begun is not in it."""
    global _one_at_a_time  # noqa: PLW0603
    _one_at_a_time = threading.Lock()
