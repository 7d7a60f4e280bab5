"""Requests that have ended, and the reasons why an engine has no costs of them. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from gpu_profile.serving.streams.tenants import ModelUse


class CostRefusal(StrEnum):
    """Why an engine's tenants have no costs now. Values of the label `reason`."""

    NO_SPANS = "no_request_spans"
    SPECULATIVE = "speculative_decoding"
    PUBLISHERS = "several_publishers"
    STAGES = "pipeline_stages"


class FinishedRequest(NamedTuple):
    """A request that has ended: its name, the labels of its tenant and model, its tokens and when it ended, in ns since
    the epoch. The fields are empty or None where the engine does not report them."""

    id: str
    use: ModelUse
    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None
    scheduled_ns: int = 0
    end_ns: int | None = None

    @property
    def tokens(self) -> tuple[int, int] | None:
        """The tokens that iterations compute for it, by `RequestPhase`. None if the engine does not report them."""
        if self.prompt is None or self.completion is None:
            return None
        # The last part of the prompt gives the first token. At least a token of a prompt is computed.
        return max(1, self.prompt - self.cached) if self.cached is not None else 1, self.completion - 1
