"""Panels over time of GPUs, for the dashboards of a node, of a GPU and of a training job."""

from __future__ import annotations

from typing import Any, Final

from incident import THROTTLE
from panels import Column, Link, Panel, Query
from queries import GPU_NAME, SelectDevices, by, increase, named, rate, throttled

from gpu_profile.catalogue import metric_of, signal
from gpu_profile.catalogue.allocation import ALLOCATION_INFO
from gpu_profile.catalogue.links import NVLINK_ERRORS
from gpu_profile.catalogue.memory import REMAPPED_ROWS
from gpu_profile.catalogue.metric import label
from gpu_profile.catalogue.metrics import ACTIVITY, ACTIVITY_OBSERVED, BUSY, DEVICE_INFO, MEMORY_LIMIT, SPINNING, UNIT
from gpu_profile.catalogue.self_metrics import XID_ANY
from gpu_profile.catalogue.signals import (
    CLOCK_SM,
    DRAM,
    ECC_CORRECTED,
    ECC_UNCORRECTED,
    ENERGY,
    MEMORY_USED,
    NVLINK_RX,
    PCIE_REPLAYS,
    PCIE_RX,
    POWER,
    POWER_LIMIT,
    RECOVERY_ACTION,
    REMAP_FAILURE,
    REMAP_PENDING,
    SM,
    TEMPERATURE,
    TENSOR,
    UTILIZATION,
)

#: The units that are read by default.
_UNITS: Final = {UNIT: (SM.key, TENSOR.key, DRAM.key)}
_DIRECTION: Final = "{{" + label("network.io.direction") + "}}"
_RIGHT: Final[dict[str, Any]] = {"legend": "right"}


def utilisation(select: SelectDevices, link: Link | None = None) -> Panel:
    """Busy and spinning time."""
    latest = select(metric_of(UTILIZATION), dict(UTILIZATION.attributes))
    return Panel(
        title="Utilisation",
        shows="Share of time in which at least one kernel ran, exact at any scrape interval. Dashed: the driver's "
        "latest reading of a short window. “spinning”: busy at the power of an idle GPU while no data moved.",
        conclude="Low: the GPU waits for its host. High says only that kernels ran, not how much of the GPU they used.",
        do="For a low line, open the regions of its programs and look for HOST_BOUND; for spinning, find a dead peer.",
        empty="No GPU here reports busy time: see “GPUs lost” above",
        unit="percentunit",
        queries=(
            Query(named(rate(select(BUSY))), GPU_NAME),
            Query(named(rate(select(SPINNING))), f"{GPU_NAME}, spinning"),
            Query(named(latest), f"{GPU_NAME}, latest", thin=True),
        ),
        maximum=1,
        link=link,
        **_RIGHT,
    )


def activity(select: SelectDevices) -> Panel:
    """Activity of the parts of a GPU."""
    ratio = f"({rate(select(ACTIVITY, _UNITS))} / {rate(select(ACTIVITY_OBSERVED, _UNITS))})"
    return Panel(
        title="Activity inside the GPUs",
        shows="sm: share of multiprocessor time with work resident, waiting for memory included. tensor: share of "
        "time in which the matrix units computed. dram: share of the memory bandwidth in use.",
        conclude="tensor near 1: bound by compute. dram above 0.7: bound by memory. All low while utilisation is "
        "high: kernels are too small, or wait.",
        do="For small kernels, batch more or capture CUDA graphs; for dram, fuse kernels or use smaller types.",
        empty="Hopper and newer GPUs report activity; these GPUs do not, which does not mean that they are idle",
        unit="percentunit",
        queries=(Query(named(ratio), f"{GPU_NAME}, {{{{{label(UNIT)}}}}}"),),
        maximum=1,
        **_RIGHT,
    )


def memory(select: SelectDevices) -> Panel:
    """Device memory."""
    return Panel(
        title="Memory",
        shows="Device memory in use by every process, and its size (dashed).",
        conclude="A framework that reserves memory in advance counts as using it, so a full GPU may be an idle one.",
        do="A line that climbs for hours is a leak: compare it with the starts of processes. Far below the size: raise "
        "the batch size, or share the GPU.",
        empty="No GPU here reports its memory: see “GPUs lost” above",
        unit="bytes",
        queries=(
            Query(named(select(metric_of(MEMORY_USED))), GPU_NAME),
            Query(named(select(MEMORY_LIMIT)), f"{GPU_NAME}, size", thin=True),
        ),
        **_RIGHT,
    )


def power(select: SelectDevices) -> Panel:
    """Power and its limit."""
    return Panel(
        title="Power",
        shows="Mean power from the energy counter. Dashed: the latest reading of the power sensor (a window of 25 to "
        "100 ms), and the limit that the driver enforces.",
        conclude="At the limit: clocks are lowered, which is normal under full load. High power at low utilisation is "
        "waste.",
        do="For waste, free the GPU or let it return to idle clocks. At the limit, check whether the limit is meant.",
        empty="These GPUs report no power; MIG instances never do",
        unit="watt",
        queries=(
            Query(named(rate(select(metric_of(ENERGY)))), GPU_NAME),
            Query(named(select(metric_of(POWER))), f"{GPU_NAME}, latest", thin=True),
            Query(named(select(metric_of(POWER_LIMIT))), f"{GPU_NAME}, limit", thin=True),
        ),
        **_RIGHT,
    )


def busy_second(select: SelectDevices) -> Panel:
    """Energy for each busy second."""
    ratio = f"({rate(select(metric_of(ENERGY)))} / on (instance, hw_id) ({rate(select(BUSY))} > 0.001))"
    return Panel(
        title="Energy for a busy second",
        shows="All energy of a GPU, idle time included, for each second in which it worked.",
        conclude="It rises when the GPU waits with the power on.",
        do="Where it is far above the power under load, put more work on the GPU or give it up.",
        empty="No GPU here was busy, or none reports energy",
        unit="joule",
        queries=(Query(named(ratio), GPU_NAME),),
        **_RIGHT,
    )


def temperature(select: SelectDevices) -> Panel:
    """Temperatures."""
    return Panel(
        title="Temperature",
        shows="Temperature of the core and, where there is a sensor, of the memory.",
        conclude="The limit differs by model; a GPU that is 10 °C above its neighbours under equal load has a "
        "problem of cooling.",
        do="Check the fan, the filter and the airflow of that slot before clocks are lowered.",
        empty="These GPUs report no temperature",
        unit="celsius",
        queries=(Query(named(select(metric_of(TEMPERATURE))), f"{GPU_NAME}, {{{{{label('hw.sensor_location')}}}}}"),),
        **_RIGHT,
    )


def throttling(select: SelectDevices) -> Panel:
    """Time with lowered clocks."""
    return Panel(
        title="Throttling",
        shows="Share of time for which the driver lowered the clocks, by reason. Reasons overlap and do not add up.",
        conclude="sw_power_cap is normal under full load. sw_thermal, hw_thermal and hw_power_brake are faults.",
        do="For heat, check the cooling; for a power brake, the power supplies of the node.",
        empty="These GPUs do not report why their clocks are lowered",
        unit="percentunit",
        queries=(Query(named(throttled(rate, select)), f"{GPU_NAME}, {{{{{label(THROTTLE)}}}}}"),),
        **_RIGHT,
    )


def clocks(select: SelectDevices) -> Panel:
    """Current clocks."""
    return Panel(
        title="Clocks",
        shows="Current clocks of the multiprocessors and of the memory.",
        conclude="Low clocks are normal on an idle GPU. On a busy one they cost speed.",
        do="For a busy GPU with low clocks, read the reason in “Throttling”.",
        empty="These GPUs report no clocks",
        unit="hertz",
        queries=(Query(named(select(metric_of(CLOCK_SM))), f"{GPU_NAME}, {{{{{label('nvidia.gpu.clock.domain')}}}}}"),),
        **_RIGHT,
    )


def pcie(select: SelectDevices) -> Panel:
    """PCIe traffic."""
    return Panel(
        title="PCIe traffic",
        shows="Bytes a second between the GPUs and their hosts or network cards, headers included. “receive” is into "
        "the GPU.",
        conclude="Near the speed of the link (about 25 GB/s for 16 lanes of generation 4): copies limit the work.",
        do="Use pinned memory, copy while kernels run, or keep data on the GPU.",
        empty="These GPUs report no PCIe traffic",
        unit="Bps",
        queries=(Query(named(rate(select(metric_of(PCIE_RX)))), f"{GPU_NAME}, {_DIRECTION}"),),
        **_RIGHT,
    )


def nvlink(select: SelectDevices) -> Panel:
    """NVLink traffic."""
    return Panel(
        title="NVLink traffic",
        shows="Payload bytes a second over all links of a GPU, seen from the GPU.",
        conclude="Unequal lines within one job: its GPUs do unequal work, or a link is down.",
        do="Compare with “NVLink errors”; check the topology of the job.",
        empty="These GPUs have no NVLink, or report none",
        unit="Bps",
        queries=(Query(named(rate(select(metric_of(NVLINK_RX)))), f"{GPU_NAME}, {_DIRECTION}"),),
        **_RIGHT,
    )


def link_width(select: SelectDevices) -> Panel:
    """PCIe lanes in use."""
    now, most = (select(metric_of(signal(key))) for key in ("pcie_link_width", "pcie_link_width_max"))
    return Panel(
        title="Width of the PCIe links",
        shows="Lanes in use, as a share of those that GPU and slot both have.",
        conclude="Below 100 % on a busy GPU: a bad contact or a narrow riser. Transfers are slower by as much.",
        do="Reseat the card or its riser.",
        empty="These GPUs do not report their lanes",
        unit="percentunit",
        queries=(Query(named(f"({now} / {most})"), GPU_NAME),),
        maximum=1,
        **_RIGHT,
    )


def faults(select: SelectDevices, link: Link | None = None) -> Panel:
    """Errors and wear by GPU."""
    uncorrected, corrected = (
        increase(select(metric_of(row), dict(row.attributes))) for row in (ECC_UNCORRECTED, ECC_CORRECTED)
    )
    red = ((0.5, "red"),)
    orange = ((0.5, "orange"),)
    return Panel(
        title="Faults by GPU",
        shows="Events of this time range, and in the last three columns the state now. An empty cell: the GPU does "
        "not report it. Action is the driver's request: 0 is none, 1 a reset, 2 a reboot.",
        conclude="Rows are remapped when memory wears out. A row that waits needs a reset, a failed one a new GPU. "
        "PCIe replays that grow steadily mean a bad contact.",
        do="Plan a reset for GPUs with waiting rows; have GPUs with failed ones replaced.",
        empty="No GPU is published here: see “Nodes silent” above",
        queries=(
            Query(by("hw_id, index, instance", select(DEVICE_INFO, {"kind": "gpu"}), "max"), ""),
            Query(by("hw_id", increase(select(XID_ANY))), ""),
            Query(by("hw_id", uncorrected), ""),
            Query(by("hw_id", corrected), ""),
            Query(by("hw_id", increase(select(metric_of(REMAPPED_ROWS[0])))), ""),
            Query(by("hw_id", increase(select(metric_of(PCIE_REPLAYS)))), ""),
            Query(by("hw_id", increase(select(metric_of(NVLINK_ERRORS[0])))), ""),
            Query(by("hw_id", select(metric_of(REMAP_PENDING)), "max"), ""),
            Query(by("hw_id", select(metric_of(REMAP_FAILURE)), "max"), ""),
            Query(by("hw_id", select(metric_of(RECOVERY_ACTION)), "max"), ""),
        ),
        kind="table",
        width=24,
        height=7,
        columns=(
            Column("instance", "Node"),
            Column("index", "GPU", link=link, width=70),
            Column("Value #B", "XID errors", "none", limits=red, whole=True),
            Column("Value #C", "Uncorrected", "none", limits=red, whole=True),
            Column("Value #D", "Corrected", "none", limits=orange, whole=True),
            Column("Value #E", "Rows remapped", "none", limits=orange, whole=True),
            Column("Value #F", "PCIe replays", "none", limits=orange, whole=True),
            Column("Value #G", "NVLink errors", "none", limits=orange, whole=True),
            Column("Value #H", "Remap waits", "none", limits=orange, whole=True),
            Column("Value #I", "Remap failed", "none", limits=red, whole=True),
            Column("Value #J", "Action", "none", limits=red, whole=True),
            Column("hw_id", "UUID"),
        ),
    )


def holders(select: SelectDevices) -> Panel:
    """Pods, jobs and units on the GPUs."""
    keys = "hw_id, source, k8s_namespace_name, k8s_pod_name, slurm_job_id, systemd_unit_name"
    held = by(keys, select(ALLOCATION_INFO), "max")
    busy = f"{held} * on (hw_id) group_left () {by('hw_id', rate(select(BUSY)), 'max')}"
    return Panel(
        title="Who uses the GPUs",
        shows="Holders of each GPU as the kubelet, the workload manager or control groups report them, and the "
        "utilisation of the whole GPU.",
        conclude="A holder on a GPU near 0 % reserves it and does not use it.",
        do="Ask the owner of that pod or job to give the GPU back, or set a time limit.",
        empty="No source of attribution reports a holder: see docs/attribution.md for how to switch one on",
        queries=(Query(named(held), ""), Query(named(f"({busy})"), "")),
        kind="table",
        width=24,
        height=6,
        columns=(
            Column("index", "GPU", width=70),
            Column("source", "Source"),
            Column("k8s_namespace_name", "Namespace"),
            Column("k8s_pod_name", "Pod"),
            Column("slurm_job_id", "Job"),
            Column("systemd_unit_name", "Unit"),
            Column("Value #B", "Utilisation of the GPU", "percentunit"),
            Column("hw_id", "UUID"),
        ),
    )
