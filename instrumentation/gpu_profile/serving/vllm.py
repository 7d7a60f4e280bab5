"""vLLM's plug-in: forwards the engine's iterations to the exporter on the node.

vLLM loads it by the entry point `vllm.stat_logger_plugins`. It does nothing unless `GPU_PROFILE_SERVING` has an
address, as for `engine.PassSender`. Read for vLLM 0.11 to 0.15: `vllm/v1/metrics/loggers.py`, `StatLoggerBase`, and
`vllm/v1/metrics/stats.py`. The latter's classes are not a stable interface, so that each field may be missing.

vLLM reports a prompt in the iteration in which its first token comes. The chunks before follow from the number of
running requests and from the limit of tokens in an iteration. Durations are not reported, and contexts only indirectly:
`vllm_contexts`. Versions before `prompt_token_stats` count cached tokens of a prompt as computed: these follow from the
hits of the prefix cache, which come in the iteration that begins a prompt.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from gpu_profile.serving.engine import PassSender
from gpu_profile.serving.vllm_contexts import DecodeContexts

if TYPE_CHECKING:
    _Base = object
else:
    try:
        from vllm.v1.metrics.loggers import StatLoggerBase as _Base
    except ImportError:
        _Base = object

#: The environment variable with the address. Without it, the plug-in does nothing.
ADDRESS: Final = "GPU_PROFILE_SERVING"
#: The most iterations that began prompts and wait for their ends.
_MOST_BEGUN: Final = 10_000
_log: Final = logging.getLogger(__name__)


class ServingStatLogger(_Base):
    """Forwards iterations. An error switches it off, is logged once, and does not reach vLLM."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._sender: PassSender | None = None
        self._uncounted = 0
        #: Prompts that have begun, by the iteration in which they did: their number and their cached tokens.
        self._begun: deque[tuple[int, int]] = deque(maxlen=_MOST_BEGUN)
        self._is_caching = False
        #: None before the first estimate of bytes, and if vLLM has no formula for its language model.
        self._contexts: DecodeContexts | None = None
        self._config, self._estimates = vllm_config, True
        try:
            cache = getattr(vllm_config, "cache_config", None)
            self._is_caching = bool(getattr(cache, "enable_prefix_caching", False))
            self._limit = int(vllm_config.scheduler_config.max_num_batched_tokens or 0)
            if address := os.environ.get(ADDRESS):
                stages = getattr(getattr(vllm_config, "parallel_config", None), "pipeline_parallel_size", 1)
                # Each of several API servers has the statistics of its own requests alone.
                worker = f"{getattr(vllm_config, 'instance_id', 'vllm')}-{os.getpid()}"
                self._sender = PassSender(address, worker, engine_index, int(stages))
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
            if (
                self._is_caching
                and iteration_stats is not None
                and not _reports_cached(scheduler_stats, iteration_stats)
            ):
                self._sender = None
                _log.error(
                    "%s: this vLLM does not report cached tokens, so that costs would be wrong: update it, or start it "
                    "with --no-enable-prefix-caching",
                    ADDRESS,
                )
                return
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
        # Requests that run without a token from this iteration are in the midst of their prompts.
        unfinished = max(0, int(_first(scheduler_stats, ("num_running_reqs",), 0)) - decodes - firsts + ended)
        cached = int(_first(sources, ("cached_tokens",), 0))
        if sources is None:
            least = computed - self._uncounted - max(0, self._limit - decodes) if self._limit else 0
            cached = min(self._cached(scheduler_stats, firsts, least), max(0, computed - firsts))
            computed -= cached
            if not unfinished:
                self._begun.clear()  # of requests that were aborted or interrupted
        before = min(self._uncounted, max(0, computed - firsts))
        tokens = computed - before
        self._uncounted -= before
        chunk = max(0, self._limit - decodes - tokens) if unfinished else 0
        context = (cached if firsts else 0) + (before if firsts else self._uncounted if chunk else 0)
        self._uncounted = self._uncounted + chunk if unfinished or firsts else 0
        prefills = firsts + (min(unfinished, chunk) if chunk else 0)
        result = {
            "num_prefill_requests": prefills, "sum_prefill_tokens": tokens + chunk if prefills else 0,
            "sum_prefill_kv_tokens": context if prefills else 0, "num_decode_requests": decodes,
        }  # fmt: skip
        read_bytes = _first(getattr(scheduler_stats, "perf_stats", None), ("num_read_bytes_per_gpu",), 0)
        all_go_on = not firsts and not ended
        if decodes and read_bytes and (contexts := self._decode_contexts(result, read_bytes, all_go_on=all_go_on)):
            result["sum_decode_kv_tokens"] = contexts
        return result

    def _decode_contexts(self, scheduled: dict[str, int], read_bytes: float, *, all_go_on: bool) -> int:
        """The contexts in decode, 0 if they are not clear. An error is logged once; all else is still reported."""
        if not self._estimates:
            return 0
        try:
            self._contexts = self._contexts or DecodeContexts(self._config)
            return self._contexts.of(scheduled, read_bytes, all_go_on=all_go_on)
        except Exception as error:  # noqa: BLE001  (vLLM's formulas are no stable interface)
            self._estimates = False
            _log.info("Contexts do not follow from --enable-mfu-metrics for this language model: %.80s", error)
            return 0

    def _cached(self, scheduler_stats: Any, firsts: int, least: int) -> int:
        """The cached tokens of the `firsts` prompts that end in an iteration, which have no room for more than all but
        `least`. Prompts end in the order in which they begin."""
        caching = getattr(scheduler_stats, "prefix_cache_stats", None)
        if requests := int(_first(caching, ("requests",), 0)):
            self._begun.append((requests, int(_first(caching, ("hits",), 0))))
        cached = 0
        while firsts and self._begun:
            requests, hits = self._begun.popleft()
            taken = min(requests, firsts)
            # Those that began together are alike as far as the statistics show.
            part = min(hits, max(hits * taken // requests, least - cached))
            cached, firsts = cached + part, firsts - taken
            if requests > taken:
                self._begun.appendleft((requests - taken, hits - part))
        return cached

    def log_engine_initialized(self) -> None:
        """Nothing to log."""

    def log(self) -> None:
        """Nothing to log."""

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        """Nothing to record."""


def _reports_cached(scheduler_stats: Any, iteration_stats: Any) -> bool:
    """Whether statistics have the cached tokens of prompts, in one of two ways."""
    return (
        hasattr(iteration_stats, "prompt_token_stats")
        or scheduler_stats is None
        or hasattr(scheduler_stats, "prefix_cache_stats")
    )


def _first(stats: Any, names: tuple[str, ...], default: Any) -> Any:
    """The first of the fields that exists."""
    return next((getattr(stats, name) for name in names if getattr(stats, name, None) is not None), default)
