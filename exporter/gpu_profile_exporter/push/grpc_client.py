"""OTLP over gRPC. Needs only grpcio, because requests are encoded already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpu_profile.errors import UsageError
from gpu_profile_exporter.push.batch import Batch
from gpu_profile_exporter.push.outcome import Accepted, PushFailed, retry_delay_s, taken, words
from gpu_profile_exporter.push.settings import Endpoint

if TYPE_CHECKING:
    import grpc

#: OTLP's methods, by signal.
METHODS: Final = {
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
}
#: Codes to retry by the OTLP specification. RESOURCE_EXHAUSTED is retried only with a RetryInfo.
_RETRY: Final = frozenset({"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"})
_MOST_ANSWER: Final = 64 * 1024


class GrpcClient:
    """Pushes one signal over one channel, which stays open.

    UsageError if grpcio is not installed, or a file of the TLS settings cannot be used.
    """

    def __init__(self, endpoint: Endpoint, signal: str, *, user_agent: str) -> None:
        try:
            import grpc
        except ImportError as error:
            raise UsageError(
                "OTLP over gRPC needs grpcio: pip install 'gpu-profile[grpc]', or use http/protobuf"
            ) from error
        scheme, _, target = endpoint.url.partition("://")
        options = [
            ("grpc.primary_user_agent", user_agent),
            ("grpc.max_receive_message_length", _MOST_ANSWER),
            # Only the sender retries, because it counts the tries.
            ("grpc.enable_retries", 0),
            ("grpc.initial_reconnect_backoff_ms", 500),
            ("grpc.max_reconnect_backoff_ms", 5_000),
        ]
        compression = grpc.Compression.Gzip if endpoint.compression == "gzip" else grpc.Compression.NoCompression
        if scheme == "https":
            credentials = _credentials(grpc, endpoint)
            self._channel = grpc.secure_channel(target, credentials, options=options, compression=compression)
        else:
            self._channel = grpc.insecure_channel(target or endpoint.url, options=options, compression=compression)
        self._export = self._channel.unary_unary(METHODS[signal])
        self._metadata = endpoint.headers
        self._error = grpc.RpcError

    def send(self, batch: Batch, timeout_s: float) -> Accepted:
        """Push one batch within `timeout_s`. Raises PushFailed."""
        try:
            answer = self._export(batch.unpacked(), timeout=timeout_s, metadata=self._metadata)
        except self._error as error:
            raise _failure(error) from error
        try:
            return taken(answer)
        except ValueError:
            raise PushFailed("garbage", "sends an answer that is not OTLP", retry=False) from None

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


def _failure(error: Any) -> PushFailed:
    """An RpcError as a PushFailed."""
    code, whole = error.code().name, error.details() or ""
    details = words(whole)
    trailer = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    after_s = retry_delay_s(trailer) if isinstance(trailer, bytes) else None
    detail = f": {details}" if details else ""
    if code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        text = f"refuses the credentials ({code}){detail}; check the headers and the client certificate"
        return PushFailed("unauthenticated", text, retry=False)
    if code == "RESOURCE_EXHAUSTED" or after_s is not None:
        retry = after_s is not None
        return PushFailed("throttled", f"is too busy ({code}){detail}", retry=retry, after_s=after_s, content=not retry)
    if code == "DEADLINE_EXCEEDED":
        return PushFailed("timeout", "does not answer in time", retry=True)
    if code == "UNIMPLEMENTED":
        return PushFailed("rejected", f"does not take this signal ({code}){detail}", retry=False)
    if code in _RETRY:
        return PushFailed(_reason(whole), f"cannot be reached ({code}){detail}", retry=True)
    reason = "unavailable" if code in ("INTERNAL", "UNKNOWN") else "rejected"
    return PushFailed(reason, f"does not take the batch ({code}){detail}", retry=False, content=True)


def _reason(details: str) -> str:
    """The reason for a code such as UNAVAILABLE. gRPC distinguishes its causes only in the text."""
    text = details.lower()
    for reason, signs in (
        ("dns", ("resolving", "resolution", "domain name")),
        ("tls", ("ssl", "tls", "certificate", "handshake")),
        ("unreachable", ("refused", "no route", "unreachable", "failed to connect", "no such file")),
        ("closed", ("reset", "closed", "eof", "goaway", "broken pipe")),
    ):
        if any(sign in text for sign in signs):
            return reason
    return "unavailable"


def _credentials(module: Any, endpoint: Endpoint) -> grpc.ChannelCredentials:
    def read(path: str) -> bytes | None:
        if not path:
            return None
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise UsageError(f"OTLP: {path}: {error.strerror}") from error
        if b"-----BEGIN " not in content:
            raise UsageError(f"OTLP: {path}: no PEM certificate or key in it")
        return content

    credentials: grpc.ChannelCredentials = module.ssl_channel_credentials(
        root_certificates=read(endpoint.ca_file),
        private_key=read(endpoint.client_key),
        certificate_chain=read(endpoint.client_cert),
    )
    return credentials
