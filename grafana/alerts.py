"""The alerts about what GPUs and regions do. Thresholds are starting points: what is hot or idle differs by model."""

from __future__ import annotations

from typing import Final

import exporter_alerts
import fault_alerts
from queries import GPU, by, mean, rate, series, throttled
from rulefiles import Alert, Group

from gpu_profile.catalogue import metric_of
from gpu_profile.catalogue.metric import label
from gpu_profile.catalogue.metrics import BUSY, DEVICE_UP, DRIVER_UP, OBSERVED, REGION_CALLS, REGION_DURATION, SPINNING
from gpu_profile.catalogue.signals import ENERGY, POWER, TEMPERATURE, TEMPERATURE_MEMORY, THROTTLES

_REASON = "nvidia.gpu.throttle.reason"
_SENSOR = "hw.sensor_location"
_REGION: Final = "Region {{ $labels.region }} ({{ $labels.job }}{{ with $labels.service_name }}, {{ . }}{{ end }})"
_CORE_CELSIUS: Final = 85
_MEMORY_CELSIUS: Final = 95


def _throttled(*reasons: str) -> str:
    known = {dict(row.attributes)[_REASON] for row in THROTTLES}
    if not known.issuperset(reasons):
        raise ValueError(f"not a throttle reason: {', '.join(set(reasons) - known)}")
    return throttled(lambda selector: rate(selector, "10m"), lambda metric: series(metric, {_REASON: reasons}))


def _hotter(sensor: dict[str, str], celsius: int) -> str:
    return f"{series(metric_of(TEMPERATURE), sensor)} > {celsius}"


def _mostly(regime: str) -> str:
    """Share of a region's calls with this verdict, where it is above half and the region is active at all."""
    keys = "job, service_name, region"
    verdict = by(f"{keys}, regime", rate(series(REGION_CALLS, {"regime": regime}), "30m"))
    calls = by(keys, rate(series(REGION_CALLS), "30m"))
    active = by(keys, rate(series(REGION_DURATION, part="_sum"), "30m"))
    return f"{verdict}\n  / on ({keys}) group_left\n{calls}\n  > 0.5\nand on ({keys})\n{active} > 0.1"


DEVICES: Final = Group(
    "gpu-profile-devices",
    (
        Alert(
            "GpuLost",
            "critical",
            "1m",
            f"{DEVICE_UP.prometheus} == 0\nunless on (instance)\n{DRIVER_UP.prometheus} == 0",
            f"{GPU} does not answer",
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
            f"{GPU}: {{{{ $labels.{label(_SENSOR)} }}}} at {{{{ $value }}}} °C",
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
            f"{GPU} is slowed down ({{{{ $labels.{label(_REASON)} }}}})",
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
            f"{GPU} runs at its power limit",
            "The power limit held the clocks down for {{ $value | humanizePercentage }} of the time. Under full load "
            "this is how the GPU is meant to work; it explains clocks below their maximum.",
            "Nothing is broken. If speed matters more than power and the cooling allows, raise the limit with "
            "nvidia-smi -pl up to what the model permits. If it is set low on purpose, silence this alert.",
        ),
        Alert(
            "GpuSpinning",
            "critical",
            "1m",
            # Half of the time: the counter grows with the wall clock while it lasts. Its first seconds come at once.
            f"{rate(series(SPINNING), '2m')} > 0.5",
            f"{GPU} is busy, but nothing moves",
            "A kernel has kept the GPU busy for {{ $value | humanizePercentage }} of the last two minutes, at the "
            "power of an idle GPU: no memory traffic, no tensor work, no transfers. Utilisation shows 100 % all "
            "the while.",
            "The kernel waits for something that does not come. In a distributed job, look for a rank that died or "
            "hangs (py-spy dump on each rank, NCCL_DEBUG=INFO), and restart the job. Else look for a lock or a "
            "persistent kernel without requests. nvidia-smi lists the processes on the GPU.",
        ),
        Alert(
            "GpuIdleButPowered",
            "info",
            "5m",
            # Busy over *observed* time, so that an exporter that has just started does not make a GPU look idle.
            # A GPU before Volta has no energy counter.
            f"({rate(series(metric_of(ENERGY)), '30m')} or {mean(series(metric_of(POWER)), '30m')})\n"
            f"and on (instance, hw_id)\n"
            f"{rate(series(BUSY), '30m')} / {rate(series(OBSERVED), '30m')} < 0.05\n"
            f"and on (instance, hw_id)\n{rate(series(OBSERVED), '30m')} > 0.9",
            f"{GPU} is powered and does next to nothing",
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
            f"{_REGION} is bound by overhead",
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
            f"{_REGION} waits for the host",
            "In {{ $value | humanizePercentage }} of its calls the GPU waits for input data or for the program's own "
            "code.",
            "Look at input loading first (workers, prefetching, decoding), then for synchronising calls such as "
            ".item() or prints of tensors within the region.",
        ),
    ),
)

FAULTS: Final = Group("gpu-profile-faults", fault_alerts.ALERTS)

FILES: Final = {"gpu-profile.yaml": (exporter_alerts.GROUP, DEVICES, FAULTS, REGIONS)}
