"""The web configuration file of Prometheus' exporter-toolkit: TLS, users, headers and a rate limit, in YAML.

The format is described at https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md.
Options that Python's `ssl` does not support are rejected with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from gpu_profile.errors import UsageError
from gpu_profile_exporter.server.files import Files
from gpu_profile_exporter.server.tls import CURVES, SUITES, VERSIONS, Pem, TlsConfig, Verify

if TYPE_CHECKING:
    from yaml import Node

#: Permitted bcrypt costs. A check of cost 14 takes about a second, which is already long for a scrape.
COSTS: Final = range(4, 15)
_BCRYPT: Final = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
#: The headers that the toolkit permits, with their permitted values. An empty tuple permits any value.
_HEADERS: Final[Mapping[str, tuple[str, ...]]] = {
    "Strict-Transport-Security": (),
    "Content-Security-Policy": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
_CLIENT_AUTH: Final = {
    "": Verify.NONE,
    "NoClientCert": Verify.NONE,
    "VerifyClientCertIfGiven": Verify.IF_GIVEN,
    "RequireAndVerifyClientCert": Verify.REQUIRED,
}
_UNVERIFIED: Final = ("RequestClientCert", "RequireAnyClientCert", "RequireClientCert")
_TLS_KEYS: Final = (
    *("cert", "key", "client_ca", "cert_file", "key_file", "client_ca_file", "client_auth_type", "cipher_suites"),
    *("client_allowed_sans", "min_version", "max_version", "prefer_server_cipher_suites", "curve_preferences"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig:
    """The content of the file. `users`: bcrypt hash by name. `rate`: seconds between two requests, and the burst."""

    tls: TlsConfig | None = None
    users: Mapping[bytes, bytes] = field(default_factory=dict)
    headers: tuple[tuple[str, str], ...] = ()
    rate: tuple[float, int] | None = None
    warnings: tuple[str, ...] = ()


def read(path: Path, files: Files) -> WebConfig:
    """The configuration in `path`. Raises UsageError with file, line and reason if it is invalid.

    Adds every file of the configuration to `files`, missing ones included.
    """
    data = files.read(path, "the web configuration")
    try:
        import yaml
    except ImportError as error:
        raise UsageError(f"{path}: reading it needs PyYAML: pip install 'gpu-profile[web]'") from error
    try:
        root = yaml.compose(data, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        raise UsageError(f"{path}{line}: not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not YAML: {' '.join(str(error).split())[:200] or 'nested too deep'}") from error
    if root is None:
        return WebConfig()
    return _Reader(path, files).config(root)


class _Reader:
    def __init__(self, path: Path, files: Files) -> None:
        self._path = path
        self._files = files
        self._warnings: list[str] = []

    def config(self, root: Node) -> WebConfig:
        keys = ("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit")
        parts = self._mapping(root, "the file", keys)
        tls = self._tls(parts["tls_server_config"]) if "tls_server_config" in parts else None
        headers = self._http(parts["http_server_config"]) if "http_server_config" in parts else ()
        users = self._users(parts["basic_auth_users"]) if "basic_auth_users" in parts else {}
        rate = self._rate(parts["rate_limit"]) if "rate_limit" in parts else None
        return WebConfig(tls=tls, users=users, headers=headers, rate=rate, warnings=tuple(self._warnings))

    # ------------------------------------------------------------------ the parts

    def _tls(self, node: Node) -> TlsConfig | None:
        parts = self._mapping(node, "tls_server_config", _TLS_KEYS)
        enabling = ("cert", "cert_file", "key", "key_file", "client_ca", "client_ca_file", "client_auth_type")
        if not any(self._text(parts[key], key) for key in enabling if key in parts):
            return None
        cert, key = self._pem(parts, "cert"), self._pem(parts, "key")
        cert = cert or self._fail(node, "tls_server_config has neither cert_file nor cert")
        key = key or self._fail(node, "tls_server_config has neither key_file nor key")
        verify, ca = self._client_auth(parts), self._pem(parts, "client_ca")
        if ca is not None and verify is Verify.NONE:
            raise UsageError(f"{ca.at}: a client_ca without client_auth_type: use RequireAndVerifyClientCert")
        if ca is None and verify is not Verify.NONE:
            self._fail(parts["client_auth_type"], "client_auth_type needs client_ca_file to verify certificates")
        names = self._texts(parts.get("client_allowed_sans"), "client_allowed_sans")
        if names and verify is not Verify.REQUIRED:
            self._fail(parts["client_allowed_sans"], "client_allowed_sans needs RequireAndVerifyClientCert")
        low, high = self._version(parts, "min_version", "TLS12"), self._version(parts, "max_version", "TLS13")
        if low > high:
            self._fail(parts["min_version"], f"min_version {low} lies above max_version {high}")
        suites = self._choices(parts.get("cipher_suites"), "cipher_suites", SUITES)
        return TlsConfig(
            at=self._at(node),
            cert=cert,
            key=key,
            ca=ca,
            verify=verify,
            allowed_names=frozenset(names),
            lowest=low,
            highest=high,
            suites=suites,
            curve=self._curve(parts),
            server_prefers=self._flag(parts.get("prefer_server_cipher_suites"), "prefer_server_cipher_suites", True),
        )

    def _pem(self, parts: Mapping[str, Node], name: str) -> Pem | None:
        given = [key for key in (name, f"{name}_file") if key in parts and self._text(parts[key], key)]
        if not given:
            return None
        if len(given) == 2:
            self._fail(parts[name], f"both {name} and {name}_file: give one of them")
        node, key = parts[given[0]], given[0]
        text = self._text(node, key)
        if key == name:
            return Pem(self._at(node), name, text.encode())
        file = self._path.parent / text
        return Pem(self._at(node), str(file), self._files.read(file, f"{self._at(node)}: {key}"))

    def _client_auth(self, parts: Mapping[str, Node]) -> Verify:
        node = parts.get("client_auth_type")
        text = self._text(node, "client_auth_type") if node is not None else ""
        if node is not None and text in _UNVERIFIED:
            self._fail(
                node,
                f"client_auth_type {text} accepts unverified certificates, which Python's ssl does not support: "
                "use RequireAndVerifyClientCert, or omit it",
            )
        if text not in _CLIENT_AUTH:
            self._fail(node, f"unknown client_auth_type {text!r}{_nearest(text, _CLIENT_AUTH)}")
        return _CLIENT_AUTH[text]

    def _version(self, parts: Mapping[str, Node], key: str, default: str) -> str:
        text = self._text(parts[key], key) if key in parts else default
        if text in ("TLS10", "TLS11"):
            self._fail(parts[key], f"{key} {text} is broken and switched off in OpenSSL: use TLS12 or TLS13")
        if text not in VERSIONS:
            self._fail(parts[key], f"unknown {key} {text!r}: TLS12 or TLS13")
        return text

    def _curve(self, parts: Mapping[str, Node]) -> str | None:
        node = parts.get("curve_preferences")
        names = self._choices(node, "curve_preferences", (*CURVES, "X25519"))
        if not names:
            return None
        if len(names) > 1 or names[0] not in CURVES:
            self._fail(
                node,
                f"curve_preferences: Python's ssl supports one of {', '.join(CURVES)}, not {', '.join(names)}: "
                "name one, or omit it for OpenSSL's own order",
            )
        return names[0]

    def _http(self, node: Node) -> tuple[tuple[str, str], ...]:
        parts = self._mapping(node, "http_server_config", ("http2", "headers"))
        if self._flag(parts.get("http2"), "http2", False):
            self._warnings.append(f"{self._at(parts['http2'])}: http2 is ignored: scrapes are answered over HTTP/1.1")
        headers = []
        if "headers" in parts:
            for name, value in self._mapping(parts["headers"], "headers", _HEADERS).items():
                text = self._text(value, name).strip()
                if _HEADERS[name] and text not in ("", *_HEADERS[name]):
                    self._fail(value, f"{name} can be {' or '.join(_HEADERS[name])}, not {text!r}")
                if not text.isascii() or not text.isprintable():
                    self._fail(value, f"{name}: only printable ASCII is allowed in a header")
                if text:
                    headers.append((name, text))
        return tuple(headers)

    def _users(self, node: Node) -> Mapping[bytes, bytes]:
        users = {}
        for name, value in self._mapping(node, "basic_auth_users", None).items():
            text = self._text(value, name)
            bcrypt = _BCRYPT.fullmatch(text)
            if ":" in name:
                self._fail(value, f"user {name!r}: a name with a colon cannot be sent")
            if bcrypt is None:
                self._fail(value, f"user {name!r}: no bcrypt hash of the form $2y$10$…; make one with htpasswd -nBC 10")
            if int(bcrypt[1]) not in COSTS:
                self._fail(
                    value, f"user {name!r}: bcrypt cost {int(bcrypt[1])} lies outside {COSTS[0]} to {COSTS[-1]}; use 10"
                )
            users[name.encode()] = text.encode()
        if not users:
            self._warnings.append(
                f"{self._at(node)}: basic_auth_users is empty: all clients get answers without a password"
            )
        return users

    def _rate(self, node: Node) -> tuple[float, int] | None:
        parts = self._mapping(node, "rate_limit", ("interval", "burst"))
        interval = self._text(parts["interval"], "interval") if "interval" in parts else "0"
        matched = _DURATION.findall(interval)
        if interval != "0" and (not matched or "".join(map("".join, matched)) != interval):
            self._fail(parts["interval"], f"interval {interval!r} is no duration such as 1s or 250ms")
        interval_s = sum(float(number) * _SECONDS[unit] for number, unit in matched)
        if not interval_s:
            return None
        burst = self._text(parts["burst"], "burst") if "burst" in parts else "0"
        if not (burst.isascii() and burst.isdigit() and 1 <= int(burst[:9]) <= 1_000_000):
            self._fail(parts.get("burst", node), f"burst {burst} is not a number from 1 to 1000000")
        return interval_s, int(burst)

    # ------------------------------------------------------------------ YAML

    def _at(self, node: Node | None) -> str:
        mark = node.start_mark if node is not None else None
        return f"{self._path}:{mark.line + 1}" if mark is not None else str(self._path)

    def _fail(self, node: Node | None, reason: str) -> NoReturn:
        raise UsageError(f"{self._at(node)}: {reason}")

    def _mapping(self, node: Node, what: str, allowed: Iterable[str] | None) -> dict[str, Node]:
        if node.tag.endswith(":null"):
            return {}
        if _form(node) != "mapping":
            self._fail(node, f"{what} must be a mapping of keys to values")
        nodes: dict[str, Node] = {}
        for key, value in node.value:
            name = self._text(key, "a key")
            if allowed is not None and name not in allowed:
                self._fail(key, f"unknown key {name!r} in {what}{_nearest(name, allowed)}")
            if name in nodes:
                self._fail(key, f"{name!r} is given twice")
            nodes[name] = value
        return nodes

    def _text(self, node: Node, what: str) -> str:
        if _form(node) != "scalar":
            self._fail(node, f"{what} must be a text")
        return "" if node.tag.endswith(":null") else str(node.value)

    def _flag(self, node: Node | None, what: str, default: bool) -> bool:
        if node is None:
            return default
        if not node.tag.endswith(":bool"):
            self._fail(node, f"{what} must be true or false")
        return self._text(node, what).lower() in ("true", "yes", "on")

    def _texts(self, node: Node | None, what: str) -> tuple[str, ...]:
        if node is None or node.tag.endswith(":null"):
            return ()
        if _form(node) != "sequence":
            self._fail(node, f"{what} must be a list")
        return tuple(self._text(item, f"an item of {what}") for item in node.value)

    def _choices(self, node: Node | None, what: str, allowed: Iterable[str]) -> tuple[str, ...]:
        texts = self._texts(node, what)
        for text in texts:
            if text not in allowed:
                self._fail(node, f"unknown name {text!r} in {what}{_nearest(text, allowed)}")
        return texts


def _form(node: Node) -> str:
    return str(getattr(node, "id", ""))  # the base class of yaml's nodes has none


def _nearest(name: str, allowed: Iterable[str]) -> str:
    choices = [word for word in allowed if word]
    from difflib import get_close_matches

    close = get_close_matches(name, choices, n=1, cutoff=0.6)
    return f": did you mean {close[0]}?" if close else f": one of {', '.join(choices)}"
