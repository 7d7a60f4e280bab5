"""Cases in which `search` found confident errors, kept as rows. Each is what `search` printed, with a name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from laboratory.recordings import Case

FOUND: Final[Mapping[str, Case]] = {}
