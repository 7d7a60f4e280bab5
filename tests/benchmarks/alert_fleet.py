"""A simulated fleet's series in Prometheus: the day to compare with, then the day that is judged.

A node has 8 GPUs and one kind of load: training in lockstep with checkpoints, serving with idle nights and a deploy,
batch work at the power limit, or notebooks. Healthy nodes also restart exporters and the driver, release GPUs, reboot,
reset a GPU and miss scrapes. The amounts are assumptions; only their kinds were observed in real fleets.

The first day stands for the same day a week ago. A series that varies has a sample every ten minutes there. On the
second day each has one every minute.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np

DAY: Final = 1440
MINUTES: Final = 2 * DAY
GPUS: Final = 8
KINDS: Final = ("training", "serving", "batch", "notebooks")
Values = np.ndarray[tuple[int], np.dtype[np.float64]]
Series = dict[str, Values]
_COUNTERS: Final = re.compile(r"_(total|seconds_sum|seconds_count)\{")
#: Counters that a restart of the exporter leaves alone.
_OF_THE_DRIVER: Final = re.compile("hw_errors|throttle|nvlink")
_HOUR: Final = (np.arange(MINUTES) / 60) % 24


def text(values: Values) -> str:
    """The values in the notation of promtool: `1x3` is 1 and three more, `_` a missing one."""
    varies = np.nanmax(values[:DAY], initial=-np.inf) > np.nanmin(values[:DAY], initial=np.inf)
    shown = np.where((np.arange(MINUTES) % 10 == 0) | (not varies), values, np.nan)
    shown[DAY:] = values[DAY:]
    tokens = ["_" if np.isnan(value) else f"{value:.10g}" for value in shown]
    starts = [0, *(at for at in range(1, MINUTES) if tokens[at] != tokens[at - 1]), MINUTES]
    runs = ((tokens[a], b - a) for a, b in pairwise(starts))
    return " ".join(value if n == 1 else f"_x{n}" if value == "_" else f"{value}x{n - 1}" for value, n in runs)


class SimulatedNode:
    """One node's series, its exporter's and its programs', without a fault. `number` fixes the load and all chance."""

    def __init__(self, number: int, seed: int) -> None:
        self.kind = KINDS[number % len(KINDS)]
        self.instance = f"node{number}:9400"
        self.job = f"{self.kind}{number}"
        self.series: Series = {}
        self._chance = np.random.default_rng((seed, number))
        self._load = self._shared_load()
        #: The minutes of checkpoints: rank 0 writes, and the others spin.
        self._checkpoint = (np.arange(MINUTES) % 60 < self._chance.integers(2, 6)) & (self.kind == "training")
        for index in range(GPUS):
            self._gpu(index)
        self._exporter()
        self._regions()
        self._interrupt()

    def gpu(self, index: int, name: str, labels: str = "") -> str:
        """The series `name` of a GPU."""
        hw_id = f"GPU-{self.job}-{index}"
        return f'{name}{{job="gpu", instance="{self.instance}", hw_id="{hw_id}"{labels}}}'

    def node(self, name: str, labels: str = "") -> str:
        """The series `name` of the exporter."""
        return f'{name}{{job="gpu", instance="{self.instance}"{labels}}}'

    def region(self, rank: int, name: str, labels: str = "") -> str:
        """The series `name` of a program's region."""
        return f'{name}{{job="{self.job}", instance="{self.job}-{rank}:9464", region="step"{labels}}}'

    def _shared_load(self) -> Values:
        noise = self._chance.normal(0, 0.03, MINUTES)
        if self.kind == "serving":
            return np.clip(0.75 * np.sin(np.pi * (_HOUR - 7) / 15) + noise, 0, 0.95) * (_HOUR > 7) * (_HOUR < 22)
        if self.kind == "notebooks":
            bursts = np.repeat(self._chance.random(MINUTES // 15) < 0.2, 15)
            return np.clip(bursts * (0.6 + 3 * noise), 0, 1) * ((_HOUR > 8) & (_HOUR < 20))
        return np.clip(0.97 + noise / 2, 0, 1)

    def _gpu(self, index: int) -> None:
        chance, load = self._chance, np.clip(self._load + self._chance.normal(0, 0.01, MINUTES), 0, 1)
        load = load * (self._load > 0)
        seen = 60 * np.clip(chance.normal(0.995, 0.004, MINUTES), 0.95, 1)
        capped = 0.7 * load * (self.kind == "batch")
        watts = 80 + 550 * load * (1 - 0.3 * self._checkpoint)
        ones = np.ones(MINUTES)
        sensor, reason, unit = "hw_sensor_location", "nvidia_gpu_throttle_reason", "nvidia_gpu_unit"
        cached = 0.9 if self.kind == "serving" else 0.6 + 0.3 * chance.random()
        corrected = chance.random(MINUTES) < 2 / DAY
        labels = {
            "gpu_profile_device_up": ones,
            f'gpu_profile_device_info|, kind="gpu", hw_name="H100", index="{index}"': ones,
            f'gpu_profile_allocation_info|, source="kubelet", k8s_pod_name="{self.job}-{index}"': ones,
            "gpu_profile_process_count": ones,
            "gpu_profile_sample_age_seconds": 0.1 * ones,
            "gpu_profile_busy_seconds_total": np.cumsum(load * seen),
            "gpu_profile_observed_seconds_total": np.cumsum(seen),
            f'gpu_profile_activity_observed_seconds_total|, {unit}="sm"': np.cumsum(seen * 0.99),
            "gpu_profile_spinning_seconds_total": np.cumsum(55.0 * self._checkpoint * (index > 0)),
            "gpu_profile_samples_total": np.cumsum(np.full(MINUTES, 7200.0)),
            'nvidia_gpu_clock_hertz|, nvidia_gpu_clock_domain="sm"': 1e6
            * (1980 - 15 * chance.integers(0, 4, MINUTES) - 500 * capped),
            f'hw_temperature_celsius|, {sensor}="core", hw_type="gpu"': 35
            + watts / 16
            + chance.normal(0, 1.5, MINUTES),
            f'hw_temperature_celsius|, {sensor}="memory", hw_type="gpu"': 40
            + watts / 14
            + chance.normal(0, 1.5, MINUTES),
            f'nvidia_gpu_throttle_time_seconds_total|, {reason}="sw_power_cap"': np.cumsum(60 * capped),
            # The driver's slow-down by heat begins and ends with the load, for moments.
            f'nvidia_gpu_throttle_time_seconds_total|, {reason}="sw_thermal"': np.cumsum(
                3 * (chance.random(MINUTES) < 0.05)
            ),
            "hw_gpu_memory_utilization_ratio": np.where(load > 0, cached, 0.9 * cached),
            "nvidia_gpu_pcie_link_width": np.where(load > 0, 16.0, 16 - 8 * (chance.random() < 0.3)),
            "nvidia_gpu_pcie_link_width_max": 16 * ones,
            "nvidia_gpu_xid_errors_any_total": 0 * ones,
            'hw_errors_total|, error_type="corrected", hw_type="gpu"': np.cumsum(corrected * 1.0),
            'hw_errors_total|, error_type="uncorrected", hw_type="gpu"': 0 * ones,
            "nvidia_gpu_remapped_rows_pending": 0 * ones,
            "nvidia_gpu_remapped_rows_failure": 0 * ones,
            "nvidia_gpu_recovery_action": 0 * ones,
            'nvidia_gpu_nvlink_errors_total|, error_type="recovery"': np.cumsum(chance.random(MINUTES) < 0.2 / DAY),
        }
        for key, values in labels.items():
            name, _, more = key.partition("|")
            self.series[self.gpu(index, name, more)] = values.astype(float)

    def _exporter(self) -> None:
        ones = np.ones(MINUTES)
        late = np.cumsum(self._chance.poisson(3, MINUTES)).astype(float)
        self.series |= {
            self.node("up"): ones,
            self.node("gpu_profile_build_info", ', version="1"'): ones,
            self.node("gpu_profile_driver_up"): ones.copy(),
            self.node("gpu_profile_samples_dropped_total", ', reason="late"'): late,
            self.node("gpu_profile_reader_restarts_total", ', reason="released"'): 0 * ones,
            self.node("gpu_profile_reader_restarts_total", ', reason="hung"'): 0 * ones,
            self.node("gpu_profile_attribution_up", ', source="kubelet"'): ones,
        }

    def _regions(self) -> None:
        """Calls of each rank or replica. Days differ by 4 %, hours by 3 %; a mean varies with the number of calls."""
        if self.kind == "notebooks":
            return
        day, hour = self._chance.normal(1, 0.04, 2), self._chance.normal(1, 0.03, MINUTES // 60)
        drift = np.repeat(day, DAY) * np.repeat(hour, 60)
        lockstep = self.kind == "training"
        calls = np.where(self._checkpoint, 5.0, 100.0) * np.ones(MINUTES)
        for rank in range(GPUS):
            mine = calls if lockstep else self._chance.poisson(120 * self._load / 0.9).astype(float)
            each = (
                0.5 * drift * (1 + self._chance.normal(0, 1 / np.sqrt(np.maximum(mine, 1))) * (0.1 if lockstep else 1))
            )
            joules = 300 * drift * np.clip(self._chance.normal(1, 0.05, MINUTES), 0.5, 2)
            main = np.clip(self._chance.normal(0.85, 0.1, MINUTES), 0, 1)
            gpu = f', hw_id="GPU-{self.job}-{rank}"'
            rows = {
                "gpu_profile_region_duration_seconds_count": mine,
                "gpu_profile_region_duration_seconds_sum": mine * np.maximum(each, 0.01),
                f"gpu_profile_region_energy_joules_total|{gpu}": mine * joules,
                f"gpu_profile_region_energy_uncertain_joules_total|{gpu}": 0.01 * mine * joules,
                f'gpu_profile_region_calls_total|{gpu}, regime="COMPUTE_BOUND"': mine * main,
                f'gpu_profile_region_calls_total|{gpu}, regime="MEMORY_BOUND"': mine * (1 - main),
            }
            for key, values in rows.items():
                name, _, more = key.partition("|")
                self.series[self.region(rank, name, more)] = np.cumsum(values)

    def _interrupt(self) -> None:
        """A day's ordinary interruptions, each in an hour of its own."""
        chance, mine = self._chance, set(self.series)
        programs = {name for name in mine if f'job="{self.job}"' in name}
        exporter = mine - programs
        at = DAY + 60 * chance.permutation(np.arange(1, 23))
        self._restart(exporter, at[0], int(chance.integers(1, 4)))
        if self.kind != "training":  # a deploy, or a new pod
            self._restart(programs, at[1], int(chance.integers(1, 6)))
        match chance.integers(6):
            case 0:  # a reboot: nothing answers, and everything begins anew
                self._restart(mine - {self.node("up")}, at[2], 8)
                self.series[self.node("up")][at[2] : at[2] + 8] = 0
            case 1:  # the driver is reloaded
                self._without_driver(at[2], 3)
            case 2:  # the GPUs are released for maintenance
                self.series[self.node("gpu_profile_reader_restarts_total", ', reason="released"')][at[2] :] = 3
                self._without_driver(at[2], 12)
            case 3:  # a GPU is reset
                self._silence(0, at[2], 1)
        gaps = chance.random(MINUTES) < 0.01
        gaps[at[3] : at[3] + 4] = True  # Prometheus itself restarts
        for values in self.series.values():
            values[gaps] = np.nan

    def _restart(self, names: set[str], at: int, minutes: int) -> None:
        for name in names:
            values = self.series[name] = self.series[name].copy()
            if _COUNTERS.search(name) and not _OF_THE_DRIVER.search(name):
                values[at:] -= values[at + minutes - 1]
            values[at : at + minutes] = np.nan

    def _without_driver(self, at: int, minutes: int) -> None:
        for index in range(GPUS):
            self._silence(index, at, minutes)
        self.series[self.node("gpu_profile_driver_up")][at : at + minutes] = 0

    def _silence(self, index: int, at: int, minutes: int) -> None:
        """A GPU that does not answer has few series."""
        kept = ("device_up", "device_info", "allocation", "xid")
        for name in self.of_gpu(index):
            values = self.series[name] = self.series[name].copy()
            if not any(word in name for word in kept):
                values[at : at + minutes] = np.nan
        self.series[self.gpu(index, "gpu_profile_device_up")][at : at + minutes] = 0

    def of_gpu(self, index: int) -> Iterator[str]:
        """The names of a GPU's series."""
        mark = f'job="gpu", instance="{self.instance}", hw_id="GPU-{self.job}-{index}"'
        yield from [name for name in self.series if mark in name]
