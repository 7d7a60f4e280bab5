"""OTLP over gRPC: grpcio transports the bytes, functions of `receiver` accept or refuse them.

Specification: OpenTelemetry, "OTLP/gRPC Response" and "OTLP/gRPC Throttling".
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from gpu_profile.errors import UsageError
from gpu_profile_exporter.config import Address
from gpu_profile_exporter.push.grpc_client import METHODS
from gpu_profile_exporter.server import web_config
from gpu_profile_exporter.server.connection import Ends
from gpu_profile_exporter.server.counts import Counts
from gpu_profile_exporter.server.files import Files
from gpu_profile_exporter.server.tls import Verify
from gpu_profile_exporter.sidecar.encodings import MOST_BYTES
from gpu_profile_exporter.sidecar.messages import Refused
from gpu_profile_exporter.sidecar.receiver import PROTOBUF, Take

if TYPE_CHECKING:
    import grpc

#: Most concurrent requests of a connection. Others wait. One thread receives and processes them, one after the other,
#: so that only one is in memory at a time.
_MOST_AT_ONCE: Final = 64
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
        self._counts = counts
        self._server = grpc.server(
            ThreadPoolExecutor(1, thread_name_prefix="gpu-profile-receive"),
            handlers=[
                grpc.method_handlers_generic_handler(*self._service(grpc, METHODS[signal], take))
                for signal, take in takes.items()
            ],
            options=[
                ("grpc.max_receive_message_length", MOST_BYTES),
                ("grpc.max_concurrent_streams", _MOST_AT_ONCE),
                # Without this, a port in use would be shared instead of refused.
                ("grpc.so_reuseport", 0),
            ],
        )
        credentials = None if web_config_file is None else _credentials(grpc, web_config_file)
        try:
            if credentials is None:
                port = self._server.add_insecure_port(str(address))
            else:
                port = self._server.add_secure_port(str(address), credentials)
        except RuntimeError as error:
            raise UsageError(f"--receive-grpc: cannot listen on {address}") from error
        self.address = Address(address.host, port)

    def _service(self, module: Any, name: str, take: Take) -> tuple[str, dict[str, grpc.RpcMethodHandler]]:
        service, method = name[1:].split("/")

        def export(request: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                take(request, PROTOBUF, _ends(context.peer(), self.address))
            except Refused as refused:
                self._counts.rejected[refused.reason] += 1
                self._counts.requests[name, refused.status] += 1
                context.abort(module.StatusCode[_CODES[refused.status]], str(refused))
            self._counts.requests[name, 200] += 1
            return b""

        return service, {method: module.unary_unary_rpc_method_handler(export)}

    def start(self) -> None:
        """Answer requests."""
        self._server.start()

    def stop(self) -> None:
        """Accept no more requests, and end after those in progress, within 1 s."""
        self._server.stop(0.5).wait(1.0)


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
