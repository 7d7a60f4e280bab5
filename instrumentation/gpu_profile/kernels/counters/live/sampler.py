"""`python -m gpu_profile.kernels.counters.live.sampler ORDINAL INTERVAL_NS METRIC...`: PM sampling of one GPU.

Prints lines of JSON: `{"device": UUID, "chip": NAME}` once it samples; a list `[[start_ns, end_ns, value, ...], ...]`
several times a second; and `{"end": true}` when all samples are out, after a line on its standard input or that one's
end. `{"error": WHY}` ends it at any time. Times are the host's, since the epoch; values are in the metrics' order.
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

#: What is read beside a metric that is alone: on an H100 CUPTI 13.0 and 13.5 crashed when one alone was decoded.
_COMPANIONS: Final = ("sm__cycles_elapsed.avg", "sm__cycles_active.avg")
#: Between two readings of what the hardware has buffered, in seconds, and samples that are taken at a time.
_READ_S: Final = 0.1
_MOST: Final = 10_000
#: CUptiResult: what it says of a metric that a chip does not have, as an H100 did.
_INVALID_PARAMETER: Final = 1
INSTALL: Final = "PM sampling needs cupti-python 13.3 or newer: pip install 'gpu-profile[cupti]'"


class CounterSampler:
    """One run of it. `out` is where lines go."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def run(self, ordinal: int, interval_ns: int, metrics: Sequence[str]) -> NoReturn:
        """Sample until told to end."""
        over, parent = threading.Event(), os.getppid()
        threading.Thread(target=_await_end, args=(over,), daemon=True).start()
        try:
            from cupti import pm_sampling
        except ImportError as error:
            self._give_up(f"{INSTALL} ({error})")
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
        except Exception as error:  # noqa: BLE001 - whatever CUPTI refuses is said in a line
            self._give_up((_of_metrics(chip, asked) if chip else "") or _reason(error))
        self._say({"device": device, "chip": chip or None})
        ending, taken = False, 0
        # Once told to end, all that was buffered before is still read.
        while not ending or taken >= _MOST:
            if taken < _MOST:
                ending = over.wait(_READ_S) or os.getppid() != parent
            try:
                samples = collector.decode(_MOST)
                rows = list(_rows(samples, len(metrics)))
            except MemoryError as error:
                self._give_up(f"samples were lost: {error} Take a longer interval")
            except Exception as error:  # noqa: BLE001 - as above
                self._give_up(_reason(error))
            taken = len(rows)
            self._say(rows)
        self._say({"end": True})
        # CUPTI may hang or crash on its way out.
        os._exit(0)

    def _open(self, ordinal: int) -> str:
        """Make CUDA's device current, and return its UUID."""
        try:
            cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            self._give_up(f"PM sampling needs NVIDIA's driver: {error}")
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
                self._give_up(f"CUDA's driver does not open device {ordinal} (error {status})")
        return f"GPU-{UUID(bytes=bytes(uuid))}"

    def _say(self, what: object) -> None:
        try:
            self._out.write(json.dumps(what) + "\n")
            self._out.flush()
        except OSError:  # who asked is gone
            os._exit(1)

    def _give_up(self, why: str) -> NoReturn:
        self._say({"error": why})
        os._exit(1)


def _rows(samples: Any, asked: int) -> Iterator[tuple[float, ...]]:
    for sample in samples:
        yield (sample.start_timestamp, sample.end_timestamp, *sample.metric_values[:asked])


def _reason(error: Exception) -> str:
    status = 35 if isinstance(error, PermissionError) else getattr(error, "status", None)
    return explain(int(status)) if status is not None else f"{type(error).__name__}: {error}"


def _of_metrics(chip: str, metrics: Sequence[str]) -> str:
    """What a chip cannot sample of these metrics, by name; "" where that is not what is wrong, or cannot be told.

    CUPTI itself says of a name that it does not know, as of several passes, only that a parameter is invalid.
    """
    try:
        alone = {name: _passes(chip, [name]) for name in metrics}
        if unknown := [name for name, passes in alone.items() if passes is None]:
            return f"the chip {chip} has no such metric for PM sampling: {', '.join(unknown)}"
        together = _passes(chip, metrics)
    except Exception:  # noqa: BLE001 - the first error is told then
        return ""
    if together is None or together < 2:
        return ""
    several = [f"{name} needs {passes} by itself" for name, passes in alone.items() if (passes or 0) > 1]
    because = f": {', '.join(several)}" if several else ""
    return f"these metrics need {together} passes of the hardware, and a sample is one pass{because}; leave some out"


def _passes(chip: str, metrics: Sequence[str]) -> int | None:
    """How many passes metrics need together; None if the chip does not have one of them."""
    from cupti import profiler_host

    # It adds up all that it is ever asked for.
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
    # An interrupt is the program's, and whatever a library prints is none of the lines.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    own = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    CounterSampler(own).run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
