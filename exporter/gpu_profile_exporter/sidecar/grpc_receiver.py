"""OTLP over gRPC: grpcio carries the bytes, `receiver` says what is taken.

Specification: OpenTelemetry, "OTLP/gRPC Response" and "OTLP/gRPC Throttling".
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpu_profile.errors import UsageError
from gpu_profile_exporter.config import Address
from gpu_profile_exporter.push.grpc_client import METHODS
from gpu_profile_exporter.server import web_config
from gpu_profile_exporter.server.counts import Counts
from gpu_profile_exporter.server.tls import Verify
from gpu_profile_exporter.sidecar.encodings import MOST_BYTES
from gpu_profile_exporter.sidecar.messages import Refused
from gpu_profile_exporter.sidecar.receiver import PROTOBUF, Take

if TYPE_CHECKING:
    import grpc

#: Requests of one connection at a time; others wait. One is received and worked on, so that one is held in bytes.
_MOST_AT_ONCE: Final = 64
#: gRPC's names of the codes that go with HTTP's: only UNAVAILABLE has senders try again.
_CODES: Final = {400: "INVALID_ARGUMENT", 413: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}


class GrpcReceiver:
    """Listens from construction on, answers from `start` on.

    UsageError if the address cannot be had, for a web configuration that only the listener for HTTP can follow, and
    without the package.
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
                # A port that somebody listens on is taken.
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
                take(request, PROTOBUF)
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
        """Take no more requests, and give those under way a moment."""
        self._server.stop(0.5).wait(1.0)


def _credentials(module: Any, path: Path) -> grpc.ServerCredentials | None:
    config = web_config.read(path, web_config.Files())
    if config.users or config.rate is not None:
        raise UsageError(f"--receive-grpc: {path} has users or a rate limit, which only --receive-http can follow")
    tls = config.tls
    if tls is None:
        return None
    if tls.allowed_names or tls.verify is Verify.IF_GIVEN:
        raise UsageError(f"--receive-grpc: {path} asks of clients' certificates what only --receive-http can check")
    credentials: grpc.ServerCredentials = module.ssl_server_credentials(
        [(tls.key.data, tls.cert.data)],
        root_certificates=None if tls.ca is None else tls.ca.data,
        require_client_auth=tls.verify is Verify.REQUIRED,
    )
    return credentials
