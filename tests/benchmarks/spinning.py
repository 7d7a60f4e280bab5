"""How soon spinning is reported, and how often other loads are taken for it, on boards with published data.

A board runs a load for hours of simulated time. Its sensors say the means of each step, with gains and noise of their
own, and a device's ledger takes them in, as the exporter's does. Each load runs for a day in all, shared by the boards.
A step longer than the exporter's keeps the run short: a report needs 15 s in which nothing moves, in any steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Final, NamedTuple

import numpy as np

from benchmarks.regime_kernels import chase, decode_step, eager, graph, prefill, product, spin, stream, tiny, training
from benchmarks.regime_machines import MACHINES, Machine, Phase, blend, copy, execute, sleep, wait
from benchmarks.regime_sensors import T0, BoardSensors, device_of
from benchmarks.regime_workloads import PublishedWorkload
from benchmarks.rows import Row
from gpu_profile.catalogue import DEFAULT_GROUPS, Signal, Tier
from gpu_profile.catalogue import signals as rows_of
from gpu_profile.catalogue.samples import Sample
from gpu_profile.catalogue.signal import Kind
from gpu_profile.history.ledger import Ledger
from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.join.spinning import SpinningDetector
from gpu_profile.units import NS_PER_S

#: Simulated time of each load on all boards together.
_DAY_S: Final = 86_400
_STEP_S: Final = 3
#: A load begins anew after this long, from an idle board.
_TURN_S: Final = 1_200.0
_IDLE_S: Final = 60.0
#: The delay of the newest reading when the detector looks.
_LAG_S: Final = 1.0
_MOST_ONSET_S: Final = 30.0
_SEEDS: Final = 4
_NAMES: Final[Mapping[Signal, str]] = {
    rows_of.UTILIZATION: "busy",
    rows_of.MEMORY_CONTROLLER: "controller",
    rows_of.DECODER: "decoder",
    rows_of.ENCODER: "encoder",
    rows_of.GRAPHICS: "graphics",
    rows_of.SM: "sm",
    rows_of.TENSOR: "tensor",
    rows_of.DRAM: "dram",
    rows_of.FP64: "fp64",
    rows_of.FP32: "fp32",
    rows_of.FP16: "fp16",
    rows_of.INTEGER: "integer",
    rows_of.PCIE_RX: "pcie_rx",
    rows_of.PCIE_TX: "pcie_tx",
    rows_of.NVLINK_RX: "nvlink_rx",
    rows_of.NVLINK_TX: "nvlink_tx",
    rows_of.ENERGY: "watts",
    rows_of.CLOCK_SM: "clock",
}
_QUIET: Final = 4e6


class Board(NamedTuple):
    """A machine and its sensors: `library` and `exporter` by their default groups, `coarse` without GPM."""

    machine: Machine
    sensors: str

    @property
    def signals(self) -> tuple[Signal, ...]:
        """The signals that are read. Boards before Hopper have no counters of links."""
        links = {rows_of.PCIE_RX, rows_of.PCIE_TX, rows_of.NVLINK_RX, rows_of.NVLINK_TX}
        return tuple(
            signal
            for signal in _NAMES
            if not (self.sensors == "exporter" and signal.group not in DEFAULT_GROUPS)
            and not (self.sensors == "coarse" and signal.tier is Tier.GPM)
            and not (signal in links and not self.machine.gpm)
        )

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.machine.key} ({self.sensors})"


BOARDS: Final = tuple(
    Board(machine, sensors)
    for machine in MACHINES
    for sensors in (("library", "exporter", "coarse") if machine.gpm else ("coarse",))
)


def _loads(on: Machine) -> Mapping[str, tuple[Phase, ...]]:
    """Loads that are no spinning. Phases too short for any sensor are blended."""
    step = execute(on, product(4096))
    capped = execute(on, product(4096), limit_w=max(0.35 * on.limit_w, 1.2 * on.idle_w))
    burning = Phase(5.0, 0.7 * on.limit_w, on.clock_hz)
    return {
        "idle": (wait(on, 300.0), sleep(on).over(300.0)),
        "idle between bursts": (training(on, 20.0), wait(on, 40.0)),
        "memory-bound": (execute(on, stream(1.0)),),
        "prefill": (prefill(on, 1.0),),
        "tiny kernels": (eager(on, tiny(on), 1.0),),
        "graph of tiny kernels": (graph(on, tiny(on), 1.0),),
        "power-smoothed": (training(on, 15.0), burning),
        "capped": (capped,),
        "pointer chase in memory": (execute(on, chase(on, 20_000)),),
        "pointer chase in L2": (execute(on, chase(on, 20_000, where="l2")),),
        "pinned copies": (copy(on, 1e9, "pcie_rx").over(30.0), copy(on, 1e9, "pcie_tx").over(30.0)),
        "decode": (blend(decode_step(on, 7e9, 64, context_bytes=5e7), wait(on, 3e-4)),),
        "small decode from Python": (eager(on, stream(1e-3), 1.0),),
        "host-bound": (blend(training(on, 0.09), wait(on, 0.21)),),
        "products with a host step between": (blend(step.over(0.011), wait(on, 0.009)),),
    }


LOADS: Final = tuple(_loads(MACHINES[0]))


def _spins(on: Machine) -> Mapping[str, Phase]:
    """Kernels that wait."""
    return {
        "a persistent kernel": execute(on, spin(on, 1.0, sms=1.0, warps=8)),
        "a lock": execute(on, spin(on, 1.0, sms=1 / on.sms)),
        "a collective": execute(on, spin(on, 1.0, sms=min(1, 24 / on.sms), warps=17)),
    }


class Watch:
    """A board that runs phases, seen by a detector at each step."""

    def __init__(self, board: Board, phases: tuple[Phase, ...], seed: int, seconds: int, step_s: float) -> None:
        on = board.machine
        work = PublishedWorkload(f"{board.name} {seed}", "spinning", on, phases, frozenset(), "", on.limit_w)
        self.sensors = BoardSensors(work, seed, seconds)
        self._ends: Floats = np.arange(1, int(seconds / step_s), dtype=np.float64) * step_s
        ledger = Ledger()
        self._detector = SpinningDetector(device_of(work), ledger)
        self._ledger = ledger
        columns = {signal: self._quanta(signal, on).tolist() for signal in board.signals}
        columns[rows_of.POWER_LIMIT] = [round(on.limit_w * 1000)] * len(self._ends)
        self._columns = columns

    def reports(self) -> Iterator[float]:
        """The time of each step at which spinning is reported, in s."""
        before = T0
        for step, end_s in enumerate(self._ends.tolist()):
            end = T0 + round(end_s * NS_PER_S)
            self._ledger.append(
                [
                    Sample(signal, before if signal.kind is Kind.WINDOW_MEAN else end, end, values[step])
                    for signal, values in self._columns.items()
                ]
            )
            before = end
            if self._detector.advance(end + round(_LAG_S * NS_PER_S)) is not None:
                yield end_s + _LAG_S

    def _quanta(self, signal: Signal, on: Machine) -> Ints:
        """A signal's readings at the ends of all steps."""
        name, ends = _NAMES[signal], self._ends
        starts = np.concatenate(([0.0], ends[:-1]))
        if name == "watts":
            joules = np.cumsum(self.sensors.watts(starts, ends) * (ends - starts))
            return (joules / signal.quantum).astype(np.int64)
        if name == "clock":
            return self.sensors.clock_mhz(ends)
        if signal.kind is Kind.COUNTER:
            total = self.sensors.total(name, ends, on.pcie if "pcie" in name else on.nvlink, _QUIET)
            # Not wrapped: within a step of seconds the counter of PCIe would wrap many times, unlike in 0.1 s.
            return (total / signal.quantum).astype(np.int64)
        if signal.tier is Tier.GPM:
            return np.rint(self.sensors.shares(name, starts, ends) / signal.quantum).astype(np.int64)
        return self.sensors.percent(name, starts, ends)


def alarms(load: str) -> list[str]:
    """The boards on which a load is reported as spinning within its hours."""
    found = []
    for number, board in enumerate(BOARDS):
        phases = _loads(board.machine)[load]
        cycle_s = sum(phase.seconds for phase in phases)
        turns = max(1, round((_TURN_S - _IDLE_S) / cycle_s)) if cycle_s > 1 else 1
        run = phases * turns if len(phases) > 1 else (phases[0].over(_TURN_S - _IDLE_S),)
        watch = Watch(board, (wait(board.machine, _IDLE_S), *run), number, _DAY_S // len(BOARDS), _STEP_S)
        if any(watch.reports()):
            found.append(board.name)
    return found


def onset(board: Board) -> tuple[float, str]:
    """The longest time from the first moment of spinning to its report, in s, and the kernel; inf for no report."""
    worst = 0.0, ""
    on = board.machine
    for name, kernel in _spins(on).items():
        for seed in range(_SEEDS):
            phases = (wait(on, _IDLE_S), training(on, 60.0), kernel.over(60.0))
            watch = Watch(board, phases, seed, 170, 1.0)
            begun = float(watch.sensors.edges[2])
            first = next((at for at in watch.reports() if at > begun), float("inf"))
            worst = max(worst, (first - begun, f"{name} on {board.name}"))
    return worst


def rows() -> Iterator[Row]:
    """The two rows."""
    # The exporter does not read the memory controller of older boards by default; `coarse` is with it.
    with ProcessPoolExecutor() as workers:
        onsets = list(workers.map(onset, BOARDS))
        found = dict(zip(LOADS, workers.map(alarms, LOADS), strict=True))
    seconds, where = max(onsets)
    yield Row(
        "spinning: onset",
        f"{seconds:.1f} s at worst ({where}), of {len(BOARDS)} boards and {len(_spins(MACHINES[0]))} kernels",
        reach=f"<={_MOST_ONSET_S:.0f} s",
        ok=seconds <= _MOST_ONSET_S,
        cost=seconds,
    )
    named = [f"{load} on {', '.join(boards)}" for load, boards in found.items() if boards]
    yield Row(
        "spinning: false alarms in 24 simulated hours of each load",
        f"{len(named)} of {len(LOADS)} loads" + (f": {'; '.join(named)}" if named else ""),
        reach="none",
        ok=not named,
        cost=float(len(named)),
    )
