"""Sections on regions: each call of them, the GPUs that they ran on, and their kernels."""

from __future__ import annotations

from typing import Final

from links import TO_GPU
from panels import BARS, Column, Panel, Query, Section
from queries import KEYS, REGION_NAME, by, increase, known, named_with_node, of_regions, rate

from gpu_profile.catalogue.metrics import (
    REGION_BUSY,
    REGION_BUSY_UNCERTAIN,
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

#: How a legend calls a region's share that was divided by time, because its rate was not certain.
UNCERTAIN: Final = f"{REGION_NAME}, uncertain"
NO_REGION: Final = "No region matches: does the program serve its metrics, and is it scraped? docs/quickstart.md"
_REFUSED: Final = "No region here has certain values yet: they need some seconds, or more samples"
_UNSEEN: Final = "No profiler looked at these regions: docs/kernels.md"

WHERE: Final = (
    Column("namespace", "Namespace"),
    Column("job", "Job"),
    Column("service_name", "Service"),
    Column("version", "Version"),
)
CALLS: Final = by(KEYS, rate(of_regions(REGION_DURATION, part="_count")))
DURATION: Final = by(KEYS, rate(of_regions(REGION_DURATION, part="_sum")))
TIME, TIME_UNCERTAIN, ENERGY, ENERGY_UNCERTAIN = (
    by(KEYS, rate(of_regions(metric)))
    for metric in (REGION_BUSY, REGION_BUSY_UNCERTAIN, REGION_ENERGY, REGION_ENERGY_UNCERTAIN)
)
ERRORS = by(KEYS, rate(of_regions(REGION_ERRORS)))
_BUCKETS = by(f"{KEYS}, le", rate(of_regions(REGION_DURATION, part="_bucket")))
_ITEMS = by(KEYS, rate(of_regions(REGION_ITEMS)))
CALLS_OF_RANGE: Final = by(KEYS, increase(of_regions(REGION_DURATION, part="_count")))
TIME_OF_RANGE, TIME_UNCERTAIN_OF_RANGE, ENERGY_OF_RANGE, ENERGY_UNCERTAIN_OF_RANGE = (
    by(KEYS, increase(of_regions(metric)))
    for metric in (REGION_BUSY, REGION_BUSY_UNCERTAIN, REGION_ENERGY, REGION_ENERGY_UNCERTAIN)
)
# Windows of the profiler are rare: a sum over the whole time range has some of them, a rate often none.
_PROFILED, _PROFILED_TIME = (
    f"({by(KEYS, increase(of_regions(metric)))} > 0)" for metric in (REGION_PROFILED, REGION_PROFILED_TIME)
)
_KERNELS, _KERNEL_TIME, _COPIED, _HOST_WAIT, _COMMUNICATION = (
    by(KEYS, increase(of_regions(metric)))
    for metric in (REGION_KERNELS, REGION_KERNEL_TIME, REGION_COPIED, REGION_HOST_WAIT, REGION_COMMUNICATION)
)
EACH: Final = Section(
    "Each call",
    (
        Panel(
            title="Duration",
            shows="Mean and 95th percentile (dashed) of a call's time on the wall clock, waiting included. The "
            "percentile is as fine as the histogram's buckets. The axis is logarithmic.",
            conclude="The percentile far above the mean: a few calls wait for something.",
            do="Click a dot: it is a call of that duration, and opens its trace.",
            empty=NO_REGION,
            unit="s",
            queries=(
                Query(f"{DURATION} / {CALLS}", f"{REGION_NAME}, mean"),
                Query(
                    f"histogram_quantile(0.95, {_BUCKETS})",
                    f"{REGION_NAME}, 95th percentile",
                    thin=True,
                    exemplars=True,
                ),
            ),
            logarithmic=True,
            legend="right",
            width=24,
            height=9,
        ),
        Panel(
            title="GPU time for a call",
            shows="Busy seconds of GPUs that one call causes, on all its GPUs together.",
            conclude="Far below its duration: the GPU waits. Above it: several GPUs work for one call.",
            do="Where the GPU waits, read the regime of the region.",
            empty=_REFUSED,
            unit="s",
            queries=(Query(known(f"{TIME} / {CALLS}", TIME, TIME_UNCERTAIN), REGION_NAME),),
        ),
        Panel(
            title="Energy for a call",
            shows="Energy of the GPUs that one call causes, its share of their idle power included.",
            conclude="It grows when calls get heavier, or when the GPU waits between them.",
            do="Compare it with the GPU time for a call: if only the energy grew, the GPU waits more.",
            empty=_REFUSED,
            unit="joule",
            queries=(Query(known(f"{ENERGY} / {CALLS}", ENERGY, ENERGY_UNCERTAIN), REGION_NAME),),
        ),
        Panel(
            title="Calls",
            shows="Executions a second, sampled by the tracer or not, on however many GPUs.",
            conclude="A cost that grows with the calls is demand; one that grows without them is a regression.",
            do="Divide: “GPU time for a call” does not depend on the number of calls.",
            empty=NO_REGION,
            unit="cps",
            queries=(Query(CALLS, REGION_NAME),),
        ),
        Panel(
            title="Failed calls",
            shows="Share of calls that ended in an exception. The other panels count them like any other call.",
            conclude="Failures cost GPU time too.",
            do="Find the exception in the traces of the region.",
            empty="No call of these regions has failed, or none ran",
            unit="percentunit",
            queries=(Query(f"{ERRORS} / {CALLS}", REGION_NAME),),
        ),
        Panel(
            title="Items",
            shows="Units of work a second, as the program counts them: images, tokens, requests.",
            conclude="This is the throughput that the GPUs are paid for.",
            do="Compare it before and after a deployment.",
            empty="These regions count no items: pass `items=` to `region`",
            unit="cps",
            queries=(Query(_ITEMS, REGION_NAME),),
        ),
        Panel(
            title="Energy for an item",
            shows="Energy of the GPUs for one unit of work.",
            conclude="Compare it within a region over time, never between regions that count unlike things.",
            do="Larger batches lower it, until memory or latency ends that.",
            empty="These regions count no items, or their energy is not certain",
            unit="joule",
            queries=(Query(known(f"{ENERGY} / {_ITEMS}", ENERGY, ENERGY_UNCERTAIN), REGION_NAME),),
        ),
    ),
)

PLACES: Final = Section(
    "On which GPUs",
    (
        Panel(
            title="GPUs of these regions",
            shows="GPU time and energy of the chosen regions on each GPU, over this range.",
            conclude="Unequal rows within one job: its GPUs do unequal work.",
            do="Click a GPU for its faults, clocks and other users.",
            empty="These regions ran on no GPU that an exporter publishes",
            queries=tuple(
                Query(named_with_node(by("hw_id", increase(of_regions(metric)))), "")
                for metric in (REGION_BUSY, REGION_ENERGY)
            ),
            kind="table",
            width=24,
            height=6,
            sort="GPU time",
            columns=(
                Column("instance", "Node"),
                Column("index", "GPU", link=TO_GPU, width=70),
                Column("slice", "Part", width=90),
                Column("hw_name", "Model"),
                Column("Value #A", "GPU time", "s"),
                Column("Value #B", "Energy", "joule"),
                Column("hw_id", "UUID"),
            ),
        ),
        Panel(
            title="Kernels by region in this time range",
            shows="Of the calls that a window of the profiler saw: how many, and the contents of one call.",
            conclude="A mean kernel below 20 µs: launches cost as much as the work.",
            do="Capture a CUDA graph, fuse kernels, or batch more.",
            empty=_UNSEEN,
            queries=(
                Query(_PROFILED, ""),
                Query(f"{_KERNELS} / {_PROFILED}", ""),
                Query(f"{_KERNEL_TIME} / ({_KERNELS} > 0)", ""),
                Query(f"{_COPIED} / {_PROFILED}", ""),
            ),
            kind="table",
            columns=(
                Column("region", "Region"),
                *WHERE[1:3],
                Column("Value #A", "Calls seen", "none", whole=True),
                Column("Value #B", "Kernels a call", "none"),
                Column("Value #C", "Mean kernel", "s"),
                Column("Value #D", "Copied a call", "bytes"),
            ),
        ),
        Panel(
            title="Waiting for the host",
            shows="Share of the GPU's time in calls that a window of the profiler saw in which nothing was launched.",
            conclude="Above a quarter, the host is the limit.",
            do="Prefetch input, batch more, or capture a CUDA graph.",
            empty=_UNSEEN,
            unit="percentunit",
            queries=(Query(f"sort_desc({_HOST_WAIT} / {_PROFILED_TIME})", REGION_NAME),),
            maximum=1,
            width=6,
            **BARS,
        ),
        Panel(
            title="Communication",
            shows="Share of the GPU's time in calls that a window of the profiler saw in which a collective ran, "
            "hidden behind other kernels or not.",
            conclude="Above a quarter, the links between GPUs may be the limit.",
            do="Overlap collectives with the backward pass, or compress gradients.",
            empty=_UNSEEN,
            unit="percentunit",
            queries=(Query(f"sort_desc({_COMMUNICATION} / {_PROFILED_TIME})", REGION_NAME),),
            maximum=1,
            width=6,
            **BARS,
        ),
        Panel(
            title="Arithmetic by region",
            shows="Floating-point operations a second, over all time and not only a region's own.",
            conclude="Divide it by the peak of the GPU for the share of its arithmetic that you use.",
            do="docs/roofline.md shows the ceilings that apply.",
            empty="No operations are counted here: docs/profiling.md",
            unit="flops",
            queries=(Query(by(KEYS, rate(of_regions(REGION_FLOPS))), REGION_NAME),),
        ),
        Panel(
            title="Memory traffic by region",
            shows="Bytes a second that operations read and write at least.",
            conclude="The memory may move more: caches do not catch everything.",
            do="Compare it with the bandwidth of the GPU: docs/roofline.md.",
            empty="No operations are counted here: docs/profiling.md",
            unit="Bps",
            queries=(Query(by(KEYS, rate(of_regions(REGION_TRAFFIC))), REGION_NAME),),
        ),
    ),
)
