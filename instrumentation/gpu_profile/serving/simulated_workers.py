"""Simulated LLM servers of several workers, with exact costs: prefill and decode apart, and pipelines of stages.

A prefill worker computes prompts and their first tokens. The keys and values of a prompt then go to a decode worker,
which computes the other tokens. In a pipeline, each stage has a part of the layers on GPUs of its own. One batch for
each stage is in the pipeline at once, and a request stays in its batch. Engines report the iterations of the last stage
alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.serving.simulated import EnginePhysics, Schedule, ServingRun, shown
from gpu_profile.serving.simulated_load import TENANTS, TenantLoad, arrivals_of
from gpu_profile.serving.windows import CounterReadings
from gpu_profile.serving.work import Iterations

#: The rate at which keys and values are transferred, in bytes per s, and the time to begin, in s: a fast network's.
_TRANSFER, _TRANSFER_BEGINS_S = 40e9, 0.002
#: Columns of arrivals.
_TIME, _PROMPT, _OUTPUT = 0, 2, 3
_START_NS: Final = 1_700_000_000 * 10**9


class DisaggregatedRun(NamedTuple):
    """The runs of a prefill worker and of a decode worker. Request `n` of the decode worker is request
    `prefill_of[n]` of the prefill worker."""

    prefill: ServingRun
    decode: ServingRun
    prefill_of: Ints

    @property
    def true_j(self) -> Floats:
        """The energy in J of each request of the decode worker, on both workers."""
        result: Floats = self.decode.true_j + self.prefill.true_j[self.prefill_of]
        return result


def simulate_disaggregated(
    physics: EnginePhysics, tenants: Sequence[TenantLoad] = TENANTS, *, seconds: float = 300.0, seed: int = 0,
    noise: float = 0.04, start_ns: int = _START_NS,
) -> DisaggregatedRun:  # fmt: skip
    """Run a prefill worker and a decode worker, each on devices of its own, until the last request ends. Parameters as
    in `simulate`."""
    drawn = np.random.default_rng(seed)
    arrivals = arrivals_of(tenants, seconds, drawn, bursts=False)
    prompts = arrivals.copy()
    prompts[:, _OUTPUT] = 1
    first = Schedule(physics, tenants, prompts, drawn)
    first.run(math.inf)
    prefill = first.result(noise, start_ns)
    sent_s = physics.model.kv_bytes * arrivals[:, _PROMPT] / _TRANSFER * drawn.uniform(1.0, 1.5, len(arrivals))
    arrivals[:, _TIME] = np.array([each.end_s for each in prefill.requests]) + _TRANSFER_BEGINS_S + sent_s
    # As in SGLang, a prefill worker answers after the transfer.
    answered = zip(prefill.requests, arrivals[:, _TIME].tolist(), strict=True)
    requests = tuple(each._replace(first_token_s=end_s, end_s=end_s) for each, end_s in answered)
    order = np.argsort(arrivals[:, _TIME])
    second = _DecodeSchedule(physics, tenants, arrivals[order], drawn)
    second.run(math.inf)
    return DisaggregatedRun(prefill._replace(requests=requests), second.result(noise, start_ns), order)


class _DecodeSchedule(Schedule):
    """Requests come with their first token, and with the keys and values of their prompts."""

    def _admit(self, now: float) -> None:
        super()._admit(now)
        for request in self._prefill:
            self._done[request] = max(1, self._done[request])
            self._context[request] = self._prompt[request] + self._done[request] - 1
            if math.isnan(self._times[request, 1]):
                self._times[request, 1] = now
        self._decode += self._prefill
        self._prefill = []


@dataclass(frozen=True, slots=True)
class PipelinePhysics(EnginePhysics):
    """The cost of iterations on equal stages, each on `devices` devices: the seconds of one stage, the J of all."""

    stages: int = 2

    @property
    def _stage(self) -> EnginePhysics:
        model = self.model
        part = replace(
            model, parameters=model.parameters / self.stages, layers=model.layers // self.stages,
            kv_bytes=model.kv_bytes / self.stages,
        )  # fmt: skip
        return EnginePhysics(self.device, part, self.devices, self.load_price, self.power_cap_w)

    @property
    def idle_w(self) -> float:
        """The power of all stages without work."""
        return self.device.idle_w * self.devices * self.stages

    def cost(self, work: Floats) -> tuple[Floats, Floats]:
        """Seconds of one stage and J of all, of iterations with these quantities, `[n, QUANTITIES]`."""
        seconds, joules = self._stage.cost(work)
        return seconds, joules * self.stages

    def shares(self, work: Floats) -> tuple[Floats, Floats]:
        """Of the J of iterations: the integral along each quantity, `[n, QUANTITIES]`, and the rest without work."""
        shares, fixed = self._stage.shares(work)
        return shares * self.stages, fixed * self.stages


class PipelinedRun(NamedTuple):
    """A run of a pipeline.

    The iterations of `run` last from when they enter the pipeline, or when the one before leaves it, until they leave
    it. So the idle power of stages that wait for others is in them, in equal parts. `reported` has the times of the
    last stage. The counters of all devices together grow along `joules` at `times` in s since the start.
    """

    run: ServingRun
    reported: Iterations
    times: Floats
    joules: Floats

    def readings(self, *, late_s: float = 0.0, seed: int = 0) -> CounterReadings:
        """Readings of the energy counters, summed, as in `ServingRun.readings`."""
        return shown(self.run.start_ns, self.times, self.joules, 0.1, late_s, 0.003, seed)


def simulate_pipeline(
    physics: PipelinePhysics, tenants: Sequence[TenantLoad] = TENANTS, *, seconds: float = 300.0, seed: int = 0,
    noise: float = 0.04, start_ns: int = _START_NS,
) -> PipelinedRun:  # fmt: skip
    """Run a pipeline for a time. Parameters as in `simulate`."""
    drawn = np.random.default_rng(seed)
    schedule = _PipelineSchedule(physics, tenants, arrivals_of(tenants, seconds, drawn, bursts=False), drawn)
    schedule.run(seconds)
    run = schedule.result(noise, start_ns)
    begun, lasted = schedule.stages
    predicted, _ = physics.cost(run.iterations.work)
    waited_j = (run.iterations.seconds - predicted) * physics.idle_w
    extra_j = (run.joules - waited_j - predicted * physics.idle_w) / physics.stages
    edges = np.stack((begun, begun + lasted[:, None]), axis=2).transpose(1, 0, 2).reshape(physics.stages, -1)
    sums = np.concatenate(([0.0], np.repeat(np.cumsum(extra_j), 2)[:-1]))
    times = np.unique(edges)
    grown = sum(np.interp(times, each, sums) for each in edges)
    ends = run.iterations.ends
    starts = ends - np.rint(lasted * 1e9).astype(np.int64)
    return PipelinedRun(run, run.iterations._replace(starts=starts), times, grown + physics.idle_w * times)


class _PipelineSchedule(Schedule):
    """One batch for each stage, in turn. A batch enters the pipeline again once it has left it."""

    def __init__(
        self, physics: PipelinePhysics, tenants: Sequence[TenantLoad], arrivals: Floats, drawn: np.random.Generator
    ) -> None:
        super().__init__(physics, tenants, arrivals, drawn)
        self._number = physics.stages
        self._begun: list[list[float]] = []
        self._stage_s: list[float] = []

    @property
    def stages(self) -> tuple[Floats, Floats]:
        """When iterations began on each stage, `[n, stages]`, and how long they lasted on each, `[n]`, in s."""
        return np.array(self._begun), np.array(self._stage_s)

    def run(self, seconds: float) -> None:
        """Run iterations until a time in s, at most until all requests have ended."""
        arrivals, at, now, left = self._arrivals[:, 0].tolist(), 0, 0.0, 0.0
        batches: list[tuple[list[int], list[int]]] = [([], []) for _ in range(self._number)]
        back, free, idle = [0.0] * self._number, [0.0] * self._number, 0
        turn = -1
        while now < seconds:
            turn = (turn + 1) % self._number
            now = max(now, free[0], back[turn])
            while at < len(arrivals) and arrivals[at] <= now:
                self._waiting.append(at)
                at += 1
            self._prefill, self._decode = batches[turn]
            self._admit(now)
            if not self._prefill and not self._decode:
                idle += 1
                if idle >= self._number:
                    if at == len(arrivals):
                        return
                    now = max(now, arrivals[at])
                continue
            idle = 0
            rows = self._iteration()
            lasted = float(self._physics.cost(rows[:, 2:].sum(axis=0)[None])[0][0])
            lasted *= 1 + 0.01 * self._drawn.standard_normal()
            begun, moment = [], now
            for stage in range(self._number):
                moment = max(moment, free[stage])
                begun.append(moment)
                moment = free[stage] = moment + lasted
            self._begun.append(begun)
            self._stage_s.append(lasted)
            self._parts.append(rows)
            self._began.append(max(now, left))
            self._lasted.append(moment - self._began[-1])
            left = back[turn] = moment
            self._finish(rows, moment)
            batches[turn] = self._prefill, self._decode
