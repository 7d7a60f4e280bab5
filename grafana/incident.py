"""The first row of the dashboards of GPUs: how many of how many have a fault, and why."""

from __future__ import annotations

from typing import Final

from links import TO_GPU, TO_NODE
from panels import COUNT, Column, Panel, Query, Section
from queries import (
    NODE,
    TARGET,
    SelectDevices,
    because,
    by,
    first_of,
    fraction,
    increase,
    increase_from_first,
    named,
    physical,
    rate,
)
from queries import throttled as throttled_by

from gpu_profile.catalogue import metric_of
from gpu_profile.catalogue.metric import Metric, label
from gpu_profile.catalogue.metrics import BUILD_INFO, DEVICE_UP, DRIVER_UP, SPINNING
from gpu_profile.catalogue.self_metrics import XID_ANY, XID_ERRORS
from gpu_profile.catalogue.signals import (
    ECC_UNCORRECTED,
    RECOVERY_ACTION,
    REMAP_FAILURE,
    REMAP_PENDING,
    TEMPERATURE,
    THROTTLES,
)
from gpu_profile.catalogue.xids import XIDS, XidTier

XID: Final = label("nvidia.gpu.xid")
THROTTLE: Final = "nvidia.gpu.throttle.reason"
#: Codes that are most often defects of a program, so no fault of the GPU.
OF_PROGRAMS: Final = "|".join(str(xid.code) for xid in XIDS if xid.tier is XidTier.APPLICATION)
#: Reasons for lower clocks that are faults; a power cap is normal under full load.
_FAULTY: Final = ("hw_power_brake", "hw_thermal", "sw_thermal")
_GPU: Final = "GPUs that report it, of those chosen. MIG instances do not count besides their GPU."
_WHY: Final = "See the table below for the GPU and the reason."


def xid_growth(select: SelectDevices) -> str:
    """XID errors by GPU and code in the range of time, without the codes of programs' defects."""
    errors = select(XID_ERRORS).where(f'{XID}!~"{OF_PROGRAMS}"')
    return f"{increase_from_first(errors)} > 0"


def slowed(select: SelectDevices) -> str:
    """Share of time for which heat or a power brake lowers the clocks of each GPU, by reason."""
    reasons = tuple(row for row in THROTTLES if dict(row.attributes)[THROTTLE] in _FAULTY)
    names = tuple(dict(row.attributes)[THROTTLE] for row in reasons)

    def chosen(metric: Metric) -> str:
        return select(metric, {THROTTLE: names})

    return throttled_by(rate, chosen)


def _unreached(select: SelectDevices) -> str:
    """Targets that served an exporter in the range of time, and that no scrape job reaches now."""
    build = select(BUILD_INFO)
    exporters = f"last_over_time({build.selector}[$__range])"
    down = 'up{cluster=~"$cluster", instance=~"$instance"} == 0'
    return f"({down} and on ({TARGET}) {exporters} unless on ({NODE}) {build})"


def _worn(select: SelectDevices) -> tuple[str, str, str]:
    uncorrected = increase(select(metric_of(ECC_UNCORRECTED), dict(ECC_UNCORRECTED.attributes)))
    return uncorrected, select(metric_of(REMAP_PENDING)), select(metric_of(REMAP_FAILURE))


def reasons(select: SelectDevices) -> str:
    """A series for each GPU and reason for which the first row is not green."""
    uncorrected, pending, failed = _worn(select)
    of_xid = by(f"cluster, instance, hw_id, {XID}", xid_growth(select))
    of_clocks = by(f"cluster, instance, hw_id, {label(THROTTLE)}", f"{slowed(select)} > 0.1")
    return first_of(
        because("does not answer", f"{select(DEVICE_UP)} == 0"),
        by("cluster, instance, hw_id, reason", f'label_replace({of_xid}, "reason", "XID $1", "{XID}", "(.+)")', "max"),
        because("memory error that ECC could not correct", f"{uncorrected} > 0"),
        because("memory row waits for a reset to be remapped", f"{pending} > 0"),
        because("memory row could not be remapped", f"{failed} > 0"),
        because("driver asks for a reset or a reboot", f"{select(metric_of(RECOVERY_ACTION))} > 0"),
        because("busy, but nothing moves", f"{rate(select(SPINNING))} > 0.5"),
        by(
            "cluster, instance, hw_id, reason",
            f'label_replace({of_clocks}, "reason", "clocks lowered: $1", "{label(THROTTLE)}", "(.+)")',
            "max",
        ),
    )


_MEANINGS: Final = tuple((f"XID {xid.code}", f"XID {xid.code}: {xid.meaning}") for xid in XIDS)


def _count(title: str, part: str, whole: str, *, shows: str, do: str, empty: str, alarm: str = "red") -> Panel:
    return Panel(
        title=title,
        shows=f"{shows} {_GPU}",
        conclude=f"{alarm.title()}: at least one GPU has a fault. {_WHY}",
        do=do,
        empty=empty,
        queries=(Query(fraction(part, whole), ""),),
        alarm=alarm,
        **COUNT,
    )


def section(select: SelectDevices, *, silent: bool = True) -> Section:
    """The row for the GPUs of `select`. `silent`: with the exporters that do not answer."""
    uncorrected, pending, failed = _worn(select)
    worn = first_of(f"{uncorrected} > 0", f"{pending} > 0", f"{failed} > 0")
    exporters = f"last_over_time({select(BUILD_INFO).selector}[$__range])"
    unreached, driverless = _unreached(select), f"{select(DRIVER_UP)} == 0"
    faults = named(reasons(select))
    if silent:
        faults = first_of(
            faults,
            because("the exporter cannot be scraped", unreached, NODE),
            because("the driver does not answer", driverless, NODE),
        )
    nodes = Panel(
        title="Nodes silent",
        shows="Nodes whose exporter Prometheus cannot scrape, or whose driver does not answer the exporter.",
        conclude="Red: nothing is measured there, and the GPUs of that node are missing from all other numbers.",
        do="The table below names the node. Open the pod or unit of its exporter; `/-/ready` has the driver's error.",
        empty="No exporter was scraped in this time range: check the scrape configuration",
        queries=(
            Query(
                fraction(by("instance", first_of(unreached, driverless), "max"), by("instance", exporters, "max")), ""
            ),
        ),
        **COUNT,
    )
    table = Panel(
        title="What is wrong, and where",
        shows="One row for each fault of a GPU or its node: losses, waits and lowered clocks now, XID and memory "
        "errors of this time range. XIDs that are most often a defect of a program (such as 13, 31, 43 and 45) are "
        "left out.",
        conclude="Results of programs on these GPUs are lost or suspect, except where clocks are lowered.",
        do="Drain the GPU, read its node's kernel log around the error, then reset it. If the fault comes again, have "
        "the GPU replaced. The alert on each fault has a runbook.",
        empty="No fault: every node and GPU answers, and none reports an error in this time range",
        queries=(Query(faults, ""),),
        kind="table",
        width=24,
        height=6,
        columns=(
            Column("instance", "Node", link=TO_NODE, width=220),
            Column("index", "GPU", link=TO_GPU, width=70),
            Column("reason", "Fault", texts=_MEANINGS),
            Column("hw_name", "Model", width=220),
            Column("slice", "Part", width=100),
            Column("hw_id", "UUID", width=340),
        ),
    )
    return Section(
        "Incidents",
        (
            *((nodes,) if silent else ()),
            _count(
                "GPUs lost",
                physical(by("hw_id", f"{select(DEVICE_UP)} == 0", "max")),
                physical(by("hw_id", select(DEVICE_UP), "max")),
                shows="GPUs that do not answer the driver now.",
                do="Drain the node, and reset the GPU or reboot; XID 79 in the kernel log means that it fell off the "
                "bus.",
                empty="No GPU is published here: see “Nodes silent”, or choose another node",
            ),
            _count(
                "GPUs with XID errors",
                physical(by("hw_id", xid_growth(select))),
                physical(by("hw_id", increase(select(XID_ANY)), "max")),
                shows="GPUs with an XID error of the hardware or the driver in this time range.",
                do="Do not trust results of the programs that ran there. Drain and reset the GPU.",
                empty="No GPU has reported XIDs for long enough: two scrapes are needed",
            ),
            _count(
                "GPUs with bad memory",
                physical(by("hw_id", worn, "max")),
                physical(by("hw_id", uncorrected, "max")),
                shows="GPUs with an uncorrected memory error in this time range, or with a row to remap.",
                do="Reset the GPU at the next opportunity. Have it replaced if a row could not be remapped.",
                empty="None of these GPUs reports ECC errors",
            ),
            _count(
                "GPUs slowed by faults",
                physical(by("hw_id", f"{slowed(select)} > 0.1", "max")),
                physical(by("hw_id", slowed(select), "max")),
                shows="GPUs whose clocks heat or a power brake lowers for more than a tenth of the time.",
                do="Check fans, inlet temperature and power supplies of the node.",
                empty="None of these GPUs reports why its clocks are lowered",
                alarm="orange",
            ),
            _count(
                "GPUs spinning",
                physical(by("hw_id", f"{rate(select(SPINNING))} > 0.5", "max")),
                physical(by("hw_id", rate(select(SPINNING)), "max")),
                shows="GPUs that are busy while nothing moves for more than half of the time.",
                do="Look for a rank that died or hangs: its peers wait in a collective at full utilisation.",
                empty="The sensors of these GPUs cannot decide whether they spin",
            ),
            table,
        ),
    )


def hottest(select: SelectDevices) -> str:
    """Temperature of the core of each GPU, in °C."""
    return select(metric_of(TEMPERATURE), dict(TEMPERATURE.attributes))
