"""Ceilings, measured when they are first needed and kept between runs: one JSON file per machine in the user's cache.

The folder is `ceilings` in `$GPU_PROFILE_CACHE`, else in `$XDG_CACHE_HOME/gpu-profile`, else in `~/.cache/gpu-profile`.
A file is written beside its place and renamed: who reads sees one of the writers' files, never a part of it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.regions.session import process
from gpu_profile.roofline.ceilings.calibration import BUDGET_S, HOSTS, NO_MEMORY, calibrate, ignore
from gpu_profile.roofline.ceilings.ceilings import Ceilings
from gpu_profile.roofline.ceilings.contention import Contention
from gpu_profile.roofline.machines.machine import Machine
from gpu_profile.units import NS_PER_S

_log = logging.getLogger("gpu_profile")

#: The variable that names the folder.
VARIABLE: Final = "GPU_PROFILE_CACHE"
#: Raised whenever what is measured, or how it is written, changes its meaning.
SCHEMA: Final = 1
#: No file of ours comes near this; a larger one is not read.
MOST_BYTES: Final = 1 << 20
#: Ceilings older than this are measured again. The key holds what is known to change them; what it cannot hold (dust,
#: cooling, firmware, who else is on the machine) changes over weeks, and a calibration costs seconds.
MOST_AGE_S: Final = 30 * 86_400
#: The same of ceilings that others may have kept low: more often, as every further calibration can only raise them.
MOST_DOUBTED_S: Final = 86_400
#: Calibrations of a processor that others use: what can be reached only shows when they pause.
ATTEMPTS: Final = 3

_told: set[Path] = set()
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
    named, shared = os.environ.get(VARIABLE), os.environ.get("XDG_CACHE_HOME", "")
    if named:
        return Path(named) / "ceilings"
    # By the specification, a relative path there is to be ignored.
    if Path(shared).is_absolute():
        return Path(shared) / "gpu-profile" / "ceilings"
    try:
        return Path.home() / ".cache" / "gpu-profile" / "ceilings"
    except RuntimeError:
        return None


def path_of(key: Mapping[str, str]) -> Path | None:
    """The file that a machine's ceilings are kept in; None if there is no folder for it."""
    place = folder()
    text = json.dumps(dict(key), sort_keys=True)
    readable = re.sub(r"[^a-z0-9]+", "-", (key.get("device") or key.get("processor") or "machine").lower())
    name = f"{readable.strip('-')[:40]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    return None if place is None else place / name


def load(key: Mapping[str, str]) -> Ceilings | None:
    """What was kept for the machine with this key; None if nothing was, or it cannot be read. Never raises."""
    path = path_of(key)
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            found = file.read(MOST_BYTES + 1)
    except OSError:
        return None
    try:
        content = json.loads(found)
        if content["schema"] != SCHEMA:
            return None
        ceilings = Ceilings.from_json(content["ceilings"])
    except Exception as error:  # noqa: BLE001 - the file may hold anything, and costs a calibration at most
        _tell(path, error)
        return None
    # By another key's hash, or copied from another machine.
    return ceilings if dict(ceilings.key) == dict(key) else None


def _tell(path: Path, error: Exception) -> None:
    if path not in _told:
        _told.add(path)
        _log.warning("gpu-profile: %s is damaged and is measured anew: %r", path, error)


def store(ceilings: Ceilings) -> str:
    """Keep these for their machine. '' if that went well, else one line that says why not. Never raises."""
    path = path_of(ceilings.key)
    if path is None:
        return f"there is no home folder: set {VARIABLE}"
    written = None
    try:
        text = json.dumps({"schema": SCHEMA, "ceilings": ceilings.to_json()}, indent=1)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, written = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".new")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(written).replace(path)
    except (OSError, ValueError) as error:
        if written is not None:
            with suppress(OSError):
                Path(written).unlink()
        return f"{path.parent}: {getattr(error, 'strerror', None) or error}"
    return ""


@process.in_child
def _forget() -> None:
    """A child has one thread: a calibration that another one of its parent's had begun is not in it."""
    global _one_at_a_time  # noqa: PLW0603
    _one_at_a_time = threading.Lock()
