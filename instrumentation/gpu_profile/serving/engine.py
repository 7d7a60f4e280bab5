"""Reports the iterations of one's own engine to the exporter on the node.

    from gpu_profile.serving import BatchedRequest, Engine, RequestPhase

    engine = Engine("unix:///run/gpu-profile/serving.sock")
    while requests := scheduler.next_batch():
        batch = [
            BatchedRequest(
                id=request.id,
                tenant=request.tenant,
                phase=RequestPhase.DECODE if request.generated else RequestPhase.PREFILL,
                tokens=request.scheduled_tokens,  # computed in this iteration
                context=request.computed_tokens,  # keys and values that exist already
            )
            for request in requests
        ]
        with engine.iteration(batch):
            model.forward(requests)
            torch.cuda.synchronize()
        engine.ended(request.id for request in requests if request.finished)

The engine's thread only appends the batch to a list. A thread encodes and sends it some ms later, with its age, and
never waits for a receiver. To wake that thread each time would cost the engine ten times as much. Messages that cannot
be sent are lost: the exporter sees it by their sequence, and `lost` counts them.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from time import perf_counter_ns
from typing import Any, Final, Protocol

from gpu_profile.errors import UsageError
from gpu_profile.serving.streams.forward_pass import message_types
from gpu_profile.serving.work import BatchedRequest, RequestPhase

#: The most messages that wait for the thread, which sends them at this interval. More are lost.
_MOST_WAITING, _EVERY_S = 1000, 0.02
_UNIX: Final = "unix://"


#: The end of an iteration in ns, its duration, and the rest of `PassSender.send`.
_Report = tuple[int, int, dict[str, int] | Sequence[BatchedRequest], tuple[str, ...]]


class _Outlet(Protocol):
    def send(self, sequence: bytes, payload: bytes) -> None:
        """Send a message without waiting. Raises OSError if that is not possible."""

    def close(self) -> None:
        """Release the socket."""


class _UnixOutlet:
    """Datagrams: the sequence, then the map."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def send(self, sequence: bytes, payload: bytes) -> None:
        self._socket.sendto(sequence + payload, self._path)

    def close(self) -> None:
        self._socket.close()


class _ZmqOutlet:
    """ZeroMQ's PUB, which drops messages that nobody takes. The engine binds the address."""

    def __init__(self, endpoint: str) -> None:
        try:
            import zmq
        except ImportError as error:
            raise UsageError(f"{endpoint!r} needs ZeroMQ: pip install 'gpu-profile[serving]'") from error
        # zmq's own types depend on its version.
        self._socket: Any = zmq.Context.instance().socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._socket.close()
            raise UsageError(f"Cannot bind {endpoint!r}: {error}. Give a free tcp:// or ipc:// address.") from error
        self._flags = zmq.NOBLOCK

    def send(self, sequence: bytes, payload: bytes) -> None:
        self._socket.send_multipart((b"", sequence, payload), self._flags)

    def close(self) -> None:
        self._socket.close()


class PassSender:
    """Sends messages in a thread. `endpoint` is `unix://PATH`, or an address of ZeroMQ such as `tcp://127.0.0.1:5557`.
    `stages` are those of the engine's pipeline.

    Raises:
        UsageError: The address cannot be used, or its library is not installed.
    """

    def __init__(self, endpoint: str, worker: str = "", rank: int = 0, stages: int = 1) -> None:
        self._stages = stages
        self._pack = message_types().encode
        self._worker, self._rank, self._sequence = worker, rank, 0
        self._outlet: _Outlet = (
            _UnixOutlet(endpoint.removeprefix(_UNIX)) if endpoint.startswith(_UNIX) else _ZmqOutlet(endpoint)
        )
        self._waiting: deque[_Report] = deque()
        self._closing = threading.Event()
        #: Messages that could not be sent.
        self.lost = 0
        self._thread = threading.Thread(target=self._run, name="gpu-profile-serving", daemon=True)
        self._thread.start()

    def send(
        self, wall_ns: int, scheduled: dict[str, int] | Sequence[BatchedRequest], ended: tuple[str, ...] = ()
    ) -> None:
        """Report an iteration of this duration that ends now, 0 if it was not measured: an estimate of
        `scheduled_requests`, or the requests."""
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.append((perf_counter_ns(), wall_ns, scheduled, ended))
        else:
            self.lost += 1

    def close(self) -> None:
        """Send the messages that wait, and end the thread. Waits for at most a second."""
        self._closing.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        before = 0
        while self._waiting or not self._closing.wait(_EVERY_S):
            while self._waiting:
                end_ns, wall_ns, scheduled, ended = self._waiting.popleft()
                # The numbers of lost messages stay free, so that the exporter sees the gap.
                before, skipped = self.lost, self.lost - before
                self._sequence += skipped
                try:
                    fields = self._fields(wall_ns, scheduled, ended)
                    fields["age"] = (perf_counter_ns() - end_ns) / 1e9
                    self._outlet.send(self._sequence.to_bytes(8, "big"), self._pack(fields))
                except Exception:  # noqa: BLE001  (nothing may end the thread)
                    self.lost, before = self.lost + 1, before + 1
                self._sequence += 1
        with suppress(Exception):
            self._outlet.close()

    def _fields(
        self, wall_ns: int, scheduled: dict[str, int] | Sequence[BatchedRequest], ended: tuple[str, ...]
    ) -> dict[str, Any]:
        fields: dict[str, Any] = {"version": 1, "worker_id": self._worker, "dp_rank": self._rank}
        fields["wall_time"] = wall_ns / 1e9
        if self._stages > 1:
            fields["stages"] = self._stages
        if isinstance(scheduled, dict):
            fields |= {"scheduled_requests": scheduled, "estimated": True}
        elif scheduled:
            prefills = [each for each in scheduled if each.phase is RequestPhase.PREFILL]
            decodes = [each for each in scheduled if each.phase is RequestPhase.DECODE]
            fields["scheduled_requests"] = {
                "num_prefill_requests": len(prefills), "sum_prefill_tokens": sum(each.tokens for each in prefills),
                "sum_prefill_kv_tokens": sum(each.context for each in prefills), "num_decode_requests": len(decodes),
                "sum_decode_kv_tokens": sum(each.context for each in decodes),
            }  # fmt: skip
            fields["requests"] = [tuple(each) for each in scheduled]
        if ended:
            fields["ended"] = ended
        return fields


class EngineIteration:
    """An iteration in progress, as a context manager. Exceptions pass through."""

    __slots__ = ("_batch", "_sender", "_start_ns")

    def __init__(self, sender: PassSender, batch: Sequence[BatchedRequest]) -> None:
        self._sender, self._batch = sender, batch

    def __enter__(self) -> None:
        self._start_ns = perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self._sender.send(perf_counter_ns() - self._start_ns, self._batch)


class Engine:
    """Reports the iterations of an engine, from any thread. Make it in the process that runs the model.

    `endpoint`, `worker` and `rank` are those of `PassSender`. An engine has one stream of iterations; with data
    parallelism each rank has its own. A stage of a pipeline is an engine of its own, with the stage's devices.
    """

    def __init__(self, endpoint: str, *, worker: str = "", rank: int = 0) -> None:
        self._sender = PassSender(endpoint, worker, rank)

    @property
    def lost(self) -> int:
        """Messages that could not be sent."""
        return self._sender.lost

    def iteration(self, batch: Sequence[BatchedRequest]) -> EngineIteration:
        """One iteration with these requests. It lasts as long as the block, which must wait for the device."""
        return EngineIteration(self._sender, tuple(batch))

    def ended(self, ids: Iterable[str]) -> None:
        """Report that requests have ended, so that their costs can be given out. Other requests may go on."""
        if names := tuple(ids):
            self._sender.send(0, (), names)

    def close(self) -> None:
        """Send the messages that wait. Waits for at most a second."""
        self._sender.close()
