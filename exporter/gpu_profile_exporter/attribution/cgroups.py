"""Parses `/proc/PID/cgroup` into container, pod, Slurm job and systemd unit. Pure.

Supports version 1, version 2 and hybrid hierarchies, and the names of the systemd and the cgroupfs driver. Containers
may be nested, and paths may be relative to another cgroup namespace (`/../..`). Doubtful names are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from gpu_profile.catalogue.allocation import PLACE

#: A version 1 host has a dozen hierarchies; a path is at most 4096 bytes.
MOST_BYTES: Final = 65_536

_CONTAINER: Final = re.compile(r"(?:(?P<prefix>[^/]*?)[-:])?(?P<id>[0-9a-f]{64})(?:\.scope)?")
#: Prefixes of a container's id under systemd. `crio-conmon` and `libpod-conmon` are missing: they are monitors.
_RUNTIMES: Final = {
    "docker": "docker",
    "cri-containerd": "containerd",
    "nerdctl": "containerd",
    "crio": "cri-o",
    "libpod": "podman",
    "libpod-payload": "podman",
}
_PARENTS: Final = {"docker": "docker", "libpod_parent": "podman"}
_HEX: Final = "[0-9a-f]"
_POD: Final = re.compile(
    rf"(?:(?:\w+-){{0,4}}kubepods(?:-(?:burstable|besteffort))?-|)pod({_HEX}{{8}}(?:[-_]{_HEX}{{4}}){{3}}[-_]{_HEX}{{12}}|{_HEX}{{32}})(?:\.slice)?",
    re.ASCII,
)
_JOB: Final = re.compile(r"job_(\d{1,20})", re.ASCII)
_STEP: Final = re.compile(r"step_(\w{1,32})", re.ASCII)
_UNIT: Final = re.compile(r"[\w:.\\@-]{1,246}\.(?:service|scope)", re.ASCII)
_DELETED: Final = " (deleted)"


class Place(NamedTuple):
    """The container, pod, job and unit of a process. "" is unknown."""

    container_id: str = ""
    runtime: str = ""
    pod_uid: str = ""
    job: str = ""
    step: str = ""
    unit: str = ""

    def attributes(self) -> dict[str, str]:
        """The values that are not empty, by OpenTelemetry attribute."""
        return {key: value for key, value in zip(PLACE, self, strict=True) if value}


def place(text: str) -> Place:
    """The place of a process with `text` in its `/proc/PID/cgroup`.

    Hierarchies are searched in order: version 2, systemd's, then the others. Container and runtime come from the first
    hierarchy with a container, job and step from the first one with a job, pod and unit from the first one with each.
    Missing parts are "".
    """
    container_id = runtime = pod_uid = job = step = unit = ""
    for parts in _paths(text[:MOST_BYTES]):
        if not container_id:
            container_id, runtime = _container(parts)
        pod_uid = pod_uid or _pod(parts)
        if not job:
            job, step = _job(parts)
        unit = unit or _unit(parts)
    return Place(container_id, runtime, pod_uid, job, step, unit)


def _paths(text: str) -> list[Sequence[str]]:
    ordered: list[tuple[int, Sequence[str]]] = []
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not (number.isdigit() and colon and path.startswith("/")):
            continue
        parts = [part for part in path.removesuffix(_DELETED).split("/") if part not in ("", ".", "..")]
        order = 0 if not controllers else 1 if controllers == "name=systemd" else 2
        ordered.append((order, parts))
    return [parts for _, parts in sorted(ordered, key=lambda row: row[0])]


def _container(parts: Sequence[str]) -> tuple[str, str]:
    """The innermost container and its runtime."""
    for position in range(len(parts) - 1, -1, -1):
        match = _CONTAINER.fullmatch(parts[position])
        if match is None:
            continue
        prefix = match["prefix"]
        if prefix is None:
            parent = parts[position - 1] if position else ""
            return match["id"], _PARENTS.get(parent, "")
        # With a wrong cgroup driver configured, containerd joins slice, prefix and id in one directory's name.
        runtime = _RUNTIMES.get(prefix.rpartition(":")[2] if ".slice:" in prefix else prefix)
        if runtime is not None:
            return match["id"], runtime
    return "", ""


def _pod(parts: Sequence[str]) -> str:
    for position in range(len(parts) - 1, -1, -1):
        match = _POD.fullmatch(parts[position].partition(".slice:")[0])
        if match is not None and any("kubepods" in part for part in parts[: position + 1]):
            return match[1].replace("_", "-")
    return ""


def _job(parts: Sequence[str]) -> tuple[str, str]:
    for position, part in enumerate(parts):
        match = _JOB.fullmatch(part)
        if match is not None and any("slurm" in above for above in parts[:position]):
            step = _STEP.fullmatch(parts[position + 1]) if position + 1 < len(parts) else None
            return match[1], step[1] if step is not None else ""
    return "", ""


def _unit(parts: Sequence[str]) -> str:
    """The innermost unit, except the scopes of containers and of Slurm's daemon."""
    for part in reversed(parts):
        if _UNIT.fullmatch(part) and not _CONTAINER.search(part) and not part.endswith("slurmstepd.scope"):
            return part
    return ""
