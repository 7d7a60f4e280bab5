"""Loads of a calibration (chips of two levels), and the laboratory's sensors polled during them."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from gpu_profile.calibration.load import Load
from gpu_profile.calibration.playing import CHIPS_S
from gpu_profile.calibration.response import SensorResponse, find, find_stamped, find_windows
from laboratory.curves import Quantity
from laboratory.programs import LEAD_S, PER_S, Floats
from laboratory.sensors import Sensor

#: Power without a load, and the additional power of each level.
BASE_W: Final = 90.0
GAINS_W: Final = (500.0, 250.0)
_STEP_NS: Final = 10**9 // PER_S


@dataclass
class Chips:
    """A device's curves under chips of two levels, as input of a sensor."""

    seconds: int
    load: Load
    power: Floats
    busy: Floats

    def curve(self, quantity: Quantity) -> Floats:
        """The curve of a quantity, as `World.curve`."""
        return self.power if quantity == "power" else self.busy


def chips(seed: int, seconds: int = 40, drift: float = 0.0) -> Chips:
    """A random load. `drift`: relative growth of the power over the run."""
    rng = np.random.default_rng(seed)
    count = (seconds + LEAD_S) * PER_S
    power, busy = np.full(count, BASE_W), np.zeros(count)
    played, at = [], 0.3
    while at < seconds - 0.3:
        length, level = float(rng.choice(CHIPS_S)), int(rng.integers(-1, 2))
        if level >= 0:
            start, end = int(at * PER_S), int((at + length) * PER_S)
            warmer = 1 + drift * at / seconds
            power[LEAD_S * PER_S + start : LEAD_S * PER_S + end] += GAINS_W[level] * warmer
            busy[LEAD_S * PER_S + start : LEAD_S * PER_S + end] = 1.0
            played.append((start * _STEP_NS, end * _STEP_NS, level))
        at += length
    starts, ends, levels = np.array(played, np.int64).T
    return Chips(seconds, Load(starts, ends, levels), power, busy)


def response(sensor: Sensor, world: Chips, seed: int = 0) -> SensorResponse | None:
    """The calibration's result for the sensor's readings, by the function for this kind of sensor."""
    rng = np.random.default_rng(seed)
    signal, _, read = sensor.read(world, rng)[0]  # type: ignore[arg-type]
    values = read.values.astype(np.float64) * signal.quantum
    if sensor.kind == "between":
        return find_windows(world.load, read.starts_ns, read.stamps_ns, values, signal.refresh_ns / 1e6)
    if sensor.buffered:
        return find_stamped(world.load, read.stamps_ns, values)
    return find(world.load, read.stamps_ns, values, counter=sensor.kind == "counter")
