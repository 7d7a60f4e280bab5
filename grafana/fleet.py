"""The dashboard of the fleet: idle GPUs and their cost, the limits of the work, the worst nodes."""

from __future__ import annotations

from typing import Final

import board
import incident
from links import TO_NODE, TO_REGION
from panels import BARS, COUNT, STAT, Column, Panel, Query, Section
from queries import (
    IDLE,
    KEYS,
    RANGE,
    by,
    by_regime,
    first_of,
    fraction,
    idle_energy,
    idle_time,
    increase,
    of_fleet,
    of_nodes,
    parents,
    physical,
    rate,
    throttled,
)

from gpu_profile.catalogue import metric_of
from gpu_profile.catalogue.allocation import ALLOCATION_INFO, HELD_ENERGY, HELD_TIME, UNHELD_ENERGY
from gpu_profile.catalogue.metrics import (
    BUSY,
    DEVICE_INFO,
    DEVICE_UP,
    OBSERVED,
    REGION_BUSY,
    REGION_BUSY_UNCERTAIN,
    REGION_ENERGY,
    REGION_ENERGY_UNCERTAIN,
    SPINNING,
)
from gpu_profile.catalogue.samples import DeviceKind
from gpu_profile.catalogue.self_metrics import XID_ANY
from gpu_profile.catalogue.signals import ENERGY

_BUSY, _SEEN = (physical(increase(of_nodes(metric))) for metric in (BUSY, OBSERVED))
_HELD: Final = by("hw_id", of_nodes(ALLOCATION_INFO), "count")
_HELD_PARTS: Final = f"{of_nodes(DEVICE_INFO, {'kind': DeviceKind.MIG.value})} and on (hw_id) {_HELD}"
_HELD_GPUS: Final = first_of(physical(_HELD), by("hw_id", parents(_HELD_PARTS, ""), "max"))
_IDLE_GPUS: Final = f"{rate(of_nodes(BUSY), RANGE)} < {IDLE}"
_IDLE_S: Final = idle_time(of_nodes)
_IDLE_JOULES: Final = idle_energy(of_nodes)
_WORKING, _SPINNING, _OBSERVED = (f"sum({physical(rate(of_nodes(metric)))})" for metric in (BUSY, SPINNING, OBSERVED))
_NODE: Final = "cluster, instance"
_TOTAL_TIME, _TOTAL_ENERGY = (
    f"{by(KEYS, increase(of_fleet(certain)))} + {by(KEYS, increase(of_fleet(uncertain)))}"
    for certain, uncertain in ((REGION_BUSY, REGION_BUSY_UNCERTAIN), (REGION_ENERGY, REGION_ENERGY_UNCERTAIN))
)
_MOST: Final = f"topk(10, {_TOTAL_TIME})"
_HOLDER: Final = "k8s_namespace_name, k8s_pod_name, slurm_job_id, container_id, systemd_unit_name"
_NAMED: Final = " ".join(f"{{{{{name}}}}}" for name in _HOLDER.split(", "))

COST: Final = Section(
    "Allocated, idle, wasted",
    (
        Panel(
            title="GPUs allocated",
            shows="GPUs that a pod, a job, a container or a unit holds, as a whole or as a MIG instance.",
            conclude="A full fleet with a low mean utilisation is one that is reserved, not used.",
            do="Compare with “Allocated and idle” before you buy more.",
            empty="No source of attribution reports holders: docs/attribution.md",
            queries=(Query(fraction(_HELD_GPUS, physical(by("hw_id", of_nodes(DEVICE_UP), "max"))), ""),),
            alarm="blue",
            **COUNT,
        ),
        Panel(
            title="Allocated and idle",
            shows="Of the allocated GPUs and MIG instances, those with less than 5 % utilisation over the whole range.",
            conclude="Orange: somebody holds GPUs and does not use them. Choose a range of hours, not minutes.",
            do="Sort the nodes below by idle time; the dashboard of a node names the holders.",
            empty="No source of attribution reports holders: docs/attribution.md",
            queries=(Query(fraction(f"{_HELD} and on (hw_id) ({_IDLE_GPUS})", _HELD), ""),),
            alarm="orange",
            **COUNT,
        ),
        Panel(
            title="Mean utilisation",
            shows="Share of the measured GPU time of this range in which at least one kernel ran.",
            conclude="Below a half, most of the price of the GPUs buys nothing.",
            do="Read “GPU time by regime”: HOST_BOUND work wants better input, the rest of the gap fewer GPUs.",
            empty="No GPU reports busy time in this range",
            unit="percentunit",
            queries=(Query(f"sum({_BUSY}) / sum({_SEEN})", "utilisation"),),
            **STAT | {"height": 3, "thresholds": ((None, "red"), (0.3, "orange"), (0.6, "green"))},
        ),
        Panel(
            title="Idle GPU time",
            shows="Time without any kernel, added up over the GPUs, in this range.",
            conclude="24 hours a day are one GPU too many.",
            do="Give back GPUs, or let more jobs share them.",
            empty="No GPU reports busy time in this range",
            unit="s",
            queries=(Query(f"sum({_IDLE_S})", "idle"),),
            **STAT | {"height": 3, "thresholds": ((None, "orange"),)},
        ),
        Panel(
            title="Price of the idle time",
            shows="Idle GPU time at the price of a GPU-hour that is typed in at the top, in its currency.",
            conclude="It is spent whether the GPUs work or not; all of it buys nothing.",
            do="Type in your own price. The table of nodes divides the sum.",
            empty="No GPU reports busy time in this range, or the price is no number",
            queries=(Query(f"sum({_IDLE_S}) / 3600 * $price", "price"),),
            **STAT | {"height": 3, "thresholds": ((None, "orange"),)},
        ),
        Panel(
            title="Energy while idle",
            shows="Joules of the GPUs at times with less than 5 % utilisation, in this range.",
            conclude="A GPU whose memory is in use keeps its clocks up, and idles at three times the lowest power.",
            do="End processes that hold memory without working; lower idle clocks.",
            empty="No GPU reports both energy and busy time in this range",
            unit="joule",
            queries=(Query(f"sum({_IDLE_JOULES})", "energy"),),
            **STAT | {"height": 3, "thresholds": ((None, "orange"),)},
        ),
        Panel(
            title="What the GPUs do",
            shows="GPUs in use, as whole ones: two that work half of the time are one here. “spinning” is busy "
            "without movement, “idle” is measured time without a kernel.",
            conclude="The height is the number of GPUs that are measured; the part above “working” is waste.",
            do="A step down of the height is a lost node: see the first row.",
            empty="No GPU reports busy time",
            queries=(
                Query(f"{_WORKING} - ({_SPINNING} or 0 * {_WORKING})", "working"),
                Query(_SPINNING, "spinning"),
                Query(f"clamp_min({_OBSERVED} - {_WORKING}, 0)", "idle"),
            ),
            stacked=True,
        ),
        Panel(
            title="Power of the fleet",
            shows="Power of the chosen GPUs from their energy counters, and the part that goes to regions of programs. "
            "Hosts and cooling come on top.",
            conclude="The gap between the lines is power of idle GPUs and of programs without regions.",
            do="Where the gap is large and the GPUs are busy, put regions around the programs that have none.",
            empty="No GPU here reports energy",
            unit="watt",
            queries=(
                Query(f"sum({rate(of_nodes(metric_of(ENERGY)))})", "all GPUs"),
                Query(
                    f"sum({rate(of_fleet(REGION_ENERGY))}) + sum({rate(of_fleet(REGION_ENERGY_UNCERTAIN))})",
                    "regions of programs",
                ),
            ),
        ),
        Panel(
            title="Energy by holder",
            shows="Joules of GPUs in this range by the pod, job, container or unit that was their only holder, idle "
            "time included, or of its MIG instances: the ten largest. Then the joules of no holder, by reason.",
            conclude="Each bar is the energy bill of one holder. “shared” is energy of GPUs with several holders, "
            "“idle” the idle power of GPUs with MIG instances.",
            do="Compare with the GPU-hours beside it: many hours and few joules are a GPU that waits.",
            empty="No source of attribution reports holders: docs/attribution.md",
            unit="joule",
            queries=(
                Query(f"topk(10, {by(_HOLDER, increase(of_nodes(HELD_ENERGY)))} > 0)", _NAMED),
                Query(f"{by('reason', increase(of_nodes(UNHELD_ENERGY)))} > 0", "no holder: {{reason}}"),
            ),
            width=12,
            height=8,
            **BARS,
        ),
        Panel(
            title="GPU time by holder",
            shows="Time for which a pod, job, container or unit held GPUs or MIG instances in this range, added up: "
            "the ten longest.",
            conclude="A holder pays for this time whether its GPUs work or not.",
            do="Open a node's dashboard to see whether they work.",
            empty="No source of attribution reports holders: docs/attribution.md",
            unit="s",
            queries=(Query(f"topk(10, {by(_HOLDER, increase(of_nodes(HELD_TIME)))} > 0)", _NAMED),),
            width=12,
            height=8,
            **BARS,
        ),
    ),
)

REGIMES: Final = Section(
    "What limits the work",
    (
        Panel(
            title="GPU time by regime",
            shows="Busy GPU time of all regions by the bound of their speed: each region's time is shared out by the "
            "verdicts on its calls. Busy time outside regions is not shown.",
            conclude="The widest band is the limit of the fleet. UNKNOWN is too little evidence and no fault.",
            do="HOST_BOUND: faster input. OVERHEAD_BOUND: larger batches, CUDA graphs. MEMORY_BOUND: fusion, smaller "
            "types. COMPUTE_BOUND: faster GPUs. Open the regions below.",
            empty="No program with regions is scraped: docs/quickstart.md",
            queries=(Query(by_regime(of_fleet), "{{regime}}"),),
            stacked=True,
            regimes=True,
        ),
        Panel(
            title="GPU time by regime in this time range",
            shows="The same, added up over the range: hours of busy GPUs by the bound of their speed.",
            conclude="The longest bar is the first thing to work on.",
            do="Open the dashboard of the regions and look which of them have this regime.",
            empty="No program with regions is scraped: docs/quickstart.md",
            unit="s",
            queries=(Query(f"sort_desc({by_regime(of_fleet, increase)} > 0)", "{{regime}}"),),
            regimes=True,
            width=8,
            height=8,
            **BARS,
        ),
        Panel(
            title="GPU time outside regions",
            shows="Share of the busy GPU time that no region of any program accounts for.",
            conclude="High: the dashboards of regions explain only the rest.",
            do="Put `region` around the main loops of the programs without it, or send the exporter their spans.",
            empty="No program with regions is scraped, or no GPU was busy",
            unit="percentunit",
            queries=(Query(f"clamp_min(1 - sum({_TOTAL_TIME}) / sum({_BUSY}), 0)", "outside regions"),),
            thresholds=((None, "green"), (0.5, "orange")),
            **STAT | {"width": 4, "height": 8},
        ),
        Panel(
            title="Regions that cost the most",
            shows="The ten regions with the most GPU time in this range, their energy, and the price of the time.",
            conclude="A saving in the first row is worth more than any in the last.",
            do="Click a region for its calls, its regime and its deployments.",
            empty="No program with regions is scraped: docs/quickstart.md",
            queries=(
                Query(_MOST, ""),
                Query(f"({_TOTAL_ENERGY}) and on ({KEYS}) {_MOST}", ""),
                Query(f"{_MOST} / 3600 * $price", ""),
            ),
            kind="table",
            width=24,
            sort="GPU time",
            columns=(
                Column("region", "Region", link=TO_REGION),
                Column("namespace", "Namespace"),
                Column("job", "Job"),
                Column("service_name", "Service"),
                Column("version", "Version"),
                Column("Value #A", "GPU time", "s"),
                Column("Value #B", "Energy", "joule"),
                Column("Value #C", "Price", "none"),
            ),
        ),
    ),
)

NODES: Final = Section(
    "Worst nodes",
    (
        Panel(
            title="Nodes, the most expensive idle time first",
            shows="One row for each node, over this range. An empty cell: its GPUs do not report it.",
            conclude="Rows with XID errors or lowered clocks are suspects for slow jobs; the first rows are waste.",
            do="Click a node for its GPUs and their holders.",
            empty="No exporter was scraped in this time range: check the scrape configuration",
            queries=(
                Query(f"count by (cluster, instance) ({physical(of_nodes(DEVICE_UP))})", ""),
                Query(by(_NODE, physical(f"{of_nodes(DEVICE_UP)} == bool 0")), ""),
                Query(f"{by(_NODE, _BUSY)} / {by(_NODE, _SEEN)}", ""),
                Query(by(_NODE, _IDLE_S), ""),
                Query(f"{by(_NODE, _IDLE_S)} / 3600 * $price", ""),
                Query(by(_NODE, _IDLE_JOULES), ""),
                Query(by(_NODE, increase(of_nodes(XID_ANY))), ""),
                Query(by(_NODE, throttled(lambda selector: rate(selector, RANGE), of_nodes), "max"), ""),
                Query(by(_NODE, incident.hottest(of_nodes), "max"), ""),
            ),
            kind="table",
            width=24,
            height=8,
            sort="Price of idle time",
            columns=(
                Column("instance", "Node", link=TO_NODE),
                Column("cluster", "Cluster"),
                Column("Value #A", "GPUs", "none", width=70),
                Column("Value #B", "Lost", "none", limits=((1, "red"),), width=70),
                Column("Value #C", "Utilisation", "percentunit"),
                Column("Value #D", "Idle GPU time", "s"),
                Column("Value #E", "Price of idle time", "none"),
                Column("Value #F", "Energy while idle", "joule"),
                Column("Value #G", "XID errors", "none", limits=((0.5, "red"),), whole=True),
                Column("Value #H", "Most lowered clocks", "percentunit", limits=((0.1, "orange"),)),
                Column("Value #I", "Hottest core", "celsius", limits=((85, "red"),)),
            ),
        ),
    ),
)

BOARD: Final = board.Board(
    "fleet",
    "fleet",
    "What is allocated and idle, what the waste costs, what limits the work, and which nodes are worst.",
    (*board.nodes(), board.number("price", "Price of a GPU-hour", "2")),
    (incident.section(of_nodes), COST, REGIMES, NODES),
    (board.xids(),),
    hours=6,
)
