"""OTLP over gRPC: grpcio transports the bytes, functions of `receiver` accept or refuse them.

Specification: OpenTelemetry, "OTLP/gRPC Response" and "OTLP/gRPC Throttling".
"""

from __future__ import annotations

import asyncio
import resource
import threading
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote

from gpu_profile.errors import UsageError
from gpu_profile_exporter.config import Address
from gpu_profile_exporter.push.grpc_client import METHODS
from gpu_profile_exporter.server import web_config
from gpu_profile_exporter.server.answers import failure
from gpu_profile_exporter.server.connection import Ends
from gpu_profile_exporter.server.counts import Counts
from gpu_profile_exporter.server.files import Files
from gpu_profile_exporter.server.limits import Limits
from gpu_profile_exporter.server.tls import Verify
from gpu_profile_exporter.sidecar.encodings import MOST_BYTES
from gpu_profile_exporter.sidecar.messages import Refused
from gpu_profile_exporter.sidecar.receiver import PROTOBUF, Take

if TYPE_CHECKING:
    import grpc

T = TypeVar("T")

#: Most concurrent requests of a connection. Others wait.
_MOST_AT_ONCE: Final = 64
#: Most requests that have arrived in part for longer than `_SOON_S`, of `MOST_BYTES` each. For a further one, the
#: oldest of them is refused, so that clients that send slowly or not at all delay no other.
_MOST_PARTIAL: Final = 16
#: Most of all requests that have arrived in part. On a busy machine, many complete ones are read at once.
_MOST_AT_FIRST: Final = 64
_SOON_S: Final = 0.1
#: The times that the HTTP listener allows.
_LIMITS: Final = Limits()
_MOMENT_S: Final = 0.5
_MOST_DESCRIPTORS: Final = 1 << 20
#: gRPC's codes by HTTP's status. Senders retry only after UNAVAILABLE.
_CODES: Final = {400: "INVALID_ARGUMENT", 413: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}


class GrpcReceiver:
    """Listens from construction on, answers from `start` on.

    Raises UsageError if the address is not available, if the package is missing, or if the web configuration has parts
    that only the HTTP listener supports.
    """

    def __init__(
        self, address: Address, takes: Mapping[str, Take], counts: Counts, *, web_config_file: Path | None
    ) -> None:
        try:
            import grpc
        except ImportError as error:
            raise UsageError("--receive-grpc: needs gRPC: pip install 'gpu-profile[grpc]'") from error
        self._module, self._counts = grpc, counts
        #: Requests that have arrived in part, oldest first, and whether for longer than `_SOON_S`.
        self._partial: dict[asyncio.Future[bytes], bool] = {}
        self.address = address
        credentials = None if web_config_file is None else _credentials(grpc, web_config_file)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="gpu-profile-receive", daemon=True)
        self._thread.start()
        try:
            self._server = self._do(self._listening(takes, credentials))
        except RuntimeError as error:
            self._end()
            raise UsageError(f"--receive-grpc: cannot listen on {address}") from error

    async def _listening(self, takes: Mapping[str, Take], credentials: grpc.ServerCredentials | None) -> Any:
        server = self._module.aio.server(
            handlers=[
                self._module.method_handlers_generic_handler(*self._service(METHODS[signal], take))
                for signal, take in takes.items()
            ],
            options=[
                ("grpc.max_receive_message_length", MOST_BYTES),
                ("grpc.max_concurrent_streams", _MOST_AT_ONCE),
                ("grpc.max_connection_idle_ms", round(_LIMITS.idle_s * 1_000)),
                ("grpc.server_handshake_timeout_ms", round(_LIMITS.request_s * 1_000)),
                ("grpc.max_allowed_incoming_connections", _most_connections()),
                # Without this, a port in use would be shared instead of refused.
                ("grpc.so_reuseport", 0),
            ],
        )
        listening = server.add_insecure_port if credentials is None else server.add_secure_port
        self.address = Address(
            self.address.host, listening(str(self.address), *(() if credentials is None else (credentials,)))
        )
        return server

    def _service(self, name: str, take: Take) -> tuple[str, dict[str, grpc.RpcMethodHandler]]:
        service, method = name[1:].split("/")

        async def export(_: object, context: Any) -> bytes:
            try:
                take(await self._received(context), PROTOBUF, _ends(context.peer(), self.address))
            except Refused as refused:
                self._counts.rejected[refused.reason] += 1
                self._counts.requests[name, refused.status] += 1
                await context.abort(self._module.StatusCode[_CODES[refused.status]], str(refused))
            except Exception as error:  # noqa: BLE001 - a defect with one request must not become gRPC's traceback
                failed = failure("gRPC", name, error)
                self._counts.requests[name, failed.status] += 1
                await context.abort(self._module.StatusCode.INTERNAL, failed.body.decode().strip())
            self._counts.requests[name, 200] += 1
            return b""

        # Unlike the handler of a single message, this one begins before the message has arrived.
        return service, {method: self._module.stream_unary_rpc_method_handler(export)}

    async def _received(self, context: Any) -> bytes:
        """The message of a request. Raises Refused if it does not arrive in time."""
        # A task that is never cancelled: gRPC writes the message to its memory even after the request's end.
        reading = self._loop.create_task(context.read())
        reading.add_done_callback(_retrieve)
        if len(self._partial) >= _MOST_AT_FIRST:
            self._refuse_oldest()
        given_up: asyncio.Future[bytes] = self._loop.create_future()
        self._partial[given_up] = False
        either, soon_s = (reading, given_up), min(_SOON_S, _LIMITS.body_s)
        try:
            done, _ = await asyncio.wait(either, timeout=soon_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                self._partial[given_up] = True
                if sum(self._partial.values()) > _MOST_PARTIAL:
                    self._refuse_oldest()
                await asyncio.wait(either, timeout=_LIMITS.body_s - soon_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._partial.pop(given_up, None)
        if not reading.done():
            if given_up.done():
                raise Refused(503, "evicted", "too many other requests arrived before the rest of this one")
            raise Refused(503, "slow_request", f"it did not arrive within {_LIMITS.body_s:g} s")
        message = reading.result()
        if message is self._module.aio.EOF:
            # gRPC cancels this task in a moment, if it has refused the message or if the client has left.
            await asyncio.sleep(_MOMENT_S)
            raise Refused(400, "undecodable", "a request without a message")
        return bytes(message)

    def _refuse_oldest(self) -> None:
        oldest = next(iter(self._partial))
        del self._partial[oldest]
        oldest.set_result(b"")

    def start(self) -> None:
        """Answer requests."""
        self._do(self._server.start())

    def stop(self) -> None:
        """Accept no more requests, and end after those in progress, within 1 s."""
        if self._thread.is_alive():
            with suppress(TimeoutError):
                self._do(self._server.stop(0.5), 1.0)
            self._end()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _do(self, action: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(timeout_s)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(1.0)


def _most_connections() -> int:
    """Half of the descriptors that this process may have. The others are for scrapes, files and pipes."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(most, _MOST_DESCRIPTORS) // 2 if most != resource.RLIM_INFINITY else _MOST_DESCRIPTORS


def _retrieve(reading: asyncio.Future[Any]) -> None:
    """Without this, asyncio would log the exception of a message that nothing waits for any more."""
    if not reading.cancelled():
        reading.exception()


def _ends(peer: str, address: Address) -> Ends | None:
    """The ends of a connection, by gRPC's name of its peer, such as `ipv4:127.0.0.1:5000`."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    host = host.strip("[]")
    if not (port.isascii() and port.isdecimal()):
        return None
    # gRPC does not report the address here. A client of this machine usually has the one that it connects to.
    return Ends(host, int(port), address.host if _is_specific(address.host) else host, address.port)


def _is_specific(host: str) -> bool:
    try:
        return not ip_address(host).is_unspecified
    except ValueError:
        return False


def _credentials(module: Any, path: Path) -> grpc.ServerCredentials | None:
    config = web_config.read(path, Files())
    if config.users or config.rate is not None:
        raise UsageError(f"--receive-grpc: {path} has users or a rate limit, which only --receive-http supports")
    tls = config.tls
    if tls is None:
        return None
    if tls.allowed_names or tls.verify is Verify.IF_GIVEN:
        raise UsageError(f"--receive-grpc: {path} has certificate checks that only --receive-http supports")
    credentials: grpc.ServerCredentials = module.ssl_server_credentials(
        [(tls.key.data, tls.cert.data)],
        root_certificates=None if tls.ca is None else tls.ca.data,
        require_client_auth=tls.verify is Verify.REQUIRED,
    )
    return credentials
