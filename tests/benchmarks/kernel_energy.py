"""The joules of kernels by unmixing, against the power that each of them drew, in random and in fixed order."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from benchmarks.rows import Row
from benchmarks.unmixing_worlds import IDLE_W, MS, ORIGIN_NS, World
from gpu_profile.analysis.devices import device_use, timeline_of
from gpu_profile.analysis.profile.kernel_energy import KernelEnergy, device_kernels
from gpu_profile.analysis.runs import gather, usable
from gpu_profile.catalogue.samples import Device
from gpu_profile.catalogue.signals import ENERGY, POWER_AVERAGE
from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.recording import Columns, DeviceInterval, KernelStamps, ProcessInfo, Recording, SpanRecord
from gpu_profile.units import NS_PER_S

_GPU: Final = Device("GPU-bench", index=0, name="NVIDIA H200")  # its counter measures all of the time
REGION: Final = "step"
_SEEDS: Final = (1, 2, 3, 4)
#: How much more a kernel draws after the first one.
_AFTER_FIRST: Final = 1.4
#: Kernels of each execution.
_EACH: Final = 8


@dataclass(frozen=True)
class KernelWorld(World):
    """A world whose executions are kernels. `follows`: they draw more after the first kernel than after others."""

    follows: bool = False

    @cached_property
    def _load(self) -> tuple[Ints, Ints, Ints, Ints, Ints, Floats]:
        a, b, on_a, on_b, owner, watts = World._load.func(self)  # type: ignore[attr-defined]
        if self.follows:
            after = np.append(False, owner[:-1] == 0)
            watts = IDLE_W + (watts - IDLE_W) * np.where(after, _AFTER_FIRST, 1.0)
        return a, b, on_a, on_b, owner, watts

    @property
    def joules(self) -> dict[str, float]:
        """The energy of each kernel: kernels that run together have equal parts of the device's."""
        _, _, starts, ends, owner, watts = self._load
        edges = np.unique(np.concatenate((starts, ends)))
        first, last = np.searchsorted(edges, starts), np.searchsorted(edges, ends)

        def running(each: Floats) -> Floats:
            changes = np.bincount(first, each, len(edges)) - np.bincount(last, each, len(edges))
            return np.asarray(np.cumsum(changes)[:-1])

        power = (IDLE_W + running(watts - IDLE_W)) / np.maximum(running(np.ones(len(starts))), 1)
        energy = np.concatenate(([0.0], np.cumsum(np.diff(edges) * power))) / NS_PER_S
        n = len(starts) // _EACH * _EACH
        parts = (energy[last] - energy[first])[:n]
        return {f"k{k}": float(parts[owner[:n] == k].sum()) for k in range(self.regions)}

    def recording(self) -> Recording:
        """A recording of executions of one region that run the kernels."""
        spans = []
        starts, ends = self.starts + ORIGIN_NS, self.ends + ORIGIN_NS
        for i in range(0, len(starts) - _EACH + 1, _EACH):
            here = slice(i, i + _EACH)
            first, last = int(starts[i]), int(ends[here].max())
            names = [f"k{k}" for k in self.owner[here]]
            stamps = KernelStamps.of(names, starts[here], ends[here], first)
            on = (DeviceInterval(_GPU.uuid, 0, first, last),)
            spans.append(SpanRecord(REGION, first, last, "1" * 32, f"{i + 1:016x}", None, on, kernels=stamps))
        columns = Columns(*(np.array([s[j] for s in self.samples()], np.int64) for j in (1, 2, 3)))
        process = ProcessInfo("0.1.0", "node-a", 42, ORIGIN_NS, end_ns=ORIGIN_NS + self.seconds * NS_PER_S)
        return Recording((process,), (_GPU,), {_GPU.uuid: {self.signal.key: columns}}, tuple(spans), (), ())

    def kernels(self) -> list[KernelEnergy]:
        """The kernels as a profile of the recording has them."""
        recording = self.recording()
        timeline = timeline_of(_GPU, recording.samples[_GPU.uuid], [])
        work = gather(recording.spans, _GPU.uuid).devices[_GPU.uuid]
        use = device_use(timeline, [])
        found = device_kernels(usable(recording.spans), work, use, recording.processes, set())
        return [] if found is None else found.regions[REGION]


RANDOM: Final = KernelWorld(1, "random", regions=4, signal=ENERGY)
#: A training loop of exactly two windows: no window differs from another.
LOOP: Final = KernelWorld(1, "fixed", regions=4, signal=ENERGY, jitter=0.0, loop_ns=50 * MS)
_WORLDS: Final = {
    "random order": RANDOM,
    "fixed order, lengths that vary by half": replace(RANDOM, order="fixed"),
    "fixed order, lengths that vary by a tenth, mean power": replace(
        RANDOM, order="fixed", jitter=0.1, signal=POWER_AVERAGE
    ),
    "fixed order in lock-step": LOOP,
    "two streams": replace(RANDOM, streams=2),
    "40 % more after the first kernel": replace(RANDOM, follows=True),
}


def kernel_energy_rows(seeds: tuple[int, ...] = _SEEDS) -> Iterator[Row]:
    """The error, coverage and refused share of each world."""
    for name, world in _WORLDS.items():
        errors, covered, refused = [], [], 0
        for seed in seeds:
            made = replace(world, seed=seed)
            for each in made.kernels():
                truth = made.joules[each.kernel]
                if each.joules is None:
                    refused += 1
                else:
                    errors.append(abs(each.joules / truth - 1))
                    covered.append(abs(each.joules - truth) <= each.half_width)
        given = len(errors)
        figure = f"{refused / (given + refused) * 100:.0f} % refused"
        if given:
            figure = f"error {np.median(errors) * 100:.1f} %, at most {max(errors) * 100:.1f} %; {figure}"
        yield Row(
            f"joules of 4 kernels, {name}",
            figure,
            f"{sum(covered)} of {given} intervals hold",
            reach="<=25 % off each, 90 % of the intervals hold",
            ok=max(errors, default=0.0) <= 0.25 and sum(covered) >= 0.9 * given,
        )
