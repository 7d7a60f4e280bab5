"""`python -m gpu.fit RECORD...`: the simulator's constants beside what `make gpu` measured (`record.json`), as a table.

Each record has a column. A measured value that the simulator's constant does not fit is marked "(another)".
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from gpu_profile.driver.simulated import physics, sensors
from gpu_profile.driver.simulated.models import MODELS, DeviceModel

#: Beyond this relative difference a constant does not describe the board.
FITS: Final = 0.15
_MS: Final = 1e6


class Constant(NamedTuple):
    """One constant: what it is, its unit, the simulator's value and the measured one, with the half-width of its 95 %
    interval where there is one."""

    name: str
    unit: str
    simulated: float
    measured: float
    half_width: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether they agree, by the interval or within `FITS`."""
        return abs(self.simulated - self.measured) <= max(self.half_width, FITS * abs(self.measured))


def model_of(record: Mapping[str, Any]) -> DeviceModel:
    """The simulated model of a record's device. LookupError if there is none."""
    name = record["device"]
    found = next((model for model in MODELS.values() if model.name == name), None)
    if found is None:
        raise LookupError(f"no simulated model of {name!r}")
    return found


def constants(record: Mapping[str, Any]) -> Iterator[Constant]:
    """Those that a record has a measurement of."""
    model, stages = model_of(record), record["stages"]
    yield from _idle(model, stages["sensors"]["signals"]["figures"]["signals"])
    yield from _timing(model, stages["sensors"]["calibrate"]["figures"]["found"]["signals"])
    yield from _rates(stages["truth"]["ceilings"]["figures"])
    if "told" in stages["truth"]:
        yield from _power(model, stages["truth"]["told"]["figures"]["solo"])


def _idle(model: DeviceModel, signals: Mapping[str, Any]) -> Iterator[Constant]:
    def idle(key: str) -> float:
        return float(signals[key]["idle"][1])

    yield Constant("idle power", "W", model.idle_w, idle("power_average"))
    yield Constant("power limit", "W", model.tdp_w, idle("power_limit"))
    yield Constant("clock at idle", "MHz", model.idle_clock_mhz, idle("clock_sm") / 1e6)
    yield Constant("memory that the driver keeps", "MiB", model.reserved_mib, idle("memory_reserved") / (1 << 20))


def _timing(model: DeviceModel, found: Mapping[str, Any]) -> Iterator[Constant]:
    own = {
        ("energy", "period_ms"): sensors.COUNTER_REFRESH_NS,
        ("power", "window_ms"): sensors.FOLLOWED_NS,
        ("power", "lag_ms"): sensors.LATE_NS,
        ("power_average", "window_ms"): sensors.POWER_AVERAGE_NS,
        ("utilization", "period_ms"): model.utilization_refresh_ns,
        ("utilization", "window_ms"): model.utilization_window_ns,
        ("graphics", "period_ms"): sensors.GPM_REFRESH_NS,
    }
    for (key, what), simulated in own.items():
        if key in found and found[key]["sure"]:
            measured, half_width = found[key][what]
            yield Constant(f"{key}: {what.removesuffix('_ms')}", "ms", simulated / _MS, measured, half_width)


def _rates(ceilings: Mapping[str, Any]) -> Iterator[Constant]:
    pairs = ceilings["compute_measured_and_data_sheet"]
    shares = [measured / sheet for name, (measured, sheet) in pairs.items() if name != "int8"]
    yield Constant("share of peak FLOP/s that products reach", "1", physics.COMPUTE_EFFICIENCY, median(shares))
    measured, sheet = ceilings["memory_measured_and_data_sheet"]
    yield Constant("share of peak B/s that copies reach", "1", physics.MEMORY_EFFICIENCY, measured / sheet)


def _power(model: DeviceModel, solo: Mapping[str, Any]) -> Iterator[Constant]:
    """What kernels that keep the memory busy draw, by the simulator's weights of multiprocessors and of traffic."""
    share = physics.power_share(sms=1.0, dram=physics.MEMORY_EFFICIENCY)
    for name in ("copy", "reduce"):
        if name in solo:
            simulated = model.idle_w + share * (model.tdp_w - model.idle_w)
            yield Constant(f"power of a {name}", "W", simulated, solo[name]["metered_power_w"])


def table(records: list[Mapping[str, Any]]) -> str:
    """In Markdown, a column for each record."""
    rows: dict[tuple[str, str], tuple[float, list[str]]] = {}
    for n, record in enumerate(records):
        for one in constants(record):
            _, cells = rows.setdefault((one.name, one.unit), (one.simulated, ["-"] * len(records)))
            interval = f" ±{one.half_width:.2g}" if one.half_width else ""
            cells[n] = f"{one.measured:.4g}{interval}" + ("" if one.fits else " (another)")
    head = ["constant", "simulated", *(record["device"] for record in records)]
    lines = [head, ["---"] * len(head)]
    for (name, unit), (simulated, cells) in rows.items():
        lines.append([name, f"{simulated:.4g}{'' if unit == '1' else ' ' + unit}", *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    print(table([json.loads(Path(path).read_text()) for path in sys.argv[1:]]))
