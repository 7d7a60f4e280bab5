"""The lower half of the dashboard: which regions keep the GPUs busy, at what cost, and what bounds them."""

from __future__ import annotations

from typing import Final

from panels import BARS, Column, Query, Section, panel
from queries import by, increase, known, of_gpus, of_regions, physical, rate

from gpu_profile.catalogue.metrics import (
    BUSY,
    REGION_BUSY,
    REGION_BUSY_UNCERTAIN,
    REGION_CALLS,
    REGION_COMMUNICATION,
    REGION_COPIED,
    REGION_DURATION,
    REGION_ENERGY,
    REGION_ENERGY_UNCERTAIN,
    REGION_ERRORS,
    REGION_FLOPS,
    REGION_HOST_WAIT,
    REGION_ITEMS,
    REGION_KERNEL_TIME,
    REGION_KERNELS,
    REGION_PROFILED,
    REGION_PROFILED_TIME,
    REGION_TRAFFIC,
)

_CALLS = by("region", rate(of_regions(REGION_DURATION, part="_count")))
_DURATION = by("region", rate(of_regions(REGION_DURATION, part="_sum")))
_BUCKETS = by("region, le", rate(of_regions(REGION_DURATION, part="_bucket")))
_BUSY = by("region", rate(of_regions(REGION_BUSY)))
_BUSY_UNCERTAIN = by("region", rate(of_regions(REGION_BUSY_UNCERTAIN)))
_ENERGY = by("region", rate(of_regions(REGION_ENERGY)))
_ENERGY_UNCERTAIN = by("region", rate(of_regions(REGION_ENERGY_UNCERTAIN)))
_ITEMS = by("region", rate(of_regions(REGION_ITEMS)))
_ERRORS = by("region", rate(of_regions(REGION_ERRORS)))
_ALL_BUSY = f"sum({physical(rate(of_gpus(BUSY)))})"
_FLOPS = by("region", rate(of_regions(REGION_FLOPS)))
_TRAFFIC = by("region", rate(of_regions(REGION_TRAFFIC)))
# Windows of the profiler are rare: a sum over the whole time range has some of them, a rate often none.
_PROFILED = f"({by('region', increase(of_regions(REGION_PROFILED)))} > 0)"
_PROFILED_TIME = f"({by('region', increase(of_regions(REGION_PROFILED_TIME)))} > 0)"
_KERNELS = by("region", increase(of_regions(REGION_KERNELS)))
_KERNEL_TIME = by("region", increase(of_regions(REGION_KERNEL_TIME)))
_COPIED = by("region", increase(of_regions(REGION_COPIED)))
_HOST_WAIT = by("region", increase(of_regions(REGION_HOST_WAIT)))
_COMMUNICATION = by("region", increase(of_regions(REGION_COMMUNICATION)))
_VERDICTS = of_regions(REGION_CALLS)
#: How a legend calls what was shared out to a region by time, as its rate was not known.
_UNCERTAIN = "{{region}}, uncertain"

OVERVIEW: Final = Section(
    "Regions: what the programs do with the GPUs",
    (
        panel(
            "Regime by region",
            "Share of each region's executions in this time range by what bounded them. UNKNOWN means too "
            "little evidence, for example executions too short for the samples; it is not a fault.",
            "percentunit",
            Query(
                f"({by('region, regime', increase(_VERDICTS))} > 0) / on (region) group_left () "
                f"{by('region', increase(_VERDICTS))}",
                "{{region}}: {{regime}}",
            ),
            kind="table",
            matrix=("region", "regime"),
        ),
        panel(
            "Energy by region in this time range",
            "Energy that the GPUs used while each region held them; where regions overlap on a GPU they "
            "share it equally. Uncertain is what was shared out by time. Energy outside any region is not shown here.",
            "joule",
            Query(f"sort_desc({by('region', increase(of_regions(REGION_ENERGY)))} > 0)", "{{region}}"),
            Query(f"sort_desc({by('region', increase(of_regions(REGION_ENERGY_UNCERTAIN)))} > 0)", _UNCERTAIN),
            **BARS,
        ),
        panel(
            "GPU time by region",
            "GPU time that each region kept busy, and the busy time outside them. 100 % is one GPU that "
            "works all the time, so two can reach 200 %. Other users' programs count as outside.",
            "percentunit",
            Query(_BUSY, "{{region}}"),
            Query(f"{_BUSY_UNCERTAIN} > 0", _UNCERTAIN),
            Query(
                f"clamp_min({_ALL_BUSY} - sum({rate(of_regions(REGION_BUSY))}) "
                f"- sum({rate(of_regions(REGION_BUSY_UNCERTAIN))}), 0)",
                "outside these regions",
            ),
            stacked=True,
        ),
        panel(
            "Regimes over time",
            "Executions a second by what bounded them, over the chosen regions. Short regions that run "
            "often outweigh long ones here.",
            "cps",
            Query(by("regime", rate(_VERDICTS)), "{{regime}}"),
            stacked=True,
        ),
    ),
)

CALLS: Final = Section(
    "Regions: each call",
    (
        panel(
            "Calls",
            "Executions a second. Each counts once, sampled by the tracer or not, on however many GPUs.",
            "cps",
            Query(_CALLS, "{{region}}"),
        ),
        panel(
            "Duration",
            "Mean and 95th percentile (dashed) of a call's time on the wall clock, waiting included. The "
            "percentile is only as fine as the histogram's buckets. The axis is logarithmic.",
            "s",
            Query(f"{_DURATION} / {_CALLS}", "{{region}}, mean"),
            Query(f"histogram_quantile(0.95, {_BUCKETS})", "{{region}}, 95th percentile", thin=True, exemplars=True),
            logarithmic=True,
            legend="right",
        ),
        panel(
            "GPU time for a call",
            "Busy seconds of GPUs that one call causes, on all its GPUs together. Far below its duration: "
            "the GPU waits. Not shown while they are uncertain.",
            "s",
            Query(known(f"{_BUSY} / {_CALLS}", _BUSY, _BUSY_UNCERTAIN), "{{region}}"),
        ),
        panel(
            "Energy for a call",
            "Energy of the GPUs that one call causes, its share of their idle power included. Hosts are not included. "
            "Not shown while it is uncertain.",
            "joule",
            Query(known(f"{_ENERGY} / {_CALLS}", _ENERGY, _ENERGY_UNCERTAIN), "{{region}}"),
        ),
        panel(
            "Power by region",
            "Energy a second that goes to each region. The rest of the GPUs' power goes elsewhere.",
            "watt",
            Query(_ENERGY, "{{region}}"),
            Query(f"{_ENERGY_UNCERTAIN} > 0", _UNCERTAIN),
            stacked=True,
        ),
        panel(
            "Failed calls",
            "Share of calls that ended in an exception. The other panels count them like any other call.",
            "percentunit",
            Query(f"{_ERRORS} / {_CALLS}", "{{region}}"),
        ),
        panel(
            "Items",
            "Units of work a second, as the program counts them (images, tokens, requests). Only regions "
            "that report items are shown.",
            "cps",
            Query(_ITEMS, "{{region}}"),
        ),
        panel(
            "Energy for an item",
            "Energy of the GPUs for one unit of work. Compare it within a region, not between regions "
            "that count different things.",
            "joule",
            Query(known(f"{_ENERGY} / {_ITEMS}", _ENERGY, _ENERGY_UNCERTAIN), "{{region}}"),
        ),
        panel(
            "Arithmetic by region",
            "Floating-point operations a second, over all time and not only a region's own. Only regions "
            "whose operations are counted are shown; the profiler of operations does so.",
            "flops",
            Query(_FLOPS, "{{region}}"),
        ),
        panel(
            "Memory traffic by region",
            "Bytes a second that operations have to read and write at least, where they are counted. What "
            "the memory really moves can be more.",
            "Bps",
            Query(_TRAFFIC, "{{region}}"),
        ),
    ),
)

KERNELS: Final = Section(
    "Regions: kernels, where a profiler looked",
    (
        panel(
            "Kernels by region in this time range",
            "Of the calls that a window of the profiler saw, not of all: how many these were, and what one "
            "of them launches. Regions that no window saw are not shown.",
            "none",
            Query(_PROFILED, "calls seen of {{region}}"),
            Query(f"{_KERNELS} / {_PROFILED}", "kernels a call of {{region}}"),
            Query(f"{_KERNEL_TIME} / ({_KERNELS} > 0)", "mean kernel of {{region}}"),
            Query(f"{_COPIED} / {_PROFILED}", "copied a call of {{region}}"),
            kind="table",
            columns=(
                Column("region", "Region"),
                Column("Value #A", "Calls seen"),
                Column("Value #B", "Kernels a call"),
                Column("Value #C", "Mean kernel", "s"),
                Column("Value #D", "Copied a call", "bytes"),
            ),
        ),
        panel(
            "Waiting for the host, by region in this time range",
            "Share of the GPU's time in calls that a window of the profiler saw in which nothing was "
            "launched. Prefetch input, batch more, or capture a CUDA graph where it is high.",
            "percentunit",
            Query(f"sort_desc({_HOST_WAIT} / {_PROFILED_TIME})", "{{region}}"),
            maximum=1,
            width=6,
            **BARS,
        ),
        panel(
            "Communication, by region in this time range",
            "Share of the GPU's time in calls that a window of the profiler saw in which a collective ran, "
            "hidden behind other kernels or not.",
            "percentunit",
            Query(f"sort_desc({_COMMUNICATION} / {_PROFILED_TIME})", "{{region}}"),
            maximum=1,
            width=6,
            **BARS,
        ),
    ),
)

SECTIONS: Final = (OVERVIEW, CALLS, KERNELS)
