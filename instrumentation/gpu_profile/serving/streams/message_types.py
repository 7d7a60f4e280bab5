"""The maps of forward-pass metrics in msgpack, with the types and ranges of their fields. Needs msgspec. Pure.

Each field has its name on the wire. Absent fields have their defaults, and unknown ones are skipped.
"""

from __future__ import annotations

from operator import index
from typing import Annotated, Final

from msgspec import DecodeError, Meta, Struct, ValidationError, field
from msgspec.msgpack import Decoder, Encoder

from gpu_profile.serving.work import BatchedRequest, RequestPhase

__all__ = ["FAULTS", "ForwardPass", "PassMessage", "ScheduledSums", "ValidationError", "decode", "encode"]

#: The longest name. Rounding may make a variance of equal values slightly negative.
Name = Annotated[str, Meta(max_length=128)]
Requests = Annotated[int, Meta(ge=0, le=4096)]
Tokens = Annotated[int, Meta(ge=0, le=10**8)]
Context = Annotated[int, Meta(ge=0, le=10**12)]
Rank = Annotated[int, Meta(ge=0, le=65_535)]
Seconds = Annotated[float, Meta(ge=-1e-6, le=3600.0)]
Variance = Annotated[float, Meta(ge=-1e-6, le=1e12)]
#: A request that the engine reports: id, tenant, phase, tokens and context.
RequestRow = tuple[Name, Name | None, RequestPhase, Annotated[int, Meta(ge=1, le=10**8)], Context]


class ScheduledSums(Struct, gc=False):
    """The sums over the requests of an iteration."""

    num_prefill_requests: Requests = 0
    sum_prefill_tokens: Tokens = 0
    sum_prefill_kv_tokens: Context = 0
    var_prefill_length: Variance = 0.0
    num_decode_requests: Requests = 0
    sum_decode_kv_tokens: Context = 0


class PassMessage(Struct, gc=False):
    """A message."""

    version: int = 1
    worker_id: Name = ""
    dp_rank: Rank = 0
    wall_time: Seconds = 0.0
    scheduled_requests: ScheduledSums = field(default_factory=ScheduledSums)
    requests: list[RequestRow] | None = None
    ended: tuple[Name, ...] = ()
    age: Seconds = 0.0
    stages: Rank = 1
    estimated: bool = False


class ForwardPass(Struct, gc=False):
    """One iteration, or a heartbeat. `wall_s` is 0 if the engine does not measure it.

    `prefill_kv` are the tokens before the computed ones, `decode_kv` the tokens that requests in decode read. A
    `decode_kv` of 0 with requests in decode was not reported. `length_variance` is that of the prompts' lengths.
    `age_s` is the time from the iteration's end to the sending, 0 if it is not reported.
    `estimated`: the sums over prefills are not exact.
    `requests` is None if the engine does not report them; `ended` names requests that have ended.

    No tuple: the collector of garbage would look at each one that waits.
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
    estimated: bool = False

    @property
    def idle(self) -> bool:
        """Whether nothing was scheduled: a heartbeat."""
        return not self.prefills and not self.decodes


#: Encodes a map. Whole numbers may be of any type, such as NumPy's and PyTorch's.
encode: Final = Encoder(enc_hook=index).encode
#: Decodes the bytes of a map. Raises `ValidationError` for a wrong field, and one of `FAULTS` for other bytes.
decode: Final = Decoder(PassMessage).decode
FAULTS: Final = DecodeError, ValueError, RecursionError
