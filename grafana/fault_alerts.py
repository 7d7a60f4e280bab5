"""The alerts about faults of the hardware: XID errors, memory that wears out, what the driver asks to be done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from queries import GPU, increase, increase_from_first, series
from rulefiles import Alert

from gpu_profile.catalogue import metric_of
from gpu_profile.catalogue.metric import label
from gpu_profile.catalogue.self_metrics import XID_ANY, XID_ERRORS
from gpu_profile.catalogue.signals import ECC_UNCORRECTED, RECOVERY_ACTION, REMAP_FAILURE, REMAP_PENDING
from gpu_profile.catalogue.xids import XIDS, XidTier

_XID: Final = label("nvidia.gpu.xid")
_WHICH: Final = f"XID {{{{ $labels.{_XID} }}}}"
_WINDOW: Final = "15m"


def _codes(tiers: Iterable[XidTier]) -> tuple[str, ...]:
    return tuple(str(xid.code) for xid in XIDS if xid.tier in tiers)


def _came(*tiers: XidTier, other: bool = False) -> str:
    """Errors of these tiers (`other`: of none of them) that came within the window.

    A code's counter begins with its first error, which `increase` alone would miss. A counter that was merely not
    scraped before is no error: the device's errors of any code, counted from 0 on, must have grown too.
    """
    codes = f'{_XID}{"!~" if other else "=~"}"{"|".join(_codes(tiers))}"'
    return (
        f"{increase_from_first(series(XID_ERRORS, scope=codes), _WINDOW)} > 0\n"
        f"and on (job, instance, hw_id)\n{increase(series(XID_ANY), _WINDOW)} > 0"
    )


ALERTS: Final = (
    Alert(
        "GpuXidCritical",
        "critical",
        "0m",
        _came(XidTier.CRITICAL),
        f"{GPU}: {_WHICH}",
        "The driver reported an error after which the work on the GPU is lost, and often the GPU too until it is "
        f"reset: {', '.join(f'{xid.code} ({xid.meaning})' for xid in XIDS if xid.tier is XidTier.CRITICAL)}.",
        "Do not trust the results of what ran there. Read the kernel log around the error for what it belongs to. "
        "Drain the GPU, then reset it (`gpu-profile-exporter release` lets go of it) or reboot the node. If it comes "
        "again, have the GPU replaced.",
    ),
    Alert(
        "GpuXid",
        "warning",
        "0m",
        _came(XidTier.CRITICAL, XidTier.APPLICATION, other=True),
        f"{GPU}: {_WHICH}",
        "The driver reported an error that the GPU survived: something of it is worn or was retired, or the code is "
        "none of those that are known here.",
        "Look the code up in NVIDIA's list of XID errors, and read the kernel log around it. Watch the GPU; plan a "
        "reset where rows wait to be remapped.",
    ),
    Alert(
        "GpuXidOfProgram",
        "info",
        "0m",
        _came(XidTier.APPLICATION),
        f"{GPU}: {_WHICH}",
        "The driver stopped a program for something that most often is its own defect, such as an address that is "
        "not its own.",
        "Find the program by its pid in the kernel log and run it under compute-sanitizer. If different programs "
        "meet the same error on one GPU and nowhere else, suspect the GPU.",
    ),
    Alert(
        "GpuUncorrectedMemoryErrors",
        "critical",
        "0m",
        f"{increase(series(metric_of(ECC_UNCORRECTED), dict(ECC_UNCORRECTED.attributes)), _WINDOW)} > 0",
        f"{GPU} has memory errors that ECC could not correct",
        "Uncorrected memory errors appeared within the last 15 minutes. The programs that used the memory were "
        "stopped, or computed with wrong data.",
        "Find out which job ran there and do not trust its results. Drain the GPU and reset it, so that the row "
        "is remapped; look at nvidia-smi -q -d ROW_REMAPPER. If errors come again or remapping fails, have the "
        "GPU replaced.",
    ),
    Alert(
        "GpuRowRemapPending",
        "warning",
        "5m",
        f"{series(metric_of(REMAP_PENDING))} > 0",
        f"{GPU} waits for a reset to remap memory rows",
        "Rows of the memory were found to be bad, and spare ones take their place only at the next reset. Until then "
        "the bad ones may be used.",
        "Drain the GPU when its work allows, and reset it. Afterwards the value is 0, and "
        "nvidia-smi -q -d ROW_REMAPPER shows how many spare rows are left.",
    ),
    Alert(
        "GpuRowRemapFailed",
        "critical",
        "0m",
        f"{series(metric_of(REMAP_FAILURE))} > 0",
        f"{GPU} could not remap a memory row",
        "A bad row of the memory has no spare one any more. Errors in it will come again, and no reset mends that.",
        "Take the GPU out of service and have it replaced: this is what vendors accept as a reason. Check the results "
        "of what ran there since the last memory error.",
    ),
    Alert(
        "GpuRecoveryActionNeeded",
        "warning",
        "5m",
        f"{series(metric_of(RECOVERY_ACTION))} > 0",
        f"{GPU}: the driver asks for action {{{{ $value }}}}",
        "The driver says that the GPU needs something before it can be relied upon: 1 reset it, 2 reboot the node, "
        "3 drain peer traffic, 4 drain and reset it, 5 recover the IMEX domain, 6 reset the bus, 7 reboot the system.",
        "Take work off the GPU and do what is asked. For a reset, `gpu-profile-exporter release` lets go of the GPU "
        "for as long as it takes. An action that stays after it was done means a fault of the hardware.",
    ),
)
