"""Simulated LLM servers of several workers, with exact costs: prefill and decode apart, and pipelines of stages.

A prefill worker computes prompts and their first tokens. The keys and values of a prompt then go to a decode worker,
which computes the other tokens. In a pipeline, each stage has a part of the layers on GPUs of its own. One batch for
each stage is in the pipeline at once, and a request stays in its batch. Engines report the iterations of the last stage
alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.history.timeline import Floats, Ints
from gpu_profile.serving.pricing.windows import CounterReadings
from gpu_profile.serving.simulated import EnginePhysics, Schedule, ServingRun, shown
from gpu_profile.serving.simulated_load import TENANTS, TenantLoad, arrivals_of

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


class PipelinedRun(NamedTuple):
    """The runs of the stages of a pipeline, of the same requests. Engines report the iterations of the last one."""

    stages: tuple[ServingRun, ...]

    @property
    def true_j(self) -> Floats:
        """The energy in J of each request, on all stages."""
        result: Floats = np.sum([stage.true_j for stage in self.stages], axis=0)
        return result

    def readings(self, *, seed: int = 0) -> CounterReadings:
        """Readings of the energy counters of all stages, summed, as in `ServingRun.readings`."""
        curves = [stage.grown() for stage in self.stages]
        times = np.unique(np.concatenate([times for times, _ in curves]))
        joules: Floats = np.sum([
            np.interp(times, at, joules) + stage.idle_w * np.maximum(0.0, times - at[-1])
            for stage, (at, joules) in zip(self.stages, curves, strict=True)
        ], axis=0)  # fmt: skip
        return shown(self.stages[0].start_ns, times, joules, 0.1, 0.0, 0.003, seed)


def simulate_pipeline(
    physics: EnginePhysics, stages: int, tenants: Sequence[TenantLoad] = TENANTS, *, seconds: float = 300.0,
    seed: int = 0, noise: float = 0.04, start_ns: int = _START_NS,
) -> PipelinedRun:  # fmt: skip
    """Run a pipeline for a time. The layers of the model are divided over the stages, each of which has the devices of
    `physics`. Other parameters as in `simulate`."""
    drawn, model = np.random.default_rng(seed), physics.model
    part = replace(
        model, parameters=model.parameters / stages, layers=model.layers // stages, kv_bytes=model.kv_bytes / stages
    )
    arrivals = arrivals_of(tenants, seconds, drawn, bursts=False)
    schedule = _PipelineSchedule(replace(physics, model=part), tenants, arrivals, drawn)
    schedule.run_stages(stages, seconds)
    return PipelinedRun(tuple(schedule.stage(number, noise, start_ns) for number in range(stages)))


class _PipelineSchedule(Schedule):
    """One batch for each stage, in turn. A batch enters the pipeline again once it has left it."""

    def run_stages(self, stages: int, seconds: float) -> None:
        """Run iterations until a time in s, at most until all requests have ended."""
        arrivals, at, now, idle, turn = self._arrivals[:, 0].tolist(), 0, 0.0, 0, -1
        batches: list[tuple[list[int], list[int]]] = [([], []) for _ in range(stages)]
        back, free = [0.0] * stages, [0.0] * stages
        self._entered: list[list[float]] = []
        while now < seconds:
            turn = (turn + 1) % stages
            now = max(now, free[0], back[turn])
            while at < len(arrivals) and arrivals[at] <= now:
                self._waiting.append(at)
                at += 1
            self._prefill, self._decode = batches[turn]
            self._admit(now)
            if not self._prefill and not self._decode:
                idle += 1
                if idle >= stages:
                    if at == len(arrivals):
                        return
                    now = max(now, arrivals[at])
                continue
            idle = 0
            rows = self._iteration()
            lasted = self._duration(rows)
            entered, moment = [], now
            for stage in range(stages):
                entered.append(max(moment, free[stage]))
                moment = free[stage] = entered[-1] + lasted
            self._entered.append(entered)
            self._lasted.append(lasted)
            self._parts.append(rows)
            self._finish(rows, moment)
            back[turn], batches[turn] = moment, (self._prefill, self._decode)

    def stage(self, number: int, noise: float, start_ns: int) -> ServingRun:
        """The record of one stage."""
        self._began = [entered[number] for entered in self._entered]
        return self.result(noise, start_ns)
