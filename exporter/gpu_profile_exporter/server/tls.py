"""TLS as a web configuration wants it."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Final

from gpu_profile.errors import UsageError

VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
#: Go's names of curves as OpenSSL's.
CURVES: Final = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1"}
#: Go's names of cipher suites as OpenSSL's. Those of TLS 1.3 cannot be chosen, in Go neither.
SUITES: Final = {
    "TLS_AES_128_GCM_SHA256": "",
    "TLS_AES_256_GCM_SHA384": "",
    "TLS_CHACHA20_POLY1305_SHA256": "",
    **{
        f"TLS_ECDHE_{key}_WITH_{theirs}": f"ECDHE-{key}-{ours}"
        for key in ("ECDSA", "RSA")
        for theirs, ours in (
            ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
            ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
            ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
            ("AES_128_CBC_SHA", "AES128-SHA"),
            ("AES_256_CBC_SHA", "AES256-SHA"),
        )
    },
}
_EXPIRED: Final = {9: "is not valid yet", 10: "has expired"}


class Verify(Enum):
    """What is asked of clients' certificates. Whatever is given is verified."""

    NONE = ssl.CERT_NONE
    IF_GIVEN = ssl.CERT_OPTIONAL
    REQUIRED = ssl.CERT_REQUIRED


@dataclass(frozen=True, slots=True)
class Pem:
    """PEM data, where the file or text was asked for (`file:line`), and what to call it."""

    at: str
    name: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """A web configuration's `tls_server_config`, which stands at `at`. Names are those of Go."""

    at: str
    cert: Pem
    key: Pem
    ca: Pem | None = None
    verify: Verify = Verify.NONE
    allowed_names: frozenset[str] = frozenset()
    lowest: str = "TLS12"
    highest: str = "TLS13"
    suites: tuple[str, ...] = ()
    curve: str | None = None
    server_prefers: bool = True


def context(config: TlsConfig) -> tuple[ssl.SSLContext, float | None]:
    """A context for the server, and when its certificate expires (s since the epoch, None if that is not told).

    UsageError if a handshake with it cannot succeed: a key that does not fit, a certificate that has expired, suites
    that the kind of key cannot serve. One handshake is tried, in memory.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version, made.maximum_version = VERSIONS[config.lowest], VERSIONS[config.highest]
    if config.server_prefers:
        made.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        made.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if config.suites:
        _choose_suites(made, config)
    if config.curve is not None:
        made.set_ecdh_curve(CURVES[config.curve])
    _load_certificate(made, config)
    ends_s = _try(made, config)
    if config.ca is not None:
        try:
            made.load_verify_locations(cadata=config.ca.data.decode("ascii", "replace"))
        except (ssl.SSLError, ValueError) as error:
            raise UsageError(f"{config.ca.at}: no certificate in PEM form in {config.ca.name}") from error
    made.verify_mode = config.verify.value
    return made, ends_s


def _choose_suites(made: ssl.SSLContext, config: TlsConfig) -> None:
    ours = [SUITES[name] for name in config.suites if SUITES[name]]
    if ours:
        made.set_ciphers(":".join(ours))
    elif config.highest == "TLS12":
        raise UsageError(f"{config.at}: none of cipher_suites serves TLS 1.2, and max_version is TLS12")
    else:
        made.minimum_version = ssl.TLSVersion.TLSv1_3


def _load_certificate(made: ssl.SSLContext, config: TlsConfig) -> None:
    cert, key = config.cert, config.key
    for pem, mark in ((cert, b"CERTIFICATE-----"), (key, b"PRIVATE KEY-----")):
        if mark not in pem.data:
            what = "certificate" if pem is cert else "private key"
            raise UsageError(f"{pem.at}: no {what} in PEM form in {pem.name}")
    if b"ENCRYPTED" in key.data:
        raise UsageError(f"{key.at}: the private key in {key.name} is encrypted, and there is nobody to ask")
    try:
        with _as_file(cert.data) as cert_path, _as_file(key.data) as key_path:
            made.load_cert_chain(cert_path, key_path, password=lambda: b"")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(
                f"{key.at}: the key in {key.name} is not that of the certificate in {cert.name}"
            ) from error
        raise UsageError(f"{cert.at}: {cert.name} and {key.name} cannot be used: {_words(error)}") from error
    except ValueError as error:
        raise UsageError(f"{cert.at}: {cert.name} and {key.name} cannot be used: {error}") from error


def _try(made: ssl.SSLContext, config: TlsConfig) -> float | None:
    """Shake hands with a client that knows the certificate; its expiry."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        client_context.load_verify_locations(cadata=config.cert.data.decode("ascii", "replace"))
        server = made.wrap_bio(there, back, server_side=True)
        client = client_context.wrap_bio(back, there)
        for _ in range(8):
            for side in (client, server):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _EXPIRED:
            what = _EXPIRED[error.verify_code]
            raise UsageError(f"{config.cert.at}: the certificate in {config.cert.name} {what}") from error
        return None  # what else a client may dislike is between it and its administrator
    except ssl.SSLError as error:
        raise UsageError(f"{config.at}: no TLS connection is possible with these settings: {_words(error)}") from error
    ends = (client.getpeercert() or {}).get("notAfter")
    return float(ssl.cert_time_to_seconds(ends)) if isinstance(ends, str) else None


def _words(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path to `data`. `ssl` reads certificates from files only, and keys do not belong on a disk."""
    number = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(number), "wb") as file:
            file.write(data)
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)
