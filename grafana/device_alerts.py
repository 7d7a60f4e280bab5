"""The alerts about the use and the state of GPUs. Thresholds are starting points: heat and idleness differ by model."""

from __future__ import annotations

from typing import Final

from queries import TARGET, by, increase, rate, series, throttled
from rulefiles import Alert, Group, Urgency
from subjects import GPU

from gpu_profile.catalogue import metric_of, signal
from gpu_profile.catalogue.allocation import ALLOCATION_INFO, PROCESS_COUNT
from gpu_profile.catalogue.links import NVLINK_ERRORS
from gpu_profile.catalogue.metric import label
from gpu_profile.catalogue.metrics import (
    BUSY,
    DEVICE_INFO,
    DEVICE_UP,
    DRIVER_UP,
    MEMORY_UTILIZATION,
    OBSERVED,
    SPINNING,
)
from gpu_profile.catalogue.signals import CLOCK_SM, TEMPERATURE, TEMPERATURE_MEMORY, THROTTLES

_REASON: Final = "nvidia.gpu.throttle.reason"
_SENSOR: Final = "hw.sensor_location"
_CORE_CELSIUS: Final = 85
_MEMORY_CELSIUS: Final = 95
_KEYS: Final = f"{TARGET}, hw_id"
_DEVICE: Final = f"on ({_KEYS})"
_NVLINK_STATE: Final = metric_of(signal("nvlink_0_state"))
_WIDTH, _WIDTH_MAX = (series(metric_of(signal(key))) for key in ("pcie_link_width", "pcie_link_width_max"))


def _throttled(*reasons: str, window: str = "10m") -> str:
    known = {dict(row.attributes)[_REASON] for row in THROTTLES}
    if not known.issuperset(reasons):
        raise ValueError(f"not a throttle reason: {', '.join(set(reasons) - known)}")
    return throttled(lambda selector: rate(selector, window), lambda metric: series(metric, {_REASON: reasons}))


def _hotter(sensor: dict[str, str], celsius: int) -> str:
    return f"{series(metric_of(TEMPERATURE), sensor)} > {celsius}"


def _vanished() -> str:
    """GPUs that their node had within a day, while it has fewer than before. MIG instances go on purpose.

    The exporter of a node may be another target since, as pods get new addresses. The other GPUs of its node identify
    it there: `size` is the number of GPUs now where a target's GPUs of that day are.
    """
    up = series(DEVICE_UP, scope='hw_id!~"MIG-.*"')
    count, before = by(TARGET, up, "count"), f"last_over_time({up}[1d])"
    now = by("hw_id", f"0 * {up} + on ({TARGET}) group_left () {count}", "max")
    size = by(TARGET, f"0 * {before} + on (hw_id) group_left () {now}", "max")
    answers = series(DRIVER_UP)
    return (
        # Of several targets that had the GPU, the last one.
        f"topk by (hw_id) (\n"
        f"  1, (max_over_time(timestamp({up})[1d:30m]) or {before}) unless on (hw_id) {up}\n)\n"
        # After the loss of its last GPU a node has no size.
        f"and on ({TARGET}) (\n  {answers} == 1\n  or {size}\n)\n"
        f"unless on ({TARGET})\n{answers} == 0\n"
        f"unless on ({TARGET})\n{size} >= max_over_time(({count})[1d:15m])"
    )


def _held_and_idle() -> str:
    """Busy seconds of a day, where a holder of today held the GPU a day ago."""
    allocation, processes = series(ALLOCATION_INFO), series(PROCESS_COUNT)
    # A counter may go on under other labels, such as those of a new pod of the exporter.
    busy, seen = (by(_KEYS, increase(series(metric), "1d")) for metric in (BUSY, OBSERVED))
    return (
        f"{busy} < 0.01 * {seen}\nand {_DEVICE}\n{seen} > {0.9 * 86_400:.0f}\n"
        f"and {_DEVICE} (\n  {allocation} and {allocation} offset 1d\n"
        f"  or {processes} > 0 and {processes} offset 1d > 0\n)"
    )


def _slower_clock() -> str:
    """Clock of a busy GPU over the median of its node's busy GPUs of the model: power and heat hold none of them."""
    peers = f"{TARGET}, hw_name"
    clock = f"avg_over_time({series(metric_of(CLOCK_SM), dict(CLOCK_SM.attributes))}[15m])"
    held = by(_KEYS, _throttled("sw_power_cap", "sw_thermal", "hw_thermal", "hw_power_brake", window="15m"))
    busy = f"({clock} and {_DEVICE} {rate(series(BUSY), '15m')} > 0.9 unless {_DEVICE} {held} > 0.05)"
    info = by(f"{_KEYS}, hw_name", series(DEVICE_INFO), "max")
    named = f"{busy} * {_DEVICE} group_left (hw_name) {info}"
    return (
        f"{named}\n  / on ({peers}) group_left ()\nquantile by ({peers}) (0.5, {named}) < 0.9\n"
        f"and on ({peers})\n{by(peers, named, 'count')} >= 4"
    )


GROUP: Final = Group(
    "gpu-profile-devices",
    (
        Alert(
            "GpuLost",
            Urgency.PAGE,
            "1m",
            # The MIG instances of a GPU go with it.
            f"{series(DEVICE_UP, scope=f'hw_id!~{chr(34)}MIG-.*{chr(34)}')} == 0\n"
            f"unless on ({TARGET})\n{series(DRIVER_UP)} == 0",
            f"{GPU} does not answer",
            "The driver answers, but not for this device: it fell off the bus, is being reset, or hangs.",
            "Read the kernel log for Xid lines (79: fallen off the bus; 48, 94, 95: memory errors).",
            "Move its work elsewhere and drain the node; then reset the GPU or reboot. If it gets lost again, have it "
            "replaced.",
        ),
        Alert(
            "GpuVanished",
            Urgency.TICKET,
            "15m",
            _vanished(),
            f"{GPU} is no longer there",
            "The node has fewer GPUs than at some time within the last day, and this one is missing. After a reboot or "
            "a restart of the driver, a broken GPU is often not listed at all.",
            "Compare nvidia-smi -L and lspci with the number of GPUs that the node should have.",
            "If lspci lists the GPU, read the kernel log for its initialisation and reboot. Else reseat or replace it. "
            "After a removal on purpose, silence the alert: it ends after a day.",
        ),
        Alert(
            "GpuHot",
            Urgency.TICKET,
            "10m",
            f"{_hotter(dict(TEMPERATURE.attributes), _CORE_CELSIUS)}\n"
            f"or\n{_hotter(dict(TEMPERATURE_MEMORY.attributes), _MEMORY_CELSIUS)}",
            f"{GPU}: {{{{ $labels.{label(_SENSOR)} }}}} at {{{{ $value }}}} °C",
            f"Hotter than {_CORE_CELSIUS} °C (core) or {_MEMORY_CELSIUS} °C (memory) for ten minutes. Close to a "
            "model's slowdown temperature the driver lowers the clocks.",
            "Compare with the limits of the model in nvidia-smi -q -d TEMPERATURE, and with the GPU's neighbours.",
            "Check fans, air flow and inlet temperature. Lower the power limit if the GPU cannot be cooled.",
        ),
        Alert(
            "GpuSlowedByHeatOrPowerFault",
            Urgency.TICKET,
            "10m",
            f"{_throttled('sw_thermal', 'hw_thermal', 'hw_power_brake')} > 0.1",
            f"{GPU} is slowed down ({{{{ $labels.{label(_REASON)} }}}})",
            "The driver held the clocks down for more than a tenth of the time, because of heat or of a signal from "
            "the power supply. Work runs slower than it should.",
            "The summary has the reason: one that ends in thermal means heat, power_brake means the power supply.",
            "For heat, check fans, air flow, dust and inlet temperature. For a power brake, check the node's power "
            "supplies and the rack's power limit.",
            "Slowed down: {{ $value | humanizePercentage }} of the time.",
        ),
        Alert(
            "GpuPowerCapped",
            Urgency.INFO,
            "30m",
            f"{_throttled('sw_power_cap')} > 0.5",
            f"{GPU} runs at its power limit",
            "The power limit held the clocks down for more than half of the time. This is normal under full load, and "
            "explains clocks below their maximum.",
            "Compare the limit with the default of the model: nvidia-smi -q -d POWER.",
            "Nothing is broken. If speed matters more than power and the cooling allows, raise the limit with "
            "nvidia-smi -pl. If it is low on purpose, silence this alert.",
            "At the limit: {{ $value | humanizePercentage }} of the time.",
        ),
        Alert(
            "GpuClockBelowPeers",
            Urgency.TICKET,
            "15m",
            _slower_clock(),
            f"{GPU} has a lower clock than its neighbours",
            "Under load its clock is more than 10 % below the median of the node's busy GPUs of the same model, "
            "without heat or a power limit as the reason. A job over all of them runs at the pace of the slowest.",
            "Compare nvidia-smi -q -d CLOCK,PERFORMANCE between the GPUs: is a clock locked?",
            "Release locked clocks with nvidia-smi -rgc and -rac. If the clock stays low, reset the GPU.",
            "Its clock: {{ $value | humanizePercentage }} of the median.",
        ),
        Alert(
            "GpuSpinning",
            Urgency.PAGE,
            "10m",
            # The counter grows with the wall clock while it lasts. Ranks that wait for a checkpoint spin for minutes.
            f"{rate(series(SPINNING), '2m')} > 0.5",
            f"{GPU} is busy, but nothing moves",
            "For more than ten minutes a kernel has kept the GPU busy at the power of an idle GPU: no memory traffic, "
            "no tensor work, no transfers. Utilisation shows 100 % all the while. The kernel waits for an event that "
            "does not come.",
            "In a distributed job, look for a rank that died or hangs: py-spy dump on each rank, NCCL_DEBUG=INFO.",
            "Restart the job. Without ranks, look for a lock or a persistent kernel without requests; nvidia-smi lists "
            "the processes on the GPU.",
            "Spinning: {{ $value | humanizePercentage }} of the last two minutes.",
        ),
        Alert(
            "GpuHeldButIdle",
            Urgency.TICKET,
            "1h",
            _held_and_idle(),
            f"{GPU} is held, but idle",
            "The same pod, job or processes have held the GPU for a day, and it was busy for less than 1 % of the day.",
            "The summary names the pod or the job; else nvidia-smi lists the processes. Does its owner still need it?",
            "A forgotten notebook or a service without requests is the usual case: stop it, or share the GPU.",
            "Busy: {{ $value | humanizeDuration }} of the last day.",
        ),
        Alert(
            "GpuMemoryNearlyFull",
            Urgency.INFO,
            "15m",
            f"{series(MEMORY_UTILIZATION)} > 0.98",
            f"{GPU}: its memory is nearly full",
            "More than 98 % of the device memory is in use. The next allocation may fail.",
            "gpu_profile_process_memory_bytes or nvidia-smi shows the memory of each process. Serving engines reserve "
            "most of it on purpose.",
            "Use smaller batches or shorter contexts, lower the engine's share of memory, or end a left-over process.",
            "In use: {{ $value | humanizePercentage }}.",
        ),
        Alert(
            "GpuPcieLinkNarrow",
            Urgency.TICKET,
            "30m",
            # An idle GPU may narrow its link to save power.
            f"{_WIDTH} < {_WIDTH_MAX}\nand {_DEVICE}\n{rate(series(BUSY), '15m')} > 0.05",
            f"{GPU} uses {{{{ $value }}}} PCIe lanes",
            "The PCIe link of a busy GPU runs with fewer lanes than GPU and slot both have. Copies between host and "
            "GPU are slower by as much.",
            "Look at lspci -vv: LnkSta against LnkCap, of the GPU and of each bridge above it.",
            "Reseat the GPU or the riser, and retrain the link by a reboot. If it stays narrow, replace the part.",
        ),
        Alert(
            "GpuNvLinkErrors",
            Urgency.TICKET,
            "0m",
            f"{by(_KEYS, increase(series(metric_of(NVLINK_ERRORS[0]), {'error.type': 'recovery'}), '6h'))} > 2",
            f"{GPU}: its NVLinks were trained again",
            "The NVLinks of the GPU had to recover more than twice within six hours. Collectives stall for the time of "
            "each recovery, and a link that fails to recover ends the job.",
            "nvidia-smi nvlink -e shows the link with the errors, nvidia-smi nvlink -s the state of all.",
            "Reset the GPUs of the node together. If the errors stay with one link, check its bridge, baseboard or "
            "switch.",
            "Recoveries: {{ $value | humanize }}.",
        ),
        Alert(
            "GpuNvLinkDown",
            Urgency.TICKET,
            "5m",
            # Links that were never active, such as those of a missing bridge, are no fault.
            f"{series(_NVLINK_STATE)} == 0\nand\nmax_over_time({series(_NVLINK_STATE)}[1d]) == 1",
            f"{GPU}: NVLink {{{{ $labels.{label('nvidia.gpu.nvlink.link')} }}}} is down",
            "A link that was active within the last day is not active now. Peers reach the GPU over fewer links, or "
            "over PCIe. The exporter must collect the group nvlink-detail.",
            "nvidia-smi nvlink -s shows the links of all GPUs. Read the kernel log for Xid 74.",
            "Drain the node and reset its GPUs together. If the link stays down, check bridge, baseboard or switch.",
        ),
    ),
)
