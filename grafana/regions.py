"""The dashboard of regions: what each costs, what limits it, since which deployment; from there to GPUs and traces."""

from __future__ import annotations

from typing import Final

import board
from calls import (
    CALLS,
    CALLS_OF_RANGE,
    EACH,
    ENERGY,
    ENERGY_OF_RANGE,
    ENERGY_UNCERTAIN,
    ENERGY_UNCERTAIN_OF_RANGE,
    ERRORS,
    NO_REGION,
    PLACES,
    TIME,
    TIME_OF_RANGE,
    TIME_UNCERTAIN,
    TIME_UNCERTAIN_OF_RANGE,
    UNCERTAIN,
    WHERE,
)
from links import TO_REGION
from panels import COUNT, STAT, Column, Panel, Query, Section
from queries import ANY_VERSION, KEYS, RANGE, REGION_NAME, by, by_regime, fraction, increase, known, of_regions, rate

from gpu_profile.catalogue.metrics import REGION_CALLS, REGION_DURATION, REGION_ENERGY, REGION_ENERGY_UNCERTAIN
from gpu_profile.regimes.rule import Regime

_NO_VERDICT: Final = rate(of_regions(REGION_CALLS, {"regime": str(Regime.UNKNOWN)}))
_TIME_OF_CALL: Final = known(f"{TIME_OF_RANGE} / {CALLS_OF_RANGE}", TIME_OF_RANGE, TIME_UNCERTAIN_OF_RANGE)
_ENERGY_OF_CALL: Final = known(f"{ENERGY_OF_RANGE} / {CALLS_OF_RANGE}", ENERGY_OF_RANGE, ENERGY_UNCERTAIN_OF_RANGE)


def _mean_duration(offset: str = "") -> str:
    """Mean seconds of a call over the range of time; `offset` moves the range back."""
    total, count = (
        by(KEYS, f"rate({of_regions(REGION_DURATION, part=part)}[{RANGE}]{offset})") for part in ("_sum", "_count")
    )
    return f"({total} / ({count} > 0))"


def _energy_of_call(offset: str = "") -> str:
    energy, uncertain, count = (
        by(KEYS, f"rate({selector}[{RANGE}]{offset})")
        for selector in (
            of_regions(REGION_ENERGY),
            of_regions(REGION_ENERGY_UNCERTAIN),
            of_regions(REGION_DURATION, part="_count"),
        )
    )
    return f"({known(f'{energy} / ({count} > 0)', energy, uncertain)})"


_SLOWER: Final = (
    f"({by(ANY_VERSION, _mean_duration(), 'avg')} / {by(ANY_VERSION, _mean_duration(f' offset {RANGE}'), 'avg')})"
)
_DEARER: Final = (
    f"({by(ANY_VERSION, _energy_of_call(), 'avg')} / {by(ANY_VERSION, _energy_of_call(f' offset {RANGE}'), 'avg')})"
)

NOW: Final = Section(
    "Verdict",
    (
        Panel(
            title="Regions failing",
            shows="Regions of which more than one call in a hundred ends in an exception, of all chosen ones.",
            conclude="Red: a program fails. The numbers of failing calls are part of all panels below.",
            do="Open “Failed calls” for the region, then its traces.",
            empty=NO_REGION,
            queries=(Query(fraction(f"{ERRORS} / {CALLS} > 0.01", CALLS), ""),),
            **COUNT,
        ),
        Panel(
            title="Regions slower than before",
            shows="Regions whose mean call takes a quarter longer than in the same length of time before this range.",
            conclude="Orange: something changed. The marks on the panels are deployments.",
            do="Compare versions in “Since which deployment”; roll back if one of them is the cause.",
            empty="There is no earlier data to compare with: choose a shorter range",
            queries=(Query(fraction(f"{_SLOWER} > 1.25", _SLOWER), ""),),
            alarm="orange",
            **COUNT,
        ),
        Panel(
            title="GPU time of regions",
            shows="GPUs that these regions keep busy: 1 is one GPU that works all the time.",
            conclude="This is the part of the fleet that you can change in this code.",
            do="Compare it with the GPUs that the programs hold.",
            empty=NO_REGION,
            queries=(Query(f"sum({TIME}) + sum({TIME_UNCERTAIN})", "GPUs"),),
            **STAT | {"height": 3},
        ),
        Panel(
            title="Power of regions",
            shows="Power that goes to these regions, their share of idle power included.",
            conclude="Over a month, 100 W are 73 kWh.",
            do="Look for the region with the most energy for a call.",
            empty="No region here has energy: MIG instances and old GPUs report none",
            unit="watt",
            queries=(Query(f"sum({ENERGY}) + sum({ENERGY_UNCERTAIN})", "power"),),
            **STAT | {"height": 3},
        ),
        Panel(
            title="Time without a verdict",
            shows="Share of the regions' GPU time in calls with the regime UNKNOWN.",
            conclude="Orange: calls are too short, or too few, for the samples. It is no fault of the program.",
            do="Let the exporter keep a node timeline, mark device intervals, or profile a window of kernels.",
            empty=NO_REGION,
            unit="percentunit",
            queries=(
                Query(
                    f"(sum(({by_regime(of_regions)}) and on (regime) {_NO_VERDICT}) or 0 * sum({TIME})) / "
                    f"sum({by_regime(of_regions)})",
                    "UNKNOWN",
                ),
            ),
            thresholds=((None, "green"), (0.5, "orange")),
            **STAT | {"height": 3},
        ),
        Panel(
            title="Uncertain time",
            shows="Share of the regions' GPU time that was divided by time, because their rates were not identifiable.",
            conclude="Orange: compare totals, not single regions.",
            do="Let the program run longer, or vary its calls; regions that always alternate cannot be separated.",
            empty=NO_REGION,
            unit="percentunit",
            queries=(Query(f"sum({TIME_UNCERTAIN}) / (sum({TIME}) + sum({TIME_UNCERTAIN}) > 0)", "uncertain"),),
            thresholds=((None, "green"), (0.3, "orange")),
            **STAT | {"height": 3},
        ),
    ),
)

OVERVIEW: Final = Section(
    "Which region costs what, and what limits it",
    (
        Panel(
            title="Cost of each region",
            shows="Over this range: calls, GPU time and energy in total and for a call, and the price of the GPU time. "
            "Empty cells: the value is not certain, or the GPU does not report it.",
            conclude="The first row is worth the most work. GPU time far below the duration: the GPU waits.",
            do="Read the regime of the first rows in the table below, and follow its advice.",
            empty=NO_REGION,
            queries=(
                Query(CALLS_OF_RANGE, ""),
                Query(_mean_duration(), ""),
                Query(f"{TIME_OF_RANGE} + {TIME_UNCERTAIN_OF_RANGE}", ""),
                Query(_TIME_OF_CALL, ""),
                Query(f"{ENERGY_OF_RANGE} + {ENERGY_UNCERTAIN_OF_RANGE}", ""),
                Query(_ENERGY_OF_CALL, ""),
                Query(f"({TIME_OF_RANGE} + {TIME_UNCERTAIN_OF_RANGE}) / 3600 * $price", ""),
            ),
            kind="table",
            width=24,
            height=9,
            sort="GPU time",
            columns=(
                Column("region", "Region", link=TO_REGION),
                *WHERE,
                Column("Value #A", "Calls", "short", whole=True),
                Column("Value #B", "Duration of a call", "s"),
                Column("Value #C", "GPU time", "s"),
                Column("Value #D", "GPU time of a call", "s"),
                Column("Value #E", "Energy", "joule"),
                Column("Value #F", "Energy of a call", "joule"),
                Column("Value #G", "Price", "none"),
            ),
        ),
        Panel(
            title="Regime by region",
            shows="Share of each region's calls in this range by the bound of their speed. UNKNOWN is too little "
            "evidence, for example calls too short for the samples.",
            conclude="A region with one clear regime has one clear remedy; a mixed one does unlike things.",
            do="HOST_BOUND: prefetch input. OVERHEAD_BOUND: batch more, CUDA graphs. MEMORY_BOUND: fuse kernels, "
            "smaller types. COMPUTE_BOUND: tensor cores, or a faster GPU.",
            empty=NO_REGION,
            unit="percentunit",
            queries=(
                Query(
                    f"label_join(({by(f'{KEYS}, regime', increase(of_regions(REGION_CALLS)))} > 0) / on ({KEYS}) "
                    f'group_left () {by(KEYS, increase(of_regions(REGION_CALLS)))}, "Region", " ", "region", '
                    '"namespace", "job", "service_name", "version")',
                    "",
                ),
            ),
            kind="table",
            matrix=("Region", "regime"),
            regimes=True,
        ),
        Panel(
            title="GPU time by regime",
            shows="Busy GPU time of these regions by the bound of their speed: each region's time is shared out by the "
            "verdicts on its calls.",
            conclude="The widest band limits the programs.",
            do="For a band that begins at a deployment, compare the versions in “Since which deployment”.",
            empty=NO_REGION,
            queries=(Query(by_regime(of_regions), "{{regime}}"),),
            stacked=True,
            regimes=True,
        ),
        Panel(
            title="GPU time by region",
            shows="GPUs that each region keeps busy. 100 % is one GPU that works all the time, so two can reach 200 %.",
            conclude="A band that widens at a deployment costs GPUs from then on.",
            do="Click the region in the table above to see it alone.",
            empty=NO_REGION,
            unit="percentunit",
            queries=(Query(TIME, REGION_NAME), Query(f"{TIME_UNCERTAIN} > 0", UNCERTAIN)),
            stacked=True,
        ),
        Panel(
            title="Power by region",
            shows="Energy a second that goes to each region. The rest of the GPUs' power goes elsewhere.",
            conclude="A region with much power and little GPU time keeps a GPU awake without using it.",
            do="Shorten its waits, or free the GPU in them.",
            empty="No region here has energy: MIG instances and old GPUs report none",
            unit="watt",
            queries=(Query(ENERGY, REGION_NAME), Query(f"{ENERGY_UNCERTAIN} > 0", UNCERTAIN)),
            stacked=True,
        ),
    ),
)

DEPLOYS: Final = Section(
    "Since which deployment",
    (
        Panel(
            title="Versions side by side",
            shows="Each region by version, over this range. The version is a label of the scrape; “since” is the start "
            "of the oldest process that still runs.",
            conclude="Two rows of a region with unlike cost: the newer version changed it.",
            do="Roll back, or bisect between the two versions.",
            empty=NO_REGION,
            queries=(
                Query(_mean_duration(), ""),
                Query(_TIME_OF_CALL, ""),
                Query(_ENERGY_OF_CALL, ""),
                Query(
                    f"{by(KEYS, _mean_duration(), 'count')} * on (cluster, namespace, job, version) group_left () "
                    "(1000 * min by (cluster, namespace, job, version) (process_start_time_seconds))",
                    "",
                ),
            ),
            kind="table",
            width=24,
            height=6,
            columns=(
                Column("region", "Region", link=TO_REGION),
                *WHERE,
                Column("Value #D", "Since", "dateTimeAsIso"),
                Column("Value #A", "Duration of a call", "s"),
                Column("Value #B", "GPU time of a call", "s"),
                Column("Value #C", "Energy of a call", "joule"),
            ),
        ),
        Panel(
            title="Change against the time before",
            shows="Duration and energy of a call in this range, divided by those in the same length of time before it.",
            conclude="Above 1: slower, or dearer. Orange from a quarter on.",
            do="Move the range until the change is at its start; the nearest mark is the deployment.",
            empty="There is no earlier data to compare with: choose a shorter range",
            queries=(Query(_SLOWER, ""), Query(_DEARER, "")),
            kind="table",
            width=24,
            height=6,
            sort="Duration",
            columns=(
                Column("region", "Region", link=TO_REGION),
                *WHERE[:3],
                Column("Value #A", "Duration", "none", limits=((1.25, "orange"),)),
                Column("Value #B", "Energy", "none", limits=((1.25, "orange"),)),
            ),
        ),
    ),
)

BOARD: Final = board.Board(
    "regions",
    "regions of programs",
    "Which region of which program costs what, what limits it, and since which deployment.",
    (
        *board.programs("cluster", "namespace", "job", "service_name", "version", "region"),
        board.gpus_of_regions("cluster", "namespace", "job", "service_name", "version", "region"),
        board.number("price", "Price of a GPU-hour", "2"),
    ),
    (NOW, OVERVIEW, DEPLOYS, EACH, PLACES),
    (board.deploys(), board.xids('cluster=~"$cluster", hw_id=~"$gpu"')),
)
