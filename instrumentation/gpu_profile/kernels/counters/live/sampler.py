"""`python -m gpu_profile.kernels.counters.live.sampler ORDINAL INTERVAL_NS METRIC...`: PM sampling of one GPU.

Prints lines of JSON: `{"device": UUID, "chip": NAME}` once it samples, or `{"error": WHY}` and an end; then a list
`[[start_ns, end_ns, value, ...], ...]` several times a second, until its standard input is closed. Times are those of
the host, since the epoch; values are in the metrics' order.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NoReturn
from uuid import UUID

from gpu_profile.kernels.counters.permissions import explain

#: What is read beside a metric that is alone: on an H100 CUPTI 13.0 and 13.5 crashed when one alone was decoded.
_COMPANION: Final = "sm__cycles_elapsed.avg"
#: Between two readings of what the hardware has buffered, in seconds, and samples that are taken at a time.
_READ_S: Final = 0.1
_MOST: Final = 10_000
INSTALL: Final = "PM sampling needs cupti-python 13.3 or newer: pip install 'gpu-profile[cupti]'"


def main(ordinal: int, interval_ns: int, metrics: Sequence[str]) -> None:
    """Sample until standard input is closed."""
    try:
        from cupti import pm_sampling
    except ImportError as error:
        _give_up(f"{INSTALL} ({error})")
    device = _open(ordinal)
    collector = pm_sampling.Collector(ordinal)
    try:
        collector.enable()
        asked = [*metrics, _COMPANION] if len(metrics) == 1 else list(metrics)
        collector.configure(metrics=asked, sampling_interval=interval_ns)
        collector.start()
    except Exception as error:  # noqa: BLE001 - whatever CUPTI refuses is said in a line
        _give_up(_reason(error))
    _say({"device": device, "chip": getattr(collector, "_chip_name", None)})
    over = threading.Event()
    threading.Thread(target=_await_end, args=(over,), daemon=True).start()
    ending = False
    while not ending:
        ending = over.wait(_READ_S)
        try:
            _say(list(_rows(collector.decode(_MOST), len(metrics))))
        except Exception as error:  # noqa: BLE001 - as above: a buffer that overflowed, above all
            _give_up(_reason(error))
    collector.stop()
    collector.disable()


def _rows(samples: Any, asked: int) -> Iterator[tuple[float, ...]]:
    for sample in samples:
        # The first one of a session has no beginning.
        if sample.start_timestamp:
            yield (sample.start_timestamp, sample.end_timestamp, *sample.metric_values[:asked])


def _open(ordinal: int) -> str:
    """Make CUDA's device current, and return its UUID."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        _give_up(f"PM sampling needs NVIDIA's driver: {error}")
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
            _give_up(f"CUDA's driver does not open device {ordinal} (error {status})")
    return f"GPU-{UUID(bytes=bytes(uuid))}"


def _reason(error: Exception) -> str:
    status = getattr(error, "status", None)
    if isinstance(error, PermissionError):
        status = 35
    if isinstance(error, MemoryError):
        return f"samples were lost: {error}"
    return explain(int(status)) if status is not None else f"{type(error).__name__}: {error}"


def _await_end(over: threading.Event) -> None:
    while os.read(0, 4096):
        time.sleep(0)
    over.set()


def _say(what: object) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 - read by who started this


def _give_up(why: str) -> NoReturn:
    _say({"error": why})
    # What CUPTI has started may hang or crash on the way out.
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
