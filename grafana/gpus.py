"""The top of the dashboard: what the GPUs do, and what they cost."""

from __future__ import annotations

from typing import Final

from panels import BARS, STAT, Column, Query, Section, panel
from queries import GPU_NAME, by, increase, named, of_gpus, physical, rate, throttled

from gpu_profile.catalogue import metric_of
from gpu_profile.catalogue.metric import label
from gpu_profile.catalogue.metrics import (
    ACTIVITY,
    ACTIVITY_OBSERVED,
    BUSY,
    DEVICE_INFO,
    DEVICE_UP,
    DRIVER_UP,
    MEMORY_LIMIT,
    MEMORY_UTILIZATION,
    SPINNING,
    STATUS,
    UNIT,
)
from gpu_profile.catalogue.signals import (
    CLOCK_SM,
    DRAM,
    ECC_UNCORRECTED,
    ENERGY,
    MEMORY_USED,
    NVLINK_RX,
    PCIE_RX,
    POWER,
    POWER_LIMIT,
    SM,
    TEMPERATURE,
    TENSOR,
    UTILIZATION,
)

_ENERGY = metric_of(ENERGY)
_POWER = metric_of(POWER)
_TEMPERATURE = metric_of(TEMPERATURE)
_CORE: Final = dict(TEMPERATURE.attributes)
#: Those that are read by default.
_UNITS: Final = {UNIT: (SM.key, TENSOR.key, DRAM.key)}
_DIRECTION: Final = "{{" + label("network.io.direction") + "}}"

NOW: Final = Section(
    "GPUs now",
    (
        panel(
            "GPUs that answer",
            "GPUs that the driver answers for. MIG instances do not count besides their GPU.",
            "none",
            Query(f"sum({physical(of_gpus(DEVICE_UP))})", "GPUs"),
            **STAT,
        ),
        panel(
            "Drivers that answer",
            "Share of the chosen nodes on which the GPU driver answers. It says nothing of single GPUs.",
            "percentunit",
            Query(f"avg({of_gpus(DRIVER_UP)})", "drivers"),
            thresholds=((None, "red"), (1, "green")),
            **STAT,
        ),
        panel(
            "Mean utilisation",
            "Share of time in which at least one kernel ran, over all chosen GPUs. A GPU that is busy all "
            "the time may still use little of itself: see “Activity inside the GPUs”.",
            "percentunit",
            Query(f"avg({physical(rate(of_gpus(BUSY)))})", "utilisation"),
            **STAT,
        ),
        panel(
            "Power draw",
            "Power of the chosen GPUs together, from their energy counters. Hosts and cooling come on top.",
            "watt",
            Query(f"sum({rate(of_gpus(_ENERGY))})", "power"),
            **STAT,
        ),
        panel(
            "Energy in this time range",
            "What the chosen GPUs consumed, idle time included, over the range at the top right.",
            "joule",
            Query(f"sum({increase(of_gpus(_ENERGY))})", "energy"),
            **STAT,
        ),
        panel(
            "Uncorrected errors",
            "Memory errors in this time range that ECC could not mend. GPUs without ECC report none.",
            "none",
            Query(f"sum({increase(of_gpus(metric_of(ECC_UNCORRECTED), dict(ECC_UNCORRECTED.attributes)))})", "errors"),
            thresholds=((None, "green"), (0.5, "red")),
            **STAT,
        ),
        panel(
            "GPUs at a glance",
            "Latest values. Utilisation is the mean over the last few scrapes. An empty cell means that "
            "the GPU does not report it, never that it is 0.",
            "none",
            Query(by("hw_id, hw_name, index, instance", of_gpus(DEVICE_INFO), "max"), GPU_NAME),
            Query(by("hw_id", rate(of_gpus(BUSY)), "max"), "utilisation {{hw_id}}"),
            Query(by("hw_id", of_gpus(_POWER), "max"), "power {{hw_id}}"),
            Query(by("hw_id", of_gpus(MEMORY_UTILIZATION), "max"), "memory {{hw_id}}"),
            Query(by("hw_id", of_gpus(_TEMPERATURE, _CORE), "max"), "temperature {{hw_id}}"),
            kind="table",
            width=16,
            height=7,
            columns=(
                Column("instance", "Node"),
                Column("index", "GPU"),
                Column("hw_name", "Model"),
                Column("Value #B", "Utilisation", "percentunit"),
                Column("Value #C", "Power", "watt"),
                Column("Value #D", "Memory in use", "percentunit"),
                Column("Value #E", "Core temperature", "celsius"),
                Column("hw_id", "UUID"),
            ),
        ),
        panel(
            "GPUs by state",
            "How many GPUs are in each state. “ok”: the driver sees nothing wrong, which does not "
            "mean that the GPU does useful work. “degraded”: it had memory errors that ECC could not correct. "
            "“failed”: it does not answer.",
            "none",
            Query(by("hw_state", physical(of_gpus(STATUS, {"hw.type": "gpu"}))), "{{hw_state}}"),
            width=8,
            height=7,
            **BARS,
        ),
    ),
)

WORK: Final = Section(
    "What the GPUs do",
    (
        panel(
            "Utilisation",
            "Share of time in which at least one kernel ran: exact at any scrape interval, because it is "
            "the rate of a counter. The dashed line is the driver's latest reading of a short window, which misses "
            "what happens between two scrapes. Neither says how much of the GPU the kernels used. “spinning”: busy at "
            "the power of an idle GPU while no data moved, so a kernel waits.",
            "percentunit",
            Query(named(rate(of_gpus(BUSY))), GPU_NAME),
            Query(named(rate(of_gpus(SPINNING))), f"{GPU_NAME}, spinning"),
            Query(
                named(of_gpus(metric_of(UTILIZATION), dict(UTILIZATION.attributes))), f"{GPU_NAME}, latest", thin=True
            ),
            legend="right",
            maximum=1,
        ),
        panel(
            "Activity inside the GPUs",
            "SM: share of multiprocessor time with work resident, which includes waiting for memory. "
            "Tensor: share of time in which the matrix units computed. DRAM: share of the memory bandwidth in use. "
            "Exact means of the time that was measured, at any scrape interval, because they are rates of "
            "counters. Only Hopper and newer GPUs report them; older ones are missing here, not idle.",
            "percentunit",
            Query(
                named(f"({rate(of_gpus(ACTIVITY, _UNITS))} / {rate(of_gpus(ACTIVITY_OBSERVED, _UNITS))})"),
                f"{GPU_NAME}, {{{{{label(UNIT)}}}}}",
            ),
            legend="right",
            maximum=1,
        ),
        panel(
            "Memory",
            "Device memory in use, by every process, and its size (dashed). A framework that reserves "
            "memory in advance counts as using it.",
            "bytes",
            Query(named(of_gpus(metric_of(MEMORY_USED))), GPU_NAME),
            Query(named(of_gpus(MEMORY_LIMIT)), f"{GPU_NAME}, size", thin=True),
            legend="right",
        ),
        panel(
            "PCIe traffic",
            "Bytes a second between the GPUs and their hosts or network cards, headers included, seen "
            "from the GPU: “receive” is into it.",
            "Bps",
            Query(named(rate(of_gpus(metric_of(PCIE_RX)))), f"{GPU_NAME}, {_DIRECTION}"),
            legend="right",
        ),
        panel(
            "NVLink traffic",
            "Payload bytes a second over all links of a GPU, seen from the GPU. GPUs without NVLink are missing here.",
            "Bps",
            Query(named(rate(of_gpus(metric_of(NVLINK_RX)))), f"{GPU_NAME}, {_DIRECTION}"),
            legend="right",
        ),
        panel(
            "Clocks",
            "Current clocks of the multiprocessors and of the memory. Low ones are normal on an idle GPU; "
            "on a busy one, see “Throttling”.",
            "hertz",
            Query(named(of_gpus(metric_of(CLOCK_SM))), f"{GPU_NAME}, {{{{{label('nvidia.gpu.clock.domain')}}}}}"),
            legend="right",
        ),
    ),
)

COST: Final = Section(
    "What they cost",
    (
        panel(
            "Power",
            "Mean power since the scrapes before, from the energy counter; dashed, the latest reading of "
            "the power sensor (a window of 25 to 100 ms) and the limit that the driver enforces.",
            "watt",
            Query(named(rate(of_gpus(_ENERGY))), GPU_NAME),
            Query(named(of_gpus(_POWER)), f"{GPU_NAME}, latest", thin=True),
            Query(named(of_gpus(metric_of(POWER_LIMIT))), f"{GPU_NAME}, limit", thin=True),
            legend="right",
        ),
        panel(
            "Energy for a busy second",
            "All the energy of a GPU, idle time included, for each second in which it worked. It rises "
            "when a GPU waits with the power on. No line: the GPU was not busy at all.",
            "joule",
            Query(
                named(f"({rate(of_gpus(_ENERGY))} / on (instance, hw_id) ({rate(of_gpus(BUSY))} > 0.001))"), GPU_NAME
            ),
            legend="right",
        ),
        panel(
            "Temperature",
            "Temperature of the core and, where there is a sensor, of the memory. What is too hot differs by model.",
            "celsius",
            Query(named(of_gpus(_TEMPERATURE)), f"{GPU_NAME}, {{{{{label('hw.sensor_location')}}}}}"),
            legend="right",
        ),
        panel(
            "Throttling",
            "Share of time for which the driver lowered the clocks, by reason. Reasons overlap, so they "
            "do not add up. A power cap is normal under full load; heat and power brakes are not.",
            "percentunit",
            Query(named(throttled(rate)), f"{GPU_NAME}, {{{{{label('nvidia.gpu.throttle.reason')}}}}}"),
            legend="right",
        ),
    ),
)

SECTIONS: Final = (NOW, WORK, COST)
