"""The clocks of a job's nodes, in lines."""

from __future__ import annotations

from typing import Final

from gpu_profile.analysis.clocks.alignment import NodeClock, NodeClocks
from gpu_profile.analysis.clocks.jobs import ranks_text
from gpu_profile.analysis.clocks.jumps import length_text
from gpu_profile.errors import few
from gpu_profile.units import NS_PER_S, si

#: An offset above this, in seconds, is no error of a clock that anything sets.
_UNSET_S: Final = 60.0
#: The room for names of hosts in a line.
_ROOM: Final = 60


def clock_lines(clocks: NodeClocks) -> list[str]:
    """A line for each clock that is wrong or unknown, and one for all that agree with the reference's."""
    alike: dict[str, list[NodeClock]] = {}
    lines: list[str] = []
    for node in clocks.nodes:
        if node.offset is None:
            lines.append(
                f"clock of {_node(node)} cannot be compared with {clocks.reference}'s: {node.reason}. "
                "Its times are as recorded"
            )
        elif abs(node.offset.offset_ns) <= node.offset.half_width_ns:
            alike.setdefault(node.by, []).append(node)
        else:
            lines.append(_apart(node, clocks.reference))
    for by, nodes in alike.items():
        within_ns = max(
            abs(node.offset.offset_ns) + node.offset.half_width_ns for node in nodes if node.offset is not None
        )
        many = "s" * (len(nodes) > 1)
        hosts = few([node.host for node in nodes], _ROOM)
        within = si(within_ns / NS_PER_S, "s")
        lines.append(
            f"clock{many} of {hosts} agree{'' if many else 's'} with {clocks.reference}'s within {within}, by {by}"
        )
    return lines


def _node(node: NodeClock) -> str:
    return f"{node.host} ({ranks_text(node.ranks)})"


def _apart(node: NodeClock, reference: str) -> str:
    offset = node.offset
    if offset is None:
        return ""
    seconds = offset.offset_ns / NS_PER_S
    direction = "ahead of" if seconds > 0 else "behind"
    half_width = si(offset.half_width_ns / NS_PER_S, "s", 2)
    parts = [
        f"clock of {_node(node)} is {length_text(abs(seconds))} ±{half_width} {direction} {reference}'s, by {node.by}"
    ]
    if offset.drifts:
        parts.append(f"it gains {offset.rate * 1e6:.3g} ±{offset.rate_half_width * 1e6:.2g} µs a second")
    if offset.stepped:
        parts.append("it was set during the run")
    if node.whole_steps:
        parts.append("to within a step only, as ranks wait in no region")
    if abs(seconds) > _UNSET_S:
        parts.append("set it with NTP or PTP")
    return "; ".join(parts)
