"""Recordings of real GPUs: `tests/data/hardware`, described by a README for each."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpu_profile.calibration.response import Load
from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.units import NS_PER_S

DATA = Path(__file__).parents[1] / "data" / "hardware"
H200 = DATA / "h200"


class Sensors(NamedTuple):
    """Raw readings: each array has a row for each column of its table. Times in ns after `base_ns`."""

    base_ns: int
    parts: tuple[str, ...]
    tables: dict[str, Ints]

    def first(self, seconds: float) -> "Sensors":
        """What there is of the first seconds."""
        until = round(seconds * NS_PER_S)
        return self._replace(tables={name: table[:, table[0] < until] for name, table in self.tables.items()})

    def load(self, first_kind: int) -> Load:
        """The work as a known load, in order and without overlaps; level 0 is `first_kind`."""
        starts, ends, kinds, _, _ = self.tables["work"]
        # Pieces that follow each other overlap by the error of the clocks' fit.
        starts = np.maximum(starts, np.maximum.accumulate(np.append(starts[:1], ends[:-1])))
        return Load(starts, np.maximum(ends, starts), kinds - first_kind)

    def buffered(self, name: str, unit: float) -> tuple[Ints, Floats]:
        """The stamps and values of what the driver keeps itself, once each."""
        stamps, values = self.tables[name]
        return stamps, values * unit


def load(path: Path) -> Sensors:
    """Read a file of raw sensors."""
    with np.load(path) as found:
        tables = {name: np.cumsum(found[name], axis=1) for name in found.files if found[name].ndim == 2}
        return Sensors(int(found["base_ns"][0]), tuple(map(str, found["parts"])), tables)
