"""The alerts about faults of the hardware: XID errors, worn memory, and the recovery that the driver requests.

One fault gives one page. A lost GPU is `GpuLost`, and its XID errors do not page again. A memory error with a critical
XID error is `GpuXidCritical`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from queries import DEVICE, TARGET, by, increase, increase_from_first, series
from rulefiles import Alert, Urgency
from subjects import GPU

from gpu_profile.catalogue import metric_of
from gpu_profile.catalogue.metric import label
from gpu_profile.catalogue.metrics import DEVICE_UP
from gpu_profile.catalogue.self_metrics import XID_ANY, XID_ERRORS
from gpu_profile.catalogue.signals import ECC_CORRECTED, ECC_UNCORRECTED, RECOVERY_ACTION, REMAP_FAILURE, REMAP_PENDING
from gpu_profile.catalogue.xids import XIDS, XidTier

_XID: Final = label("nvidia.gpu.xid")
_WHICH: Final = f"XID {{{{ $labels.{_XID} }}}}"
_WINDOW: Final = "15m"
_SERIES: Final = f"on ({TARGET}, hw_id)"


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
        f"and {_SERIES}\n{increase(series(XID_ANY), _WINDOW)} > 0"
    )


def _corrected_grow() -> str:
    """Corrected errors of a day, at least twice those of a day before that was measured as well."""
    corrected = series(metric_of(ECC_CORRECTED), dict(ECC_CORRECTED.attributes))

    def grown(window: str) -> str:
        # A series may go on under other labels, such as those of a pod.
        return by(f"{TARGET}, hw_id", f"increase({corrected}[{window})")

    return (
        f"{grown('1d]')} > 100\n"
        f"unless {_SERIES}\n{grown('1d]')} < 2 * {grown('1d] offset 1d')}\n"
        # On the first days of an exporter a steady rate would look like growth.
        f"and {_SERIES}\n{grown('4h] offset 44h')} >= 0"
    )


ALERTS: Final = (
    Alert(
        "GpuXidCritical",
        Urgency.PAGE,
        "1m",
        # A GPU that is lost, or was a moment ago, has been reported as such.
        f"{_came(XidTier.CRITICAL)}\nunless {_SERIES}\n{series(DEVICE_UP)} == 0\nunless on ({DEVICE})\n"
        f'last_over_time(ALERTS{{alertname="GpuLost", alertstate="firing"}}[{_WINDOW}])',
        f"{GPU}: {_WHICH}",
        "The driver reported an error after which the work on the GPU is lost, and often the GPU too until it is "
        f"reset: {', '.join(f'{xid.code} ({xid.meaning})' for xid in XIDS if xid.tier is XidTier.CRITICAL)}.",
        "Read the kernel log around the error for its context. Do not trust the results of the work on the GPU.",
        "Drain the GPU, then reset it (`gpu-profile-exporter release` frees it for the reset) or reboot the node. If "
        "the error comes again, have the GPU replaced.",
    ),
    Alert(
        "GpuXid",
        Urgency.TICKET,
        "0m",
        _came(XidTier.CRITICAL, XidTier.APPLICATION, other=True),
        f"{GPU}: {_WHICH}",
        "The driver reported an error that the GPU survived. A part of it is worn or was retired, or the code is not "
        "in the exporter's table.",
        "Look the code up in NVIDIA's list of XID errors, and read the kernel log around it.",
        "Watch the GPU, and plan a reset if rows wait to be remapped.",
    ),
    Alert(
        "GpuXidOfProgram",
        Urgency.INFO,
        "0m",
        _came(XidTier.APPLICATION),
        f"{GPU}: {_WHICH}",
        "The driver stopped a program, most often for a defect of its own, such as an invalid address.",
        "Find the program by its pid in the kernel log.",
        "Run the program under compute-sanitizer. If different programs meet the same error on one GPU and nowhere "
        "else, suspect the GPU.",
    ),
    Alert(
        "GpuUncorrectedMemoryErrors",
        Urgency.PAGE,
        "1m",
        f"{increase(series(metric_of(ECC_UNCORRECTED), dict(ECC_UNCORRECTED.attributes)), _WINDOW)} > 0\n"
        f"unless {_SERIES} (\n{_came(XidTier.CRITICAL)}\n)",
        f"{GPU} has memory errors that ECC could not correct",
        "Uncorrected memory errors appeared within the last 15 minutes. The programs that used the memory were "
        "stopped, or computed with wrong data.",
        "Find the job that ran on the GPU, and do not trust its results. nvidia-smi -q -d ROW_REMAPPER shows the state "
        "of the memory.",
        "Drain the GPU and reset it, so that the row is remapped. If errors come again or remapping fails, have the "
        "GPU replaced.",
    ),
    Alert(
        "GpuCorrectedErrorsGrow",
        Urgency.TICKET,
        "15m",
        # A steady rate of single errors is normal for large memories.
        _corrected_grow(),
        f"{GPU}: corrected memory errors grow",
        "ECC corrected more than a hundred memory errors within a day, and at least twice as many as the day before. "
        "Results are right, but the memory is wearing out.",
        "Look at nvidia-smi -q -d ECC,ROW_REMAPPER: the place of the errors, and the number of spare rows.",
        "Reset the GPU at the next chance, so that rows are remapped. Plan a replacement if the number keeps growing.",
        "Corrected in the last day: {{ $value | humanize }}.",
    ),
    Alert(
        "GpuRowRemapPending",
        Urgency.TICKET,
        "5m",
        f"{series(metric_of(REMAP_PENDING))} > 0",
        f"{GPU} waits for a reset to remap memory rows",
        "Rows of the memory are bad, and spare ones replace them only at the next reset. Until then the bad ones may "
        "be used.",
        "nvidia-smi -q -d ROW_REMAPPER shows the number of spare rows that are left.",
        "Drain the GPU when its work allows, and reset it. Afterwards the value is 0.",
    ),
    Alert(
        "GpuRowRemapFailed",
        Urgency.TICKET,
        "0m",
        f"{series(metric_of(REMAP_FAILURE))} > 0",
        f"{GPU} could not remap a memory row",
        "A bad row of the memory has no spare one any more. Errors in it will come again, and no reset repairs it.",
        "Check the results of the work on the GPU since its last memory error.",
        "Take the GPU out of service and have it replaced: vendors accept this as a reason.",
    ),
    Alert(
        "GpuRecoveryActionNeeded",
        Urgency.TICKET,
        "5m",
        f"{series(metric_of(RECOVERY_ACTION))} > 0",
        f"{GPU}: the driver requests action {{{{ $value }}}}",
        "The driver requests an action before the GPU can be relied upon: 1 reset it, 2 reboot the node, 3 drain peer "
        "traffic, 4 drain and reset it, 5 recover the IMEX domain, 6 reset the bus, 7 reboot the system.",
        "Read the number in the summary, and the kernel log for the reason.",
        "Take work off the GPU and do the requested action. For a reset, `gpu-profile-exporter release` frees the GPU. "
        "An action that remains after it was done means a fault of the hardware.",
    ),
)
