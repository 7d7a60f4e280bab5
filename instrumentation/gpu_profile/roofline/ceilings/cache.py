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
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.regions.session import process
from gpu_profile.roofline.ceilings.calibration import BUDGET_S, HOSTS, NO_MEMORY, calibrate, ignore
from gpu_profile.roofline.ceilings.ceilings import Ceilings
from gpu_profile.roofline.ceilings.contention import Contention
from gpu_profile.roofline.machines.machine import Machine
from gpu_profile.units import NS_PER_S, percent

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
#: A thread of a calibration that had to wait for a processor for more than this share found no ceiling of it.
MOST_WAITED: Final = 0.2
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
    because memory was short, or are a processor's that others used at the same time, are not kept: the next time may be
    better.
    """
    with _one_at_a_time:
        kept = None if recalibrate else load(machine.key)
        if kept is not None and 0 <= clock.now_ns() - kept.calibrated_ns <= MOST_AGE_S * NS_PER_S:
            return kept, f"kept from {datetime.fromtimestamp(kept.calibrated_ns / NS_PER_S, UTC).date().isoformat()}"
        ceilings, waited = _calibrated(machine, budget_s, say, clock)
        if not ceilings.calibrated_ns:
            return ceilings, "nothing could be measured"
        if _short_of_memory(ceilings):
            reason = f"{NO_MEMORY} for all of it"
        elif waited > MOST_WAITED:
            reason = f"too low, as other threads had the processor for {percent(waited, 0)} of the time"
        else:
            reason = store(ceilings)
        return ceilings, f"measured now; not kept: {reason}" if reason else "measured now"


def _calibrated(machine: Machine, budget_s: float, say: Callable[[str], None], clock: Clock) -> tuple[Ceilings, float]:
    """The best of up to `ATTEMPTS` calibrations, and how much its threads had to wait in the least disturbed."""
    found: Ceilings | None = None
    least = 1.0
    for attempt in range(ATTEMPTS):
        if attempt:
            say("others use the processor: measuring again")
        contention = Contention()
        measured = calibrate(machine, budget_s=budget_s, say=say, clock=clock)
        least = min(least, contention.share() if machine.kind in HOSTS else 0.0)
        found = measured if found is None else found.best(measured)
        if least <= MOST_WAITED or not measured.calibrated_ns:
            break
    assert found is not None  # noqa: S101 - there is at least one attempt
    return found, least


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
