"""Asynchronous programs, with regions of several tasks that overlap partly and at random.

Each task runs in a thread of its own. The device works on all of them at once: watts above idle add up, to the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final
from zlib import crc32

import numpy as np

from laboratory.mixes import Rng, Sensors, log_uniform, uniform
from laboratory.programs import PER_MS, PER_S, Executions, Outer, Physics, Program, Region, Stamps
from laboratory.recordings import Case
from laboratory.rows import Row
from laboratory.sensors import COUNTER, GPM, POWER, UTILIZATION

#: The executions of one task: region, start and end in ms, and the number of the request around it (-1: none).
Task = list[tuple[int, float, float, int]]
#: All tasks of a program of so many ms.
Tasks = Callable[[Rng, float], list[Task]]


@dataclass(frozen=True)
class Service(Program):
    """A program whose executions are those of its tasks."""

    tasks: Tasks = field(kw_only=True, repr=False)

    def draw(self, seconds: float, rng: Rng) -> Executions:
        """The executions in a recording of `seconds`."""
        drawn = self.tasks(rng, (seconds - 0.5) * 1000)
        every = [(thread, *each) for thread, task in enumerate(drawn) for each in task]
        thread, region, start, end, request = (np.array(part) for part in zip(*every, strict=True))
        starts, ends = (np.rint(np.asarray(part) * PER_MS).astype(np.int64) for part in (start, end))
        kept = (ends > starts) & (ends <= int((seconds - 0.5) * PER_S))
        thread, region, starts, ends, request = (part[kept] for part in (thread, region, starts, ends, request))
        outers = np.unique(request[request >= 0])
        own = [request == each for each in outers]
        head = round((self.outer.head_ms if self.outer else 0.0) * PER_MS)
        parents = np.full(len(starts), -1)
        for number, inner in enumerate(own):
            parents[inner] = number
        outer_starts = np.array([starts[inner].min() - head for inner in own], np.int64)
        outer_ends = np.array([ends[inner].max() + head for inner in own], np.int64)
        count = len(outers)
        watts = np.array([each.power_w for each in self.regions])[region]
        longer = (ends - starts) / np.array([each.length_ms * PER_MS for each in self.regions])[region]
        by_length = np.array([each.by_length for each in self.regions])[region]
        watts = self.physics.idle_w + (watts - self.physics.idle_w) * np.where(by_length, longer**by_length, 1.0)
        varies = np.array([each.varies for each in self.regions])[region]
        chance = (watts - self.physics.idle_w) * varies * np.clip(rng.normal(size=len(watts)), -3, 3)
        return Executions(
            np.concatenate((outer_starts, starts)), np.concatenate((outer_ends, ends)),
            np.concatenate((np.full(count, len(self.regions)), region)),
            np.concatenate((np.full(count, -1), parents)),
            np.concatenate((np.array([thread[inner][0] for inner in own], np.int64), thread)),
            np.concatenate((np.full(count, self.outer.power_w if self.outer else 0.0), watts + chance)),
            np.concatenate((np.zeros(count), chance)), np.ones(count + len(starts), bool),
        )  # fmt: skip


def _watts(rng: Rng, idle: float, tasks: int) -> float:
    return idle + round(float(rng.uniform(60, 500)) / float(np.sqrt(tasks)), 1)


def _regions(rng: Rng, idle: float, tasks: int, *lengths: tuple[str, float, bool]) -> tuple[Region, ...]:
    """Regions with a name, a length in ms, and whether they use the device."""
    return tuple(
        Region(
            name, length, _watts(rng, idle, tasks) if works else idle, varies=0.02 if works else 0.0,
            duty=float(rng.choice([1.0, round(float(rng.uniform(0.2, 0.9)), 1)])) if works else 0.0,
            activity=round(float(rng.uniform(0.05, 0.5)), 2),
        )
        for name, length, works in lengths
    )  # fmt: skip


def _loops(
    rng: Rng, until: float, regions: tuple[Region, ...], orders: list[list[int]], gap_ms: float, nested: bool
) -> list[Task]:
    """Per order of regions, a task that runs them again and again, with exponential pauses in between."""
    tasks: list[Task] = []
    number = 0
    for order in orders:
        task: Task = []
        now = 200 + rng.exponential(gap_ms)
        while now < until:
            for k in order:
                length = regions[k].length_ms * rng.uniform(0.5, 1.5)
                task.append((k, now, now + length, number if nested else -1))
                now += length + rng.uniform(0, 0.5)
            number += 1
            now += 8 + rng.exponential(gap_ms)
        tasks.append(task)
    return tasks


def _server(rng: Rng, *, nested: bool) -> Case:
    """1 to 8 requests at once, each with its tokenisation on the host and two phases on the device."""
    idle, count = uniform(rng, 40, 120), int(rng.integers(1, 9))
    one, two = log_uniform(rng, 3, 40), log_uniform(rng, 10, 200)
    regions = _regions(rng, idle, count, ("tokenize", 3.0, False), ("prefill", one, True), ("decode", two, True))
    gap = (one + two) * log_uniform(rng, 0.3, 10)
    outer = Outer("request", head_ms=3.0, power_w=idle) if nested else None
    tasks = partial(_loops, regions=regions, orders=[[0, 1, 2]] * count, gap_ms=gap, nested=nested)
    return _case(rng, idle, regions, tasks, outer)


def _pool(rng: Rng) -> Case:
    """A pool of 2 to 8 threads takes jobs of three kinds, one of them on the host only."""
    idle, count = uniform(rng, 40, 120), int(rng.integers(2, 9))
    lengths = [log_uniform(rng, 3, 150) for _ in range(3)]
    regions = _regions(
        rng, idle, count, ("resize", lengths[0], True), ("infer", lengths[1], True), ("store", lengths[2], False)
    )
    share = rng.dirichlet(np.ones(3))
    gap = sum(lengths) / 3 * log_uniform(rng, 0.1, 5)

    def tasks(rng: Rng, until: float) -> list[Task]:
        every: list[Task] = []
        for _ in range(count):
            task: Task = []
            now = 200 + rng.exponential(gap)
            while now < until:
                k = int(rng.choice(3, p=share))
                length = regions[k].length_ms * rng.uniform(0.5, 1.5)
                task.append((k, now, now + length, -1))
                now += length + rng.exponential(gap)
            every.append(task)
        return every

    return _case(rng, idle, regions, tasks, None)


def _batcher(rng: Rng) -> Case:
    """Requests wait in a region on the host while a worker runs batches, and then gather their results."""
    idle, count = uniform(rng, 40, 120), int(rng.integers(2, 7))
    length = log_uniform(rng, 5, 80)
    regions = _regions(
        rng, idle, 1, ("wait", 10.0, False), ("batch", length, True), ("gather", log_uniform(rng, 2, 10), True)
    )

    def tasks(rng: Rng, until: float) -> list[Task]:
        clients: list[Task] = [[] for _ in range(count)]
        worker: Task = []
        free, now = np.full(count, 200.0), 200.0
        while now < until:
            asked = free + rng.exponential(length / 2, count)
            now = max(now, float(np.sort(asked)[count // 2])) + rng.uniform(0.2, 1)
            end = now + length * rng.uniform(0.7, 1.3)
            worker.append((1, now, end, -1))
            for i in np.flatnonzero(asked < now).tolist():
                done = end + 0.2 + regions[2].length_ms * rng.uniform(0.5, 1.5)
                clients[i] += [(0, float(asked[i]), end, -1), (2, end + 0.2, done, -1)]
                free[i] = done
            now = end + 0.3
        return [*clients, worker]

    return _case(rng, idle, regions, tasks, None)


def _pipeline(rng: Rng) -> Case:
    """A producer prepares items for a consumer, which begins with one while the next is prepared."""
    idle = uniform(rng, 40, 120)
    make, use = log_uniform(rng, 5, 100), log_uniform(rng, 5, 100)
    regions = _regions(rng, idle, 1, ("produce", make, True), ("consume", use, True))

    def tasks(rng: Rng, until: float) -> list[Task]:
        produced: Task = []
        consumed: Task = []
        now = busy = 200.0
        while now < until:
            end = now + make * rng.uniform(0.6, 1.4)
            produced.append((0, now, end, -1))
            busy = max(busy, end + rng.uniform(0.1, 1))
            consumed.append((1, busy, busy := busy + use * rng.uniform(0.6, 1.4), -1))
            now = max(end, busy - 2 * use) + rng.uniform(0.1, 2)
        return [produced, consumed]

    return _case(rng, idle, regions, tasks, None)


def _prefetch(rng: Rng) -> Case:
    """A loader copies batches beside the steps of a training."""
    idle = uniform(rng, 40, 120)
    forward = log_uniform(rng, 5, 60)
    regions = _regions(
        rng,
        idle,
        1,
        ("load", forward * log_uniform(rng, 0.3, 3), True),
        ("forward", forward, True),
        ("backward", 2 * forward, True),
    )

    def tasks(rng: Rng, until: float) -> list[Task]:
        loads: Task = []
        steps: Task = []
        loaded, now = 200.0, 230.0
        while now < until:
            begin = loaded + rng.uniform(0.2, 3)
            loaded = begin + regions[0].length_ms * rng.uniform(0.6, 1.4)
            loads.append((0, begin, loaded, -1))
            now = max(now, loaded) + rng.uniform(0.2, 1)
            for k in (1, 2):
                end = now + regions[k].length_ms * rng.uniform(0.95, 1.05)
                steps.append((k, now, end, -1))
                now = end + rng.uniform(0.05, 0.3)
        return [loads, steps]

    return _case(rng, idle, regions, tasks, None)


def _stages(rng: Rng) -> Case:
    """Three stages with queues of two items between them. A stage waits in a region of its own for its next item."""
    idle = uniform(rng, 40, 120)
    lengths = [log_uniform(rng, 4, 60) for _ in range(3)]
    regions = _regions(
        rng, idle, 1, ("decode", lengths[0], True), ("embed", lengths[1], True), ("rank", lengths[2], True),
        ("get", 10.0, False),
    )  # fmt: skip

    def tasks(rng: Rng, until: float) -> list[Task]:
        every: list[Task] = [[], [], []]
        free = [200.0] * 3
        # When each of the latest items left each stage: a stage gives an item away once there is room for it.
        left: list[list[float]] = [[200.0] * 3 for _ in range(3)]
        while min(free) < until:
            given = free[0] + rng.exponential(lengths[0] / 4)
            for stage in range(3):
                start = max(free[stage], given) + rng.uniform(0.1, 0.3)
                every[stage].append((3, free[stage], start, -1))
                end = start + lengths[stage] * rng.uniform(0.6, 1.4)
                every[stage].append((stage, start, end, -1))
                given = end if stage == 2 else max(end, left[stage + 1][0])
                free[stage] = given + rng.uniform(0.05, 0.2)
                left[stage] = [*left[stage][1:], given]
        return every

    return _case(rng, idle, regions, tasks, None)


def _poisson(rng: Rng) -> Case:
    """Up to 32 requests at once, which arrive at random. Each waits on the host for the batch that it is part of.

    A batch has all requests that have arrived when the one before ends. Larger batches take longer and draw more.
    """
    idle, most = uniform(rng, 40, 120), 32
    fixed, each = log_uniform(rng, 5, 30), log_uniform(rng, 0.3, 4)
    per_ms = uniform(rng, 0.3, 0.9) * 8 / (fixed + 8 * each)
    regions = _regions(rng, idle, 1, ("request", 20.0, False), ("collate", 2.0, False), ("forward", fixed, True))
    regions = (*regions[:2], replace(regions[2], by_length=uniform(rng, 0.1, 0.4)))

    def tasks(rng: Rng, until: float) -> list[Task]:
        clients: list[Task] = [[] for _ in range(most)]
        worker: Task = []
        free = np.full(most, 200.0)
        arrivals = 200 + np.cumsum(rng.exponential(1 / per_ms, round(1.2 * until * per_ms) + 10))
        at, now = 0, 200.0
        while now < until and at < len(arrivals):
            now = max(now, float(arrivals[at]))
            batch = int(np.searchsorted(arrivals[at : at + most], now, side="right"))
            start = now + rng.uniform(1, 3)
            end = start + (fixed + each * batch) * rng.uniform(0.95, 1.05)
            worker += [(1, now, start, -1), (2, start, end, -1)]
            for arrived in arrivals[at : at + batch].tolist():
                client = int(np.argmin(free))
                began = max(arrived, float(free[client]) + 0.1)
                if began < end:
                    clients[client].append((0, began, end + rng.uniform(0.05, 0.3), -1))
                    free[client] = clients[client][-1][2]
            at, now = at + batch, end + rng.uniform(0.05, 0.2)
        return [*(task for task in clients if task), worker]

    return _case(rng, idle, regions, tasks, None)


def _actors(rng: Rng) -> Case:
    """Two to six actors that wait for work, load and infer, and a driver that waits for all results of each round."""
    idle, count = uniform(rng, 40, 120), int(rng.integers(2, 7))
    load, infer = log_uniform(rng, 2, 20), log_uniform(rng, 10, 120)
    regions = _regions(
        rng, idle, count, ("results", 100.0, False), ("idle", 10.0, False), ("load", load, True), ("infer", infer, True)
    )

    def tasks(rng: Rng, until: float) -> list[Task]:
        actors: list[Task] = [[] for _ in range(count)]
        driver: Task = []
        free, now = np.full(count, 200.0), 200.0
        while now < until:
            asked = now
            for _ in range(int(rng.integers(count, 4 * count))):
                actor = int(np.argmin(free))
                now += rng.uniform(0.1, 1)
                start = max(now, float(free[actor]) + 0.1)
                loaded = start + load * rng.uniform(0.7, 1.3)
                done = loaded + infer * rng.uniform(0.5, 1.5)
                actors[actor] += [(1, float(free[actor]), start, -1), (2, start, loaded, -1), (3, loaded, done, -1)]
                free[actor] = done
            results = float(free.max()) + rng.uniform(0.1, 0.5)
            driver.append((0, asked, results, -1))
            now = results + rng.exponential(infer / 2)
        return [*actors, driver]

    return _case(rng, idle, regions, tasks, None)


def _case(rng: Rng, idle: float, regions: tuple[Region, ...], tasks: Tasks, outer: Outer | None) -> Case:
    sets: list[Sensors] = [(COUNTER, GPM), (COUNTER, UTILIZATION), (POWER, UTILIZATION)]
    made = Service(
        regions,
        outer=outer,
        physics=Physics(idle_w=idle),
        stamps=Stamps((0.0, log_uniform(rng, 0.05, 0.5))),
        tasks=tasks,
    )
    return Case(made, sets[int(rng.choice(3, p=[0.45, 0.35, 0.2]))], 60.0, 0)


SERVICES: Final[Mapping[str, Callable[[Rng], Case]]] = {
    "server": partial(_server, nested=False),
    "server with nested spans": partial(_server, nested=True),
    "thread pool": _pool,
    "batcher": _batcher,
    "pipeline": _pipeline,
    "prefetching loader": _prefetch,
    "stages with queues": _stages,
    "batches of requests that arrive at random": _poisson,
    "actors that wait for work": _actors,
}


def case(kind: str, seed: int) -> Case:
    """The case of this kind and seed."""
    return replace(SERVICES[kind](np.random.default_rng([20270303, crc32(kind.encode()), seed])), seed=seed)


#: As rows of the table.
SERVICE_ROWS: Final = tuple(Row(f"service: {kind}", "violated", partial(case, kind)) for kind in SERVICES)
