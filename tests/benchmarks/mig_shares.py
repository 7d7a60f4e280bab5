"""Energy of MIG instances of simulated GPUs, beside the usual ways to divide a GPU's energy."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from support.mig import gpu_with, mig_node, phase

from benchmarks.rows import Row

#: Nodes, the time after which their shares are judged, and the number and length of the judged times.
NODES: Final = 10
LEARNED_S, TIMES, LENGTH_S = 150, 10, 10


def rows() -> Iterator[Row]:
    """Two to four instances of an H100, each with phases of its own."""
    judged = [each for seed in range(NODES) for each in _instances(seed)]
    errors = [abs(each.given_j - each.true_j) / each.true_j for each in judged if each.times]
    usual = [abs(each.by_activity_j - each.all_j) / each.all_j for each in judged]
    median, worst = float(np.median(errors)), max(errors)
    refused = 1 - sum(each.times for each in judged) / (TIMES * len(judged))
    yield Row(
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
