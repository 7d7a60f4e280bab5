"""vLLM's plug-in: forwards the engine's iterations to the exporter on the node.

vLLM loads it by the entry point `vllm.stat_logger_plugins`. It does nothing unless `GPU_PROFILE_SERVING` has an
address, as for `engine.PassSender`. Read for vLLM 0.11 to 0.15: `vllm/v1/metrics/loggers.py`, `StatLoggerBase`, and
`vllm/v1/metrics/stats.py`. The latter's classes are not a stable interface, so that each field may be missing.

vLLM reports a prompt in the iteration in which its first token comes. The chunks before follow from the number of
running requests and from the limit of tokens in an iteration. Durations and contexts are not reported.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Final

from gpu_profile.serving.engine import PassSender

if TYPE_CHECKING:
    _Base = object
else:
    try:
        from vllm.v1.metrics.loggers import StatLoggerBase as _Base
    except ImportError:
        _Base = object

#: The environment variable with the address. Without it, the plug-in does nothing.
ADDRESS: Final = "GPU_PROFILE_SERVING"
_log: Final = logging.getLogger(__name__)


class ServingStatLogger(_Base):
    """Forwards iterations. An error switches it off, is logged once, and does not reach vLLM."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._sender: PassSender | None = None
        self._uncounted = 0
        try:
            self._limit = int(vllm_config.scheduler_config.max_num_batched_tokens or 0)
            if address := os.environ.get(ADDRESS):
                self._sender = PassSender(address, str(getattr(vllm_config, "instance_id", "vllm")), engine_index)
        except Exception:  # noqa: BLE001  (vLLM must go on)
            _log.exception("%s: the iterations of this engine are not reported", ADDRESS)

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,  # noqa: ARG002  (vLLM's signature)
        engine_idx: int = 0,  # noqa: ARG002
    ) -> None:
        """Forward one iteration."""
        if self._sender is None:
            return
        try:
            scheduled = self.scheduled(scheduler_stats, iteration_stats)
            if scheduled["num_prefill_requests"] or scheduled["num_decode_requests"]:
                self._sender.send(0, scheduled)
            if not getattr(scheduler_stats, "num_running_reqs", 1):
                # A heartbeat: the time until the next iteration is idle.
                self._sender.send(0, ())
        except Exception:  # noqa: BLE001
            self._sender = None
            _log.exception("The iterations of this engine are not reported any more")

    def scheduled(self, scheduler_stats: Any, iteration_stats: Any) -> dict[str, int]:
        """The `scheduled_requests` of an iteration."""
        decodes = len(_first(iteration_stats, ("inter_token_latencies_iter", "time_per_output_tokens_iter"), ()))
        firsts = len(_first(iteration_stats, ("time_to_first_tokens_iter",), ()))
        ended = len(_first(iteration_stats, ("finished_requests",), ()))
        sources = getattr(iteration_stats, "prompt_token_stats", None)
        computed = int(_first(sources, ("computed",), _first(iteration_stats, ("num_prompt_tokens",), 0)))
        cached = int(_first(sources, ("cached_tokens",), 0))
        # Requests that run without a token from this iteration are in the midst of their prompts.
        unfinished = max(0, int(_first(scheduler_stats, ("num_running_reqs",), 0)) - decodes - firsts + ended)
        before = min(self._uncounted, max(0, computed - firsts))
        tokens = computed - before
        self._uncounted -= before
        chunk = max(0, self._limit - decodes - tokens) if unfinished else 0
        context = (cached if firsts else 0) + (before if firsts else self._uncounted if chunk else 0)
        self._uncounted = self._uncounted + chunk if unfinished or firsts else 0
        prefills = firsts + (min(unfinished, chunk) if chunk else 0)
        return {
            "num_prefill_requests": prefills, "sum_prefill_tokens": tokens + chunk if prefills else 0,
            "sum_prefill_kv_tokens": context if prefills else 0, "num_decode_requests": decodes,
        }  # fmt: skip

    def log_engine_initialized(self) -> None:
        """Nothing to log."""

    def log(self) -> None:
        """Nothing to log."""

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        """Nothing to record."""


def _first(stats: Any, names: tuple[str, ...], default: Any) -> Any:
    """The first of the fields that exists."""
    return next((getattr(stats, name) for name in names if getattr(stats, name, None) is not None), default)
