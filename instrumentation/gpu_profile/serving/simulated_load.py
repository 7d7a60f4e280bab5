"""The requests of a simulated LLM server: tenants, and when their prompts arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpu_profile.history.timeline import Floats

#: The time between groups of requests, and the mean spread in one, in s.
_BURST_EVERY_S, _BURST_S = 12.0, 0.4


@dataclass(frozen=True, slots=True)
class TenantLoad:
    """One tenant's requests: mean tokens of prompt and output (lognormal, with these sigmas), the share of a prompt
    that the prefix cache holds, requests per second, and priority (a larger one goes first).

    Medians of conversation and coding are those of the Azure traces (Patel et al., *Splitwise*, ISCA 2024, fig. 3):
    some 1,000 tokens in and 130 out, 1,500 in and 13 out.
    """

    name: str
    prompt: float
    output: float
    prompt_sigma: float = 0.7
    output_sigma: float = 0.7
    cached: float = 0.0
    per_s: float = 2.0
    priority: int = 0


TENANTS: Final = (
    TenantLoad("rag", 3000, 120, 0.5, 0.6, 0.0, 2.2),
    TenantLoad("chat", 1300, 165, 0.7, 0.7, 0.3, 6.0, 1),
    TenantLoad("agent", 6000, 60, 0.4, 0.8, 0.85, 2.4),
)


def arrivals_of(tenants: Sequence[TenantLoad], seconds: float, drawn: np.random.Generator, *, bursts: bool) -> Floats:
    """Requests in order of arrival: time in s, tenant, tokens of the prompt, of the output, and cached ones."""
    every = []
    for place, tenant in enumerate(tenants):
        count = int(drawn.poisson(tenant.per_s * seconds))
        times = drawn.uniform(0, seconds, count)
        if bursts:
            groups = drawn.uniform(0, seconds, max(1, round(seconds / _BURST_EVERY_S)))
            times = drawn.choice(groups, count) + drawn.exponential(_BURST_S, count)
        prompt, output = (
            np.maximum(least, mean * drawn.lognormal(-(sigma**2) / 2, sigma, count)).astype(int)
            for least, mean, sigma in (
                (8, tenant.prompt, tenant.prompt_sigma), (2, tenant.output, tenant.output_sigma)
            )
        )  # fmt: skip
        cached = np.minimum(prompt - 4, (prompt * tenant.cached * drawn.uniform(0.8, 1.1, count)).astype(int))
        every.append(np.column_stack((times, np.full(count, place), prompt, output, cached)))
    rows = np.concatenate(every)
    result: Floats = rows[np.argsort(rows[:, 0])]
    return result
