"""A simulated node, a supervisor and its processes in one thread: events are a function of a seed and nothing else.

Each process has an NVML of its own, put beneath pynvml while it runs. A call that hangs never returns: it ends the step
in which it was made, and the process stays where it was until it is killed.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
import pytest
from unit.exporter.reader.pipes import FakeProcess, Time

from gpu_profile.clock import Waitable
from gpu_profile.driver import simulated
from gpu_profile.driver.simulated.nvml import SimulatedNvml
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.reader import child, counting, heartbeat, intake, presence, processes, readers
from gpu_profile_exporter.reader.heartbeat import CallInProgress, Heartbeat
from gpu_profile_exporter.reader.listening import LISTEN_S, Listening
from gpu_profile_exporter.reader.readers import Readers
from gpu_profile_exporter.reader.settings import ReaderSettings

TICK_S = 0.05
#: What a process takes to start.
START_S = 0.3
#: Calls that may answer with an error, and the errors: two that are taken for final, one that is not.
CALLS = (
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetSamples",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceRegisterEvents",
    "nvmlDeviceGetUUID",
)
CODES = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_UNKNOWN)


class Hung(BaseException):
    """Ends what would never return."""


class HangingClock(FakeClock):
    """To wait is to hang."""

    def wait(self, event: Waitable, timeout_s: float) -> bool:
        raise Hung


@dataclass(frozen=True)
class Fault:
    """What happens to a GPU, or with `gpu` None to all, in seconds from the start."""

    kind: str
    gpu: int | None
    from_s: float
    to_s: float
    call: str = ""
    code: int = 0

    @property
    def scenario(self) -> str:
        """As a table of the node's scenario, if that knows such faults."""
        if self.kind not in ("gpu_removed", "gpu_lost", "hang", "xid"):
            return ""
        lines = ["[[fault]]", f'kind = "{self.kind}"', f"device = {self.gpu}", f"from_s = {self.from_s}"]
        if self.kind == "xid":
            return "\n".join([*lines, f"xid = {self.code}", ""])
        return "\n".join([*lines, f"to_s = {self.to_s}", "hang_s = 3600" if self.kind == "hang" else "", ""])


def sequence(seed: int, gpus: int, seconds: float, count: int) -> list[Fault]:
    """Faults in a random order, each at a moment of its own."""
    chance = random.Random(seed)  # noqa: S311 - the same faults for the same seed
    found = []
    for _ in range(count):
        kind = chance.choice(("gpu_removed", "gpu_lost", "hang", "xid", "kill", "kill", "bad", "bad", "clock"))
        gpu = None if kind in ("kill", "clock") else chance.randrange(gpus)
        start = round(chance.uniform(2, seconds), 2)
        end = round(start + chance.uniform(0.3, 12), 2)
        code = chance.choice((31, 48, 79)) if kind == "xid" else chance.choice(CODES)
        found.append(Fault(kind, gpu, start, end, chance.choice(CALLS), code))
    return sorted(found, key=lambda fault: fault.from_s)


class Virtual(FakeProcess):
    """A process of the supervisor's that runs here, step by step."""

    def __init__(self, settings: ReaderSettings, machine: "Machine") -> None:
        self.word = Heartbeat.create()
        super().__init__(settings, machine.time)
        self.machine = machine
        self.library = SimulatedNvml(machine.node, machine.steady)
        self.references = 0
        machine.spoil(self.library)
        self.loop = child._loop(settings, self.word, machine.clock)
        self.due = machine.time.now + START_S

    @property
    def where(self) -> CallInProgress | None:
        return self.word.now()

    @where.setter
    def where(self, _: CallInProgress | None) -> None:
        """It is where its word says."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """While its own NVML is beneath pynvml."""
        before = pynvml.nvmlLib, pynvml._nvmlLib_refcount
        simulated._put(self.library, self.references)
        try:
            yield
        except Hung:
            self.due = float("inf")
        finally:
            self.references = pynvml._nvmlLib_refcount
            simulated._put(*before)

    def step(self) -> None:
        with self.running():
            delay = self.loop.step()
            self.waiting += self.loop.news(self.machine.clock.now_ns())
            self.turned = self.machine.time.now
            self.due = self.machine.time.now + delay

    def _follow(self, *order: Any) -> None:
        if self.due < float("inf"):
            self.due = min(self.due, self.machine.time.now + START_S)
            with self.running():
                self.loop.follow(order)

    def order_leave(self, indices: Collection[int]) -> None:
        super().order_leave(indices)
        self._follow("leave", sorted(indices))

    def order_only(self, index: int) -> None:
        super().order_only(index)
        self._follow("only", index)

    def order_watch(self, gpus: Mapping[int, str]) -> None:
        super().order_watch(gpus)
        self._follow("watch", dict(gpus))

    def order_reopen(self) -> None:
        super().order_reopen()
        self._follow("reopen")

    @property
    def watched(self) -> frozenset[str]:
        """The GPUs whose events it will hear."""
        listens = isinstance(self.loop, Listening) and self.exit_code is None and self.loop._driver is not None
        return self.loop._driver.watched if listens else frozenset()  # type: ignore[union-attr]

    def close(self) -> None:
        super().close()
        self.word.close()


class Machine:
    """The whole. `listed`: whether the kernel's list of GPUs can be seen."""

    def __init__(self, patch: pytest.MonkeyPatch, node: Path, gpus: int, faults: list[Fault], *, listed: bool) -> None:
        #: The system's clock, which faults set, and the node's own.
        self.time, self.clock, self.steady, self.node = Time(), FakeClock(), HangingClock(), node
        for module in (readers, processes, intake, heartbeat):
            patch.setattr(module, "time", self.time)
        patch.setattr(counting, "process_time_ns", lambda: 0)
        patch.setattr(presence, "listed", lambda: frozenset(map(str, self.there())) if listed else None)
        self.gpus, self.faults = range(gpus), faults
        self.chance = random.Random(0)  # noqa: S311 - as above
        scenario = '[[device]]\nmodel = "A10G"\n' * gpus + "".join(fault.scenario for fault in faults)
        simulated.create(node, scenario, clock=self.steady)
        self.made: list[Virtual] = []
        self.readers = Readers("nvml", interval_s=0.5, clock=self.clock, spawn=self._spawn)  # type: ignore[arg-type]
        self.uuids = [unit.uuid for unit in SimulatedNvml(node, self.steady).node.scenario.gpus]
        #: XIDs by GPU: all that came, and of those the ones that a process waited for that lived on.
        self.raised: Counter[int] = Counter()
        self.heard: Counter[int] = Counter()
        self._waiting: list[tuple[float, int, Virtual]] = []
        #: When something last happened to each GPU, and to all.
        self.disturbed = dict.fromkeys(self.gpus, self.time.now)
        self.shaken = self.time.now

    @property
    def node_s(self) -> float:
        """The seconds that have passed."""
        return self.steady.elapsed_ns() / 1e9

    @property
    def alive(self) -> list[Virtual]:
        return [process for process in self.made if process.exit_code is None]

    def active(self, *kinds: str) -> list[Fault]:
        return [fault for fault in self.faults if fault.kind in kinds and fault.from_s <= self.node_s < fault.to_s]

    def there(self) -> set[int]:
        """The GPUs that the kernel has."""
        return set(self.gpus) - {fault.gpu for fault in self.active("gpu_removed") if fault.gpu is not None}

    def dead(self) -> set[int | None]:
        """The GPUs that cannot be read."""
        return {fault.gpu for fault in self.active("gpu_removed", "gpu_lost", "hang")}

    def _spawn(self, settings: ReaderSettings) -> Virtual:
        self.made.append(Virtual(settings, self))
        return self.made[-1]

    def spoil(self, library: SimulatedNvml) -> None:
        """Let its functions answer wrongly where that is due."""
        for name in CALLS:
            setattr(library, name, self._spoiled(library, name, getattr(library, name)))

    def _spoiled(self, library: SimulatedNvml, name: str, right: Callable[..., int]) -> Callable[..., int]:
        def call(handle: Any, *arguments: Any) -> int:
            for fault in self.active("bad"):
                if fault.call == name and library.unit(handle).index == fault.gpu:
                    return fault.code
            return right(handle, *arguments)

        return call

    def tick(self) -> None:
        """A moment later."""
        before = self.node_s
        self.time.now += TICK_S
        self.clock.advance(TICK_S)
        self.steady.advance(TICK_S)
        for fault in self.faults:
            if before < fault.from_s <= self.node_s:
                self._strike(fault)
        for fault in self.active("gpu_removed", "gpu_lost", "hang", "bad"):
            if fault.gpu is not None:
                self.disturbed[fault.gpu] = self.time.now
        for due, gpu, process in self._waiting:
            self.heard[gpu] += due <= self.time.now and process.exit_code is None
        self._waiting = [row for row in self._waiting if row[0] > self.time.now]
        for process in self.alive:
            if process.due <= self.time.now:
                process.step()
            if process.waiting:
                self.readers._receive(process)  # type: ignore[arg-type]
        self.readers._supervise()

    def _strike(self, fault: Fault) -> None:
        if fault.gpu is not None and fault.kind in ("xid", "gpu_lost"):
            self.raised[fault.gpu] += 1
            watching = [process for process in self.alive if self.uuids[fault.gpu] in process.watched]
            self._waiting += [(self.time.now + 2 * LISTEN_S, fault.gpu, process) for process in watching]
        if fault.kind == "kill" and self.alive:
            self.chance.choice(self.alive).exit_code = -9
            self.shaken = self.time.now
        elif fault.kind == "clock":
            self.clock.set_forward(10 if fault.code % 2 else -8)
            self.shaken = self.time.now

    def close(self) -> None:
        for process in self.made:
            if not process.closed:
                process.close()
        self.readers._processes.close()
