"""The contexts of requests in decode, from vLLM's own estimate of the bytes that an iteration reads.

vLLM reports no contexts. With `--enable-mfu-metrics`, `SchedulerStats.perf_stats` has the bytes that an iteration
reads, by a formula: `ModelMetrics.get_read_bytes` of an `ExecutionContext`, in `vllm/v1/metrics/perf.py` (read at
00cee63). Among other parts, the bytes are proportional to the sum of contexts in decode. All other parts follow from
the tokens, so that the formula also gives the contexts of the bytes. Neither it nor its constants are copied here: the
installed vLLM computes both sides, and a wrong constant in it cancels out.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple

_PERF: Final = "vllm.v1.metrics.perf"
#: A context above all sliding windows. If the bytes per token change up to there by more than this share, some layers
#: have a window, and no sum of contexts follows from the bytes.
_LONG, _STRAIGHT = 2**20, 1e-6
#: Sums of contexts are whole numbers. A sum this far from one shows other tokens than the reported ones, or another
#: formula.
_ROUNDING: Final = 0.01
#: The weight of a new iteration in the share of iterations whose bytes do not fit. From the second value on, none is
#: trusted. All count as wrong at first. Twice the bytes may give whole numbers too: with dimensions that are powers of
#: two, the bytes of all weights are a multiple of a context's.
_NEW_MISFIT, _MOST_MISFIT = 0.05, 0.5


class ExpectedContexts(NamedTuple):
    """Requests in decode and the sum of their contexts in an iteration, from the one before. The sum is sure if the
    latter had no prompts: the plug-in may be wrong about the tokens of prompts."""

    decodes: int
    contexts: int
    sure: bool


class DecodeContexts:
    """Gives the sum of contexts in decode for the bytes that an iteration reads.

    Raises:
        Exception: This vLLM has no such formula, or none for its language model.
    """

    def __init__(self, vllm_config: Any) -> None:
        perf = import_module(_PERF)
        self._context, self._metrics = perf.ExecutionContext, perf.ModelMetrics(vllm_config)
        none, one, many = (self._bytes(0, 0, 0, 1, context) for context in (0, 1, _LONG))
        self._per_token, self._misfit = (many - none) / _LONG, 1.0
        #: The next iteration's sum of contexts, if all requests in decode go on.
        self._expected: ExpectedContexts | None = None
        if self._per_token <= 0 or abs(one - none - self._per_token) > _STRAIGHT * self._per_token:
            raise ValueError("the bytes are not proportional to the contexts")

    def _bytes(self, prefills: int, tokens: int, before: int, decodes: int, context: int) -> float:
        work = self._context()
        for place in range(prefills):
            # Only sums matter.
            work.add(0 if place else tokens, 0 if place else tokens + before, is_prefill=True)
        if decodes:
            work.add(decodes, context, is_prefill=False)
        return float(self._metrics.get_read_bytes(work))

    def of(self, scheduled: Mapping[str, int], read_bytes: float, *, all_go_on: bool) -> int:
        """The tokens that requests in decode read, without the current ones, for these `scheduled_requests`.

        `all_go_on`: the next iteration has the same requests in decode. Each context is then one token longer there. 0
        if the bytes do not fit the tokens or such a growth, or did not in most of the latest iterations that show it.
        """
        prefills, tokens, before, decodes = (
            scheduled[name]
            for name in ("num_prefill_requests", "sum_prefill_tokens", "sum_prefill_kv_tokens", "num_decode_requests")
        )
        contexts = (read_bytes - self._bytes(prefills, tokens, before, decodes, 0)) / self._per_token
        whole = round(contexts)
        # Each request has its current token and one before it, at least.
        is_usable = fits = abs(contexts - whole) <= _ROUNDING and whole >= 2 * decodes > 0
        expected, sure = self._expected, not prefills
        if expected is not None and expected.decodes == decodes:
            fits = fits and whole == expected.contexts
            self._judge(fits=fits)
            if not fits and prefills:
                whole, is_usable, fits, sure = expected.contexts, True, True, expected.sure
            elif not fits:
                fits = is_usable and not expected.sure
        elif not fits:
            self._judge(fits=False)
        self._expected = ExpectedContexts(decodes, whole + decodes, sure) if is_usable and all_go_on else None
        return whole - decodes if fits and self._misfit < _MOST_MISFIT else 0

    def _judge(self, *, fits: bool) -> None:
        self._misfit += _NEW_MISFIT * ((not fits) - self._misfit)
