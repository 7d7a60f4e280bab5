"""The next step for each reason of a missing rate, as in docs/troubleshooting.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpu_profile.join.unmixing.solving.rate import STAMPED, UNMARKED
from gpu_profile.join.unmixing.solving.unmix import LOCK_STEP, ROUNDED, TIMING
from gpu_profile.join.unmixing.timing.expected import CONTRADICTED, UNTRUSTED
from gpu_profile.join.unmixing.windows.probes import ProbeGroup

_LONGER: Final = "a longer run helps"
DOCTOR: Final = "gpu-profile doctor, on the machine of the run, names the cause"
#: Parts of reasons, and the remedy for them.
_REMEDIES: Final[Mapping[str, str]] = {
    "too few": _LONGER,
    "are needed for an interval": _LONGER,
    "no samples of this device": DOCTOR,
    "no samples describe": "give the sampler processor time, or sample in another process, as with the node's timeline",
    "no samples": _LONGER,
    "not identifiable yet": _LONGER,
    "has not ended": _LONGER,
    STAMPED: "give the region a stream, or make its executions longer",
    UNMARKED: "put regions around all work",
    LOCK_STEP: "a longer run, other pauses or batch sizes, a stream, or one region around them helps",
    TIMING: "vary the pauses or batch sizes, or run gpu-profile calibrate once",
    CONTRADICTED: "run gpu-profile calibrate once",
    UNTRUSTED: "run gpu-profile calibrate again",
    ROUNDED: "vary the pauses or batch sizes",
    ProbeGroup.TIMING: _LONGER,
    ProbeGroup.PHASE: "put regions around the parts of this region",
    ProbeGroup.LENGTH: "use one region for each kind of execution",
    ProbeGroup.RUN_TIME: "analyse a shorter, steady part of the run",
    ProbeGroup.AFTER: "give the regions a stream, or end them when their work is done",
    ProbeGroup.IDLE: "put regions around the work in the pauses",
    ProbeGroup.BESIDE: "a longer run helps, or separate regions for waits",
    "the windows contradict steady rates": "put regions around the parts that change",
    "is not possible": "give the regions a stream, and put regions around all work",
}


def remedy(reason: str) -> str:
    """The next step for a missing rate with this `reason`; empty if none is known."""
    return next((step for part, step in _REMEDIES.items() if part in reason), "")
