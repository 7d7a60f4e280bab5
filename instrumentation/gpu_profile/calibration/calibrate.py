"""Calibrates the sensors of one device: a known load, each sensor's response, and a loop that tests the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
from gpu_profile.join.unmixing.timing.expected import SensorPrior
from gpu_profile.regions.session.sensor_priors import SCHEMA, sensors_path
from gpu_profile.user_cache import store

#: The calibrated sensors: the sources of busy time and energy.
SENSORS: Final = (rows.ENERGY, rows.POWER, rows.POWER_AVERAGE, rows.GRAPHICS, rows.UTILIZATION, rows.MEMORY_CONTROLLER)
#: Seconds of watching before and after all, of chips, at each level, after each level and the loop, and of the loop: a
#: minute in all.
_WATCHED_S, _CHIPS_S, _HELD_S, _AFTER_S, _LOOP_S = 1.0, 30.0, 2.0, 1.5, 22.0
#: All of them, in s: the length of a calibration without the start of the load and the final evaluation.
LENGTH_S: Final = 2 * _WATCHED_S + 0.5 + _CHIPS_S + 2 * _AFTER_S + len(LEVELS) * (_HELD_S + _AFTER_S) + _LOOP_S
#: The lengths of the loop's regions. Neither is a round number.
_REGIONS_S: Final = (0.0173, 0.0097)
#: A device that is busier than this without the load is used by others.
_IDLE: Final = 0.01


class Calibration(NamedTuple):
    """The response of each sensor of a device, and the result of the loop. `missed` describes its errors."""

    device: Device
    driver_version: str
    made_ns: int
    responses: Mapping[Signal, SensorResponse]
    checked: tuple[Checked, ...]
    missed: str

    def ratios(self) -> dict[str, tuple[Estimate, ...]]:
        """Each power sensor's added power at each level, as a ratio to the energy counter's."""
        base = self.responses.get(rows.ENERGY)
        ratios = {}
        for signal in (rows.POWER, rows.POWER_AVERAGE):
            response = self.responses.get(signal)
            if base is not None and response is not None:
                pairs = zip(response.gains, base.gains, strict=True)
                ratios[signal.key] = tuple(_ratio(one, other) for one, other in pairs if other.value)
        return ratios

    def to_json(self) -> dict[str, Any]:
        """The JSON of the calibration file; times in ms, each estimate with the half-width of its 95 % interval."""
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
            "loop": [_loop_json(each) for each in self.checked],
            "missed": self.missed,
        }

    def keep(self) -> str:
        """Write the calibration file of this user. Returns "", or one line with the reason of a failure."""
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
    """Calibrate the sensors of a device without other users: about a minute of load.

    `worker` is called once the device is seen to be idle. UsageError if others use it, GpuProfileError if the load
    cannot be put on it.
    """
    _alone(driver, device)
    say(f"watching {device.uuid} without a load")
    before = Player(driver, device, clock, partial(_alone, driver, device), seed)
    _idle(before.play(None, [LoadStep(None, _WATCHED_S)]), device)
    own, rng = worker(), np.random.default_rng(seed)
    player = Player(driver, device, clock, partial(_alone, driver, device, loaded=True), seed)
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
    player.play(None, [LoadStep(None, _AFTER_S)])
    _idle(player.play(None, [LoadStep(None, _WATCHED_S)]), device)
    _alone(driver, device, loaded=True)
    responses = {signal: response for signal in SENSORS if (response := _response(played, signal)) is not None}
    _undisturbed(responses, device)
    priors = {signal: SensorPrior.of(signal, _as_json(each)) for signal, each in responses.items() if not each.reason}
    checked, contradicted = check(device, looped, responses, priors)
    for signal in contradicted:
        responses[signal] = responses[signal]._replace(reason="the readings of the loop contradict its timing")
    return Calibration(device, driver.version, clock.now_ns(), responses, tuple(checked), _missed(checked))


def _response(played: Played, signal: Signal) -> SensorResponse | None:
    if signal.tier is Tier.GPM:
        starts, ends, values = series(played.windows, signal)
        return find_windows(played.load, starts, ends, values, signal.refresh_ns / 1e6)
    _, ends, values = series(played.drained, signal)
    if len(ends):
        return find_stamped(played.load, ends, values)
    _, ends, values = series((sample for poll in played.read for sample in poll), signal)
    return find(played.load, ends, values, counter=signal.kind is Kind.COUNTER)


def _missed(checked: Sequence[Checked]) -> str:
    missed = [each for each in checked if each.missed]
    return "; ".join(
        f"in its calibration, {each.signal} of the loop's {each.region} was estimated at "
        f"{each.estimate:.4g} ± {each.half_width:.2g}, but measured at {each.truth:.4g} ± {each.truth_half_width:.2g}"
        for each in missed
    )


def _alone(driver: Driver, device: Device, *, loaded: bool = False) -> None:
    ids = own_ids()
    mine = ids.inside | ({ids.host} if ids.host is not None else set())
    others = sorted(use.pid for use in driver.processes(device) if use.pid not in mine)
    # Once it loads the device, the driver may list this process under a PID that the process cannot learn.
    if len(others) > (loaded and ids.host is None and not ids.on_host):
        pids = ", ".join(map(str, others[:8]))
        raise UsageError(f"{device.uuid} is used by others (processes {pids}): calibrate it when nobody does")


def _idle(played: Played, device: Device) -> None:
    for signal in (rows.UTILIZATION, rows.GRAPHICS):
        for some in (played.drained, played.windows, [sample for poll in played.read for sample in poll]):
            _, _, values = series(some, signal)
            if len(values) and float(values.mean()) > _IDLE:
                raise _busy(device, float(values.mean()))


def _undisturbed(responses: Mapping[Signal, SensorResponse], device: Device) -> None:
    """UsageError if the device was busy while the load was off, by about one standard error and `_IDLE` at least."""
    for signal in (rows.UTILIZATION, rows.GRAPHICS):
        response = responses.get(signal)
        # Means between calls that are published late have a wrong base, and a reason. Others' work is a reason too.
        if response is None or (response.reason and signal.tier is Tier.GPM):
            continue
        if response.base.value - response.base.half_width / 2 > _IDLE:
            raise _busy(device, response.base.value)


def _busy(device: Device, share: float) -> UsageError:
    return UsageError(f"{device.uuid} is {share:.0%} busy by others' work: calibrate it when it is idle")


def _ratio(one: Estimate, other: Estimate) -> Estimate:
    value = one.value / other.value
    return Estimate(value, (one.half_width + abs(value) * other.half_width) / abs(other.value))


def _loop_json(checked: Checked) -> dict[str, Any]:
    return {"told" if key == "estimate" else key: value for key, value in checked._asdict().items()}


def _as_json(response: SensorResponse) -> dict[str, Any]:
    values = response._asdict()
    for name in ("period", "lag", "window"):
        values[f"{name}_ms"] = values.pop(name)
    return {**values, "part_time": response.part_time}
