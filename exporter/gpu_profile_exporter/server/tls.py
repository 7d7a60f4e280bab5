"""Makes the TLS context of a web configuration."""

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
#: OpenSSL's names of curves by Go's names.
CURVES: Final = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1"}
#: OpenSSL's names of cipher suites by Go's names. The suites of TLS 1.3 are not selectable, as in Go.
SUITES: Final = {
    "TLS_AES_128_GCM_SHA256": "",
    "TLS_AES_256_GCM_SHA384": "",
    "TLS_CHACHA20_POLY1305_SHA256": "",
    **{
        f"TLS_ECDHE_{key}_WITH_{go_name}": f"ECDHE-{key}-{openssl_name}"
        for key in ("ECDSA", "RSA")
        for go_name, openssl_name in (
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
    """The requirement on clients' certificates. Each given certificate is verified."""

    NONE = ssl.CERT_NONE
    IF_GIVEN = ssl.CERT_OPTIONAL
    REQUIRED = ssl.CERT_REQUIRED


@dataclass(frozen=True, slots=True)
class Pem:
    """PEM data, its place in the configuration (`file:line`), and its name for messages."""

    at: str
    name: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """The `tls_server_config` of a web configuration, at the place `at`. Suites and curves have Go's names."""

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
    """A context for the server, and the time when its certificate expires (s since the epoch, None if unknown).

    Tests the context by one handshake in memory. Raises UsageError if it fails: for example because the key does not
    match, the certificate has expired, or the key's type supports none of the suites.
    """
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version, tls.maximum_version = VERSIONS[config.lowest], VERSIONS[config.highest]
    if config.server_prefers:
        tls.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        tls.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if config.suites:
        _choose_suites(tls, config)
    if config.curve is not None:
        tls.set_ecdh_curve(CURVES[config.curve])
    _load_certificate(tls, config)
    ends_s = _test_handshake(tls, config)
    if config.ca is not None:
        try:
            tls.load_verify_locations(cadata=config.ca.data.decode("ascii", "replace"))
        except (ssl.SSLError, ValueError) as error:
            raise UsageError(f"{config.ca.at}: no certificate in PEM form in {config.ca.name}") from error
    tls.verify_mode = config.verify.value
    return tls, ends_s


def _choose_suites(tls: ssl.SSLContext, config: TlsConfig) -> None:
    names = [SUITES[name] for name in config.suites if SUITES[name]]
    if names:
        tls.set_ciphers(":".join(names))
    elif config.highest == "TLS12":
        raise UsageError(f"{config.at}: none of cipher_suites serves TLS 1.2, and max_version is TLS12")
    else:
        tls.minimum_version = ssl.TLSVersion.TLSv1_3


def _load_certificate(tls: ssl.SSLContext, config: TlsConfig) -> None:
    cert, key = config.cert, config.key
    for pem, mark in ((cert, b"CERTIFICATE-----"), (key, b"PRIVATE KEY-----")):
        if mark not in pem.data:
            what = "certificate" if pem is cert else "private key"
            raise UsageError(f"{pem.at}: no {what} in PEM form in {pem.name}")
    if b"ENCRYPTED" in key.data:
        raise UsageError(f"{key.at}: the private key in {key.name} is encrypted: use an unencrypted one")
    try:
        with _as_file(cert.data) as cert_path, _as_file(key.data) as key_path:
            tls.load_cert_chain(cert_path, key_path, password=lambda: b"")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(
                f"{key.at}: the key in {key.name} does not belong to the certificate in {cert.name}"
            ) from error
        raise UsageError(f"{cert.at}: {cert.name} and {key.name} cannot be used: {_reason(error)}") from error
    except ValueError as error:
        raise UsageError(f"{cert.at}: {cert.name} and {key.name} cannot be used: {error}") from error


def _test_handshake(tls: ssl.SSLContext, config: TlsConfig) -> float | None:
    """Do a handshake with a client that trusts the certificate. Returns the certificate's expiry."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        client_context.load_verify_locations(cadata=config.cert.data.decode("ascii", "replace"))
        server = tls.wrap_bio(to_server, to_client, server_side=True)
        client = client_context.wrap_bio(to_client, to_server)
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
        return None  # other objections are left to the real clients
    except ssl.SSLError as error:
        raise UsageError(f"{config.at}: no TLS connection is possible with these settings: {_reason(error)}") from error
    ends = (client.getpeercert() or {}).get("notAfter")
    return float(ssl.cert_time_to_seconds(ends)) if isinstance(ends, str) else None


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path to `data` in memory. `ssl` reads certificates only from files, and keys must not be written to a disk."""
    number = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(number), "wb") as file:
            file.write(data)
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)
