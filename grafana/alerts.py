"""The alerts. Each threshold is a starting point: what is hot or idle differs by model and by team."""

from __future__ import annotations

from typing import Final

from queries import by, increase, mean, rate, series
from rulefiles import Alert, Group

from gpu_profile.catalogue import metric_of
from gpu_profile.catalogue.metric import label
from gpu_profile.catalogue.metrics import (
    BUILD_INFO,
    BUSY,
    DEVICE_UP,
    DRIVER_UP,
    OBSERVED,
    REGION_CALLS,
    REGION_DURATION,
    SAMPLE_AGE,
)
from gpu_profile.catalogue.signals import ECC_UNCORRECTED, POWER, TEMPERATURE, TEMPERATURE_MEMORY, THROTTLES

_THROTTLE = metric_of(THROTTLES[0])
_REASON = "nvidia.gpu.throttle.reason"
_SENSOR = "hw.sensor_location"
_GPU = "GPU {{ $labels.hw_id }} on {{ $labels.instance }}"
_CORE_CELSIUS: Final = 85
_MEMORY_CELSIUS: Final = 95


def _throttled(*reasons: str) -> str:
    known = {dict(row.attributes)[_REASON] for row in THROTTLES}
    if not known.issuperset(reasons):
        raise ValueError(f"not a throttle reason: {', '.join(set(reasons) - known)}")
    return rate(series(_THROTTLE, {_REASON: reasons}), "10m")


def _hotter(sensor: dict[str, str], celsius: int) -> str:
    return f"{series(metric_of(TEMPERATURE), sensor)} > {celsius}"


def _mostly(regime: str) -> str:
    """Share of a region's calls with this verdict, where it is above half and the region is active at all."""
    keys = "job, region"
    verdict = by(f"{keys}, regime", rate(series(REGION_CALLS, {"regime": regime}), "30m"))
    calls = by(keys, rate(series(REGION_CALLS), "30m"))
    active = by(keys, rate(series(REGION_DURATION, part="_sum"), "30m"))
    return f"{verdict}\n  / on ({keys}) group_left\n{calls}\n  > 0.5\nand on ({keys})\n{active} > 0.1"


EXPORTER: Final = Group(
    "gpu-profile-exporter",
    (
        Alert(
            "GpuProfileTargetDown",
            "critical",
            "2m",
            # The targets that ever served our build information are known without knowing the scrape job's name.
            f"up == 0\nand on (job, instance)\nlast_over_time({BUILD_INFO.prometheus}[1d])",
            "gpu-profile on {{ $labels.instance }} cannot be scraped",
            "Prometheus has not been able to scrape {{ $labels.instance }}, which served GPU metrics within the last "
            "day. Its GPUs are not watched until it answers again.",
            "Is the node up? Then look at the exporter: its service's status and log, and whether its port answers "
            "from Prometheus's side. Lost GPUs or a hung driver do not stop it from answering.",
        ),
        Alert(
            "GpuDriverDown",
            "critical",
            "2m",
            f"{DRIVER_UP.prometheus} == 0",
            "The GPU driver on {{ $labels.instance }} does not answer",
            "The exporter on {{ $labels.instance }} runs, but cannot reach the GPU driver, so no GPU of the node is "
            "watched and most likely none is usable.",
            "Run nvidia-smi on the node. If it reports a version mismatch, the driver was upgraded under running "
            "programs: stop them and reload it. Else read the kernel log for NVRM and Xid lines. In a container, "
            "check that the driver's library is still mounted. The exporter recovers by itself.",
        ),
        Alert(
            "GpuSamplesStale",
            "warning",
            "2m",
            f"{SAMPLE_AGE.prometheus} > 30\nand on (instance, hw_id)\n{DEVICE_UP.prometheus} == 1",
            f"{_GPU} is up, but its samples are old",
            "The newest sample is {{ $value | humanizeDuration }} old although the device counts as up. Its other "
            "series have ended and say nothing of the present.",
            "Look for a slow or hung driver: the exporter's log, its panel “Time spent reading the driver”, and "
            "whether nvidia-smi answers promptly. A profiler or a GPU reset can hold the driver for a while.",
        ),
    ),
)

DEVICES: Final = Group(
    "gpu-profile-devices",
    (
        Alert(
            "GpuLost",
            "critical",
            "1m",
            f"{DEVICE_UP.prometheus} == 0\nunless on (instance)\n{DRIVER_UP.prometheus} == 0",
            f"{_GPU} does not answer",
            "The driver answers, but not for this device: it fell off the bus, is being reset, or hangs.",
            "Read the kernel log for Xid lines (79: fallen off the bus; 48, 94, 95: memory errors). Move its work "
            "elsewhere and drain the node; then reset the GPU or reboot. If it comes back, watch it; if it gets lost "
            "again, have it replaced.",
        ),
        Alert(
            "GpuHot",
            "warning",
            "10m",
            f"{_hotter(dict(TEMPERATURE.attributes), _CORE_CELSIUS)}\n"
            f"or\n{_hotter(dict(TEMPERATURE_MEMORY.attributes), _MEMORY_CELSIUS)}",
            f"{_GPU}: {{{{ $labels.{label(_SENSOR)} }}}} at {{{{ $value }}}} °C",
            f"Hotter than {_CORE_CELSIUS} °C (core) or {_MEMORY_CELSIUS} °C (memory) for ten minutes. Close to a "
            "model's slowdown temperature the driver lowers the clocks.",
            "Compare with the limits that nvidia-smi -q -d TEMPERATURE shows for the model. Check fans, air flow, "
            "inlet temperature and neighbours; lower the power limit if it cannot be cooled.",
        ),
        Alert(
            "GpuSlowedByHeatOrPowerFault",
            "warning",
            "10m",
            f"{_throttled('sw_thermal', 'hw_thermal', 'hw_power_brake')} > 0.1",
            f"{_GPU} is slowed down ({{{{ $labels.{label(_REASON)} }}}})",
            "The driver held the clocks down for {{ $value | humanizePercentage }} of the time because of heat or of "
            "a signal from the power supply. Work on it runs slower than it should.",
            "For sw_thermal and hw_thermal treat it as too hot: fans, air flow, dust, inlet temperature. For "
            "hw_power_brake check the node's power supplies and the rack's power limit.",
        ),
        Alert(
            "GpuPowerCapped",
            "info",
            "30m",
            f"{_throttled('sw_power_cap')} > 0.5",
            f"{_GPU} runs at its power limit",
            "The power limit held the clocks down for {{ $value | humanizePercentage }} of the time. Under full load "
            "this is how the GPU is meant to work; it explains clocks below their maximum.",
            "Nothing is broken. If speed matters more than power and the cooling allows, raise the limit with "
            "nvidia-smi -pl up to what the model permits. If it is set low on purpose, silence this alert.",
        ),
        Alert(
            "GpuUncorrectedMemoryErrors",
            "critical",
            "0m",
            f"{increase(series(metric_of(ECC_UNCORRECTED), dict(ECC_UNCORRECTED.attributes)), '15m')} > 0",
            f"{_GPU} has memory errors that ECC could not correct",
            "Uncorrected memory errors appeared within the last 15 minutes. The programs that used the memory were "
            "stopped, or computed with wrong data.",
            "Find out which job ran there and do not trust its results. Drain the GPU and reset it, so that the row "
            "is remapped; look at nvidia-smi -q -d ROW_REMAPPER. If errors come again or remapping fails, have the "
            "GPU replaced.",
        ),
        Alert(
            "GpuIdleButPowered",
            "info",
            "5m",
            # Busy over *observed* time, so that an exporter that has just started does not make a GPU look idle.
            f"{mean(series(metric_of(POWER)), '30m')}\n"
            f"and on (instance, hw_id)\n"
            f"{rate(series(BUSY), '30m')} / {rate(series(OBSERVED), '30m')} < 0.05\n"
            f"and on (instance, hw_id)\n{rate(series(OBSERVED), '30m')} > 0.9",
            f"{_GPU} is powered and does next to nothing",
            "Busy for less than 5 % of the last 30 minutes, at {{ $value | humanize }} W on average.",
            "Find out who holds it: nvidia-smi lists the processes, the scheduler the job. A notebook or a service "
            "without requests is the usual case. Give it back, share it, or let work be placed there.",
        ),
    ),
)

REGIONS: Final = Group(
    "gpu-profile-regions",
    (
        Alert(
            "RegionMostlyOverhead",
            "info",
            "30m",
            _mostly("OVERHEAD_BOUND"),
            "Region {{ $labels.region }} ({{ $labels.job }}) is bound by overhead",
            "{{ $value | humanizePercentage }} of its calls spend their time on launching work that is too small for "
            "the GPU, not on the work.",
            "Larger batches, fused kernels, compilation or CUDA graphs help. The region's panels show what a call "
            "costs before and after.",
        ),
        Alert(
            "RegionMostlyWaitsForHost",
            "info",
            "30m",
            _mostly("HOST_BOUND"),
            "Region {{ $labels.region }} ({{ $labels.job }}) waits for the host",
            "In {{ $value | humanizePercentage }} of its calls the GPU waits for input data or for the program's own "
            "code.",
            "Look at input loading first (workers, prefetching, decoding), then for synchronising calls such as "
            ".item() or prints of tensors within the region.",
        ),
    ),
)

FILES: Final = {"gpu-profile.yaml": (EXPORTER, DEVICES, REGIONS)}
