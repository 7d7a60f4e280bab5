"""Forward-pass metrics: one message for each iteration of an engine, as SGLang, Dynamo and vLLM publish them. Pure.

A message has three frames: a topic, a sequence number of 8 bytes, big-endian, and a map in msgpack. The definitions:
SGLang's `python/sglang/srt/observability/forward_pass_metrics.py` (48ccb9a), Dynamo's
`components/src/dynamo/common/forward_pass_metrics.py` (327e70f), and vLLM's proposal, which adds `version`, 1. Fields
that are absent have the value 0 there. `gpu_profile.serving.Engine` adds `requests`, `ended`, and `age`, the time in s
since the iteration's end. vLLM's plug-in adds `stages`, those of its pipeline, and `estimated`, as vLLM's statistics do
not have the sums over prefills.

Messages come from other processes. A message that is not as defined is refused with a reason, and costs bounded memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Final

from gpu_profile.errors import UsageError
from gpu_profile.serving.work import BatchedRequest

if TYPE_CHECKING:
    from gpu_profile.serving.streams.message_types import ForwardPass, PassMessage

#: The most bytes of a topic and of a map. A map with the most requests has some 40 bytes for each.
_MOST_TOPIC, _MOST_BYTES = 256, 262_144
_VERSION: Final = 1


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


@cache
def message_types() -> ModuleType:
    """The module that decodes and encodes messages.

    Raises:
        UsageError: msgspec is not installed.
    """
    try:
        return import_module("gpu_profile.serving.streams.message_types")
    except ImportError as error:
        raise UsageError("Messages of LLM servers need msgspec: pip install 'gpu-profile[serving]'") from error


def frames_of(datagram: bytes) -> tuple[bytes, bytes, bytes]:
    """The frames of a message that came as a datagram, as `engine` sends it over a Unix socket."""
    return b"", datagram[:8], datagram[8:]


def decoded(frames: Sequence[bytes]) -> ForwardPass:
    """The message of these frames.

    Raises:
        MessageError: The message is not as defined.
        UsageError: msgspec is not installed.
    """
    if len(frames) != 3:
        raise MessageError(MessageFault.FRAMES)
    topic, sequence, payload = frames
    if len(topic) > _MOST_TOPIC or len(sequence) != 8 or len(payload) > _MOST_BYTES:
        raise MessageError(MessageFault.SIZE)
    types = message_types()
    try:
        message: PassMessage = types.decode(payload)
    except types.ValidationError as error:
        # A wrong type names the type that it got.
        raise MessageError(MessageFault.TYPE if ", got " in str(error) else MessageFault.RANGE) from error
    except types.FAULTS as error:
        raise MessageError(MessageFault.FORMAT) from error
    if message.version != _VERSION:
        raise MessageError(MessageFault.VERSION)
    sums, wall_s, age_s = message.scheduled_requests, message.wall_time, message.age
    prefills, tokens, stored = sums.num_prefill_requests, sums.sum_prefill_tokens, sums.sum_prefill_kv_tokens
    decodes, context, variance = sums.num_decode_requests, sums.sum_decode_kv_tokens, sums.var_prefill_length
    requests = None if message.requests is None else tuple(map(BatchedRequest._make, message.requests))
    if (
        (not prefills and (tokens or stored)) or (not decodes and context)
        or (requests is not None and len(requests) != prefills + decodes)
    ):  # fmt: skip
        raise MessageError(MessageFault.RANGE)
    made: ForwardPass = types.ForwardPass(
        message.worker_id, message.dp_rank, int.from_bytes(sequence, "big"), wall_s if wall_s > 0 else 0.0, prefills,
        tokens, variance if variance > 0 else 0.0, stored, decodes, context, requests, message.ended,
        age_s if age_s > 0 else 0.0, message.stages or 1, message.estimated,
    )  # fmt: skip
    return made
