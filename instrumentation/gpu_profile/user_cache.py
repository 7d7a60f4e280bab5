"""Results that are kept between runs: JSON files in the user's cache, one for each measurement.

The folder is `$GPU_PROFILE_CACHE`, else `gpu-profile` in `$XDG_CACHE_HOME`, else `~/.cache/gpu-profile`, with a folder
in it for each kind. A file is written beside its place and renamed: a reader sees one writer's whole file, never a part
of one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

_log = logging.getLogger("gpu_profile")

T = TypeVar("T")

#: The variable that names the folder.
VARIABLE: Final = "GPU_PROFILE_CACHE"
#: No such file comes near this size; a larger one is not read.
MOST_BYTES: Final = 1 << 20

_warned: set[Path] = set()


def folder(kind: str) -> Path | None:
    """The folder for a kind of file; None if the user has no home."""
    named, shared = os.environ.get(VARIABLE), os.environ.get("XDG_CACHE_HOME", "")
    if named:
        return Path(named) / kind
    # The specification says to ignore a relative path.
    if Path(shared).is_absolute():
        return Path(shared) / "gpu-profile" / kind
    try:
        return Path.home() / ".cache" / "gpu-profile" / kind
    except RuntimeError:
        return None


def path_of(kind: str, key: Mapping[str, str], name: str) -> Path | None:
    """The file for a key, with `name` as the readable part of its name; None if there is no folder for it."""
    place = folder(kind)
    readable = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
    digest = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:16]
    return None if place is None else place / f"{readable}-{digest}.json"


def load(path: Path | None, read: Callable[[Any], T | None]) -> T | None:
    """The result of `read` on a file's JSON. None without the file, or if `read` returns None or raises.

    A file that cannot be read or is damaged is logged once.
    """
    if path is None or not os.path.lexists(path):
        return None
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        return read(json.loads(data))
    except Exception as error:  # noqa: BLE001 - the file may hold anything, and costs a measurement at most
        if path not in _warned:
            _warned.add(path)
            reason = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else f"is damaged ({error!r})"
            _log.warning("gpu-profile: %s %s and is not used", path, reason)
        return None


def store(path: Path | None, content: Mapping[str, Any]) -> str:
    """Write the file. Returns "", or one line with the reason of a failure. Never raises."""
    if path is None:
        return f"there is no home folder: set {VARIABLE}"
    written = None
    try:
        text = json.dumps(content, indent=1)
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
