"""The dashboard of a node: its GPUs side by side, who uses them, and their faults."""

from __future__ import annotations

from typing import Final

import board
import devices
import incident
from links import LINE_TO_GPU, TO_GPU_OF_NODE
from panels import STAT, Column, Panel, Query, Section
from queries import GPU_NAME, by, idle_energy, idle_time, increase, of_nodes, physical, rate

from gpu_profile.catalogue import metric_of
from gpu_profile.catalogue.metrics import BUSY, DEVICE_INFO, DRIVER_INFO, MEMORY_UTILIZATION, OBSERVED, STATUS
from gpu_profile.catalogue.signals import ENERGY, POWER

_BUSY, _SEEN = (physical(increase(of_nodes(metric))) for metric in (BUSY, OBSERVED))

NOW: Final = Section(
    "GPUs of this node",
    (
        Panel(
            title="GPUs at a glance",
            shows="Latest values; utilisation is the mean of the last scrapes. An empty cell: the GPU does not report "
            "it, which is not 0. State: “degraded” had memory errors that ECC could not correct, “failed” does not "
            "answer.",
            conclude="GPUs of one job should look alike. One that differs is the slow one.",
            do="Click a GPU for its details.",
            empty="The exporter of this node publishes no GPU: see “Nodes silent” above",
            queries=(
                Query(by("hw_id, hw_name, index, instance", of_nodes(DEVICE_INFO), "max"), GPU_NAME),
                Query(by("hw_id", rate(of_nodes(BUSY)), "max"), ""),
                Query(by("hw_id", of_nodes(metric_of(POWER)), "max"), ""),
                Query(by("hw_id", of_nodes(MEMORY_UTILIZATION), "max"), ""),
                Query(by("hw_id", incident.hottest(of_nodes), "max"), ""),
                Query(by("hw_id, hw_state", f"{of_nodes(STATUS, {'hw.type': 'gpu'})} == 1", "max"), ""),
                Query(by("hw_id", increase(of_nodes(metric_of(ENERGY))), "max"), ""),
            ),
            kind="table",
            width=24,
            height=7,
            columns=(
                Column("index", "GPU", link=TO_GPU_OF_NODE, width=70),
                Column("hw_name", "Model"),
                Column("hw_state", "State"),
                Column("Value #B", "Utilisation", "percentunit"),
                Column("Value #C", "Power", "watt"),
                Column("Value #D", "Memory in use", "percentunit"),
                Column("Value #E", "Core temperature", "celsius", limits=((85, "red"),)),
                Column("Value #G", "Energy in range", "joule"),
                Column("hw_id", "UUID"),
            ),
        ),
        devices.holders(of_nodes),
        Panel(
            title="Mean utilisation",
            shows="Share of the measured GPU time of this range in which at least one kernel ran.",
            conclude="Below a half, the node has room for more work.",
            do="Compare the GPUs below: one idle GPU of eight is an eighth.",
            empty="No GPU reports busy time in this range",
            unit="percentunit",
            queries=(Query(f"sum({_BUSY}) / sum({_SEEN})", "utilisation"),),
            **STAT | {"width": 6},
        ),
        Panel(
            title="Idle GPU time",
            shows="Time without any kernel, added up over the GPUs of the node, in this range.",
            conclude="As long as the range: one GPU too many.",
            do="Give back GPUs, or let more jobs share them.",
            empty="No GPU reports busy time in this range",
            unit="s",
            queries=(Query(f"sum({idle_time(of_nodes)})", "idle"),),
            **STAT | {"width": 6},
        ),
        Panel(
            title="Energy while idle",
            shows="Joules of the GPUs at times with less than 5 % utilisation, in this range.",
            conclude="Divide it by the idle time for the idle power; above 100 W a GPU is no longer asleep.",
            do="End processes that hold memory without working; lower idle clocks.",
            empty="No GPU reports both energy and busy time in this range",
            unit="joule",
            queries=(Query(f"sum({idle_energy(of_nodes)})", "energy"),),
            **STAT | {"width": 6},
        ),
        Panel(
            title="Driver",
            shows="Version of the GPU driver.",
            conclude="Nodes with unlike drivers may differ in speed and in faults.",
            do="Upgrade the odd one out. The exporter needs no restart.",
            empty="The driver does not answer: see “Nodes silent” above",
            queries=(Query(f'label_replace({of_nodes(DRIVER_INFO)}, "text", "$1", "hw_driver_version", "(.+)")', ""),),
            kind="count",
            alarm="",
            width=6,
            height=4,
        ),
    ),
)

WORK: Final = Section(
    "Side by side",
    (
        devices.utilisation(of_nodes, LINE_TO_GPU),
        devices.power(of_nodes),
        devices.temperature(of_nodes),
        devices.throttling(of_nodes),
        devices.memory(of_nodes),
        devices.pcie(of_nodes),
    ),
)

FAULTS: Final = Section("Faults and wear", (devices.faults(of_nodes, TO_GPU_OF_NODE), devices.link_width(of_nodes)))

BOARD: Final = board.Board(
    "node",
    "node",
    "What the GPUs of a node do, who uses them, and which of them has a fault.",
    board.nodes(many=False),
    (incident.section(of_nodes), NOW, WORK, FAULTS),
    (board.xids(),),
)
