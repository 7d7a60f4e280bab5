"""The energy of tenants whose requests are unlike all earlier ones, after a sweep and without one."""

import math
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from benchmarks.rows import Row
from benchmarks.serving_accounts import share_out
from gpu_profile.driver.simulated.models import MODELS
from gpu_profile.history.timeline import Floats
from gpu_profile.serving.pricing.account import EngineAccount
from gpu_profile.serving.simulated import EnginePhysics, Schedule, ServingRun
from gpu_profile.serving.simulated_load import TenantLoad, arrivals_of
from gpu_profile.serving.sweep import sweep_steps

_PHYSICS: Final = EnginePhysics(MODELS["H200 SXM"])
_LONGEST, _MOST, _SWEEP_S = 16_384, 32, 60.0
#: The time between two steps of a sweep, and after it, in s.
_BETWEEN_S, _AFTER_S = 0.05, 1.0
_NOISE, _START_NS = 0.04, 1_700_000_000 * 10**9
_SWEEP: Final = TenantLoad("sweep", 1, 1)
_SHORT: Final = TenantLoad("short", 300, 40, 0.3, 0.3, 0.0, 1.0)
_CHAT: Final = TenantLoad("chat", 600, 165, 0.5, 0.6, 0.0, 5.0)
_LONG: Final = TenantLoad("long", 20_000, 60, 0.3, 0.4, 0.0, 1.0)
_AGENT: Final = TenantLoad("agent", 12_000, 300, 0.3, 0.4, 0.9, 1.0)
#: By name: the usual requests, and others that begin later.
_WORLDS: Final[Mapping[str, tuple[TenantLoad, TenantLoad]]] = {
    "long prompts after chats": (_CHAT, _LONG),
    "long prompts after short ones": (_SHORT, _LONG),
    "an agent after short prompts": (_SHORT, _AGENT),
}


class SweptTenants(NamedTuple):
    """By tenant, the usual one first: the error of its energy, and the half-width as a share of it, NaN without one."""

    errors: Floats
    half_widths: Floats

    @property
    def answered(self) -> bool:
        """Whether both tenants have their energy."""
        return bool(np.isfinite(self.half_widths).all())

    def __str__(self) -> str:
        widths = [f"±{width:.1%}" if math.isfinite(width) else "refused" for width in self.half_widths.tolist()]
        return ", ".join(f"{error:+.1%} ({width})" for error, width in zip(self.errors.tolist(), widths, strict=True))


def sweep_arrivals(seconds: float) -> tuple[Floats, float]:
    """The requests of a sweep as arrivals, each step after the end of the one before, and the time of their end in
    s."""
    rows, now = list[list[float]](), 0.0
    for step in sweep_steps(_LONGEST, _MOST):
        some = [[0.0, 0, step.prompt, step.answer, 0]] * step.requests
        alone = Schedule(_PHYSICS, (_SWEEP,), np.array(some), np.random.default_rng(0))
        alone.run(math.inf)
        rows += [[now, *each[1:]] for each in some]
        now += max(each.end_s for each in alone.result(0.0, _START_NS).requests) + _BETWEEN_S
        if now > seconds:
            break
    return np.array(rows), now


def later_tenant(
    usual: TenantLoad, later: TenantLoad, seed: int, *, swept_s: float, alone_s: float = 60.0, both_s: float = 30.0
) -> SweptTenants:
    """The energies of two tenants, of which one begins later, after a sweep of `swept_s`."""
    drawn = np.random.default_rng(seed)
    first, since = sweep_arrivals(swept_s) if swept_s else (np.zeros((0, 5)), -_AFTER_S)
    arrivals = [first]
    for place, (tenant, start_s, lasts_s) in enumerate(
        ((usual, 0.0, alone_s + both_s), (later, alone_s, both_s)), start=1
    ):
        some = arrivals_of([tenant], lasts_s, drawn, bursts=False)
        some[:, 0] += since + _AFTER_S + start_s
        some[:, 1] = place
        arrivals.append(some)
    rows = np.concatenate(arrivals)
    schedule = Schedule(_PHYSICS, (_SWEEP, usual, later), rows[np.argsort(rows[:, 0], kind="stable")], drawn)
    schedule.run(math.inf)
    return _judged(schedule.result(_NOISE, _START_NS), seed)


def _judged(run: ServingRun, seed: int) -> SweptTenants:
    account = EngineAccount(lambda request: run.requests[request].tenant)
    share_out(account, run, run.readings(seed=seed), None)
    truth = np.bincount([request.tenant for request in run.requests], run.true_j, 3)[1:]
    joules = [sum(uj for (each, _), uj in account.microjoules.items() if each == place) / 1e6 for place in (1, 2)]
    widths = [account.half_width(place) for place in (1, 2)]
    return SweptTenants(
        np.array(joules) / truth - 1, np.array([np.nan if width is None else width for width in widths])
    )


def rows() -> Iterator[Row]:
    """All worlds, after a sweep and without one."""
    for name, (usual, later) in _WORLDS.items():
        swept, alone = (later_tenant(usual, later, 1, swept_s=seconds) for seconds in (_SWEEP_S, 0.0))
        error, alone_error = (float(abs(each.errors).max()) for each in (swept, alone))
        yield Row(
            f"serving: {name}, after a sweep of {_SWEEP_S:.0f} s",
            f"both tenants: {swept}",
            f"without a sweep: {alone}",
            reach="answered, <=2 % per tenant, also without a sweep",
            ok=swept.answered and alone.answered and max(error, alone_error) <= 0.02,
            cost=error,
        )
