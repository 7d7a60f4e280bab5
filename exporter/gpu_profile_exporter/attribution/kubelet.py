"""One call to the kubelet: gRPC over a unix socket that belongs to root."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from gpu_profile_exporter.attribution.sources import Reason, Unavailable, reason_of

DEADLINE_S: Final = 1.0
#: 50,000 pods with a device each take 6 MiB; Kubernetes' own client takes 16.
MOST_BYTES: Final = 32 << 20
_METHOD: Final = "/v1.PodResourcesLister/List"
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MOST_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    # Channels share connections. The back-off of a refused connection outlives its channel for a while.
    ("grpc.use_local_subchannel_pool", 1),
)
_REASONS: Final = {
    "DEADLINE_EXCEEDED": Reason.TIMEOUT,
    "PERMISSION_DENIED": Reason.DENIED,
    "UNAUTHENTICATED": Reason.DENIED,
    "UNIMPLEMENTED": Reason.UNSUPPORTED,
    "UNAVAILABLE": Reason.UNREACHABLE,
}


def installed() -> bool:
    """Whether the package of the extra `pods` is installed."""
    return find_spec("grpc") is not None


def list_pods(path: Path, *, deadline_s: float = DEADLINE_S) -> bytes:
    """The kubelet's answer, undecoded, within twice the deadline. Raises Unavailable with the reason."""
    _connect(path, deadline_s)
    try:
        import grpc
    except ImportError as error:
        raise Unavailable(Reason.MISSING_PACKAGE, "grpcio") from error
    # A channel for each call: after a restart of the kubelet, an old channel's back-off would delay the next call.
    with grpc.insecure_channel(f"unix:{path.absolute()}", options=_OPTIONS) as channel:
        try:
            return bytes(channel.unary_unary(_METHOD)(b"", timeout=deadline_s))
        except grpc.RpcError as error:
            raise Unavailable(_reason(error.code(), str(error.details())), str(error.details())) from error


def _connect(path: Path, deadline_s: float) -> None:
    """Raise Unavailable if the socket cannot be opened: gRPC reports a missing and a forbidden socket alike."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(deadline_s)
        try:
            probe.connect(str(path))
        except OSError as error:
            raise Unavailable(reason_of(error), str(error)) from error


def _reason(code: object, details: str) -> Reason:
    name = getattr(code, "name", "")
    if name == "RESOURCE_EXHAUSTED" and "larger than" in details:
        return Reason.TOO_LARGE
    return _REASONS.get(name, Reason.FAILED)
