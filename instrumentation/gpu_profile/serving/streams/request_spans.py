"""Requests of LLM servers, from the spans that the servers write when a request ends. Pure.

vLLM writes `llm_request`, and SGLang `<role> Req <id>`, with the same attributes. The attributes of the specification's
names are read too; none are written. The start of the span is the arrival of the request. Times in the attributes are
in seconds since then. Versions that were read: vLLM 0.11's `vllm/tracing.py`, SGLang 0.5's
`python/sglang/srt/observability/trace.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

_NAME: Final = re.compile(r"llm_request|(?:\S{0,32} )?Req \S{1,64}")
_IDS: Final = ("gen_ai.request.id", "rid")
_PROMPTS: Final = ("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens")
_COMPLETIONS: Final = ("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens")
_CACHED: Final = ("gen_ai.usage.cached_tokens", "gen_ai.usage.cache_read.input_tokens")
_SEQUENCES: Final = ("gen_ai.usage.num_sequences", "gen_ai.request.n")
_MODELS: Final = ("gen_ai.response.model", "gen_ai.request.model")
_QUEUE, _FIRST, _WHOLE = (f"gen_ai.latency.{name}" for name in ("time_in_queue", "time_to_first_token", "e2e"))
_MOST_TOKENS, _MOST_S, _LONGEST = 10**8, 1e6, 128
_NUMBERS: Final = (int, float)
#: Stands for all numbers out of their range.
_WRONG: Final = -1.0

Attributes = Mapping[str, object]


class SpanFault(StrEnum):
    """Why the span of a request cannot be used. Values of the label `reason`."""

    INCOMPLETE = "incomplete"
    RANGE = "range"
    SEQUENCES = "several_sequences"
    REPEATED = "repeated"


class ServedRequest(NamedTuple):
    """A request that has ended. Times are in ns since the epoch: when it was scheduled first, and when its first and
    its last token came. `cached` are the tokens of the prompt that were not computed, None if that is not reported."""

    id: str
    tenant: object
    model: str
    scheduled_ns: int
    first_token_ns: int
    end_ns: int
    prompt: int
    completion: int
    cached: int | None


def served_request(
    name: str, start_ns: int, attributes: Attributes, tenant_attribute: str | None
) -> ServedRequest | SpanFault | None:
    """The request of a span, None if the span is not a server's request, or the reason why it cannot be used.

    `tenant_attribute` names the attribute with the tenant. None: no request has a tenant.
    """
    if not _NAME.fullmatch(name):
        return None
    prompt, completion = (_number(attributes, names, _MOST_TOKENS) for names in (_PROMPTS, _COMPLETIONS))
    first_s = _number(attributes, (_FIRST,), _MOST_S)
    # A request's first token comes at its end if there is only one.
    whole_s = _number(attributes, (_WHOLE,), _MOST_S)
    cached, several = (_number(attributes, names, _MOST_TOKENS) for names in (_CACHED, _SEQUENCES))
    queue_s = _number(attributes, (_QUEUE,), _MOST_S)
    if _WRONG in (prompt, completion, first_s, whole_s, cached, queue_s):
        return SpanFault.RANGE
    if whole_s is None and completion == 1:
        # SGLang's prefill workers report no end.
        whole_s = first_s
    if prompt is None or completion is None or first_s is None or whole_s is None:
        return SpanFault.INCOMPLETE
    if several is not None and several != 1:
        return SpanFault.SEQUENCES
    if not (queue_s or 0.0) <= first_s <= whole_s or prompt < 1 or completion < 1 or (cached or 0) > prompt:
        return SpanFault.RANGE
    return ServedRequest(
        _text(attributes, _IDS),
        attributes.get(tenant_attribute) if tenant_attribute else None,
        _text(attributes, _MODELS),
        start_ns + round(1e9 * (queue_s or 0.0)),
        start_ns + round(1e9 * first_s),
        start_ns + round(1e9 * whole_s),
        int(prompt),
        int(completion),
        None if cached is None else int(cached),
    )


def _number(attributes: Attributes, names: tuple[str, ...], most: float) -> float | None:
    """The first of the attributes that exists, None if none does, `_WRONG` if it is not a number from 0 to `most`."""
    for name in names:
        if name in attributes:
            value = attributes[name]
            if isinstance(value, _NUMBERS) and not isinstance(value, bool) and 0 <= value <= most:
                return float(value)
            return _WRONG
    return None


def _text(attributes: Attributes, names: tuple[str, ...]) -> str:
    return next((str(attributes[name])[:_LONGEST] for name in names if isinstance(attributes.get(name), str)), "")
