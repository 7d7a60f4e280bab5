"""The workers of a server that computes prompts and answers apart. Pure.

A prefill worker computes prompts and their first tokens, and a decode worker the other tokens. Each is an engine of its
own, with its own iterations, GPUs and span of each request. The spans of a request have one trace id if the router
passes `traceparent` on. SGLang names its spans after the role, and both have the same `bootstrap_room`. Its decode
worker computes no token of a prompt; vLLM's computes the last one again. The decode worker's span has the numbers of
the whole request: all tokens of the prompt, and the cached tokens of the prefill worker. Versions that were read:
SGLang's `python/sglang/srt/observability/trace.py` (02a5808), vLLM 0.11's `vllm/tracing.py`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class WorkerRole(StrEnum):
    """The part of requests that an engine computes: all of it, or the prompts, or the tokens after the first one."""

    WHOLE = ""
    PREFILL = "prefill"
    DECODE = "decode"


class EngineWorker(NamedTuple):
    """A worker: its role, and the name of the server of which it is a part."""

    role: WorkerRole
    server: str

    @classmethod
    def named(cls, engine: str) -> EngineWorker:
        """The worker of an engine's name: `prefill:SERVER` or `decode:SERVER`, and of several workers of one role
        `prefill:SERVER/WORKER`. Other names mean whole engines."""
        for role in _PARTS:
            if engine.startswith(f"{role}:"):
                return cls(role, engine.removeprefix(f"{role}:").partition("/")[0])
        return cls(WorkerRole.WHOLE, engine)

    def counts(self, prompt: int, completion: int) -> tuple[int, int]:
        """This worker's part of a request's computed tokens, by phase. The decode worker's span counts the first
        token too."""
        return (0 if self.role is WorkerRole.DECODE else prompt, 0 if self.role is WorkerRole.PREFILL else completion)


_PARTS: Final = (WorkerRole.PREFILL, WorkerRole.DECODE)


def role_of_span(name: str) -> WorkerRole:
    """The role in the name of a request's span, as SGLang writes it."""
    return next((role for role in _PARTS if name.startswith(f"{role} ")), WorkerRole.WHOLE)
