"""What two expositions with dcgm-exporter's names have in common, metric by metric. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from prometheus_client import Metric as Family

from gpu_profile_exporter.naming.dcgm import ALLOCATION_LABELS
from gpu_profile_exporter.naming.dcgm_fields import DEFAULT_FIELDS

_PREFIX: Final = "DCGM_"
_DEFAULT: Final = frozenset(field.name for field in DEFAULT_FIELDS)
#: Labels that come and go with what runs on the node, not with the exporter.
_OF_THE_RUN: Final = frozenset({*ALLOCATION_LABELS.values(), "vgpu"})
#: Both spellings of the host's label are one.
_HOSTNAME: Final = {"hostname": "Hostname"}

#: How far two readings of one GPU, taken moments apart, may lie from each other and still agree: `(part of the larger
#: value, same unit as the value)`, whichever is more. Two readers see a changing load at different moments.
_CLOSE: Final[Mapping[str, tuple[float, float]]] = {
    "DCGM_FI_DEV_POWER_USAGE": (0.02, 5),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": (0.01, 0),
    "DCGM_FI_DEV_GPU_TEMP": (0, 2),
    "DCGM_FI_DEV_MEMORY_TEMP": (0, 2),
    "DCGM_FI_DEV_FB_USED": (0.01, 64),
    "DCGM_FI_DEV_FB_FREE": (0.01, 64),
}
_CLOSE_UTIL: Final = (0.0, 3.0)
_CLOSE_PROFILE: Final = (0.0, 0.03)
_CLOSE_REST: Final = (0.01, 0.0)

#: A GPU or one of its MIG instances.
Entity = tuple[str, str]


class Verdict(NamedTuple):
    """How one metric fares.

    `missing_on` are GPUs that only they have it for; `labels_missing` and `labels_extra` are seen from ours. The
    values are of the GPU where they lie furthest apart, None if no GPU has both; `close` says whether they agree.
    """

    name: str
    default: bool
    status: str
    type_theirs: str = ""
    type_ours: str = ""
    labels_missing: tuple[str, ...] = ()
    labels_extra: tuple[str, ...] = ()
    missing_on: tuple[str, ...] = ()
    theirs: float | None = None
    ours: float | None = None
    close: bool = True

    @property
    def passed(self) -> bool:
        """Whether ours can stand in for theirs; what is extra and how values differ is only told."""
        return self.status in ("same", "extra", "values")


class _Side(NamedTuple):
    type: str
    labels: frozenset[str]
    values: Mapping[Entity, float]


def compare(theirs: Sequence[Family], ours: Sequence[Family]) -> list[Verdict]:
    """One verdict for each metric of either side whose name is dcgm's, theirs first.

    Where the two share no GPU at all (two nodes), only names, types and labels are compared.
    """
    left, right = _sides(theirs), _sides(ours)
    shared = _entities(left) & _entities(right)
    verdicts = [_verdict(name, side, right.get(name), bool(shared)) for name, side in left.items()]
    extra = (name for name in right if name not in left)
    return verdicts + [Verdict(name, name in _DEFAULT, "extra", "", right[name].type) for name in extra]


def shares_gpus(theirs: Sequence[Family], ours: Sequence[Family]) -> bool:
    """Whether both sides read at least one GPU in common."""
    return bool(_entities(_sides(theirs)) & _entities(_sides(ours)))


def _verdict(name: str, theirs: _Side, ours: _Side | None, shared: bool) -> Verdict:
    default = name in _DEFAULT
    if ours is None:
        return Verdict(name, default, "missing", theirs.type)
    missing = tuple(sorted(theirs.labels - ours.labels - _OF_THE_RUN))
    extra = tuple(sorted(ours.labels - theirs.labels - _OF_THE_RUN))
    missing_on = tuple("/".join(filter(None, one)) for one in theirs.values if one not in ours.values) if shared else ()
    both = [(theirs.values[one], ours.values[one]) for one in theirs.values if one in ours.values]
    worst = max(both, key=lambda pair: _distance(name, *pair), default=None)
    close = all(_distance(name, *pair) <= 1 for pair in both)
    if theirs.type != ours.type:
        status = "type"
    elif missing or extra:
        status = "labels"
    elif missing_on:
        status = "GPUs"
    else:
        status = "same" if close else "values"
    their_value, our_value = worst or (None, None)
    return Verdict(
        name, default, status, theirs.type, ours.type, missing, extra, missing_on, their_value, our_value, close
    )


def _distance(name: str, one: float, other: float) -> float:
    """How far apart two values are, 1 being the most that still agrees."""
    if name in _CLOSE:
        part, least = _CLOSE[name]
    elif name.endswith("_UTIL"):
        part, least = _CLOSE_UTIL
    else:
        part, least = _CLOSE_PROFILE if name.endswith("_ACTIVE") else _CLOSE_REST
    allowed = max(part * max(abs(one), abs(other)), least)
    if one == other:
        return 0.0
    return abs(one - other) / allowed if allowed else float("inf")


def _sides(families: Sequence[Family]) -> dict[str, _Side]:
    sides = {}
    for family in families:
        if family.name.startswith(_PREFIX) and family.samples:
            labels = {_HOSTNAME.get(name, name) for sample in family.samples for name in sample.labels}
            values = {_entity(sample.labels): sample.value for sample in family.samples}
            sides[family.name] = _Side(family.type, frozenset(labels), values)
    return sides


def _entity(labels: Mapping[str, str]) -> Entity:
    return labels.get("UUID") or labels.get("gpu_uuid", ""), labels.get("GPU_I_ID", "")


def _entities(sides: Mapping[str, _Side]) -> set[Entity]:
    return {entity for side in sides.values() for entity in side.values}
