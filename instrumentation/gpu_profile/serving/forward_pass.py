"""Forward-pass metrics: one message for each iteration of an engine, as SGLang, Dynamo and vLLM publish them. Pure.

A message has three frames: a topic, a sequence number of 8 bytes, big-endian, and a map in msgpack. The definitions:
SGLang's `python/sglang/srt/observability/forward_pass_metrics.py` (48ccb9a), Dynamo's
`components/src/dynamo/common/forward_pass_metrics.py` (327e70f), and vLLM's proposal, which adds `version`, 1. Fields
that are absent have the value 0 there. `gpu_profile.serving.Engine` adds `requests`, `ended`, and `age`, the time in s
since the iteration's end. vLLM's plug-in adds `stages`, those of its pipeline.

Messages come from other processes. A message that is not as defined is refused with a reason, and costs bounded memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cache, partial
from operator import itemgetter
from typing import Any, Final, NamedTuple

from gpu_profile.errors import UsageError
from gpu_profile.serving.work import RequestPhase

#: The most bytes of a topic and of a map. A map with the most requests has some 40 bytes for each.
_MOST_TOPIC, _MOST_BYTES = 256, 262_144
#: The most requests in an iteration, tokens in it, and tokens of context. The longest name, the longest iteration in s.
_MOST_REQUESTS, _MOST_TOKENS, _MOST_CONTEXT, _MOST_NAME, _MOST_S = 4096, 10**8, 10**12, 128, 3600.0
_MOST_RANK: Final = 65_535
_VERSION: Final = 1
#: Rounding may make a variance of equal values slightly negative.
_LEAST: Final = -1e-6
_NONE_SCHEDULED: Final[dict[str, Any]] = {
    "num_prefill_requests": 0, "sum_prefill_tokens": 0, "sum_prefill_kv_tokens": 0, "var_prefill_length": 0.0,
    "num_decode_requests": 0, "sum_decode_kv_tokens": 0,
}  # fmt: skip
_SCHEDULED: Final = itemgetter(*_NONE_SCHEDULED)
_NUMBERS: Final[frozenset[type]] = frozenset({int, float})


class MessageFault(StrEnum):
    """Why a message was refused. Values of the label `reason`."""

    FRAMES = "frames"
    SIZE = "size"
    FORMAT = "format"
    VERSION = "version"
    TYPE = "type"
    RANGE = "range"
    STREAMS = "streams"
    RATE = "rate"
    REPEATED = "repeated"
    SEQUENCE = "sequence"


class MessageError(ValueError):
    """A message that is not as defined. `fault` is the reason."""

    def __init__(self, fault: MessageFault) -> None:
        super().__init__(fault.value)
        self.fault = fault


class BatchedRequest(NamedTuple):
    """A request in an iteration, from an engine that reports them. `tokens` are computed in the iteration, and
    `context` are the tokens before them."""

    id: str
    tenant: str
    phase: RequestPhase
    tokens: int
    context: int


class ForwardPass(NamedTuple):
    """One iteration, or a heartbeat. `wall_s` is 0 if the engine does not measure it.

    `prefill_kv` are the tokens before the computed ones, `decode_kv` the tokens that requests in decode read. A
    `decode_kv` of 0 with requests in decode was not reported. `length_variance` is that of the prompts' lengths.
    `age_s` is the time from the iteration's end to the sending, 0 if it is not reported.
    `requests` is None if the engine does not report them; `ended` names requests that have ended.
    """

    worker: str
    rank: int
    sequence: int
    wall_s: float
    prefills: int
    prefill_tokens: int
    length_variance: float
    prefill_kv: int
    decodes: int
    decode_kv: int
    requests: tuple[BatchedRequest, ...] | None = None
    ended: tuple[str, ...] = ()
    age_s: float = 0.0
    stages: int = 1

    @property
    def idle(self) -> bool:
        """Whether nothing was scheduled: a heartbeat."""
        return not self.prefills and not self.decodes


def msgpack() -> Any:
    """The module `msgpack`.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import msgpack as module
    except ImportError as error:
        raise UsageError("Messages of LLM servers need msgpack: pip install 'gpu-profile[serving]'") from error
    return module


@cache
def _unpacking() -> tuple[Callable[[bytes], object], tuple[type[Exception], ...]]:
    """Unpacks a map of bounded size; and everything that msgpack raises for bad input."""
    module = msgpack()
    unpack = partial(
        module.unpackb, max_str_len=_MOST_NAME, max_bin_len=0, max_ext_len=0, max_map_len=64,
        max_array_len=_MOST_REQUESTS,
    )  # fmt: skip
    return unpack, (ValueError, TypeError, RecursionError, module.UnpackException, module.exceptions.BufferFull)


def frames_of(datagram: bytes) -> tuple[bytes, bytes, bytes]:
    """The frames of a message that came as a datagram, as `engine` sends it over a Unix socket."""
    return b"", datagram[:8], datagram[8:]


def decoded(frames: Sequence[bytes]) -> ForwardPass:
    """The message of these frames.

    Raises:
        MessageError: The message is not as defined.
        UsageError: msgpack is not installed.
    """
    if len(frames) != 3:
        raise MessageError(MessageFault.FRAMES)
    topic, sequence, payload = frames
    if len(topic) > _MOST_TOPIC or len(sequence) != 8 or len(payload) > _MOST_BYTES:
        raise MessageError(MessageFault.SIZE)
    unpack, faults = _unpacking()
    try:
        message = unpack(payload)
    except faults as error:
        raise MessageError(MessageFault.FORMAT) from error
    if not isinstance(message, dict):
        raise MessageError(MessageFault.TYPE)
    if message.get("version", _VERSION) != _VERSION:
        raise MessageError(MessageFault.VERSION)
    return _checked(message, int.from_bytes(sequence, "big"))


def _checked(message: dict[str, Any], sequence: int) -> ForwardPass:
    scheduled = message.get("scheduled_requests", _NONE_SCHEDULED)
    worker = message.get("worker_id", "")
    if type(scheduled) is not dict or type(worker) is not str:
        raise MessageError(MessageFault.TYPE)
    rank, wall_s, age_s = message.get("dp_rank", 0), message.get("wall_time", 0.0), message.get("age", 0.0)
    try:
        prefills, prefill_tokens, prefill_kv, variance, decodes, decode_kv = _SCHEDULED(scheduled)
    except KeyError:
        prefills, prefill_tokens, prefill_kv, variance, decodes, decode_kv = _SCHEDULED(_NONE_SCHEDULED | scheduled)
    # One chain of comparisons each: at hundreds of iterations per second, a call for each field would cost most of all.
    if not (
        type(prefills) is type(prefill_tokens) is type(prefill_kv) is type(decodes) is type(decode_kv) is int
        and type(rank) is int and type(wall_s) in _NUMBERS and type(variance) in _NUMBERS and type(age_s) in _NUMBERS
    ):  # fmt: skip
        raise MessageError(MessageFault.TYPE)
    # A comparison with NaN is false.
    if not (
        0 <= prefills <= _MOST_REQUESTS and 0 <= decodes <= _MOST_REQUESTS and 0 <= prefill_tokens <= _MOST_TOKENS
        and 0 <= prefill_kv <= _MOST_CONTEXT and 0 <= decode_kv <= _MOST_CONTEXT and 0 <= rank <= _MOST_RANK
        and _LEAST <= wall_s <= _MOST_S and _LEAST <= variance <= _MOST_CONTEXT and _LEAST <= age_s <= _MOST_S
        and (prefills or not (prefill_tokens or prefill_kv)) and (decodes or not decode_kv)
    ):  # fmt: skip
        raise MessageError(MessageFault.RANGE)
    requests = _requests(message["requests"]) if "requests" in message else None
    ended = _names(message["ended"]) if "ended" in message else ()
    stages = message.get("stages", 1)
    if type(stages) is not int:
        raise MessageError(MessageFault.TYPE)
    if not 0 <= stages <= _MOST_RANK or (requests is not None and len(requests) != prefills + decodes):
        raise MessageError(MessageFault.RANGE)
    return ForwardPass(
        worker, rank, sequence, wall_s if wall_s > 0 else 0.0, prefills, prefill_tokens,
        variance if variance > 0 else 0.0, prefill_kv, decodes, decode_kv, requests, ended,
        age_s if age_s > 0 else 0.0, stages or 1,
    )  # fmt: skip


def _names(names: Any) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise MessageError(MessageFault.TYPE)
    return tuple(names)


def _requests(rows: Any) -> tuple[BatchedRequest, ...]:
    if not isinstance(rows, list):
        raise MessageError(MessageFault.TYPE)
    result = []
    for row in rows:
        if not isinstance(row, list) or [type(each) for each in row] != [str, str, int, int, int]:
            raise MessageError(MessageFault.TYPE)
        name, tenant, phase, tokens, context = row
        if phase not in (0, 1) or not 1 <= tokens <= _MOST_TOKENS or not 0 <= context <= _MOST_CONTEXT:
            raise MessageError(MessageFault.RANGE)
        result.append(BatchedRequest(name, tenant, RequestPhase(phase), tokens, context))
    return tuple(result)
