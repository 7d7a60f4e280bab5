"""Checks that this exporter publishes all metrics of a running dcgm-exporter. Compares both, metric by metric.

    python tests/support/dcgm_conformance.py http://localhost:9400/metrics http://localhost:9401/metrics

The first address is dcgm-exporter's, the second this exporter's (`--names dcgm` or `both`), on the same node. Prints a
line for each metric; ends with 1 if one of dcgm-exporter's default metrics is missing here, or has another type, other
labels or fewer GPUs. Values are compared and shown, but two readers of a changing load may differ.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from urllib.request import urlopen

from prometheus_client import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from gpu_profile.report import text_table
from gpu_profile_exporter.naming.dcgm import ALLOCATION_LABELS
from gpu_profile_exporter.naming.dcgm_fields import DEFAULT_FIELDS
from gpu_profile_exporter.naming.dcgm_renamed import RENAMED

#: The names of fields until DCGM 4.5, by those since 4.6.
_OLDER: Final = {newer: older for older, newer in RENAMED.items()}
_DEFAULT: Final = frozenset(field.name for field in DEFAULT_FIELDS)
#: Labels that depend on the node's workloads, not on the exporter.
_OF_THE_RUN: Final = frozenset({*ALLOCATION_LABELS.values(), "vgpu"})
#: Both spellings of the host's label count as equal.
_HOSTNAME: Final = {"hostname": "Hostname"}

#: Largest difference between two readings that agree, as `(part of the larger value, absolute)`, whichever is more. Two
#: readers see a changing load at different times.
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


class Verdict(NamedTuple):
    """The result for one metric. `detail`: the differences of this exporter's metric.

    The values are from the GPU with the largest difference, None if no GPU has both.
    """

    name: str
    status: str
    detail: str = ""
    theirs: float | None = None
    ours: float | None = None

    @property
    def default(self) -> bool:
        """Whether dcgm-exporter publishes the metric by default."""
        return _OLDER.get(self.name, self.name) in _DEFAULT

    @property
    def passed(self) -> bool:
        """Whether this exporter's metric can replace the other. Extra metrics and different values are allowed."""
        return self.status in ("same", "extra", "values")


class _Side(NamedTuple):
    """A metric of one exposition; its values by GPU and MIG instance."""

    type: str
    labels: frozenset[str]
    values: Mapping[tuple[str, str], float]


def compare(theirs: str, ours: str) -> list[Verdict]:
    """One verdict per metric with a dcgm name in either text, dcgm-exporter's first.

    If the texts have no GPU in common (two nodes), only names, types and labels are compared.
    """
    left, right = _sides(theirs), _sides(ours)
    there, here = ({gpu for side in sides.values() for gpu in side.values} for sides in (left, right))
    verdicts = [_verdict(name, side, right.get(name), shared=bool(there & here)) for name, side in left.items()]
    return verdicts + [Verdict(name, "extra") for name in right if name not in left]


def _verdict(name: str, theirs: _Side, ours: _Side | None, *, shared: bool) -> Verdict:
    if ours is None:
        return Verdict(name, "missing")
    if theirs.type != ours.type:
        return Verdict(name, "type", f"{theirs.type}, ours {ours.type}")
    missing, extra = theirs.labels - ours.labels - _OF_THE_RUN, ours.labels - theirs.labels - _OF_THE_RUN
    if missing or extra:
        parts = (("without", missing), ("besides", extra))
        return Verdict(name, "labels", "; ".join(f"{word} {', '.join(sorted(some))}" for word, some in parts if some))
    alone = [gpu for gpu in theirs.values if gpu not in ours.values]
    if shared and alone:
        return Verdict(name, "GPUs", f"not for {', '.join('/'.join(filter(None, gpu)) for gpu in alone)}")
    both = [(theirs.values[gpu], ours.values[gpu]) for gpu in theirs.values if gpu in ours.values]
    worst = max(both, key=lambda pair: _distance(name, *pair), default=None)
    if worst is None:
        return Verdict(name, "same")
    return Verdict(name, "same" if _distance(name, *worst) <= 1 else "values", "", *worst)


def _distance(name: str, one: float, other: float) -> float:
    """The difference of two values relative to the largest permitted one."""
    name = _OLDER.get(name, name)
    rest = _CLOSE_UTIL if name.endswith("_UTIL") else _CLOSE_PROFILE if name.endswith("_ACTIVE") else _CLOSE_REST
    part, least = _CLOSE.get(name, rest)
    allowed = max(part * max(abs(one), abs(other)), least)
    if one == other:
        return 0.0
    return abs(one - other) / allowed if allowed else float("inf")


def _sides(text: str) -> dict[str, _Side]:
    families: Sequence[Family] = list(text_string_to_metric_families(text))
    return {family.name: _side(family) for family in families if family.name.startswith("DCGM_") and family.samples}


def _side(family: Family) -> _Side:
    labels = {_HOSTNAME.get(name, name) for sample in family.samples for name in sample.labels}
    values = {(one.labels.get("UUID", ""), one.labels.get("GPU_I_ID", "")): one.value for one in family.samples}
    return _Side(family.type, frozenset(labels), values)


def main(urls: Sequence[str]) -> int:
    """Compare the expositions at two addresses. Returns the exit code."""
    if len(urls) != 2:
        print("Two addresses are compared: dcgm-exporter's and ours.", file=sys.stderr)
        return 2
    try:
        verdicts = compare(*(urlopen(url, timeout=10).read().decode() for url in urls))
    except (OSError, ValueError) as error:
        print(f"One of {' and '.join(urls)} cannot be read: {error}", file=sys.stderr)
        return 2
    columns = ("metric", "default", "verdict", "detail", "theirs", "ours")
    values = [["" if value is None else f"{value:g}" for value in (one.theirs, one.ours)] for one in verdicts]
    rows = [
        (one.name, "yes" if one.default else "", one.status, one.detail, *shown)
        for one, shown in zip(verdicts, values, strict=True)
    ]
    print(text_table(columns, rows, left=4))
    return int(any(one.default and not one.passed for one in verdicts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
