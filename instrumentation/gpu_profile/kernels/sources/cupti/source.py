"""Recording with CUPTI: start, push and pop the ranges around calls, stop, and read the records."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from gpu_profile.errors import GpuBackendError
from gpu_profile.kernels.claim import forget_in_children
from gpu_profile.kernels.counters.permissions import explain
from gpu_profile.kernels.records import Record
from gpu_profile.kernels.sources.cupti import rows as r
from gpu_profile.kernels.sources.cupti.decoding import CUSTOM2, decode, external_id
from gpu_profile.kernels.sources.cupti.names import call_names
from gpu_profile.kernels.sources.cupti.obstacles import hindrance, other_user
from gpu_profile.kernels.sources.source import ENDERS
from gpu_profile.regions.frameworks import libcuda

#: CUPTI recommends 1 to 10 MB; a large buffer comes back seldom.
BUFFER_BYTES: Final = 8 << 20
#: A row takes about 200 bytes, and a kernel three or four rows with its calls.
MOST_RECORDS: Final = 1_000_000
_FORCED: Final = 1
_SYSTEM_THREADS: Final = 1
_NEEDED: Final = (r.CONCURRENT_KERNEL, r.RUNTIME)
#: KERNEL is never enabled: it makes kernels run one after another. SYNCHRONIZATION would only repeat the calls that
#: wait, which RUNTIME and DRIVER have.
_WANTED: Final = (r.DRIVER, r.MEMCPY, r.MEMCPY2, r.MEMSET, r.MEMORY2, r.EXTERNAL_CORRELATION)
#: Frequent calls that neither launch, copy, allocate nor wait.
_QUIET: Final = {
    "runtime": (
        "cudaGetDevice_v3020",
        "cudaSetDevice_v3020",
        "cudaGetLastError_v3020",
        "cudaPeekAtLastError_v3020",
        "cudaDeviceGetAttribute_v5000",
        "cudaStreamIsCapturing_v10000",
        "cudaStreamGetCaptureInfo_v10010",
        "cudaEventCreateWithFlags_v3020",
        "cudaEventDestroy_v3020",
    ),
    "driver": (
        "cuCtxGetCurrent",
        "cuCtxSetCurrent",
        "cuCtxGetDevice",
        "cuCtxPushCurrent_v2",
        "cuCtxPopCurrent_v2",
        "cuDeviceGet",
        "cuDeviceGetAttribute",
        "cuDevicePrimaryCtxGetState",
    ),
}


class CuptiSource:
    """Records of GPU work in this process, from CUPTI's activity interface.

    Only one source records at a time, because CUPTI has one user in a process. `most_records` bounds the memory of a
    recording (about 200 bytes each); further records are counted in `dropped`. `synchronise` waits for all GPUs; work
    that still runs at `stop` would be lost without it.

    `skipped` counts unusable records by reason. It is complete when the records of `stop` have been read.
    """

    name = "cupti"
    problem = ""
    pushes = True

    def __init__(self, *, most_records: int = MOST_RECORDS, synchronise: Callable[[], None] | None = None) -> None:
        self.skipped: Counter[str] = Counter()
        self._most = most_records
        self._synchronise = synchronise or wait_for_devices
        self._cupti: Any = None
        self._rows = r.CuptiRows(0)
        self._enabled: list[int] = []
        self._recording = 0
        self._lost: int | None = 0

    @property
    def dropped(self) -> int | None:
        """Records that the last recording lost, unusable ones included; None if CUPTI cannot report them."""
        if self._lost is None:
            return None
        return self._lost + sum(self.skipped.values())

    def start(self) -> None:
        """Record from now on. GpuBackendError with the reason and the remedy, in one line, if that is not possible."""
        with _process.lock:
            if _process.source is not None:
                raise GpuBackendError("CUPTI records for another window of this process already: end that first")
            if _process.forked:
                raise GpuBackendError(
                    "CUPTI does not work in a forked process whose parent has used it: start the process with spawn"
                )
            if reason := hindrance():
                raise GpuBackendError(reason)
            self._cupti = _imported()
            self.skipped, self._rows, self._enabled, self._lost = Counter(), r.CuptiRows(self._most), [], 0
            _process.used = True
            _process.rows = self._rows
            try:
                self._enable()
            except Exception as error:
                self._disable()
                _process.rows = None
                raise _refused(error) from error
            self._recording = next(_process.numbers)
            _process.source = self

    def _enable(self) -> None:
        cupti = self._cupti
        # By default CUPTI uses pthread ids, cut to 32 bits.
        cupti.set_thread_id_type(_SYSTEM_THREADS)
        cupti.activity_register_callbacks(_requested, _completed)
        for kind in (*_NEEDED, *_WANTED):
            self._try(kind, cupti.activity_enable)
        # Also reports devices in use already, with their number of multiprocessors.
        self._try(r.DEVICE, cupti.activity_enable_and_dump)
        for interface, names in _QUIET.items():
            self._silence(interface, names)

    def _try(self, kind: int, enable: Callable[[int], object]) -> None:
        try:
            enable(kind)
        except Exception:
            if kind in _NEEDED:
                raise
        else:
            self._enabled.append(kind)

    def _silence(self, interface: str, names: Iterable[str]) -> None:
        table = getattr(self._cupti, f"{interface}_api_trace_cbid", None)
        control = getattr(self._cupti, f"activity_enable_{interface}_api", None)
        for name in names:
            # Only saves time: a release that lacks the call, or refuses, records it.
            with suppress(Exception):
                control(int(table[name]), 0)  # type: ignore[misc,index]

    def stop(self) -> Iterable[Record]:
        """End, after all GPUs are done, and return the records once, in no order. They are decoded as they are read.

        GpuBackendError if it does not record, as in a forked child.
        """
        with _process.lock:
            if _process.source is not self:
                raise GpuBackendError("this source does not record: start it first")
            with suppress(Exception):  # often a kernel's failure, which the program will see itself
                self._synchronise()
            return self._end()

    def _end(self) -> Iterator[Record]:
        recording, self._recording = self._recording, 0
        self._disable()
        lost = self._flushed()
        _process.source = _process.rows = None
        # Another user that began in between has taken records that cannot be counted.
        self._lost = None if lost is None or other_user() else lost + self._rows.left_out
        kinds, self._rows = self._rows.kinds, r.CuptiRows(0)
        return decode(kinds, call_name=call_names(self._cupti), recording=recording, skipped=self.skipped)

    def _flushed(self) -> int | None:
        count = ctypes.c_size_t()
        try:
            self._cupti.activity_flush_all(_FORCED)
            self._cupti.activity_get_num_dropped_records(0, 0, ctypes.addressof(count))
        except Exception:  # noqa: BLE001 - on any error the number of lost records is unknown
            return None
        return count.value

    def _disable(self) -> None:
        for kind in self._enabled:
            with suppress(Exception):
                self._cupti.activity_disable(kind)
        self._enabled = []

    def push(self, range_id: int) -> None:
        """Calls of this thread belong to this range from now on."""
        if self._recording:
            with suppress(Exception):
                self._cupti.activity_push_external_correlation_id(CUSTOM2, external_id(self._recording, range_id))

    def pop(self) -> None:
        """End this thread's innermost range; no effect if there is none."""
        if self._cupti is not None and not _process.forked:
            with suppress(Exception):
                self._cupti.activity_pop_external_correlation_id(CUSTOM2)


class _Process:
    """The state of CUPTI in this process: `used` so far, in use by `source`, or `forked` after its use."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.numbers = itertools.count(1)
        self.used = self.forked = False
        self.source: CuptiSource | None = None
        self.rows: r.CuptiRows | None = None
        forget_in_children(self)

    def forget(self) -> None:
        """CUPTI works in no forked child."""
        self.lock = threading.Lock()
        self.forked = self.forked or self.used
        if self.source is not None:
            self.source._recording = 0
            self.source = self.rows = None

    def at_exit(self) -> None:
        # CUPTI must not call an interpreter that has ended; and a GPU that hangs must not keep the program from ending.
        if self.source is not None and self.lock.acquire(timeout=1.0):
            self.source._end()


_process: Final = _Process()
ENDERS.add(_process.at_exit)


def _requested() -> tuple[int, int]:
    return BUFFER_BYTES, 0


def _completed(records: Iterable[Any]) -> None:
    if (rows := _process.rows) is not None:
        rows.add(records)


def _imported() -> Any:
    try:
        from cupti import cupti
    except Exception as error:
        raise GpuBackendError(f"cupti-python cannot be imported: {type(error).__name__}: {error}") from error
    return cupti


def _refused(error: Exception) -> GpuBackendError:
    code = getattr(error, "status", None)
    said = explain(code) if isinstance(code, int) else " ".join(str(error).split()) or type(error).__name__
    return GpuBackendError(f"CUPTI cannot record: {said}")


def wait_for_devices() -> None:
    """Wait until every GPU with a primary context of this process is done. Makes no context."""
    cuda = libcuda.loaded()
    if cuda is None:
        return
    wait = ctypes.CDLL("libcuda.so.1").cuCtxSynchronize
    for ordinal in range(cuda.count()):
        if cuda.active(ordinal):
            with cuda.inside(cuda.context(ordinal)):
                wait()
