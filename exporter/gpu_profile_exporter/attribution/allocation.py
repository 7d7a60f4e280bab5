"""Who holds which device: one row per holder, and what of it may stand on a device's own series. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from gpu_profile_exporter.attribution import mapping
from gpu_profile_exporter.attribution.devices import DeviceNames
from gpu_profile_exporter.attribution.podresources import ClaimedDevice, Holder, PluginDevice
from gpu_profile_exporter.attribution.sources import HolderSource, LeftOut, Tally

#: Kubernetes' names have 253 letters at most.
_MOST_LETTERS: Final = 253

#: Labels that may be put on a device's own series, and the attributes that they stand for.
LABELS: Final = {
    "pod": "k8s.pod.name",
    "namespace": "k8s.namespace.name",
    "container": "k8s.container.name",
    "pod_uid": "k8s.pod.uid",
    "container_id": "container.id",
    "job": "slurm.job.id",
    "unit": "systemd.unit.name",
}


class DeviceHolder(NamedTuple):
    """One holder of a device. `attributes` are sorted pairs, so that equal holders are equal.

    Without any it is somebody of whom nothing is known: never published, but nobody else holds the device alone then.
    """

    uuid: str
    source: HolderSource
    attributes: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, uuid: str, source: HolderSource, attributes: Mapping[str, str]) -> DeviceHolder:
        """A row with what is known of the holder."""
        return cls(uuid, source, tuple(sorted((key, value) for key, value in attributes.items() if value)))


def of_plugins(rows: Iterable[PluginDevice], names: DeviceNames, tally: Tally) -> Iterator[DeviceHolder]:
    """What device plugins gave away.

    The kubelet gives an id (a shared GPU has one per replica) to one pod at a time. Some of its releases go on listing
    pods that have ended (kubernetes#119423), beside their successors: such an id has no known holder.
    """
    holders: defaultdict[tuple[str, str], list[Holder]] = defaultdict(list)
    uuids: dict[tuple[str, str], str] = {}
    for row in rows:
        match = names.plugin(row.resource, row.id)
        if match is None:
            continue
        if isinstance(match, LeftOut):
            tally[HolderSource.KUBELET, match] += 1
        elif not _sound(*row.holder):
            tally[HolderSource.KUBELET, LeftOut.GARBAGE] += 1
            yield DeviceHolder(match, HolderSource.KUBELET, ())
        else:
            uuids[row.resource, row.id] = match
            holders[row.resource, row.id].append(row.holder)
    for key, found in holders.items():
        if len({holder[:2] for holder in found}) > 1:
            tally[HolderSource.KUBELET, LeftOut.CONFLICT] += 1
            yield DeviceHolder(uuids[key], HolderSource.KUBELET, ())
            continue
        for holder in found:
            yield DeviceHolder.of(uuids[key], HolderSource.KUBELET, _pod(holder))


def of_claims(rows: Iterable[ClaimedDevice], names: DeviceNames, tally: Tally) -> Iterator[DeviceHolder]:
    """What resource claims gave away; a claim may be shared, by containers and by pods."""
    for row in rows:
        match = names.dra(row.driver, row.device, row.cdi)
        if match is None:
            continue
        if isinstance(match, LeftOut):
            tally[HolderSource.DRA, match] += 1
        elif not _sound(*row.holder, row.claim):
            tally[HolderSource.DRA, LeftOut.GARBAGE] += 1
            yield DeviceHolder(match, HolderSource.DRA, ())
        else:
            yield DeviceHolder.of(match, HolderSource.DRA, {**_pod(row.holder), "claim": row.claim})


def of_mappings(rows: Iterable[mapping.Mapping], names: DeviceNames, tally: Tally) -> Iterator[DeviceHolder]:
    """What a workload manager's files say; an empty file is an idle GPU."""
    for row in rows:
        match = names.file(row.name)
        if match is None:
            tally[HolderSource.SLURM, LeftOut.GARBAGE] += 1
        elif isinstance(match, LeftOut):
            tally[HolderSource.SLURM, match] += 1
        else:
            for job in row.jobs:
                yield DeviceHolder.of(match, HolderSource.SLURM, {"slurm.job.id": job})


def within(rows: Iterable[DeviceHolder], most: int, tally: Tally) -> tuple[DeviceHolder, ...]:
    """Each row once, in a stable order, at most `most` of one source on one device."""
    kept: list[DeviceHolder] = []
    count: defaultdict[tuple[str, HolderSource], int] = defaultdict(int)
    for row in sorted({row for row in rows if row.attributes}):
        count[row.uuid, row.source] += 1
        if count[row.uuid, row.source] <= most:
            kept.append(row)
    for (_, source), number in count.items():
        if number > most:
            tally[source, LeftOut.BUDGET] += number - most
    return tuple(kept)


def labels(rows: Iterable[DeviceHolder], wanted: Sequence[str]) -> dict[str, dict[str, str]]:
    """What all holders of a device agree on, by UUID: the `wanted` attributes that have exactly one value.

    A value that only one of several holders has would be wrong on a series that is about all of them. A source that
    never tells an attribute of a device has no say in it.
    """
    held: defaultdict[str, defaultdict[HolderSource, list[Mapping[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        held[row.uuid][row.source].append(dict(row.attributes))
    return {uuid: dict(_agreed(list(by_source.values()), wanted)) for uuid, by_source in held.items()}


def _agreed(sources: Sequence[Sequence[Mapping[str, str]]], wanted: Sequence[str]) -> Iterator[tuple[str, str]]:
    for key in wanted:
        said = [{holder.get(key, "") for holder in holders} for holders in sources]
        values = set().union(*(found for found in said if found != {""}))
        if len(values) == 1:
            yield key, values.pop()


def _pod(holder: Holder) -> dict[str, str]:
    return {"k8s.namespace.name": holder.namespace, "k8s.pod.name": holder.pod, "k8s.container.name": holder.container}


def _sound(*names: str) -> bool:
    """Whether these can be Kubernetes' names."""
    return all(0 < len(name) <= _MOST_LETTERS and name.isascii() and name.isprintable() for name in names)
