"""`python -m gpu_profile.kernels.counters.live.sampler ORDINAL INTERVAL_NS METRIC...`: PM sampling of one GPU.

Prints lines of JSON: `{"device": UUID, "chip": NAME}` once it samples; a list `[[start_ns, end_ns, value, ...], ...]`
several times a second; and `{"end": true}` after the last sample. A line on its standard input, or the end of that
input, ends it. `{"error": WHY}` reports a failure at any time, and ends it, too. Times are the host's, since the epoch;
values are in the metrics' order.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, Final, NoReturn
from uuid import UUID

from gpu_profile.kernels.counters.permissions import explain

#: A second metric for a single one: on an H100, CUPTI 13.0 and 13.5 crashed when one alone was decoded.
_COMPANIONS: Final = ("sm__cycles_elapsed.avg", "sm__cycles_active.avg")
#: Seconds between two readings of the hardware's buffer, and samples that one reading takes.
_READ_S: Final = 0.1
_MOST: Final = 10_000
#: CUptiResult for a metric that the chip does not have, seen on an H100.
_INVALID_PARAMETER: Final = 1
INSTALL: Final = "PM sampling needs cupti-python 13.3 or newer: pip install 'gpu-profile[cupti]'"


class CounterSampler:
    """One run of the sampler. `out` is the file for its lines."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def run(self, ordinal: int, interval_ns: int, metrics: Sequence[str]) -> NoReturn:
        """Sample until a line on standard input, its end, or the end of the parent process."""
        over, parent = threading.Event(), os.getppid()
        threading.Thread(target=_await_end, args=(over,), daemon=True).start()
        try:
            from cupti import pm_sampling
        except ImportError as error:
            self._fail(f"{INSTALL} ({error})")
        device = self._open(ordinal)
        others = (name for name in _COMPANIONS if name not in metrics)
        asked = [*metrics, next(others)] if len(metrics) == 1 else list(metrics)
        chip = ""
        try:
            collector = pm_sampling.Collector(ordinal)
            collector.enable()
            chip = str(getattr(collector, "_chip_name", None) or "")
            collector.configure(metrics=asked, sampling_interval=interval_ns)
            collector.start()
        except Exception as error:  # noqa: BLE001 - any refusal of CUPTI becomes a line
            self._fail((_of_metrics(chip, asked) if chip else "") or _reason(error))
        self._print({"device": device, "chip": chip or None})
        ending, taken = False, 0
        # After the request to end, all that was buffered before is still read.
        while not ending or taken >= _MOST:
            if taken < _MOST:
                ending = over.wait(_READ_S) or os.getppid() != parent
            try:
                samples = collector.decode(_MOST)
                rows = list(_rows(samples, len(metrics)))
            except MemoryError as error:
                self._fail(f"samples were lost: {error} Take a longer interval")
            except Exception as error:  # noqa: BLE001 - as above
                self._fail(_reason(error))
            taken = len(rows)
            self._print(rows)
        self._print({"end": True})
        # CUPTI may hang or crash on its way out.
        os._exit(0)

    def _open(self, ordinal: int) -> str:
        """Make CUDA's device current, and return its UUID."""
        try:
            cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            self._fail(f"PM sampling needs NVIDIA's driver: {error}")
        device, context, uuid = ctypes.c_int(), ctypes.c_void_p(), (ctypes.c_ubyte * 16)()
        calls: tuple[Callable[[], int], ...] = (
            lambda: cuda.cuInit(0),
            lambda: cuda.cuDeviceGet(ctypes.byref(device), ordinal),
            lambda: cuda.cuDeviceGetUuid_v2(uuid, device),
            lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
            lambda: cuda.cuCtxSetCurrent(context),
        )
        for call in calls:
            status = call()
            if status:
                self._fail(f"CUDA's driver does not open device {ordinal} (error {status})")
        return f"GPU-{UUID(bytes=bytes(uuid))}"

    def _print(self, message: object) -> None:
        try:
            self._out.write(json.dumps(message) + "\n")
            self._out.flush()
        except OSError:  # the program is gone
            os._exit(1)

    def _fail(self, why: str) -> NoReturn:
        self._print({"error": why})
        os._exit(1)


def _rows(samples: Any, asked: int) -> Iterator[tuple[float, ...]]:
    for sample in samples:
        yield (sample.start_timestamp, sample.end_timestamp, *sample.metric_values[:asked])


def _reason(error: Exception) -> str:
    status = 35 if isinstance(error, PermissionError) else getattr(error, "status", None)
    return explain(int(status)) if status is not None else f"{type(error).__name__}: {error}"


def _of_metrics(chip: str, metrics: Sequence[str]) -> str:
    """The reason why a chip cannot sample these metrics, by name; "" if they are not the cause, or on another error.

    For an unknown name, and for metrics of several passes, CUPTI itself reports an invalid parameter only.
    """
    try:
        alone = {name: _passes(chip, [name]) for name in metrics}
        if unknown := [name for name, passes in alone.items() if passes is None]:
            return f"the chip {chip} has no such metric for PM sampling: {', '.join(unknown)}"
        together = _passes(chip, metrics)
    except Exception:  # noqa: BLE001 - the first error is reported then
        return ""
    if together is None or together < 2:
        return ""
    several = [f"{name} needs {passes} by itself" for name, passes in alone.items() if (passes or 0) > 1]
    because = f": {', '.join(several)}" if several else ""
    return f"these metrics need {together} passes of the hardware, and a sample is one pass{because}; leave some out"


def _passes(chip: str, metrics: Sequence[str]) -> int | None:
    """The number of passes that the metrics need together; None if the chip does not have one of them."""
    from cupti import profiler_host

    # A new host for each question: it adds up all metrics that it was ever asked for.
    host = profiler_host.ProfilerHost(chip, profiler_host.ProfilerType.PM_SAMPLING)
    host.initialize()
    try:
        return int(profiler_host.get_num_of_passes(host.create_config_image(metrics=list(metrics))))
    except ValueError:
        return None
    except Exception as error:
        if getattr(error, "status", None) == _INVALID_PARAMETER:
            return None
        raise
    finally:
        host.deinitialize()


def _await_end(over: threading.Event) -> None:
    os.read(0, 1)
    over.set()


if __name__ == "__main__":
    # An interrupt is for the program, and output of a library must not mix with the lines.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    own = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    CounterSampler(own).run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
