"""The dashboard of a training job: does it progress, which rank is slow, what do its GPUs wait for."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import board
import devices
import incident
from links import TO_GPU, TO_REGION
from panels import COUNT, STAT, Column, Panel, Query, Section
from queries import by, by_regime, fraction, increase, known, named_with_node, of_job, of_job_gpus, rate

from gpu_profile.catalogue.metrics import (
    BUSY,
    REGION_BUSY,
    REGION_BUSY_UNCERTAIN,
    REGION_COMMUNICATION,
    REGION_DURATION,
    REGION_ENERGY,
    REGION_ENERGY_UNCERTAIN,
    REGION_FLOPS,
    REGION_HOST_WAIT,
    REGION_ITEMS,
    REGION_PROFILED_TIME,
)

#: A rank is a process, and a process is a scrape target: its instance.
_RANK: Final = "cluster, namespace, job, version, region, instance"
_JOB: Final = "cluster, namespace, job, version, region"
_NAME: Final = "{{region}} · {{namespace}} {{job}} {{version}}"
_EMPTY: Final = "No region of this job is scraped: does every rank call serve_metrics, on a port of its own?"
_STEPS, _SECONDS = (by(_RANK, rate(of_job(REGION_DURATION, part=part))) for part in ("_count", "_sum"))
_STEP: Final = f"({_SECONDS} / ({_STEPS} > 0))"
_ENERGY, _ENERGY_UNCERTAIN, _ITEMS = (
    by(_JOB, rate(of_job(metric))) for metric in (REGION_ENERGY, REGION_ENERGY_UNCERTAIN, REGION_ITEMS)
)
_CALLS: Final = by(_JOB, rate(of_job(REGION_DURATION, part="_count")))
_OF_GPU: Final = by("hw_id", f"{rate(of_job(REGION_BUSY))} + {rate(of_job(REGION_BUSY_UNCERTAIN))}")
_PROFILED: Final = f"({by(_RANK, increase(of_job(REGION_PROFILED_TIME)))} > 0)"


def _over_typical(step: str) -> str:
    """Each rank's seconds for a call over the median of its region's ranks."""
    return f"({step} / on ({_JOB}) group_left () quantile by ({_JOB}) (0.5, {step}))"


_STEP_OF_RANGE: Final = (
    f"({by(_RANK, increase(of_job(REGION_DURATION, part='_sum')))} / "
    f"({by(_RANK, increase(of_job(REGION_DURATION, part='_count')))} > 0))"
)

PROGRESS: Final = Section(
    "Does it progress?",
    (
        Panel(
            title="Slow ranks",
            shows="Ranks (processes) whose mean call of a region takes a fifth longer than the median of the ranks, in "
            "this range. Calls below 10 ms do not count.",
            conclude="Orange: every other rank waits for the slow one in the next collective.",
            do="The table of ranks names it; look for lowered clocks or faults of its GPU.",
            empty=_EMPTY,
            queries=(
                Query(
                    fraction(
                        by("instance", f"{_over_typical(_STEP_OF_RANGE)} > 1.2 and {_STEP_OF_RANGE} > 0.01", "max"),
                        by("instance", _STEP_OF_RANGE, "max"),
                    ),
                    "",
                ),
            ),
            alarm="orange",
            **COUNT,
        ),
        Panel(
            title="Ranks that do nothing",
            shows="Ranks without one completed call in the last minutes, of those with calls in this range.",
            conclude="Red: a rank hangs, or has ended. Without all others it is a dead peer.",
            do="Look at its stack (`py-spy dump`), then at “GPUs spinning” above.",
            empty=_EMPTY,
            queries=(
                Query(
                    fraction(
                        f"{by('instance', increase(of_job(REGION_DURATION, part='_count')))} unless on (instance) "
                        f"({by('instance', rate(of_job(REGION_DURATION, part='_count')))} > 0)",
                        by("instance", increase(of_job(REGION_DURATION, part="_count"))),
                    ),
                    "",
                ),
            ),
            **COUNT,
        ),
        Panel(
            title="GPUs of the job",
            shows="GPUs that a region of this job kept busy in this range.",
            conclude="Fewer than the job was given: some of its GPUs do nothing.",
            do="Compare it with the number of ranks.",
            empty="No region of this job ran on a GPU",
            queries=(Query(f"count({by('hw_id', increase(of_job(REGION_BUSY)))} > 0)", "GPUs"),),
            **STAT | {"height": 3},
        ),
        Panel(
            title="Utilisation of its GPUs",
            shows="Mean share of time in which the GPUs of the job ran kernels, of whichever program.",
            conclude="Below 0.8 a job of training waits for input or for its peers.",
            do="Read “GPU time by regime”: HOST_BOUND is input, COMMUNICATION_BOUND are the peers.",
            empty="No GPU of this job is published by an exporter",
            unit="percentunit",
            queries=(Query(f"avg({rate(of_job_gpus(BUSY))})", "utilisation"),),
            thresholds=((None, "red"), (0.5, "orange"), (0.8, "green")),
            **STAT | {"height": 3},
        ),
        Panel(
            title="Energy in this time range",
            shows="Joules of the GPUs for the regions of this job.",
            conclude="3.6 MJ are one kilowatt-hour.",
            do="Divide it by the steps for the price of a step, and compare runs.",
            empty="The GPUs of this job report no energy",
            unit="joule",
            queries=(
                Query(
                    f"sum({increase(of_job(REGION_ENERGY))}) + sum({increase(of_job(REGION_ENERGY_UNCERTAIN))})",
                    "energy",
                ),
            ),
            **STAT | {"height": 3},
        ),
        Panel(
            title="Price in this time range",
            shows="The job's GPUs for the whole range, at the price of a GPU-hour that is typed in at the top.",
            conclude="The utilisation beside it is the part that buys work.",
            do="Type in your own price.",
            empty="No region of this job ran on a GPU, or the price is no number",
            queries=(
                Query(f"count({by('hw_id', increase(of_job(REGION_BUSY)))} > 0) * $__range_s / 3600 * $price", "price"),
            ),
            **STAT | {"height": 3},
        ),
        Panel(
            title="Calls of all ranks",
            shows="Executions a second of each region, over all ranks. For the region of a training step, steps times "
            "ranks.",
            conclude="A line that falls to 0 while the job runs: it hangs, or it writes a checkpoint.",
            do="Choose the region of a step at the top.",
            empty=_EMPTY,
            unit="cps",
            queries=(Query(_CALLS, _NAME),),
        ),
        Panel(
            title="Items",
            shows="Units of work a second over all ranks: samples or tokens, as the program counts them.",
            conclude="This is the speed of the training.",
            do="Compare it before and after a change.",
            empty="This job counts no items: pass `items=` to `region`",
            unit="cps",
            queries=(Query(_ITEMS, _NAME),),
        ),
    ),
)

RANKS: Final = Section(
    "Which rank is slow?",
    (
        Panel(
            title="Duration of a call by rank",
            shows="Mean seconds of a call, by region and process.",
            conclude="One line above the others: a slow rank. All lines up together: input, network or a heavier step.",
            do="For one rank, open its GPU; for all, read the regimes.",
            empty=_EMPTY,
            unit="s",
            queries=(Query(_STEP, "{{region}} · {{instance}}"),),
            legend="right",
        ),
        Panel(
            title="Ranks, the slowest first",
            shows="Mean call in this range by region and process, and, from 10 ms on, over the median of the ranks.",
            conclude="Orange from 1.2 on: the rank slows the whole job.",
            do="Find its GPU in the table below.",
            empty=_EMPTY,
            queries=(
                Query(_STEP_OF_RANGE, ""),
                Query(f"{_over_typical(_STEP_OF_RANGE)} and {_STEP_OF_RANGE} > 0.01", ""),
            ),
            kind="table",
            sort="Over the median",
            columns=(
                Column("instance", "Rank"),
                Column("region", "Region", link=TO_REGION),
                Column("namespace", "Namespace"),
                Column("job", "Job"),
                Column("version", "Version"),
                Column("Value #A", "Duration of a call", "s"),
                Column("Value #B", "Over the median", "none", limits=((1.2, "orange"),)),
            ),
        ),
        Panel(
            title="GPUs of this job",
            shows="GPU time of the job on each of its GPUs, as a share of time now.",
            conclude="Unequal shares: the work is not balanced, or one GPU is slower.",
            do="Click a GPU for its clocks, faults and other users.",
            empty="No region of this job ran on a GPU that an exporter publishes",
            queries=(Query(named_with_node(_OF_GPU), ""),),
            kind="table",
            sort="Share of time",
            columns=(
                Column("instance", "Node"),
                Column("index", "GPU", link=TO_GPU, width=70),
                Column("hw_name", "Model"),
                Column("Value", "Share of time", "percentunit"),
                Column("hw_id", "UUID"),
            ),
        ),
        devices.utilisation(of_job_gpus),
    ),
)

WAITS: Final = Section(
    "What do its GPUs wait for?",
    (
        Panel(
            title="GPU time by regime",
            shows="Busy GPU time of the job by the bound of its speed: each region's time is shared out by the "
            "verdicts on its calls.",
            conclude="HOST_BOUND: input or Python. COMMUNICATION_BOUND: peers or network. The rest is work.",
            do="For HOST_BOUND add workers to the DataLoader; for COMMUNICATION_BOUND overlap it with the backward "
            "pass.",
            empty=_EMPTY,
            queries=(Query(by_regime(of_job), "{{regime}}"),),
            stacked=True,
            regimes=True,
        ),
        devices.activity(of_job_gpus),
        Panel(
            title="Waiting for the host by rank",
            shows="Share of the GPU's time in calls that a window of the profiler saw in which nothing was launched.",
            conclude="Above a quarter, the host of that rank is the limit.",
            do="Give that rank more CPU cores, or prefetch.",
            empty="No profiler looked at this job: docs/kernels.md",
            unit="percentunit",
            queries=(
                Query(f"{by(_RANK, increase(of_job(REGION_HOST_WAIT)))} / {_PROFILED}", "{{region}} · {{instance}}"),
            ),
            width=8,
        ),
        Panel(
            title="Communication by rank",
            shows="Share of the GPU's time in calls that a window of the profiler saw in which a collective ran.",
            conclude="The rank with the least communication is the slow one: the others wait for it in theirs.",
            do="Look at its GPU and at its input.",
            empty="No profiler looked at this job: docs/kernels.md",
            unit="percentunit",
            queries=(
                Query(
                    f"{by(_RANK, increase(of_job(REGION_COMMUNICATION)))} / {_PROFILED}", "{{region}} · {{instance}}"
                ),
            ),
            width=8,
        ),
        Panel(
            title="Arithmetic",
            shows="Floating-point operations a second of all ranks, as far as operations are counted.",
            conclude="Over the peak of the GPUs together, it is the job's model FLOPs utilisation.",
            do="Compare runs by it, as it does not depend on the model's size.",
            empty="No operations are counted here: docs/profiling.md",
            unit="flops",
            queries=(Query(by(_JOB, rate(of_job(REGION_FLOPS))), _NAME),),
            width=8,
        ),
    ),
)

COST: Final = Section(
    "What does it cost?",
    (
        Panel(
            title="Energy for a call",
            shows="Energy of the GPUs for one call of a region, their share of idle power included.",
            conclude="It rises when ranks wait for each other with the power on.",
            do="Compare it with the duration by rank.",
            empty="No region of this job has certain energy yet",
            unit="joule",
            queries=(Query(known(f"{_ENERGY} / {_CALLS}", _ENERGY, _ENERGY_UNCERTAIN), _NAME),),
            width=8,
        ),
        Panel(
            title="Energy for an item",
            shows="Energy of the GPUs for one sample or token, as the program counts them.",
            conclude="The figure to compare runs and kinds of GPU by.",
            do="Larger batches and fewer waits lower it.",
            empty="This job counts no items, or its energy is not certain",
            unit="joule",
            queries=(Query(known(f"{_ENERGY} / {_ITEMS}", _ENERGY, _ENERGY_UNCERTAIN), _NAME),),
            width=8,
        ),
        replace(devices.power(of_job_gpus), width=8),
    ),
)

BOARD: Final = board.Board(
    "training",
    "training job",
    "Does a training job progress, which rank is slow, what do its GPUs wait for, and what does it cost.",
    (
        *board.programs("cluster", "namespace", "job", "region"),
        board.gpus_of_regions("cluster", "namespace", "job", "region", all_of_them=False),
        board.number("price", "Price of a GPU-hour", "2"),
    ),
    (incident.section(of_job_gpus, silent=False), PROGRESS, RANKS, WAITS, COST),
    (board.deploys(), board.xids('cluster=~"$cluster", hw_id=~"$gpu"')),
)
