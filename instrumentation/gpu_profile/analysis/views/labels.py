"""Short names of an analysis's devices."""

from __future__ import annotations

from collections import Counter

from gpu_profile.analysis.account import Analysis
from gpu_profile.catalogue.samples import DeviceKind


def labels(analysis: Analysis) -> dict[str, str]:
    """A short name for each device with samples or regions, by UUID: a GPU's index, if no other GPU shares it.

    A MIG instance, or a GPU of another node, has the first part of its UUID, or all of it if another's begins so too.
    """
    gpus = [use.device for use in analysis.devices if use.device.kind is DeviceKind.GPU]
    often = Counter(device.index for device in gpus)
    uuids = [use.device.uuid for use in analysis.devices] + [use.summary.device.uuid for use in analysis.regions]
    indices = {gpu.uuid: str(gpu.index) for gpu in gpus if gpu.index is not None and often[gpu.index] == 1}
    begun = Counter(map(_beginning, dict.fromkeys(uuids)))
    return {uuid: _beginning(uuid) if begun[_beginning(uuid)] == 1 else uuid for uuid in uuids} | indices


def _beginning(uuid: str) -> str:
    return "-".join(uuid.split("-")[:2])
