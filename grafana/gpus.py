"""The top of the dashboard: what the GPUs do, and what they cost."""

from __future__ import annotations

from typing import Final

from panels import Column, Panel, Query, Section
from queries import GPU_NAME, by, increase, mean, named, of_gpus, physical, rate, throttled

from gpu_profile.catalogue import SIGNALS, metric_of
from gpu_profile.catalogue.metric import label
from gpu_profile.catalogue.metrics import (
    BUSY,
    DEVICE_INFO,
    DEVICE_UP,
    DRIVER_UP,
    MEMORY_LIMIT,
    MEMORY_UTILIZATION,
    STATUS,
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
_TASK: Final = "hw.gpu.task"
_ENGINES: Final = tuple(
    dict(row.attributes)[_TASK] for row in SIGNALS if row.otel == UTILIZATION.otel and row is not UTILIZATION
)
_DIRECTION: Final = "{{" + label("network.io.direction") + "}}"

NOW: Final = Section(
    "GPUs now",
    (
        Panel(
            title="GPUs that answer",
            description="GPUs that the driver answers for. MIG instances do not count besides their GPU.",
            kind="stat",
            unit="none",
            width=4,
            height=4,
            queries=(Query(f"sum({physical(of_gpus(DEVICE_UP))})", "GPUs"),),
        ),
        Panel(
            title="Drivers that answer",
            description="Share of the chosen nodes on which the GPU driver answers. It says nothing of single GPUs.",
            kind="stat",
            unit="percentunit",
            width=4,
            height=4,
            thresholds=((None, "red"), (1, "green")),
            queries=(Query(f"avg({of_gpus(DRIVER_UP)})", "drivers"),),
        ),
        Panel(
            title="Mean utilisation",
            description="Share of time in which at least one kernel ran, over all chosen GPUs. A GPU that is busy all "
            "the time may still use little of itself: see “Activity inside the GPUs”.",
            kind="stat",
            unit="percentunit",
            width=4,
            height=4,
            queries=(Query(f"avg({physical(rate(of_gpus(BUSY)))})", "utilisation"),),
        ),
        Panel(
            title="Power draw",
            description="Power of the chosen GPUs together, from their energy counters. Hosts and cooling come on top.",
            kind="stat",
            unit="watt",
            width=4,
            height=4,
            queries=(Query(f"sum({rate(of_gpus(_ENERGY))})", "power"),),
        ),
        Panel(
            title="Energy in this time range",
            description="What the chosen GPUs consumed, idle time included, over the range at the top right.",
            kind="stat",
            unit="joule",
            width=4,
            height=4,
            queries=(Query(f"sum({increase(of_gpus(_ENERGY))})", "energy"),),
        ),
        Panel(
            title="Uncorrected errors",
            description="Memory errors in this time range that ECC could not mend. GPUs without ECC report none.",
            kind="stat",
            unit="none",
            width=4,
            height=4,
            thresholds=((None, "green"), (0.5, "red")),
            queries=(
                Query(
                    f"sum({increase(of_gpus(metric_of(ECC_UNCORRECTED), dict(ECC_UNCORRECTED.attributes)))})", "errors"
                ),
            ),
        ),
        Panel(
            title="GPUs at a glance",
            description="Latest values. Utilisation is the mean over the last few scrapes. An empty cell means that "
            "the GPU does not report it, never that it is 0.",
            kind="table",
            unit="none",
            width=16,
            height=7,
            queries=(
                Query(by("hw_id, hw_name, index, instance", of_gpus(DEVICE_INFO), "max"), GPU_NAME),
                Query(by("hw_id", rate(of_gpus(BUSY)), "max"), "utilisation {{hw_id}}"),
                Query(by("hw_id", of_gpus(_POWER), "max"), "power {{hw_id}}"),
                Query(by("hw_id", of_gpus(MEMORY_UTILIZATION), "max"), "memory {{hw_id}}"),
                Query(by("hw_id", of_gpus(_TEMPERATURE, _CORE), "max"), "temperature {{hw_id}}"),
            ),
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
        Panel(
            title="GPUs by state",
            description="How many GPUs are in each state. “ok”: the driver sees nothing wrong, which does not "
            "mean that the GPU does useful work. “degraded”: it had memory errors that ECC could not correct. "
            "“failed”: it does not answer.",
            kind="bargauge",
            unit="none",
            width=8,
            height=7,
            thresholds=((None, "blue"),),
            queries=(Query(by("hw_state", physical(of_gpus(STATUS, {"hw.type": "gpu"}))), "{{hw_state}}"),),
        ),
    ),
)

WORK: Final = Section(
    "What the GPUs do",
    (
        Panel(
            title="Utilisation",
            description="Share of time in which at least one kernel ran: exact at any scrape interval, because it is "
            "the rate of a counter. The dashed line is the driver's latest reading of a short window, which misses "
            "what happens between two scrapes. Neither says how much of the GPU the kernels used.",
            legend="right",
            unit="percentunit",
            maximum=1,
            queries=(
                Query(named(rate(of_gpus(BUSY))), GPU_NAME),
                Query(
                    named(of_gpus(metric_of(UTILIZATION), dict(UTILIZATION.attributes))),
                    f"{GPU_NAME}, latest",
                    thin=True,
                ),
            ),
        ),
        Panel(
            title="Activity inside the GPUs",
            description="SM: share of multiprocessor time with work resident, which includes waiting for memory. "
            "Tensor: share of time in which the matrix units computed. DRAM: share of the memory bandwidth in use. "
            "Means over the last few scrapes' readings, each of a tenth of a second: what happens in between is "
            "missed. Only Hopper and newer GPUs report them; older ones are missing here, not idle.",
            legend="right",
            unit="percentunit",
            maximum=1,
            queries=(
                Query(named(mean(of_gpus(metric_of(SM)))), f"{GPU_NAME}, SM"),
                Query(named(mean(of_gpus(metric_of(TENSOR)))), f"{GPU_NAME}, tensor"),
                Query(named(mean(of_gpus(metric_of(DRAM)))), f"{GPU_NAME}, DRAM"),
            ),
        ),
        Panel(
            title="Other engines",
            description="Share of time in which the video encoder and decoder, the JPEG decoder and the optical-flow "
            "engine worked, as the driver last told: what happens between two scrapes is missed.",
            legend="right",
            unit="percentunit",
            maximum=1,
            queries=(
                Query(
                    named(of_gpus(metric_of(UTILIZATION), {_TASK: _ENGINES})),
                    f"{GPU_NAME}, {{{{{label(_TASK)}}}}}",
                ),
            ),
        ),
        Panel(
            title="Memory",
            description="Device memory in use, by every process, and its size (dashed). A framework that reserves "
            "memory in advance counts as using it.",
            legend="right",
            unit="bytes",
            queries=(
                Query(named(of_gpus(metric_of(MEMORY_USED))), GPU_NAME),
                Query(named(of_gpus(MEMORY_LIMIT)), f"{GPU_NAME}, size", thin=True),
            ),
        ),
        Panel(
            title="PCIe traffic",
            description="Bytes a second between the GPUs and their hosts or network cards, headers included, seen "
            "from the GPU: “receive” is into it.",
            legend="right",
            unit="Bps",
            queries=(Query(named(rate(of_gpus(metric_of(PCIE_RX)))), f"{GPU_NAME}, {_DIRECTION}"),),
        ),
        Panel(
            title="NVLink traffic",
            description="Payload bytes a second over all links of a GPU, seen from the GPU. GPUs without NVLink are "
            "missing here.",
            legend="right",
            unit="Bps",
            queries=(Query(named(rate(of_gpus(metric_of(NVLINK_RX)))), f"{GPU_NAME}, {_DIRECTION}"),),
        ),
        Panel(
            title="Clocks",
            description="Current clocks of the multiprocessors and of the memory. Low ones are normal on an idle GPU; "
            "on a busy one, see “Clocks held down”.",
            legend="right",
            unit="hertz",
            queries=(
                Query(named(of_gpus(metric_of(CLOCK_SM))), f"{GPU_NAME}, {{{{{label('nvidia.gpu.clock.domain')}}}}}"),
            ),
        ),
    ),
)

COST: Final = Section(
    "What they cost",
    (
        Panel(
            title="Power",
            description="Mean power since the scrapes before, from the energy counter; dashed, the latest reading of "
            "the power sensor (a window of 25 to 100 ms) and the limit that the driver enforces.",
            legend="right",
            unit="watt",
            queries=(
                Query(named(rate(of_gpus(_ENERGY))), GPU_NAME),
                Query(named(of_gpus(_POWER)), f"{GPU_NAME}, latest", thin=True),
                Query(named(of_gpus(metric_of(POWER_LIMIT))), f"{GPU_NAME}, limit", thin=True),
            ),
        ),
        Panel(
            title="Energy for a busy second",
            description="All the energy of a GPU, idle time included, for each second in which it worked. It rises "
            "when a GPU waits with the power on. No line: the GPU was not busy at all.",
            legend="right",
            unit="joule",
            queries=(
                Query(
                    named(f"({rate(of_gpus(_ENERGY))} / on (instance, hw_id) ({rate(of_gpus(BUSY))} > 0.001))"),
                    GPU_NAME,
                ),
            ),
        ),
        Panel(
            title="Temperature",
            description="Temperature of the core and, where there is a sensor, of the memory. What is too hot differs "
            "by model.",
            legend="right",
            unit="celsius",
            queries=(Query(named(of_gpus(_TEMPERATURE)), f"{GPU_NAME}, {{{{{label('hw.sensor_location')}}}}}"),),
        ),
        Panel(
            title="Clocks held down",
            description="Share of time for which the driver held the clocks down, by reason. Reasons overlap, so they "
            "do not add up. A power cap is normal under full load; heat and power brakes are not.",
            legend="right",
            unit="percentunit",
            queries=(
                Query(
                    named(throttled(rate)),
                    f"{GPU_NAME}, {{{{{label('nvidia.gpu.throttle.reason')}}}}}",
                ),
            ),
        ),
    ),
)

SECTIONS: Final = (NOW, WORK, COST)
