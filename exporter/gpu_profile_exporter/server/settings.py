"""The web configuration in force, and its renewal from the file."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_profile.errors import UsageError
from gpu_profile_exporter.server.auth import Hashes, bcrypt_check
from gpu_profile_exporter.server.connection import address
from gpu_profile_exporter.server.counts import Counts
from gpu_profile_exporter.server.files import Files

if TYPE_CHECKING:
    import ssl

_log = logging.getLogger("gpu_profile_exporter")


class Bucket:
    """A token bucket: one request per `interval_s` on average, and up to `burst` at once."""

    def __init__(self, interval_s: float, burst: int, *, now: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._burst = float(burst)
        self._now = now
        self._tokens, self._filled_s = float(burst), now()

    def take(self) -> bool:
        """Whether one more request may pass now."""
        now_s = self._now()
        grown = (now_s - self._filled_s) / self._interval_s
        self._tokens, self._filled_s = min(self._burst, self._tokens + grown), now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """A web configuration, ready for use. The default is plain HTTP without passwords."""

    tls: ssl.SSLContext | None = None
    certificate_ends_s: float | None = None
    allowed_names: frozenset[str] = frozenset()
    users: Hashes | None = None
    headers: tuple[tuple[str, str], ...] = ()
    bucket: Bucket | None = None


class Web:
    """The settings from a file, kept up to date. Raises UsageError if the file is invalid at the start."""

    def __init__(self, path: Path | None, counts: Counts) -> None:
        self._path = path
        self._counts = counts
        self._files = Files()
        self._lock = threading.Lock()
        self._settings = self._load(self._files)
        counts.certificate_ends_s = self._settings.certificate_ends_s

    def current(self) -> WebSettings:
        """The settings from the current files, or from their last valid state."""
        if self._path is not None and self._files.changed():
            self.reload()
        return self._settings

    def reload(self) -> bool:
        """Read the files again. False if they are invalid; the old settings then stay. From any thread."""
        if self._path is None:
            return True
        with self._lock:
            files = Files()
            try:
                settings = self._load(files)
                if (settings.tls is None) != (self._settings.tls is None):
                    raise UsageError(f"{self._path}: TLS can be switched on or off only by a restart")
            except UsageError as error:
                # The old files are kept too: restoring one of them must count as a change.
                self._files = Files({**self._files.seen, **files.seen})
                self._counts.reloads["failed"] += 1
                _log.error("%s; the previous web configuration stays in use", error)
                return False
            self._files, self._settings = files, settings
            self._counts.reloads["ok"] += 1
            self._counts.certificate_ends_s = settings.certificate_ends_s
            _log.info("%s was read again", self._path)
            return True

    def _load(self, files: Files) -> WebSettings:
        if self._path is None:
            return WebSettings()
        # Imported here because they load OpenSSL, which takes 4 MiB of RAM.
        from gpu_profile_exporter.server import web_config
        from gpu_profile_exporter.server.tls import context

        config = web_config.read(self._path, files)
        if config.users:
            bcrypt_check()
        tls, ends_s = context(config.tls) if config.tls is not None else (None, None)
        settings = WebSettings(
            tls=tls,
            certificate_ends_s=ends_s,
            allowed_names=frozenset(map(address, config.tls.allowed_names)) if config.tls is not None else frozenset(),
            users=config.users or None,
            headers=config.headers,
            bucket=Bucket(*config.rate) if config.rate is not None else None,
        )
        for warning in config.warnings:
            _log.warning("%s", warning)
        return settings
