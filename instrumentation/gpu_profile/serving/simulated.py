"""A simulated LLM server with exact costs of its requests: continuous batching on the physics of a simulated GPU.

Prompts are prefilled in chunks, together with one token of each request in decode. Keys and values live in blocks of a
paged cache; a request that finds it full is preempted and computed again. Requests of higher priority go first.
The cost of an iteration is not linear in its work: each kernel takes the longer of its computing and its memory
traffic, and draws power by both. The true share of a request is the integral of that cost's gradient along the mix of
the iteration, over the simulator's own physics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from gpu_profile.driver.simulated.models import DeviceModel
from gpu_profile.driver.simulated.physics import COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY, power_share
from gpu_profile.history.timeline import Floats
from gpu_profile.serving.pricing.windows import CounterReadings
from gpu_profile.serving.simulated_load import TENANTS, TenantLoad, arrivals_of
from gpu_profile.serving.work import QUANTITIES, Iterations, Parts, RequestPhase, WorkQuantity

_NS: Final = 1e9
#: Host time of an iteration, in which the device waits, in s.
_HOST_S: Final = 300e-6
#: The chunk of tokens of one iteration, its most requests, and the tokens of a block of the cache.
_CHUNK, _MOST_REQUESTS, _BLOCK = 2048, 96, 16
#: The share of the memory beside the weights that the cache has.
_CACHE: Final = 0.9
#: The relative standard deviation of an iteration's duration.
_DURATION_NOISE: Final = 0.01
#: Steps of the integral along the mix of an iteration.
_STEPS: Final = 32
#: The number of requests at which the price of an operation is the usual one, and the range in which it changes, for
#: an engine whose prices depend on its load.
_USUAL_LOAD, _LOAD_RANGE = 16.0, 12.0
#: The share of a multiprocessor's time that kernels of attention in decode fill.
_DECODE_SMS: Final = 0.9


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """The sizes of a decoder in 16 bit: parameters, layers, width, and bytes of keys and values per token.

    The default has the sizes of an 8 B model with 8 key-value heads. Of `experts`, each token passes `active` ones at
    random. Kernels of the dense layers compute tokens in whole tiles of `tile` of them, from one tile on.
    """

    parameters: float = 8.03e9
    layers: int = 32
    width: int = 4096
    kv_bytes: float = 131_072.0
    experts: int = 1
    active: int = 1
    tile: int = 1

    def dense(self, tokens: Floats) -> tuple[Floats, Floats]:
        """FLOPs and bytes of the dense layers for these tokens."""
        whole = (
            np.where(tokens < self.tile, tokens, np.ceil(tokens / self.tile) * self.tile) if self.tile > 1 else tokens
        )
        share = self.active / self.experts
        read = 1 - (1 - share) ** tokens if self.experts > 1 else np.ones(len(tokens))
        return 2 * self.parameters * share * whole, 2 * self.parameters * read


@dataclass(frozen=True, slots=True)
class EnginePhysics:
    """The cost of iterations on `devices` GPUs of a model, in tensor parallel.

    `load_price` raises or lowers the energy of an operation by up to this share with the number of requests.
    `power_cap_w` limits each device: kernels above it slow down.
    """

    device: DeviceModel
    model: LanguageModel = field(default_factory=LanguageModel)
    devices: int = 1
    load_price: float = 0.0
    power_cap_w: float | None = None

    @property
    def idle_w(self) -> float:
        """The power of all devices without work."""
        return self.device.idle_w * self.devices

    def cost(self, work: Floats) -> tuple[Floats, Floats]:
        """Seconds and J of iterations with these quantities, `[n, QUANTITIES]`, all devices together."""
        seconds = np.full(len(work), _HOST_S)
        joules = seconds * self.idle_w
        for kernel in range(len(_KERNELS)):
            more_s, more_j = self._kernel(kernel, work)
            seconds, joules = seconds + more_s, joules + more_j
        return seconds, joules

    def kernel_work(self, kernel: int, work: Floats) -> tuple[Floats, Floats, float]:
        """FLOPs, bytes and the share of multiprocessors of the dense layers (0), or of attention in prefill (1) or in
        decode (2), of all devices together."""
        model, tokens = self.model, work.T
        attention = 4.0 * model.layers * model.width
        return (
            (*model.dense(tokens[WorkQuantity.TOKENS]), 1.0),
            (attention * tokens[WorkQuantity.PREFILL_CONTEXT], model.kv_bytes * tokens[WorkQuantity.PREFILL_KV], 1.0),
            (
                attention * tokens[WorkQuantity.DECODE_CONTEXT],
                model.kv_bytes * tokens[WorkQuantity.DECODE_CONTEXT],
                _DECODE_SMS,
            ),
        )[kernel]

    def _kernel(self, kernel: int, work: Floats) -> tuple[Floats, Floats]:
        """Seconds and J of a kernel."""
        model, device, tokens = self.model, self.device, work.T
        flops, size, sms = self.kernel_work(kernel, work)
        peak, rate = device.peak_flops["bf16"] * self.devices, device.dram_bytes_per_s * self.devices
        seconds = np.maximum(flops / (peak * COMPUTE_EFFICIENCY), size / (rate * MEMORY_EFFICIENCY))
        if kernel == 0 and self.devices > 1 and device.nvlink_bytes_per_s:
            # Two all-reduces of activations in 16 bit per layer.
            seconds = (
                seconds + 4.0 * model.layers * model.width * tokens[WorkQuantity.TOKENS] / device.nvlink_bytes_per_s
            )
        lasting = np.maximum(seconds, 1e-12)
        dynamic = power_share(sms, flops / lasting / peak, size / lasting / rate)
        if self.load_price:
            dynamic *= 1 + self.load_price * np.tanh((tokens[WorkQuantity.REQUESTS] - _USUAL_LOAD) / _LOAD_RANGE)
        power = device.idle_w + np.clip(dynamic, 0.0, 1.0) * (device.tdp_w - device.idle_w)
        if self.power_cap_w is not None:
            # Slower clocks lower the power more than the speed.
            seconds = seconds * np.maximum(1.0, power / self.power_cap_w) ** 0.6
            power = np.minimum(power, self.power_cap_w)
        return seconds, seconds * power * self.devices

    def shares(self, work: Floats) -> tuple[Floats, Floats]:
        """Of the J of iterations: the integral along each quantity, `[n, QUANTITIES]`, and the rest without work."""
        shares = np.zeros((len(work), QUANTITIES))
        empty = work * 1e-12
        fixed = np.full(len(work), _HOST_S * self.idle_w)
        for kernel, quantities in enumerate(_KERNELS):
            moving = (*quantities, WorkQuantity.REQUESTS) if self.load_price else quantities
            none = self._kernel(kernel, empty)[1]
            whole = self._kernel(kernel, work)[1] - none
            fixed += none
            along = np.zeros((len(work), QUANTITIES))
            for step in range(_STEPS if len(moving) > 1 else 1):
                low, high = step / _STEPS, (step + 1) / _STEPS
                for quantity in moving:
                    before, after = work * (low + high) / 2, work * (low + high) / 2
                    before[:, quantity], after[:, quantity] = work[:, quantity] * low, work[:, quantity] * high
                    along[:, quantity] += self._kernel(kernel, after)[1] - self._kernel(kernel, before)[1]
            total = along.sum(axis=1)
            single = np.zeros(QUANTITIES)
            single[quantities[0]] = 1.0
            part = np.where((abs(total) > 1e-15)[:, None], along / np.where(total == 0, 1.0, total)[:, None], single)
            shares += part * whole[:, None]
        return shares, fixed


#: The quantities on which the kernels of an iteration depend.
_KERNELS: Final = (
    (WorkQuantity.TOKENS,),
    (WorkQuantity.PREFILL_CONTEXT, WorkQuantity.PREFILL_KV),
    (WorkQuantity.DECODE_CONTEXT,),
)


class SimulatedRequest(NamedTuple):
    """One request: tenant's place, times in s since the start, tokens, and preemptions. Times are NaN until then."""

    tenant: int
    arrival_s: float
    prompt: int
    output: int
    cached: int
    scheduled_s: float
    first_token_s: float
    end_s: float


class ServingRun(NamedTuple):
    """A simulated run that began at `start_ns`: iterations, their energy in J, the requests, and each one's true J."""

    start_ns: int
    iterations: Iterations
    joules: Floats
    requests: tuple[SimulatedRequest, ...]
    true_j: Floats
    idle_w: float

    def readings(
        self, *, every_s: float = 0.1, late_s: float = 0.0, jitter_s: float = 0.003, seed: int = 0,
        renewed_s: float = 0.0,
    ) -> CounterReadings:  # fmt: skip
        """Readings of the energy counter in whole mJ, which shows the energy of `late_s` ago. It is renewed every
        `renewed_s`; 0: at each reading."""
        return shown(self.start_ns, *self.grown(), every_s, late_s, jitter_s, seed, renewed_s)

    def grown(self) -> tuple[Floats, Floats]:
        """When iterations start and end, in s since the start, and the J up to then."""
        starts, ends = ((each - self.start_ns) / _NS for each in self.iterations[:2])
        idle = np.diff(starts, prepend=0.0) - np.concatenate(([0.0], (ends - starts)[:-1]))
        times = np.column_stack((starts, ends)).ravel()
        return times, np.cumsum(np.column_stack((idle * self.idle_w, self.joules)).ravel())


def shown(
    start_ns: int, times: Floats, joules: Floats, every_s: float, late_s: float, jitter_s: float, seed: int,
    renewed_s: float = 0.0,
) -> CounterReadings:  # fmt: skip
    """Readings of a counter that grows along `joules` at `times` in s, as `ServingRun.readings` gives them."""
    drawn = np.random.default_rng(seed)
    at = np.arange(every_s, times[-1], every_s)
    at = at + drawn.uniform(-jitter_s, jitter_s, len(at))
    since = (at - drawn.uniform(0, renewed_s)) % renewed_s if renewed_s else 0.0
    values = np.interp(at - since - late_s, np.concatenate(([0.0], times)), np.concatenate(([0.0], joules)))
    return CounterReadings(start_ns + np.rint(at * _NS).astype(np.int64), np.floor(values * 1e3) / 1e3)


def simulate(
    physics: EnginePhysics, tenants: Sequence[TenantLoad] = TENANTS, *, seconds: float = 300.0, seed: int = 0,
    bursts: bool = False, noise: float = 0.04, start_ns: int = 1_700_000_000 * 10**9, drained: bool = False,
) -> ServingRun:  # fmt: skip
    """Run the engine for a time. `bursts`: requests of a tenant arrive in groups, some 12 s apart. `noise` is the
    relative standard deviation of an iteration's energy around the physics. `drained`: until the last request ends."""
    drawn = np.random.default_rng(seed)
    schedule = Schedule(physics, tenants, arrivals_of(tenants, seconds, drawn, bursts=bursts), drawn)
    schedule.run(math.inf if drained else seconds)
    return schedule.result(noise, start_ns)


class Schedule:
    """The scheduler of a simulated engine, and the record of its iterations."""

    def __init__(
        self, physics: EnginePhysics, tenants: Sequence[TenantLoad], arrivals: Floats, drawn: np.random.Generator
    ) -> None:  # fmt: skip
        self._physics, self._arrivals, self._drawn = physics, arrivals, drawn
        of, self._prompt, self._output, self._cached = arrivals[:, 1:].astype(int).T
        self._priority = [tenants[place].priority for place in of.tolist()]
        memory = physics.devices * physics.device.memory_mib * 2**20 - 2 * physics.model.parameters
        self._free = self._blocks = int(_CACHE * memory / physics.model.kv_bytes / _BLOCK)
        #: By request: tokens with keys and values, tokens put out, blocks, and its times.
        self._context, self._done = np.zeros(len(arrivals), int), np.zeros(len(arrivals), int)
        self._held = np.zeros(len(arrivals), int)
        self._times = np.full((len(arrivals), 3), np.nan)
        self._waiting: list[int] = []
        self._prefill: list[int] = []
        self._decode: list[int] = []
        self._began: list[float] = []
        self._lasted: list[float] = []
        self._parts: list[Floats] = []

    def run(self, seconds: float) -> None:
        """Run iterations until a time in s, at most until all requests have ended."""
        now, at, arrivals = 0.0, 0, self._arrivals[:, 0].tolist()
        while now < seconds:
            while at < len(arrivals) and arrivals[at] <= now:
                self._waiting.append(at)
                at += 1
            self._admit(now)
            if not self._prefill and not self._decode:
                if at == len(arrivals):
                    return
                now = arrivals[at]
                continue
            rows = self._iteration()
            lasted = self._duration(rows)
            self._began.append(now)
            self._lasted.append(lasted)
            self._parts.append(rows)
            now += lasted
            self._finish(rows, now)

    def _duration(self, rows: Floats) -> float:
        """How long an iteration lasts, in s."""
        usual = float(self._physics.cost(rows[:, 2:].sum(axis=0)[None])[0][0])
        return usual * (1 + _DURATION_NOISE * float(self._drawn.standard_normal()))

    def _admit(self, now: float) -> None:
        self._waiting.sort(key=lambda request: (-self._priority[request], request))
        while self._waiting and len(self._prefill) + len(self._decode) < _MOST_REQUESTS:
            request = self._waiting[0]
            needed = -(-int(self._prompt[request] + self._done[request] + 1) // _BLOCK)
            if needed > self._free:
                return
            self._free -= needed
            self._held[request] = needed
            self._context[request] = self._cached[request]
            if math.isnan(self._times[request, 0]):
                self._times[request, 0] = now
            self._prefill.append(self._waiting.pop(0))

    def _iteration(self) -> Floats:
        """Choose the work of one iteration: rows of request, phase and quantities."""
        self._grow()
        decode = np.array(self._decode, int)
        rows = np.zeros((len(decode), 2 + QUANTITIES))
        rows[:, 0], rows[:, 1] = decode, RequestPhase.DECODE
        rows[:, 2 + WorkQuantity.TOKENS] = rows[:, 2 + WorkQuantity.REQUESTS] = 1
        rows[:, 2 + WorkQuantity.DECODE_CONTEXT] = self._context[decode]
        room, chunks = _CHUNK - len(decode), []
        for request in self._prefill:
            before = int(self._context[request])
            taken = min(room, int(self._prompt[request] + self._done[request]) - before)
            if taken <= 0:
                continue
            room -= taken
            chunks.append((request, RequestPhase.PREFILL, taken, taken * (before + taken / 2), 0.0, before, 1.0))
        return np.concatenate((np.array(chunks).reshape(-1, 2 + QUANTITIES), rows))

    def _grow(self) -> None:
        """A block for each request whose next token needs one. The latest requests are preempted if there is none."""
        for request in list(self._decode):
            if request not in self._decode or self._context[request] + 1 <= self._held[request] * _BLOCK:
                continue
            while not self._free and len(self._decode) > 1:
                self._preempt(max(self._decode, key=lambda each: (-self._priority[each], each)))
            if self._free and request in self._decode:
                self._free -= 1
                self._held[request] += 1

    def _preempt(self, request: int) -> None:
        self._decode.remove(request)
        self._free += int(self._held[request])
        self._waiting.append(request)

    def _finish(self, rows: Floats, now: float) -> None:
        """The state after an iteration that ends now."""
        requests, tokens = rows[:, 0].astype(int), rows[:, 2].astype(int)
        self._context[requests] += tokens
        for request, phase in zip(requests.tolist(), rows[:, 1].tolist(), strict=True):
            if phase == RequestPhase.PREFILL:
                if self._context[request] < self._prompt[request] + self._done[request]:
                    continue
                self._prefill.remove(request)
                self._decode.append(request)
                if math.isnan(self._times[request, 1]):
                    self._times[request, 1] = now
            # The last chunk of a prompt puts out a token too.
            self._done[request] += 1
            if self._done[request] >= self._output[request]:
                self._decode.remove(request)
                self._free += int(self._held[request])
                self._times[request, 2] = now

    def result(self, noise: float, start_ns: int) -> ServingRun:
        """The record of the run."""
        sizes = [len(rows) for rows in self._parts]
        rows = np.concatenate(self._parts)
        of = np.repeat(np.arange(len(sizes)), sizes)
        work = np.add.reduceat(rows[:, 2:], np.cumsum([0, *sizes[:-1]]), axis=0)
        parts = Parts(of, rows[:, 0].astype(np.int64), rows[:, 1].astype(np.int64), rows[:, 2:])
        edges = np.array([self._began, np.add(self._began, self._lasted)])
        starts, ends = start_ns + np.rint(edges * _NS).astype(np.int64)
        factors = np.maximum(0.1, 1 + noise * self._drawn.standard_normal(len(work)))
        shares, fixed = self._physics.shares(work)
        # Durations vary as well, at the power of idle devices: equal parts.
        predicted, joules = self._physics.cost(work)
        waited = (np.array(self._lasted) - predicted) * self._physics.idle_w
        each = np.divide(shares, work, out=np.zeros_like(shares), where=work > 0)
        own = (each[of] * parts.work).sum(axis=1) * factors[of]
        own += ((fixed * factors + waited) / work[:, WorkQuantity.REQUESTS])[of]
        true_j: Floats = np.bincount(parts.request, own, len(self._arrivals)).astype(np.float64)
        every = zip(self._arrivals.tolist(), self._times.tolist(), strict=True)
        requests = tuple(
            SimulatedRequest(int(tenant), arrival, int(prompt), int(output), int(cached), *times)
            for (arrival, tenant, prompt, output, cached), times in every
        )
        iterations = Iterations(starts, ends, work, parts)
        return ServingRun(start_ns, iterations, joules * factors + waited, requests, true_j, self._physics.idle_w)
