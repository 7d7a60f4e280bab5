"""What sampling 8 GPUs costs a process, beside a bare loop over nvidia-ml-py that reads the same signals.

Both run on `nvml_stub`, an NVML in C whose calls cost next to nothing: what is compared is the reader's own work. Each
run is a process of its own, the two take turns, and its figure is the process's CPU clock over the same time; building,
opening and enumerating lie before it. The sampler has all that it reads in its timelines; of the loops, one forgets it
at once, and one keeps it in a deque for each signal. What is kept lies all over the memory, which between two rounds a
tenth of a second apart the processor's caches lose: that is most of the difference.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

if __name__ == "__main__":
    sys.path[:0] = [
        str(Path(__file__).resolve().parents[1]),
        str(Path(__file__).resolve().parents[2] / "instrumentation"),
    ]

from support.nvml_stub.build import CannotBuildError, Stub, build, child_environment

from benchmarks.rows import Row

_MOST: Final = 1.5
#: What is asked besides reading signals: which devices there are, and what happened to them.
_OTHER: Final = frozenset(
    {
        "nvmlDeviceGetCount_v2",
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetName",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetMigMode",
        "nvmlEventSetWait_v2",
    }
)


@dataclass(frozen=True, slots=True)
class _Run:
    """One process: share of a core, NVML calls by function, and peak memory beyond what it had before it sampled."""

    cpu: float
    calls: dict[str, int]
    rss_mib: float

    @property
    def same(self) -> int:
        """The calls that read signals."""
        return sum(n for name, n in self.calls.items() if name not in _OTHER)


def rows(seconds: float = 8.0) -> Iterator[Row]:
    """The rows of sampling."""
    yield from at_10_hz(seconds)
    with _runner() as run:
        yield from _compared(run, 100, seconds / 2, rounds=1, promised=False)
        for hz, length in ((10, seconds), (100, seconds / 2)):
            five = run("five", hz, length)
            yield Row(f"five plain reads a GPU at {hz} Hz, for scale", f"{five.cpu * 100:.3f} % CPU")


def at_10_hz(seconds: float, rounds: int = 3) -> Iterator[Row]:
    """The rows that are promised."""
    try:
        with _runner() as run:
            yield from _compared(run, 10, seconds, rounds=rounds, promised=True)
    except CannotBuildError as error:
        yield Row("sampler at 10 Hz, 8 GPUs", f"not measured: {error}", ok=False)


@contextmanager
def _runner() -> Iterator[Callable[[str, float, float], _Run]]:
    with tempfile.TemporaryDirectory() as directory:
        environment = child_environment(build(Path(directory)))

        def run(what: str, hz: float, length: float) -> _Run:
            command = [sys.executable, str(Path(__file__).resolve()), what, str(hz), str(length)]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
            return _Run(**json.loads(done.stdout))

        yield run


def _compared(
    run: Callable[[str, float, float], _Run], hz: float, seconds: float, *, rounds: int, promised: bool
) -> Iterator[Row]:
    turns = [{what: run(what, hz, seconds) for what in ("forgets", "sampler", "keeps")} for _ in range(rounds)]
    ours = [turn["sampler"] for turn in turns]
    # What else the machine does only ever adds: the least of each is nearest to its own cost.
    own = min(r.cpu for r in ours)
    reads = median(r.same for r in ours) / seconds
    extra = median(sum(r.calls.values()) - r.same for r in ours) / seconds
    figure = f"{own * 100:.3f} % CPU, {reads:.0f} reads/s and {extra:.0f} other NVML calls/s, "
    figure += f"{max(r.rss_mib for r in ours):.1f} MiB for its history"
    for what, words in (("forgets", "that forgets what it reads"), ("keeps", "that keeps it in deques")):
        theirs = [turn[what] for turn in turns]
        least = min(r.cpu for r in theirs)
        same = median(r.same for r in theirs) / seconds
        each = ", ".join(f"{turn['sampler'].cpu / turn[what].cpu:.2f}" for turn in turns)
        # A round more or less at the edges is no difference.
        equal = abs(same - reads) <= 0.03 * same
        yield Row(
            f"sampler at {hz:g} Hz, 8 GPUs, C stub, beside a loop {words}",
            figure,
            f"bare pynvml, the same signals: {least * 100:.3f} %, {same:.0f} reads/s",
            f"{own / least:.2f}x (turns of {seconds:g} s: {each})",
            f"<={_MOST}x, the same reads" if promised else "the same reads",
            equal and (own / least <= _MOST or not promised),
            own / least,
        )


# ---------------------------------------------------------------------- in the child


def _bare(hz: float, *, keep: bool = False) -> Callable[[float], None]:
    """What people write, with the signals, tiers and buffers of the sampler, through nvidia-ml-py's own functions.

    `keep`: with stamps, in a deque for each signal of each GPU; without, what was read is forgotten at once.
    """
    import pynvml as nv

    from gpu_profile.catalogue import Tier
    from gpu_profile.sampling.periods import DRAIN_S, RARE_S, SLOW_S

    nv.nvmlInit()
    handles = [nv.nvmlDeviceGetHandleByIndex(i) for i in range(nv.nvmlDeviceGetCount())]
    fields, queries, buffers = _sources()
    last = [[0] * len(buffers) for _ in handles]
    kept: list[dict[Any, deque[tuple[int, int]]]] = [defaultdict(lambda: deque(maxlen=6000)) for _ in handles]

    def read(tier: Tier) -> None:
        for handle, history in zip(handles, kept, strict=True):
            for value in nv.nvmlDeviceGetFieldValues(handle, fields[tier]) if fields[tier] else ():
                if value.nvmlReturn == nv.NVML_SUCCESS:
                    found = value.timestamp, value.value.ullVal
                    if keep:
                        history[value.fieldId].append(found)
            for query, signals in queries[tier]:
                answer = query.run(nv, handle)
                now_us = time.time_ns() // 1000
                for signal, pick in signals:
                    picked = pick(answer)
                    if keep:
                        history[signal].append((now_us, picked))

    def drain() -> None:
        for handle, seen, history in zip(handles, last, kept, strict=True):
            for i, buffer in enumerate(buffers):
                try:
                    _, samples = nv.nvmlDeviceGetSamples(handle, buffer, seen[i])
                except nv.NVMLError_NotFound:
                    continue
                for sample in samples:
                    found = sample.timeStamp, sample.sampleValue.uiVal
                    seen[i] = max(seen[i], found[0])
                    if keep:
                        history[buffer, "buffer"].append(found)

    tiers = ((1 / hz, Tier.FAST), (SLOW_S, Tier.SLOW), (RARE_S, Tier.RARE))
    return _paced([(DRAIN_S, drain), *((period, partial(read, tier)) for period, tier in tiers)])


def _sources() -> tuple[dict[Any, list[Any]], dict[Any, list[Any]], list[int]]:
    """Fields, queries and buffers by tier: those that the driver reads of a GPU, found out by looking it over."""
    import pynvml as nv

    from gpu_profile.catalogue import Tier
    from gpu_profile.driver.nvml import NvmlDriver
    from gpu_profile.driver.nvml.readers import READERS

    driver = NvmlDriver()
    try:
        (device, *_) = driver.devices()
        opened = {row for row, can in driver.capabilities(device).items() if can.available}
    finally:
        driver.close()
    fields: dict[Any, list[Any]] = {tier: [] for tier in Tier}
    queries: dict[Any, dict[Any, list[Any]]] = {tier: {} for tier in Tier}
    buffers = []
    for row, reader in READERS.items():
        if row not in opened:
            continue
        # What the driver keeps samples of is not polled.
        if reader.buffer:
            buffers.append(getattr(nv, reader.buffer))
        elif reader.field and not _refused(reader):
            fields[row.tier].append((getattr(nv, reader.field), reader.scope))
        elif reader.query is not None:
            queries[row.tier].setdefault(reader.query, []).append((row.key, reader.pick))
    return fields, {tier: list(found.items()) for tier, found in queries.items()}, buffers


def _refused(reader: Any) -> bool:
    """Whether the driver refuses this field, and a query stands in for it."""
    import pynvml as nv

    nv.nvmlInit()
    handle = nv.nvmlDeviceGetHandleByIndex(0)
    (value,) = nv.nvmlDeviceGetFieldValues(handle, [(getattr(nv, reader.field), reader.scope)])
    nv.nvmlShutdown()
    return bool(value.nvmlReturn)


def _keeps(hz: float) -> Callable[[float], None]:
    return _bare(hz, keep=True)


def _five(hz: float) -> Callable[[float], None]:
    """Five plain reads of each GPU a round: what many a script does."""
    import pynvml as nv

    nv.nvmlInit()
    handles = [nv.nvmlDeviceGetHandleByIndex(i) for i in range(nv.nvmlDeviceGetCount())]

    def read() -> None:
        for handle in handles:
            _ = nv.nvmlDeviceGetUtilizationRates(handle).gpu
            _ = nv.nvmlDeviceGetMemoryInfo(handle).used
            _ = nv.nvmlDeviceGetPowerUsage(handle)
            _ = nv.nvmlDeviceGetTemperature(handle, nv.NVML_TEMPERATURE_GPU)
            _ = nv.nvmlDeviceGetClockInfo(handle, nv.NVML_CLOCK_SM)

    return _paced([(1 / hz, read)])


def _paced(actions: Sequence[tuple[float, Callable[[], None]]]) -> Callable[[float], None]:
    """Runs each action at its own period, and sleeps in between."""
    due = [time.monotonic()] * len(actions)

    def go(seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            if now >= end:
                return
            for i, (period, action) in enumerate(actions):
                if now >= due[i]:
                    action()
                    due[i] += period
            time.sleep(max(0.0, min(*due, end) - time.monotonic()))

    return go


def _sampler(hz: float) -> Callable[[float], None]:
    from gpu_profile.driver.nvml import NvmlDriver
    from gpu_profile.sampling.sampler import Sampler

    sampler = Sampler(NvmlDriver, interval_s=1 / hz)
    sampler.start()
    return time.sleep


def _child(what: str, hz: float, seconds: float) -> None:
    import pynvml

    go = {"forgets": _bare, "keeps": _keeps, "five": _five, "sampler": _sampler}[what](hz)
    go(1.5)  # opening, probing and the first drain of what the driver had buffered before
    stub = Stub(pynvml.nvmlLib)
    before, calls = _rss_kib(), stub.calls()
    started, cpu = time.monotonic(), time.process_time()
    go(seconds)
    share = (time.process_time() - cpu) / (time.monotonic() - started)
    made = {name: n - calls.get(name, 0) for name, n in stub.calls().items()}
    sys.stdout.write(json.dumps({"cpu": share, "calls": made, "rss_mib": (_rss_kib() - before) / 1024}))
    sys.stdout.flush()
    os._exit(0)  # neither side's way out is measured


def _rss_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    if len(sys.argv) > 3:
        _child(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
    for row in rows(*map(float, sys.argv[1:])):
        print(row, flush=True)
