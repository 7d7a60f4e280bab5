"""The result of an analysis in plain sentences: the region that costs most, its regime, the next step."""

from __future__ import annotations

from gpu_profile.analysis.account import Analysis, RegionUse
from gpu_profile.analysis.devices import DeviceUse
from gpu_profile.analysis.views.labels import labels
from gpu_profile.catalogue.samples import DeviceKind
from gpu_profile.regimes import Regime
from gpu_profile.report.table import printable
from gpu_profile.units import NS_PER_S, counted, percent, si


def conclusion(analysis: Analysis) -> list[str]:
    """Up to three sentences about the region with the highest energy of its own, without the regions inside it.

    Where no region's energy is measured, the busy time decides. The last sentence is missing if the verdict has no
    advice. Empty if neither energy nor busy time of any region is measured.
    """
    costs = ((cost, use) for use in analysis.regions if (cost := _cost(use)) is not None)
    _, use = max(costs, key=lambda each: each[0], default=(None, None))
    if use is None:
        return []
    device = next((each for each in analysis.devices if each.device == use.summary.device), None)
    verdict = use.verdict
    regime = f"It is {verdict.regime}, with a confidence of {percent(verdict.confidence, 0)}."
    if verdict.regime is Regime.UNKNOWN:
        regime = f"Its regime is UNKNOWN: {_sentence(verdict.rule)}"
    step = [f"Next step: {_sentence(verdict.advice)}"] if verdict.advice else []
    return [_used(use, device, labels(analysis)[use.summary.device.uuid]), regime, *step]


def _cost(use: RegionUse) -> tuple[bool, float] | None:
    """Energy is a higher cost than any busy time. None: neither is measured."""
    summary = use.summary
    if summary.energy_j is not None:
        return True, summary.energy_j
    return None if summary.busy_s is None else (False, summary.busy_s)


def _used(use: RegionUse, device: DeviceUse | None, label: str) -> str:
    summary = use.summary
    kind = "MIG instance" if summary.device.kind is DeviceKind.MIG else "GPU"
    if summary.energy_j is not None:
        what, part, unit, width = "energy", summary.energy_j, "J", summary.energy_half_width
        whole = None if device is None else device.energy_j
    else:
        what, part, unit, width = "busy time", summary.busy_s or 0.0, "s", summary.busy_s_half_width
        length = 0.0 if device is None else (device.end_ns - device.start_ns) / NS_PER_S
        whole = device.utilization * length if device is not None and device.utilization is not None else None
    about = "about " * (width is None)
    calls = counted(summary.durations.calls, "call")
    region, amount, name = printable(summary.region), si(part, unit), f"{kind} {label}".strip()
    if not whole or part > whole:
        return f"Region {region} used {about}{amount} of {what} on {name}, in {calls}."
    used = f"{about}{percent(part / whole, 0)} of the {what} of {name}"
    return f"Region {region} used {used} ({amount} of {si(whole, unit)}), in {calls}."


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
