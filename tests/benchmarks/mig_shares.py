"""Energy of MIG instances, beside the usual way to divide a GPU's energy, and where its assumptions do not hold."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from support.mig import gpu_with, mig_node, phase

from benchmarks.rows import Row
from gpu_profile.history.timeline import Floats
from gpu_profile.units import NS_PER_S
from gpu_profile_exporter.attribution.instance_prices import InstancePrices
from gpu_profile_exporter.attribution.instance_windows import PowerWindow

#: Nodes, the time after which their shares are judged, and the number and length of the judged times.
NODES: Final = 10
LEARNED_S, TIMES, LENGTH_S = 150, 10, 10


#: Random GPUs, their seconds, steps in a second, and the ends of the judged times.
RANDOM, SECONDS, STEPS, ENDS = 80, 450, 10, (350, 400, 450)
IDLE_W, LIMIT_W = 75.0, 450.0


def rows() -> Iterator[Row]:
    """On simulated nodes, and on random courses of activity whose power follows the model or does not."""
    yield _on_nodes()
    yield _on_random("constant prices", steady=True, most_wrong=0.01)
    yield _on_random("power that is not proportional, drifts or meets its limit", steady=False, most_wrong=0.03)


def _on_nodes() -> Row:
    """Two to four instances of an H100, each with phases of its own."""
    judged = [each for seed in range(NODES) for each in _instances(seed)]
    errors = [abs(each.given_j - each.true_j) / each.true_j for each in judged if each.times]
    usual = [abs(each.by_activity_j - each.all_j) / each.all_j for each in judged]
    median, worst = float(np.median(errors)), max(errors)
    refused = 1 - sum(each.times for each in judged) / (TIMES * len(judged))
    return Row(
        f"truth MIG instances: energy above idle in {TIMES * LENGTH_S} s, {NODES} GPUs with 2 to 4 instances",
        f"median error {median:.1%}, largest {worst:.1%}, {refused:.0%} of times refused",
        baseline=f"shared out by the activity of multiprocessors: {float(np.median(usual)):.0%}, {max(usual):.0%}",
        ratio=f"{float(np.median(usual)) / median:.1f}x smaller",
        reach="largest <=25 %, <=10 % refused",
        ok=worst <= 0.25 and refused <= 0.1,
        cost=round(median, 4),
    )


@dataclass
class _JudgedInstance:
    """Sums of an instance: times with an answer, their given and their true energy, and the energy of all times."""

    times: int = 0
    given_j: float = 0.0
    true_j: float = 0.0
    all_j: float = 0.0
    by_activity_j: float = 0.0


def _instances(seed: int) -> list[_JudgedInstance]:
    with tempfile.TemporaryDirectory() as folder, mig_node(Path(folder), scenario(np.random.default_rng(seed))) as node:
        node.run(LEARNED_S)
        gpu, *uuids = node.uuids
        judged = {uuid: _JudgedInstance() for uuid in uuids}
        for _ in range(TIMES):
            start_ns = node.clock.now_ns()
            node.run(LENGTH_S)
            end_ns = node.clock.now_ns()
            groups = node.attribution._instances.parts(gpu, start_ns, end_ns, {uuid: uuid for uuid in uuids}).groups
            gpu_j, *true_j = node.true_joules(start_ns, end_ns)
            means = [node.truth.device(uuid, start_ns, end_ns).means["sm"] for uuid in uuids]
            for uuid, joules, mean in zip(uuids, true_j, means, strict=True):
                one = judged[uuid]
                one.all_j += joules
                one.by_activity_j += sum(true_j) * mean / max(1e-9, sum(means))
                if uuid in groups:
                    one.times += 1
                    one.given_j += groups[uuid] * gpu_j
                    one.true_j += joules
        return list(judged.values())


def scenario(drawn: np.random.Generator) -> str:
    """Instances that alternate between three phases, one of them without work."""
    instances = []
    for _ in range(drawn.integers(2, 5)):
        precision = str(drawn.choice(["bf16", "fp32", "fp16"]))
        busy = [
            phase(
                float(drawn.uniform(3, 20)), round(float(drawn.uniform(0.2, 0.95)), 2), precision=precision,
                compute=round(float(drawn.uniform(0.05, 0.8)), 2), memory=round(float(drawn.uniform(0.0, 0.8)), 2),
            )
            for _ in range(2)
        ]  # fmt: skip
        instances.append([*busy, f"duration_s = {drawn.uniform(2, 10):.2f}"])
    return gpu_with(*instances, profile="1g.10gb")


def _on_random(name: str, *, steady: bool, most_wrong: float) -> Row:
    """How often a given part of 10 s is off by more than 25 % of it, or of the mean instance."""
    given = wrong = asked = 0
    for seed in range(RANDOM):
        drawn = np.random.default_rng(seed)
        activity, watts = _random_gpu(drawn, steady=steady)
        joules = _counter(drawn, watts, steady=steady)
        windows = [_window(activity, joules, second) for second in range(SECONDS)]
        for end in ENDS:
            prices = InstancePrices()
            prices.add(windows[:end])
            since_ns, until_ns = ((end - LENGTH_S) * NS_PER_S, end * NS_PER_S)
            parts = prices.parts(since_ns, until_ns, {str(place): place for place in range(len(watts))})
            whole_j = sum(window.joules for window in windows[end - LENGTH_S : end])
            true_j = watts[:, (end - LENGTH_S) * STEPS : end * STEPS].sum(axis=1) / STEPS
            asked += len(watts)
            given += len(parts.groups)
            for place, share in parts.groups.items():
                off_j = abs(share * whole_j - true_j[place])
                wrong += bool(off_j > 0.25 * max(true_j[place], true_j.mean()))
    return Row(
        f"truth MIG instances: {name}, {RANDOM} GPUs with 2 to 7 instances",
        f"{wrong} of {given} given parts off by more than 25 %, {1 - given / asked:.0%} refused",
        reach=f"<={most_wrong:.0%} of the given",
        ok=wrong <= most_wrong * given,
        cost=round(1 - given / asked, 3),
    )


def _random_gpu(drawn: np.random.Generator, *, steady: bool) -> tuple[Floats, Floats]:
    """The activities of its instances, `[3, instances, steps]`, and their power in W, `[instances, steps]`."""
    n, count = SECONDS * STEPS, int(drawn.integers(2, 8))
    common, alike = _course(drawn, n), drawn.choice([0, 0, 0, 0.5, 0.9], count)[:, None]
    sm = alike * common + (1 - alike) * np.array([_course(drawn, n) for _ in range(count)])
    most_w = drawn.uniform(0.5, 2, count)[:, None] * 500 / count
    power = 1.0 if steady else drawn.choice([1, 1, 1.15, 0.85])
    drift = 0.0 if steady else drawn.choice([0, 0, 0.2])
    watts = most_w * sm**power * (1 + drift * np.sin(np.arange(n) / drawn.uniform(300, 6000)))
    # Some alternate between two mixtures of instructions, of which one needs less.
    mixed = drawn.random(count)[:, None] < 0.3
    mixture = np.where(mixed, np.repeat(drawn.random((count, n // 200 + 1)), 200, axis=1)[:, :n], 0.5)
    watts = np.where(mixed, most_w * sm * (0.3 + 0.7 * mixture), watts)
    return np.array([sm, sm * mixture, sm * (1 - mixture)]), watts


def _course(drawn: np.random.Generator, n: int) -> Floats:
    kind = drawn.integers(4)
    if kind == 0:
        return np.full(n, drawn.uniform(0.2, 0.95))
    if kind == 1:
        return np.repeat(drawn.uniform(0, 0.95, n // STEPS), STEPS)
    # Busy and idle times: of seconds to a minute, or of less than four seconds.
    busy, idle = drawn.uniform(1, 60, 2) if kind == 2 else drawn.uniform(0.3, 4, 2)
    lengths = 1 + drawn.exponential(np.tile([busy, idle], n // 2) * STEPS).astype(np.int64)
    levels = drawn.choice(drawn.uniform(0.1, 0.95, 3), n) * (np.arange(n) % 2 == 0)
    return np.repeat(levels[: len(lengths)], lengths)[:n]


def _counter(drawn: np.random.Generator, watts: Floats, *, steady: bool) -> Floats:
    """The readings of the energy counter in J, up to a step late."""
    whole = IDLE_W + watts.sum(axis=0)
    if not steady and drawn.random() < 0.2:
        whole = np.minimum(whole, LIMIT_W)
    late = int(drawn.integers(2))
    return np.concatenate((np.zeros(1 + late), np.cumsum(whole) / STEPS))


def _window(activity: Floats, joules: Floats, second: int) -> PowerWindow:
    steps = slice(second * STEPS, (second + 1) * STEPS)
    means = np.round(activity[:, :, steps].mean(axis=2), 4)
    own = {str(place): tuple(values) for place, values in enumerate(means.T.tolist())}
    grown_j = float(joules[steps.stop] - joules[steps.start])
    return PowerWindow(second * NS_PER_S, (second + 1) * NS_PER_S, grown_j, own)
