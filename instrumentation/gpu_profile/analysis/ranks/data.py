"""The ranks of a job, and the clocks of its nodes, as JSON. `docs/analysis.md` describes the keys."""

from __future__ import annotations

from gpu_profile.analysis.clocks.alignment import NodeClock, NodeClocks
from gpu_profile.analysis.clocks.arrivals import Arrivals
from gpu_profile.analysis.ranks.costs import RankCosts
from gpu_profile.analysis.ranks.regions import RegionRanks
from gpu_profile.report.as_json import Value
from gpu_profile.units import NS_PER_S


def of_ranks(compared: RegionRanks) -> Value:
    """One region on several ranks."""
    return {
        "region": compared.region,
        "least_s": compared.fastest.mean_s,
        "mean_s": compared.mean_s,
        "most_s": compared.slowest.mean_s,
        "slowest": compared.slowest.rank,
        "excess": compared.excess,
        "differ": compared.differ,
        "late": None
        if compared.late is None
        else {"cause": compared.late.cause, "facts": compared.late.facts or None, "since_ns": compared.late.since_ns},
        "waits": compared.waits,
        "waiting": None if compared.arrivals is None else _arrivals(compared.arrivals),
        "per_call": _costs(compared.costs),
        "ranks": [
            {
                "rank": use.rank,
                "calls": use.calls,
                "total_s": use.total_s,
                "mean_s": use.mean_s,
                "p95_s": use.p95_s,
                "per_call": _costs(use.costs),
            }
            for use in compared.ranks
        ],
    }


def _arrivals(arrivals: Arrivals) -> Value:
    return {
        "last": arrivals.rank,
        "share": arrivals.share,
        "meetings": arrivals.count,
        "late_s": arrivals.late_s,
        "late_half_width_s": arrivals.half_width_s,
        "late": arrivals.late,
        "since_ns": arrivals.since_ns,
    }


def _costs(costs: RankCosts) -> Value:
    return {
        "communication_s": costs.communication_s,
        "exposed_s": costs.exposed_s,
        "waiting_s": costs.waiting_s,
        "collectives": costs.collectives,
        "utilization": costs.utilization,
        "ceiling_flops_per_s": costs.ceiling,
        "energy_j": costs.energy_j,
    }


def of_clocks(clocks: NodeClocks) -> Value:
    """The clocks of the nodes; null if the ranks ran on one node."""
    if not clocks.nodes:
        return None
    return {"reference": clocks.reference, "nodes": [_node(node) for node in clocks.nodes]}


def _node(node: NodeClock) -> Value:
    offset = node.offset
    return {
        "host": node.host,
        "ranks": list(node.ranks),
        "by": node.by or None,
        "whole_steps": node.whole_steps,
        "ahead_s": None if offset is None else offset.offset_ns / NS_PER_S,
        "ahead_low_s": None if offset is None else offset.low_ns / NS_PER_S,
        "ahead_high_s": None if offset is None else offset.high_ns / NS_PER_S,
        "at_ns": None if offset is None else round(offset.at_ns),
        "rate": None if offset is None else offset.rate,
        "rate_half_width": None if offset is None else offset.rate_half_width,
        "stepped": None if offset is None else offset.stepped,
        "reason": node.reason or None,
    }
