"""What can go wrong beneath the exporter: the table of faults, and what must hold while each lasts and after it.

`fault_runs.py` has a real exporter meet one, over the stub driver, whose control file the lines are for.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pynvml

from gpu_profile_exporter.reader.launcher_process import LAUNCHER_NAME

if TYPE_CHECKING:
    from benchmarks.fault_runs import Bench, Watch

GPUS: Final = 4
#: The others' samples go on: their readings live for 2 s, so a pause that is shorter shows nowhere.
GAP_S: Final = 1.0
#: That a device is lost is told within this: its readings live for 2 s, and a call may take half a second.
TOLD_S: Final = 2.5
RECOVERY_S: Final = 5.0


def uuid(gpu: int) -> str:
    """The stub's GPU of this number."""
    return f"GPU-57ab0000-0000-0000-0000-{gpu:012d}"


def slice_uuid(gpu: int, number: int) -> str:
    """The stub's MIG instance of a GPU, counted from 1."""
    return f"MIG-57ab0000-0000-0000-{number:04d}-{gpu:012d}"


ALL: Final = tuple(uuid(gpu) for gpu in range(GPUS))
_ONE: Final = (ALL[1],)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One row: what happens, and what must hold.

    What happens: `lines` stand in the control file while it lasts (`seconds`), `ahead` for some seconds before it,
    `kept` from its end on. `act` and `undo` are done at its start and end; what they give are problems. `from_start`:
    it is there before the exporter is; `absent`: devices that are not.

    What must hold: the `lost` are told as failed within `told_s` (None: it is too short to tell, or there is nothing to
    be told of), and all that are neither lost nor `touched` go on being read, with no pause above `gap_s`. `appear`:
    devices that must be there within `appear_s`. `missing`: what the touched lack meanwhile, and for good if
    `for_good`, for it is asked for anew only when the GPU is opened. `after`: the devices that must be well within
    `recovery_s` of its end. `resets`: counters that the driver itself sets back. `holds`: what else; it gives problems.
    """

    name: str
    lines: tuple[str, ...] = ()
    ahead: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    seconds: float = 5.0
    act: Callable[[Bench], Sequence[str] | None] = lambda _: None
    undo: Callable[[Bench], Sequence[str] | None] = lambda _: None
    from_start: bool = False
    absent: tuple[str, ...] = ()
    library_later: bool = False
    lost: tuple[str, ...] = ()
    touched: tuple[str, ...] = ()
    told_s: float | None = TOLD_S
    gap_s: float = GAP_S
    appear: tuple[str, ...] = ()
    appear_s: float = RECOVERY_S
    missing: tuple[str, ...] = ()
    for_good: bool = False
    after: tuple[str, ...] = ALL
    recovery_s: float = RECOVERY_S
    resets: tuple[str, ...] = ()
    holds: Callable[[Watch], Sequence[str]] = lambda _: ()


def _signalled(number: int) -> Callable[[Bench], None]:
    return lambda node: node.signal_readers(number)


def _kill_launcher(node: Bench) -> None:
    for pid, name in node.children().items():
        if name == LAUNCHER_NAME:
            os.kill(pid, signal.SIGKILL)


def _kill_all(node: Bench) -> None:
    _kill_launcher(node)
    node.signal_readers(signal.SIGKILL)


def _flap(node: Bench) -> None:
    for _ in range(4):
        time.sleep(0.7)
        node.control()
        time.sleep(0.7)
        node.control("lost 1")


def _reload(node: Bench) -> None:
    time.sleep(1.5)
    node.control(f"error * * {pynvml.NVML_ERROR_DRIVER_NOT_LOADED}")


def _lost_hangs(node: Bench) -> None:
    time.sleep(2.5)
    node.control("hang 1 * 60")


def _added(node: Bench) -> None:
    node.control()


def _install(node: Bench) -> None:
    node.install()


def _garble(node: Bench) -> None:
    node.garble()


def _wrap(node: Bench) -> None:
    time.sleep(1.0)
    node.control(f"value 1 {_RECEIVED} 5000")


def _cut(node: Bench) -> None:
    node.control("mig 1 3")


def _release_hung(node: Bench) -> Sequence[str]:
    time.sleep(2.0)
    node.exporter.process.send_signal(signal.SIGUSR1)
    time.sleep(1.5)
    return ["a reader still holds the GPUs"] if node.readers() else []


def _release_twice(node: Bench) -> Sequence[str]:
    node.release(600)
    node.release(2)
    return ["a reader still holds the GPUs"] if node.readers() else []


def _end_release(node: Bench) -> None:
    node.release(0)


def _all_xids(watch: Watch) -> Sequence[str]:
    device = f'{ALL[1]}",nvidia_gpu_xid="31"'
    counted = watch.scrapes[-1].value("nvidia_gpu_xid_errors_total", device) or 0
    return [] if counted == 1000 else [f"{counted:.0f} of 1,000 XID errors were counted"]


def _one_xid(watch: Watch) -> Sequence[str]:
    device = f'{ALL[1]}",nvidia_gpu_xid="79"'
    counted = watch.scrapes[-1].value("nvidia_gpu_xid_errors_total", device)
    return [] if counted == 1 else [f"{counted or 0:.0f} XID errors were counted, not 1"]


def _plausible(watch: Watch) -> Sequence[str]:
    worst = max(one.value("nvidia_gpu_power_average_watts", ALL[1]) or 0 for one in watch.scrapes)
    return [f"a power of {worst:g} W was told"] if worst > 1000 else []


def _wrapped(watch: Watch) -> Sequence[str]:
    ends = [one.value("hw_gpu_io_bytes_total", ALL[1]) or 0 for one in (watch.during()[0], watch.scrapes[-1])]
    grown = ends[1] - ends[0]
    return [] if grown == 12_296 else [f"{grown:g} B were counted over the wrap, not 12,296"]


def _error(function: str, code: int, gpu: str = "1") -> tuple[str, ...]:
    return (f"error {gpu} {function} {code}",)


def _hang(function: str, gpu: str = "1", seconds: float = 60) -> tuple[str, ...]:
    return (f"hang {gpu} {function} {seconds:g}",)


_FIELDS: Final = "nvmlDeviceGetFieldValues"
_RECEIVED: Final = pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES
#: A field that is read: power itself is drained.
_POWER: Final = pynvml.NVML_FI_DEV_POWER_AVERAGE
#: Later than when the stub's counters begin.
_EPOCH: Final = ("epoch 1 * 1769904000",)
#: What a call to every GPU takes until all of them have been found to hang, one after another.
_ALL_TOLD_S: Final = 8.0

_RESET: Final = ("hw_energy_joules_total", "nvidia_gpu_nvlink_io_bytes_total", "nvidia_gpu_throttle_time_seconds_total")
_OTHERS: Final = (ALL[0], *ALL[2:])
_TAKEN: Final = (ALL[1], ALL[3])
_GONE: Final = ("gone 1", "gone 3")
_SLICES: Final = tuple(slice_uuid(1, number) for number in (1, 2, 3))

FAULTS: Final[tuple[Fault, ...]] = (
    # ------------------------------------------------------------------ lost
    Fault(name="a GPU is lost, and comes back", lines=("lost 1",), lost=_ONE),
    Fault(name="a GPU is lost four times in 6 s", lines=("lost 1",), act=_flap, seconds=6, touched=_ONE),
    Fault(name="a GPU is lost for good", lines=("lost 1",), kept=("lost 1",), lost=_ONE, after=_OTHERS),
    Fault(name="a lost GPU hangs when it is tried again", lines=("lost 1",), act=_lost_hangs, lost=_ONE, seconds=7),
    Fault(name="all GPUs are lost", lines=("lost *",), lost=ALL),
    Fault(name="a GPU needs a reset", lines=_error("*", pynvml.NVML_ERROR_RESET_REQUIRED), lost=_ONE),
    Fault(name="the driver no longer finds a GPU", lines=_error("*", pynvml.NVML_ERROR_GPU_NOT_FOUND), lost=_ONE),
    # ------------------------------------------------------------------ hung
    Fault(name="a GPU hangs in its field values", lines=_hang(_FIELDS), lost=_ONE),
    Fault(name="an XID comes while its GPU hangs", lines=("xid 1 79 1", *_hang("*")), lost=_ONE, holds=_one_xid),
    Fault(name="a GPU hangs in its sample buffers", lines=_hang("nvmlDeviceGetSamples"), lost=_ONE),
    Fault(name="a GPU hangs in its memory", lines=_hang("nvmlDeviceGetMemoryInfo_v2"), lost=_ONE, told_s=3.5),
    Fault(name="a GPU hangs in its GPM sample", lines=_hang("nvmlGpmSampleGet"), lost=_ONE),
    Fault(name="a GPU hangs in its handle", lines=_hang("nvmlDeviceGetHandleByIndex_v2"), lost=_ONE, told_s=4.5),
    Fault(name="a call outlasts what made it hang", lines=(f"stuck 1 {_FIELDS} 60",), lost=_ONE),
    Fault(name="two GPUs hang", lines=_hang(_FIELDS) + _hang(_FIELDS, "3"), lost=(ALL[1], ALL[3]), told_s=5, gap_s=1.5),
    Fault(name="all GPUs hang", lines=_hang(_FIELDS, "*"), lost=ALL, told_s=_ALL_TOLD_S, seconds=9),
    Fault(name="a GPU hangs for 60 s", lines=_hang("*"), lost=_ONE, seconds=60),
    Fault(name="all GPUs hang for 60 s", lines=_hang(_FIELDS, "*"), lost=ALL, told_s=_ALL_TOLD_S, seconds=60),
    Fault(
        name="a GPU hangs from the start",
        lines=_hang("*"),
        from_start=True,
        touched=_ONE,
        appear=_OTHERS,
        appear_s=7,
        seconds=9,
    ),
    Fault(
        name="a GPU hangs after another was taken out",
        ahead=("gone 0",),
        lines=_hang(_FIELDS, "2"),
        lost=(ALL[0], ALL[2]),
    ),
    Fault(name="the wait for events hangs", lines=_hang("nvmlEventSetWait_v2", "*"), told_s=None),
    Fault(name="counting the GPUs hangs", lines=_hang("nvmlDeviceGetCount_v2", "*"), lost=ALL, told_s=5, seconds=7),
    Fault(
        name="starting NVML hangs",
        lines=_hang("nvmlInitWithFlags", "*"),
        act=_signalled(signal.SIGKILL),
        lost=ALL,
        told_s=6,
        seconds=8,
    ),
    Fault(name="a GPU takes 200 ms a call", lines=_hang(_FIELDS, "1", 0.2), touched=_ONE, seconds=6),
    # ------------------------------------------------------------------ the driver
    Fault(
        name="the driver is reloaded",
        lines=_error("*", pynvml.NVML_ERROR_UNINITIALIZED, "*"),
        act=_reload,
        lost=ALL,
        seconds=6,
    ),
    Fault(
        name="the driver is replaced by another version", lines=("version 2",), kept=("version 2",), lost=ALL, seconds=2
    ),
    Fault(
        name="the library comes after the exporter",
        library_later=True,
        from_start=True,
        lost=ALL,
        told_s=None,
        undo=_install,
    ),
    Fault(
        name="all functions of a GPU answer: unknown error",
        lines=_error("*", pynvml.NVML_ERROR_UNKNOWN),
        touched=_ONE,
        missing=("hw_power_watts",),
    ),
    Fault(
        name="a function is not permitted",
        lines=_error("nvmlDeviceGetTemperature", pynvml.NVML_ERROR_NO_PERMISSION),
        touched=_ONE,
        for_good=True,
    ),
    Fault(
        name="a function lacks resources",
        lines=_error("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES),
        touched=_ONE,
        missing=("hw_gpu_memory_usage_bytes",),
    ),
    Fault(
        name="GPM is no longer supported",
        lines=_error("nvmlGpmSampleGet", pynvml.NVML_ERROR_NOT_SUPPORTED),
        touched=_ONE,
        missing=("nvidia_gpu_sm_activity_ratio",),
        for_good=True,
    ),
    # ------------------------------------------------------------------ which GPUs there are
    Fault(name="a GPU is added", absent=(ALL[3],), act=_added, touched=(ALL[3],), appear=(ALL[3],)),
    Fault(name="a GPU is taken out and put back", lines=("gone 3",), lost=(ALL[3],)),
    Fault(name="a GPU is put back that only a new start of NVML lists", lines=("late 3",), lost=(ALL[3],)),
    Fault(name="the first GPU is taken out: indices shift", lines=("gone 0",), lost=(ALL[0],)),
    Fault(
        name="two GPUs are taken out for good while the reader dies",
        lines=_GONE,
        kept=_GONE,
        act=_signalled(signal.SIGKILL),
        touched=_TAKEN,
        after=tuple(sorted({*ALL} - {*_TAKEN})),
        holds=lambda watch: [f"{gpu} is told to be up" for gpu in _TAKEN if watch.scrapes[-1].up(gpu)],
    ),
    Fault(name="a GPU gets two MIG instances and loses them", lines=("mig 1 2",), touched=_ONE, appear=_SLICES[:2]),
    Fault(
        name="the MIG instances of a GPU change",
        ahead=("mig 1 2",),
        act=_cut,
        kept=("mig 1 3",),
        touched=_ONE,
        appear=_SLICES,
        after=(*ALL, *_SLICES),
        for_good=True,
    ),
    # ------------------------------------------------------------------ what it says
    Fault(
        name="a field answers with an error of its own",
        lines=(f"field 1 {_POWER} {pynvml.NVML_ERROR_UNKNOWN}",),
        touched=_ONE,
        missing=("nvidia_gpu_power_average_watts",),
    ),
    Fault(
        name="an impossible value",
        lines=(f"value 1 {_POWER} 4e9",),
        touched=_ONE,
        missing=("nvidia_gpu_power_average_watts",),
        holds=_plausible,
    ),
    Fault(name="time stamps an hour ahead", lines=("stamp 1 * 3600",)),
    Fault(name="time stamps an hour behind", lines=("stamp 1 * -3600",)),
    Fault(name="time stamps of 0", lines=("stamp 1 * 0",)),
    Fault(name="counters go back", lines=_EPOCH, kept=_EPOCH, resets=_RESET),
    Fault(
        name="a counter wraps at 32 bits",
        ahead=(f"value 1 {_RECEIVED} {2**32 - 7296}",),
        lines=(f"value 1 {_RECEIVED} {2**32 - 7296}",),
        act=_wrap,
        kept=(f"value 1 {_RECEIVED} 5000",),
        holds=_wrapped,
    ),
    Fault(name="a thousand XID errors", lines=("xid 1 31 1000",), seconds=6, holds=_all_xids),
    # ------------------------------------------------------------------ the reader
    Fault(name="the reader is killed", act=_signalled(signal.SIGKILL), seconds=3, told_s=None),
    Fault(name="the reader crashes", act=_signalled(signal.SIGSEGV), seconds=3, told_s=None),
    Fault(name="the launcher is killed", act=_kill_launcher, seconds=3, told_s=None),
    Fault(name="the launcher and all readers are killed", act=_kill_all, seconds=3, told_s=None),
    Fault(name="a GPU's call crashes the reader", lines=(f"crash 1 {_FIELDS}",), lost=_ONE),
    Fault(
        name="the reader is stopped for 5 s",
        act=_signalled(signal.SIGSTOP),
        undo=_signalled(signal.SIGCONT),
        seconds=5.2,
        told_s=None,
    ),
    Fault(name="garbage in the reader's pipe", act=_garble, seconds=3, told_s=None),
    Fault(
        name="the GPUs are released while one hangs",
        lines=_hang(_FIELDS),
        act=_release_hung,
        undo=_end_release,
        lost=ALL,
        told_s=4.5,
    ),
    Fault(name="the GPUs are released twice", act=_release_twice, seconds=2.5, lost=ALL, told_s=1.5),
)
