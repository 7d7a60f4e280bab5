"""What is told of a device, against a load that is known: at any pace of reading, with gaps, resets and steps."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from gpu_profile.analysis import DeviceUse, analyse
from gpu_profile.catalogue.samples import Device
from gpu_profile.catalogue.signals import ENERGY, GRAPHICS, POWER_AVERAGE, UTILIZATION
from gpu_profile.recording import Columns, Recording

T0 = 1_767_225_600_000_000_000
GPU = Device("GPU-a", index=0, name="NVIDIA A10G")
Samples = dict[str, Columns]


class Load:
    """Bursts of work with pauses, for some seconds. Seeded."""

    def __init__(self, seed: int, length_s: float) -> None:
        rng = np.random.default_rng(seed)
        self.edges = np.concatenate(([0.0], np.cumsum(rng.exponential(0.7, int(3 * length_s) + 30))))
        busy = np.where(rng.random(len(self.edges) - 1) < 0.4, 0.0, rng.uniform(0.3, 1.0, len(self.edges) - 1))
        lengths = np.diff(self.edges)
        self._busy = np.concatenate(([0.0], np.cumsum(lengths * busy)))
        self._joules = np.concatenate(([0.0], np.cumsum(lengths * (80 + 500 * busy))))

    def busy(self, at_s: np.ndarray) -> np.ndarray:
        return np.asarray(np.interp(at_s, self.edges, self._busy))

    def joules(self, at_s: np.ndarray) -> np.ndarray:
        return np.asarray(np.interp(at_s, self.edges, self._joules))


def columns(starts_s: np.ndarray, ends_s: np.ndarray, values: np.ndarray) -> Columns:
    starts, ends = (T0 + np.round(edges * 1e9).astype(np.int64) for edges in (starts_s, ends_s))
    return Columns(starts, ends, np.round(values).astype(np.int64))


def counters(load: Load, at_s: np.ndarray) -> Samples:
    """An energy counter, and the activity between its readings."""
    busy = np.diff(load.busy(at_s)) / np.diff(at_s)
    return {
        ENERGY.key: columns(at_s, at_s, load.joules(at_s) / ENERGY.quantum + 7e6),
        GRAPHICS.key: columns(at_s[:-1], at_s[1:], busy / GRAPHICS.quantum),
    }


def buffered(load: Load, at_s: np.ndarray) -> Samples:
    """An energy counter, and utilisation from the driver's buffer, which begins before the first reading."""
    ends = np.arange(at_s[0] - 0.5, at_s[-1], 1 / 6)
    busy = 6 * (load.busy(ends) - load.busy(ends - 1 / 6))
    return {
        ENERGY.key: counters(load, at_s)[ENERGY.key],
        UTILIZATION.key: columns(ends - 1 / 6, ends, busy / UTILIZATION.quantum),
    }


def nvidia_smi(load: Load, at_s: np.ndarray) -> Samples:
    """Trailing means: power of a second, utilisation of a sixth."""
    found = {}
    for signal, total, window_s in ((POWER_AVERAGE, load.joules, 1.0), (UTILIZATION, load.busy, 1 / 6)):
        starts = np.maximum(at_s - window_s, np.concatenate(([0.0], at_s[:-1])))
        means = (total(at_s) - total(at_s - window_s)) / window_s
        found[signal.key] = columns(starts, at_s, means / signal.quantum)
    return found


def used(samples: Mapping[str, Columns]) -> DeviceUse:
    (use,) = analyse(Recording((), (GPU,), {GPU.uuid: samples}, (), (), ())).devices
    return use


def moments(interval_s: float, length_s: float, jitter: float = 0.0) -> np.ndarray:
    steps = np.arange(int(length_s / interval_s) + 1)
    late = np.random.default_rng(5).uniform(0, max(jitter, 1e-9) * interval_s, len(steps))
    return 2.0 + steps * interval_s + late


def check(use: DeviceUse, load: Load, *, joules: float, busy: float) -> None:
    """Energy is mean power times time, and it and the busy share are as near to the truth as this."""
    ends = np.array([use.start_ns - T0, use.end_ns - T0]) / 1e9
    length = float(ends[1] - ends[0])
    assert use.energy_j is not None
    assert use.power_w is not None
    assert use.utilization is not None
    assert use.energy_j == pytest.approx(use.power_w * length, rel=0.01)
    assert use.energy_j == pytest.approx(float(np.diff(load.joules(ends))[0]), rel=joules)
    assert use.utilization == pytest.approx(float(np.diff(load.busy(ends))[0]) / length, abs=busy)


@pytest.mark.parametrize("length_s", [5, 26, 120, 600])
@pytest.mark.parametrize("interval_s", [0.1, 1, 10, 60])
@pytest.mark.parametrize("kind", [counters, buffered])
def test_a_counter_tells_energy_and_busy_time_at_any_pace_over_any_length(
    kind: Callable[[Load, np.ndarray], Samples], interval_s: float, length_s: float
) -> None:
    if length_s < interval_s:
        return
    load = Load(1, length_s)
    use = used(kind(load, moments(interval_s, length_s, 0.1)))
    assert (use.energy_coverage, use.coverage) == pytest.approx((1, 1), abs=0.06)
    check(use, load, joules=0.01, busy=0.03)


@pytest.mark.parametrize("interval_s", [0.5, 1, 1.1, 1.3])
@pytest.mark.parametrize("length_s", [8, 30, 300])
def test_nvidia_smi_once_a_second_tells_energy_and_how_little_of_the_time_utilisation_covers(
    interval_s: float, length_s: float
) -> None:
    load = Load(2, length_s)
    use = used(nvidia_smi(load, moments(interval_s, length_s, 0.02)))
    check(use, load, joules=0.12 if length_s < 30 else 0.05, busy=0.2)
    assert use.energy_coverage == pytest.approx(min(1, 1 / interval_s), abs=0.04)
    assert use.coverage == pytest.approx(1 / 6 / interval_s, abs=0.02)
    assert any("its mean is taken for the rest" in reason for reason in use.reasons) == (interval_s > 1)


def test_power_once_in_ten_seconds_tells_its_mean_and_no_energy() -> None:
    use = used(nvidia_smi(Load(2, 600), moments(10, 600)))
    assert (use.energy_j, use.unattributed_j) == (None, None)
    assert use.power_w is not None
    assert use.reasons == ("energy: power_average covers 10.0 % of the time",)


@pytest.mark.parametrize("interval_s", [0.1, 1])
def test_a_gap_is_covered_by_what_a_counter_grew_by_and_by_nothing_else(interval_s: float) -> None:
    load, at = Load(3, 60), moments(interval_s, 60)
    there = (at < 20) | (at > 35)
    samples = {
        key: Columns(*(part[(each.t_end < T0 + 20 * 10**9) | (each.t_end > T0 + 35 * 10**9)] for part in each))
        for key, each in counters(load, at).items()
    }
    use = used(samples)
    assert use.energy_coverage == 1.0
    assert use.coverage == pytest.approx(float(there.mean()), abs=0.03)
    check(use, load, joules=0.005, busy=0.2)
    smi = {
        key: Columns(*(part[(each.t_end < T0 + 20 * 10**9) | (each.t_end > T0 + 35 * 10**9)] for part in each))
        for key, each in nvidia_smi(load, at).items()
    }
    assert used(smi).energy_j is None


@pytest.mark.parametrize("interval_s", [0.1, 1])
def test_a_counter_that_begins_anew_loses_one_interval_and_no_more(interval_s: float) -> None:
    load, at = Load(4, 60), moments(interval_s, 60)
    samples = counters(load, at)
    energy = samples[ENERGY.key]
    later = energy.value.copy()
    later[len(later) // 2 :] -= later[len(later) // 2] - 3
    use = used({**samples, ENERGY.key: energy._replace(value=later)})
    assert use.energy_coverage == pytest.approx(1 - interval_s / 60, abs=0.002)
    check(use, load, joules=0.02, busy=0.01)


def test_a_device_without_a_quantity_is_told_the_other() -> None:
    load = Load(6, 30)
    samples = counters(load, moments(1, 30))
    no_energy, no_busy = (used({k: v for k, v in samples.items() if k != key}) for key in (ENERGY.key, GRAPHICS.key))
    assert (no_energy.energy_j, no_energy.power_w, no_energy.energy_coverage) == (None, None, 0.0)
    assert no_energy.utilization is not None
    assert (no_busy.utilization, no_busy.coverage) == (None, 0.0)
    assert no_busy.energy_j is not None
