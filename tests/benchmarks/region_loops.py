"""The loops that `region_cost` times: `python region_loops.py bare` prints them as JSON; so do the others of `LOOPS`.

In microseconds, or what the names say.
"""

import asyncio
import json
import random
import sys
import threading
import time
import zlib
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean, median, quantiles
from tempfile import TemporaryDirectory
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from support.hardware import H100

from benchmarks.frameworks import stub
from gpu_profile import GpuSpanProcessor, configure, region
from gpu_profile.analysis import analyse
from gpu_profile.catalogue.samples import DeviceKind
from gpu_profile.clock import SYSTEM_CLOCK
from gpu_profile.driver.grammar import open_driver
from gpu_profile.join.unmixing.pools.mixture import Mixture
from gpu_profile.recording import read_recording
from gpu_profile.regions import running
from gpu_profile.regions.frameworks.events import EventStream
from gpu_profile.regions.frameworks.libcuda import Cuda
from gpu_profile.regions.session import process
from gpu_profile.regions.session.turns import Turns


def burst(function: Callable[[], object], calls: int = 400) -> float:
    """Microseconds a call."""
    started = time.perf_counter_ns()
    for _ in range(calls):
        function()
    return (time.perf_counter_ns() - started) / calls / 1e3


def least(functions: dict[str, Callable[[], object]], bursts: int = 400) -> dict[str, float]:
    """The fastest of many bursts of each, in turns: what else the machine does only ever adds."""
    found = dict.fromkeys(functions, float("inf"))
    for _ in range(bursts):
        for name, function in functions.items():
            found[name] = min(found[name], burst(function))
    return found


def _nothing() -> None:
    pass


async def _nothing_async() -> None:
    pass


def _drive(coroutine: Coroutine[Any, Any, None]) -> None:
    with suppress(StopIteration):
        coroutine.send(None)


def bare() -> dict[str, float]:
    """Regions without spans, over the bare call."""
    configure(backend="none")
    decorated = region("step", span=False)(_nothing)
    decorated_async = region("step", span=False)(_nothing_async)
    again = region("step", span=False)
    tracer = trace.get_tracer("benchmark")

    def block() -> None:
        with region("step", span=False):
            pass

    def same() -> None:
        with again:
            pass

    def noop() -> None:
        with tracer.start_as_current_span("step"):
            pass

    found = least(
        {
            "bare": _nothing,
            "bare async": lambda: _drive(_nothing_async()),
            "decorator": decorated,
            "async function": lambda: _drive(decorated_async()),
            "with region(...)": block,
            "one region object again": same,
            "no-op span": noop,
        }
    )
    asyncio.run(decorated_async())
    configure(enabled=False)
    off = least({"bare": _nothing, "disabled": decorated, "disabled with": block})
    result = {name: cost - found["bare async" if name == "async function" else "bare"] for name, cost in found.items()}
    return result | {name: cost - off["bare"] for name, cost in off.items() if name != "bare"}


class Nowhere(SpanExporter):
    """Takes spans and keeps the last."""

    last: ReadableSpan | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        Nowhere.last = spans[-1]
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


def _provider(*, joined: bool) -> TracerProvider:
    provider = TracerProvider()
    batch = BatchSpanProcessor(Nowhere())
    provider.add_span_processor(GpuSpanProcessor(batch) if joined else batch)
    return provider


def span() -> dict[str, float]:
    """A region that is a span, beside the SDK's own way, with the same provider and no join."""
    configure(backend="none")
    provider = TracerProvider()
    tracer = running.tracer = provider.get_tracer("benchmark")

    def ours() -> None:
        with region("step"):
            pass

    def theirs() -> None:
        with tracer.start_as_current_span("step"):
            pass

    found = least({"region": ours, "span": theirs}, 300)
    process.stop()
    return found


def searching() -> dict[str, float]:
    """A loop that gives Python's lock away every few microseconds, as one that launches kernels does: its pace over
    stretches of 50 ms beside a search for timings that takes turns with it and beside one that does not, over the pace
    alone: in all, and of the slowest twentieth of the stretches."""
    recording = read_recording(H100 / "joint" / "training")
    data = b"x" * 20_000

    def alone() -> None:
        time.sleep(1.0)

    def at_once() -> None:
        analyse(recording)

    def by_turns() -> None:
        Turns().begin()
        analyse(recording)

    paces: dict[str, list[float]] = {}
    for _ in range(2):
        for work in (alone, at_once, by_turns):
            over = threading.Event()

            def run(work: Callable[[], None] = work, over: threading.Event = over) -> None:
                work()
                over.set()

            threading.Thread(target=run).start()
            while not over.is_set():
                calls, began = 0, time.perf_counter()
                while time.perf_counter() < began + 0.05:
                    zlib.crc32(data)
                    calls += 1
                paces.setdefault(work.__name__, []).append(calls / (time.perf_counter() - began))
    whole = median(paces["alone"])
    found = {f"{name} mean": mean(each) / whole for name, each in paces.items()}
    return found | {f"{name} slowest": quantiles(each, n=20)[0] / whole for name, each in paces.items()}


def launching() -> dict[str, float]:
    """A step of three regions that gives Python's lock away 360 times, as one that launches so many kernels does: for
    which share of the time its thread is held up over the first half minute of a session at 20 Hz with marks on the
    device, and without a session; and what the session's threads take of a core."""
    data, names = b"x" * 60_000, ("forward", "backward", "optimizer")

    def may_isolate(seconds: float) -> float:
        began, used_s = time.perf_counter(), time.thread_time()
        while time.perf_counter() < began + seconds:
            for name in names:
                with region(name, span=False):
                    for _ in range(120):
                        zlib.crc32(data)
        return 1 - (time.thread_time() - used_s) / (time.perf_counter() - began)

    with TemporaryDirectory() as directory:
        stream = EventStream(Cuda(stub(directory)), 0, lambda _: 0, SYSTEM_CLOCK)
        stream.device_uuid = next(d.uuid for d in open_driver("nvml").devices() if d.kind is DeviceKind.GPU)
        configure(enabled=False)
        found = {"alone": may_isolate(4.0)}
        configure(backend="nvml", enabled=True, stream=stream)
        found["beside"] = may_isolate(30.0)
        threads = {thread.name: thread.native_id for thread in threading.enumerate()}
        for name in ("join", "sampler"):
            used = Path(f"/proc/self/task/{threads[f'gpu-profile-{name}']}/schedstat").read_text().split()[0]
            found[name] = int(used) / 30e9
        found["regions"] = sum(judged.summary.durations.calls for judged in process.session().regions())
        process.stop()
    return found


#: Spans a second, and the seconds of one turn: at its end all is flushed, for which all rates are fitted anew.
RATE, TURN_S = 4_000, 4.0
#: Timings of sensors are searched for no more after 1,000 windows, which takes minutes: here they stay as they are
#: known after so long.
WARM_S = 30.0
_chance = random.Random(1)  # noqa: S311 - no secret


def paced(function: Callable[[], object], seconds: float, chance: random.Random = _chance) -> int:
    """Call `RATE` times a second on average, in stretches by chance: work that never pauses cannot be told from what
    the device does anyhow. How often it was."""
    end = due = time.monotonic()
    end += seconds
    calls = 0
    while due < end:
        works = chance.random() < 0.5 or not calls
        for _ in range(25):
            for _ in range(2 * RATE // 100 if works else 0):
                function()
                calls += 1
            due += 0.01
            time.sleep(max(0.0, due - time.monotonic()))
    return calls


def _cpu(function: Callable[[], object], provider: TracerProvider, turn: int) -> float:
    """Microseconds of CPU of the whole process for one call, with all that it leaves to do for other threads. Functions
    have the same calls at the same moments of one turn: what the sampler takes all the time is shared by as many."""
    started = time.process_time_ns()
    calls = paced(function, TURN_S, random.Random(turn))  # noqa: S311 - no secret
    provider.force_flush()
    return (time.process_time_ns() - started) / calls / 1e3


def joined() -> dict[str, float]:
    """Spans with as many attributes, at the same pace: one's own way, and joined once the sensors are known."""
    plain, own = _provider(joined=False), _provider(joined=True)
    tracer = plain.get_tracer("benchmark")
    running.tracer = own.get_tracer("benchmark")
    configure(backend="nvml")

    def ours() -> None:
        with region("step"):
            pass

    started = time.monotonic()
    while time.monotonic() - started < WARM_S and not _settled():
        paced(ours, TURN_S)
    _stay()
    paced(ours, TURN_S)
    warm_s = time.monotonic() - started
    last = Nowhere.last
    attributes = dict(last.attributes or {}) if last is not None else {}

    def theirs() -> None:
        with tracer.start_as_current_span("step") as current:
            current.set_attributes(attributes)

    def without() -> None:
        with tracer.start_as_current_span("step"):
            pass

    before = _unjoined(own)
    turns = []
    for turn in range(5):
        _stay()  # one that was not looked for long enough can be refuted, and is then looked for again
        turns.append((_cpu(ours, own, turn), _cpu(theirs, plain, turn)))
    bare_ = _cpu(without, plain, 0)
    region_, span = (median(column) for column in zip(*turns, strict=True))
    # Within a turn the machine is as fast for both.
    ratio = median(ours_us / theirs_us for ours_us, theirs_us in turns)
    unjoined = _unjoined(own) - before
    process.stop()
    found = {"span": span, "region": region_, "bare": bare_, "ratio": ratio, "attributes": len(attributes)}
    return found | {"warm_s": warm_s, "unjoined": unjoined, "joined": float("gpu_profile.scope" in attributes)}


def _unjoined(provider: TracerProvider) -> int:
    processors = provider._active_span_processor._span_processors
    return sum(each.unjoined for each in processors if isinstance(each, GpuSpanProcessor))


def _mixtures() -> list[Mixture]:
    return [mixture for pool in process.session().joiner.pools.values() for mixture in pool._live]


def _stay() -> None:
    """Look for no timings any more."""
    for mixture in _mixtures():
        if not mixture.locked:
            mixture.lock()


def _settled() -> bool:
    mixtures = _mixtures()
    return bool(mixtures) and all(mixture.locked for mixture in mixtures)


LOOPS: Final = {each.__name__: each for each in (bare, span, joined, searching, launching)}

if __name__ == "__main__":
    print(json.dumps(LOOPS[sys.argv[1]]()))
