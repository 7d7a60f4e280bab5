"""Two ways to measure the costs of a command's requests: an exporter's counters, or this machine's GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from gpu_profile.cli.child import asked_to_end
from gpu_profile.cli.devices import chooser
from gpu_profile.cli.progress import Progress
from gpu_profile.cli.watch import DeviceWatch
from gpu_profile.clock import SYSTEM_CLOCK, Alarm, Clock
from gpu_profile.errors import UsageError
from gpu_profile.units import nanoseconds

if TYPE_CHECKING:
    from gpu_profile.analysis.costs import BenchmarkResult, EngineCounters, RunCosts
    from gpu_profile.catalogue.samples import Interval

#: The interval between two readings of a GPU, in s: the period of its energy counter.
_INTERVAL_S: Final = 0.1
#: The longest wait for the first reading, in s.
_FIRST_S: Final = 1.0
#: Seconds between two scrapes, and for how long the counters must rest. The exporter shares energy out after up to 5 s.
_STEP_S: Final = 1.0
_REST_S: Final = 7.0


class CostMeter(Protocol):
    """Measures one command. Its methods are called in this order, and raise GpuProfileError."""

    def prepare(self) -> None:
        """Wait until the command may start. Ctrl-C ends it."""
        ...

    def start(self) -> None:
        """Start before the command, with signals held."""
        ...

    def costs(self, during: Interval, result: BenchmarkResult | None) -> RunCosts:
        """The costs of the command after its end."""
        ...

    def stop(self) -> None:
        """End, whether the command succeeded or not."""
        ...


class EngineMeter:
    """The growth of an engine's counters at the checked URL of an exporter."""

    def __init__(self, url: str, engine: str, wait_s: float) -> None:
        self._url, self._engine, self._wait_s = url, engine, wait_s
        self._before: EngineCounters | None = None

    def prepare(self) -> None:
        """Wait until the engine is idle."""
        with Progress("waiting for the server to be idle"):
            self._before = settled(self._read, SYSTEM_CLOCK, self._wait_s)

    def start(self) -> None:
        """The exporter measures all the time."""

    def costs(self, during: Interval, result: BenchmarkResult | None) -> RunCosts:
        """Wait for the costs of the last requests."""
        from gpu_profile.analysis.costs import costs_of

        with Progress("waiting for the costs of the last requests"):
            after = settled(self._read, SYSTEM_CLOCK, self._wait_s)
        return costs_of(self._before or after, after, during, result)

    def stop(self) -> None:
        """The exporter goes on."""

    def _read(self) -> EngineCounters:
        from gpu_profile.analysis.costs import engine_counters
        from gpu_profile.monitor.top.endpoint import fetch, shown_url
        from gpu_profile.monitor.top.region_rates import ScrapeError

        try:
            counters = engine_counters(fetch(self._url), self._engine)
            if self._before is not None and counters.started_s != self._before.started_s:
                raise UsageError("the exporter restarted during the run; run it again")
            return counters
        except ScrapeError as error:
            remedy = "--url names the exporter with the engine"
            raise UsageError(f"{shown_url(self._url)}: {error}: {remedy}") from error
        except UsageError as error:
            raise UsageError(f"{shown_url(self._url)}: {error}") from error


class DeviceMeter:
    """The energy of GPUs of the driver `spec`; `devices` as in other commands."""

    def __init__(self, spec: str, devices: Sequence[str]) -> None:
        from gpu_profile.driver.grammar import check_spec

        check_spec(spec)
        choose = chooser(devices, visible=False)
        self._watch = DeviceWatch(spec, interval_s=_INTERVAL_S, choose=choose, strict=True)

    def prepare(self) -> None:
        """Nothing to wait for."""

    def start(self) -> None:
        """Read the GPUs from now on."""
        self._watch.start()
        self._watch.require(lambda: asked_to_end() > 0)
        if self._watch.sampler is not None:
            self._watch.sampler.flush(_FIRST_S)

    def costs(self, during: Interval, result: BenchmarkResult | None) -> RunCosts:
        """The energy of the part of the command in which the benchmark ran."""
        from gpu_profile.analysis.costs import whole_costs

        if result is None:
            raise UsageError("whole GPUs have costs with a --result only")
        self._watch.finish()
        sampler = self._watch.sampler
        states = self._watch.states
        if sampler is None or not states:
            raise UsageError(self._watch.why_unread)
        timelines = [sampler.timeline(state.device.uuid) for state in states]
        simulated = self._watch.driver_name.startswith("simulated")
        return whole_costs([each for each in timelines if each is not None], during, result, simulated=simulated)

    def stop(self) -> None:
        """End reading."""
        self._watch.stop()


def settled(read: Callable[[], EngineCounters], clock: Clock, wait_s: float) -> EngineCounters:
    """The counters once all energy of requests is shared out: they rest, and the energy of idle time grows.

    Reads them again and again for `wait_s` at most; a scrape that fails in between is tried again. Raises UsageError
    after that, and at once if there are no costs yet.
    """
    end_ns = clock.elapsed_ns() + nanoseconds(wait_s)
    resting, rests_ns = read(), clock.elapsed_ns()
    problem = ""
    while True:
        if not (resting.energy_j or resting.waiting):
            raise UsageError(f"engine {resting.engine} has no costs yet: run the benchmark once to warm up")
        if clock.elapsed_ns() >= end_ns:
            raise UsageError(f"{problem or 'other requests or programs are running'}, after {wait_s:g} s")
        clock.wait(Alarm(), _STEP_S)
        try:
            now = read()
        except UsageError as error:
            problem = str(error)
            continue
        grows = now.idle_j > resting.idle_j
        problem = _problem(now, grows=grows)
        if now.waiting or now.at_work != resting.at_work:
            resting, rests_ns = now, clock.elapsed_ns()
        elif grows and clock.elapsed_ns() - rests_ns >= nanoseconds(_REST_S):
            return now


def _problem(now: EngineCounters, *, grows: bool) -> str:
    """Why the counters are not settled, as far as one scrape shows it."""
    if now.waiting:
        return f"{now.waiting:,.0f} iterations of {now.engine} still wait for the ends of their requests"
    return "" if grows else f"the energy of {now.engine} is not shared out: is it never idle?"
