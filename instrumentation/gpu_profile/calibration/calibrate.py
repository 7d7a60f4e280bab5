"""The sensors of one device, calibrated: a known load, how each sensor answers, and a loop to try that on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from gpu_profile.calibration.loop import Checked, check
from gpu_profile.calibration.playing import LoadStep, Played, Player, chips, loop, series
from gpu_profile.calibration.renewals import Estimate
from gpu_profile.calibration.response import SensorResponse, find, find_stamped, find_windows
from gpu_profile.calibration.workers import LEVELS, LoadWorker
from gpu_profile.catalogue import Kind, Signal, Tier
from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Device
from gpu_profile.clock import Clock
from gpu_profile.driver.own_process import own_ids
from gpu_profile.driver.protocol import Driver
from gpu_profile.errors import UsageError
from gpu_profile.join.unmixing.expected import SensorPrior
from gpu_profile.regions.session.known_sensors import SCHEMA, sensors_path
from gpu_profile.user_cache import store

#: The sensors that are calibrated: those that busy time and energy come from.
SENSORS: Final = (rows.ENERGY, rows.POWER, rows.POWER_AVERAGE, rows.GRAPHICS, rows.UTILIZATION, rows.MEMORY_CONTROLLER)
#: Seconds of idleness before the load, of chips, at each level, after each, and of the loop: a minute in all.
_BEFORE_S, _CHIPS_S, _HELD_S, _AFTER_S, _LOOP_S = 1.0, 30.0, 2.0, 1.5, 22.0
#: Of the loop's regions. Neither is a round number.
_REGIONS_S: Final = (0.0173, 0.0097)
#: A device that is busier than this without our load is used by others.
_IDLE: Final = 0.05


class Calibration(NamedTuple):
    """How each sensor of a device answers, and what the loop was told to be. `missed` says where that was wrong."""

    device: Device
    driver_version: str
    made_ns: int
    responses: Mapping[Signal, SensorResponse]
    checked: tuple[Checked, ...]
    missed: str

    def ratios(self) -> dict[str, tuple[Estimate, ...]]:
        """What power each other sensor adds for each level, over what the energy counter does."""
        base = self.responses.get(rows.ENERGY)
        found = {}
        for signal in (rows.POWER, rows.POWER_AVERAGE):
            response = self.responses.get(signal)
            if base is not None and response is not None:
                pairs = zip(response.gains, base.gains, strict=True)
                found[signal.key] = tuple(_ratio(one, other) for one, other in pairs if other.value)
        return found

    def to_json(self) -> dict[str, Any]:
        """As it is kept; times in ms, each estimate with the half-width of its 95 % interval."""
        return {
            "schema": SCHEMA,
            "device": {
                "uuid": self.device.uuid,
                "name": self.device.name,
                "driver": self.driver_version,
                "vbios": self.device.vbios_version,
            },
            "made_ns": self.made_ns,
            "levels": LEVELS,
            "signals": {signal.key: _as_json(response) for signal, response in self.responses.items()},
            "ratios_to_energy": self.ratios(),
            "loop": [each._asdict() for each in self.checked],
            "missed": self.missed,
        }

    def keep(self) -> str:
        """Keep it for this user's programs. '' if that went well, else one line that says why not."""
        return store(sensors_path(self.device, self.driver_version), self.to_json())


def calibrate(
    driver: Driver,
    device: Device,
    worker: Callable[[], LoadWorker],
    clock: Clock,
    *,
    say: Callable[[str], None],
    seed: int = 0,
) -> Calibration:
    """Calibrate the sensors of a device that nobody else uses: about a minute of load.

    `worker` is called once the device was seen to be idle. UsageError if others use it, GpuProfileError if the load
    cannot be put on it.
    """
    _alone(driver, device)
    player, rng = Player(driver, device, clock, seed), np.random.default_rng(seed)
    say(f"watching {device.uuid} without a load")
    _idle(player.play(None, [LoadStep(None, _BEFORE_S)]), device)
    own = worker()
    try:
        say(f"chips of 10 to 52 ms of {' and '.join(LEVELS)} for {_CHIPS_S:g} s")
        steps = [LoadStep(None, 0.5), *chips(_CHIPS_S, len(LEVELS), rng), LoadStep(None, _AFTER_S)]
        for level in range(len(LEVELS)):
            steps += [LoadStep(level, _HELD_S), LoadStep(None, _AFTER_S)]
        played = player.play(own, steps)
        say(f"a loop of both in random order for {_LOOP_S:g} s")
        looped = player.play(own, loop(_LOOP_S, _REGIONS_S, rng))
    finally:
        own.close()
    _alone(driver, device)
    responses = {signal: found for signal in SENSORS if (found := _found(played, signal)) is not None}
    known = {signal: SensorPrior.of(signal, _as_json(each)) for signal, each in responses.items() if not each.reason}
    checked = tuple(check(device, looped, responses, known))
    return Calibration(device, driver.version, clock.now_ns(), responses, checked, _missed(checked))


def _found(played: Played, signal: Signal) -> SensorResponse | None:
    if signal.tier is Tier.GPM:
        starts, ends, values = series(played.windows, signal)
        return find_windows(played.load, starts, ends, values, signal.refresh_ns / 1e6)
    _, ends, values = series(played.drained, signal)
    if len(ends):
        return find_stamped(played.load, ends, values)
    _, ends, values = series((sample for poll in played.read for sample in poll), signal)
    return find(played.load, ends, values, counter=signal.kind is Kind.COUNTER)


def _missed(checked: tuple[Checked, ...]) -> str:
    missed = [each for each in checked if each.missed]
    return "; ".join(
        f"in its calibration, {each.signal} of the loop's {each.region} was told to be "
        f"{each.told:.4g} ± {each.half_width:.2g} and was {each.truth:.4g} ± {each.truth_half_width:.2g}"
        for each in missed
    )


def _alone(driver: Driver, device: Device) -> None:
    ids = own_ids()
    if ids.host is None and not ids.on_host:
        return  # the driver may know this process by a number that nobody tells it
    mine = ids.inside | ({ids.host} if ids.host is not None else set())
    others = sorted(use.pid for use in driver.processes(device) if use.pid not in mine)
    if others:
        pids = ", ".join(map(str, others[:8]))
        raise UsageError(f"{device.uuid} is used by others (processes {pids}): calibrate it when nobody does")


def _idle(played: Played, device: Device) -> None:
    for signal in (rows.UTILIZATION, rows.GRAPHICS):
        for some in (played.drained, played.windows, [sample for poll in played.read for sample in poll]):
            _, _, values = series(some, signal)
            if len(values) and float(values.mean()) > _IDLE:
                busy = float(values.mean())
                raise UsageError(f"{device.uuid} is {busy:.0%} busy by others' work: calibrate it when it is idle")


def _ratio(one: Estimate, other: Estimate) -> Estimate:
    value = one.value / other.value
    return Estimate(value, (one.half_width + abs(value) * other.half_width) / abs(other.value))


def _as_json(response: SensorResponse) -> dict[str, Any]:
    found = response._asdict()
    for name in ("period", "lag", "window"):
        found[f"{name}_ms"] = found.pop(name)
    return {**found, "part_time": response.part_time}
