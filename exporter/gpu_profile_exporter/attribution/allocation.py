"""Holders of devices, one row per holder, and the labels that a device's own series may get from them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from gpu_profile_exporter.attribution import mapping
from gpu_profile_exporter.attribution.devices import DeviceNames
from gpu_profile_exporter.attribution.podresources import ClaimedDevice, Holder, PluginDevice
from gpu_profile_exporter.attribution.sources import HolderSource, OmissionCounts, OmissionReason

#: Kubernetes' names have 253 letters at most.
_MOST_LETTERS: Final = 253


class DeviceHolder(NamedTuple):
    """One holder of a device. `attributes` are sorted pairs, so that equal holders compare equal.

    A holder without attributes is unknown. It is not published, but no other holder counts as the only one then.
    """

    uuid: str
    source: HolderSource
    attributes: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, uuid: str, source: HolderSource, attributes: Mapping[str, str]) -> DeviceHolder:
        """A row with the attributes that are not empty."""
        return cls(uuid, source, tuple(sorted((key, value) for key, value in attributes.items() if value)))


def of_plugins(rows: Iterable[PluginDevice], names: DeviceNames, tally: OmissionCounts) -> Iterator[DeviceHolder]:
    """Allocations by device plugins.

    The kubelet allocates an id (a shared GPU has one per replica) to one pod at a time. Some releases of the kubelet
    still list pods that have ended (kubernetes#119423), beside their successors. The holder of such an id is unknown.
    """
    holders: defaultdict[tuple[str, str], list[Holder]] = defaultdict(list)
    uuids: dict[tuple[str, str], str] = {}
    for row in rows:
        match = names.plugin(row.resource, row.id)
        if match is None:
            continue
        if isinstance(match, OmissionReason):
            tally[HolderSource.KUBELET, match] += 1
        elif not _sound(*row.holder):
            tally[HolderSource.KUBELET, OmissionReason.GARBAGE] += 1
            yield DeviceHolder(match, HolderSource.KUBELET, ())
        else:
            uuids[row.resource, row.id] = match
            holders[row.resource, row.id].append(row.holder)
    for key, of_id in holders.items():
        if len({holder[:2] for holder in of_id}) > 1:
            tally[HolderSource.KUBELET, OmissionReason.CONFLICT] += 1
            yield DeviceHolder(uuids[key], HolderSource.KUBELET, ())
            continue
        for holder in of_id:
            yield DeviceHolder.of(uuids[key], HolderSource.KUBELET, _pod(holder))


def of_claims(rows: Iterable[ClaimedDevice], names: DeviceNames, tally: OmissionCounts) -> Iterator[DeviceHolder]:
    """Allocations by resource claims. Containers and pods may share a claim."""
    for row in rows:
        match = names.dra(row.driver, row.device, row.cdi)
        if match is None:
            continue
        if isinstance(match, OmissionReason):
            tally[HolderSource.DRA, match] += 1
        elif not _sound(*row.holder, row.claim):
            tally[HolderSource.DRA, OmissionReason.GARBAGE] += 1
            yield DeviceHolder(match, HolderSource.DRA, ())
        else:
            yield DeviceHolder.of(match, HolderSource.DRA, {**_pod(row.holder), "claim": row.claim})


def of_mappings(rows: Iterable[mapping.Mapping], names: DeviceNames, tally: OmissionCounts) -> Iterator[DeviceHolder]:
    """Jobs in the files of a workload manager. An empty file means an idle GPU."""
    for row in rows:
        match = names.file(row.name)
        if match is None:
            tally[HolderSource.SLURM, OmissionReason.GARBAGE] += 1
        elif isinstance(match, OmissionReason):
            tally[HolderSource.SLURM, match] += 1
        else:
            for job in row.jobs:
                yield DeviceHolder.of(match, HolderSource.SLURM, {"slurm.job.id": job})


def within(rows: Iterable[DeviceHolder], most: int, tally: OmissionCounts) -> tuple[DeviceHolder, ...]:
    """Each row once, in a stable order, at most `most` of one source on one device."""
    kept: list[DeviceHolder] = []
    count: defaultdict[tuple[str, HolderSource], int] = defaultdict(int)
    for row in sorted({row for row in rows if row.attributes}):
        count[row.uuid, row.source] += 1
        if count[row.uuid, row.source] <= most:
            kept.append(row)
    for (_, source), number in count.items():
        if number > most:
            tally[source, OmissionReason.BUDGET] += number - most
    return tuple(kept)


_BySource = defaultdict[HolderSource, list[Mapping[str, str]]]


def labels(rows: Iterable[DeviceHolder], wanted: Sequence[str]) -> dict[str, dict[str, str]]:
    """The `wanted` attributes on which all holders of a device agree, by UUID.

    The series of a device covers all its holders, so a value that only some of them have would be wrong. Sources that
    never report an attribute for a device are ignored for this attribute.
    """
    attributes: defaultdict[str, _BySource] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        attributes[row.uuid][row.source].append(dict(row.attributes))
    return {uuid: dict(_agreed(list(by_source.values()), wanted)) for uuid, by_source in attributes.items()}


def _agreed(sources: Sequence[Sequence[Mapping[str, str]]], wanted: Sequence[str]) -> Iterator[tuple[str, str]]:
    for key in wanted:
        by_source = [{holder.get(key, "") for holder in holders} for holders in sources]
        values = set().union(*(reported for reported in by_source if reported != {""}))
        if len(values) == 1:
            yield key, values.pop()


def _pod(holder: Holder) -> dict[str, str]:
    return {"k8s.namespace.name": holder.namespace, "k8s.pod.name": holder.pod, "k8s.container.name": holder.container}


def _sound(*names: str) -> bool:
    """Whether these can be names in Kubernetes."""
    return all(0 < len(name) <= _MOST_LETTERS and name.isascii() and name.isprintable() for name in names)
