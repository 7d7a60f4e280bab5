"""The one session of this process: made at the first region, ended after a pause, made anew after a fork."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver import Driver
from gpu_profile.driver.grammar import check_spec, open_driver
from gpu_profile.errors import GpuBackendError, GpuProfileError
from gpu_profile.regimes import DEFAULT_THRESHOLDS, Thresholds
from gpu_profile.session import Session
from gpu_profile.streams import Stream

_log = logging.getLogger("gpu_profile")

#: The variable that names the driver where the code does not.
BACKEND_VARIABLE: Final = "GPU_PROFILE_BACKEND"
#: The variable that names the directory to record into where the code does not.
RECORD_VARIABLE: Final = "GPU_PROFILE_RECORD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How this process samples. See `configure`."""

    backend: str | None = None
    interval_s: float = 0.05
    retention_s: float = 600.0
    devices: tuple[str, ...] | None = None
    stream: Stream | Callable[[], Stream] | None = None
    thresholds: Thresholds = DEFAULT_THRESHOLDS
    record: str | None = None
    clock: Clock = SYSTEM_CLOCK

    def open_driver(self) -> Driver:
        """Open the driver that these settings name."""
        return open_driver(self.backend or os.environ.get(BACKEND_VARIABLE) or "auto", clock=self.clock)


_settings = Settings()
_session: Session | None = None
_lock = threading.Lock()


def configure(
    *,
    backend: str | None = None,
    interval_s: float = 0.05,
    retention_s: float = 600.0,
    devices: Iterable[str] | None = None,
    stream: Stream | Callable[[], Stream] | None = None,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    record: str | os.PathLike[str] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Set how regions of this process are measured; a session that runs is ended and the next region starts another.

    `backend`: `auto|nvml|smi|none|simulated[:DIR]|replay:DIR`, else the environment's GPU_PROFILE_BACKEND, else `auto`.
    `interval_s`: how often counters are read. `retention_s`: how much history is kept. `devices`: UUIDs to join
    regions with, by default the GPU that a CUDA process uses by default. `stream`: whose marks give device intervals.
    `record`: a directory that samples and spans are recorded into, else the environment's GPU_PROFILE_RECORD.
    Raises GpuBackendError for a backend that is none, ValueError for an interval that is not positive.
    """
    global _settings  # noqa: PLW0603 - one process, one NVML, one sampler
    if backend is not None:
        check_spec(backend)
    if not interval_s > 0 or not retention_s > 0:
        raise ValueError(f"interval_s and retention_s must be positive, not {interval_s} and {retention_s}")
    stop()
    _settings = Settings(
        backend=backend,
        interval_s=interval_s,
        retention_s=retention_s,
        devices=None if devices is None else tuple(devices),
        stream=stream,
        thresholds=thresholds,
        record=None if record is None else os.fspath(record),
        clock=clock,
    )


def settings() -> Settings:
    """The settings in force."""
    return _settings


def use_stream(stream: Stream | Callable[[], Stream] | None) -> None:
    """Take device intervals from this stream (or from what the function returns in the calling thread) from now on."""
    global _settings  # noqa: PLW0603 - as above
    _settings = replace(_settings, stream=stream)


def session() -> Session:
    """The running session, started if there is none."""
    current = _session
    return current if current is not None and current.running else _start()


def running() -> Session | None:
    """The session if one was ever started and not stopped."""
    return _session


def _start() -> Session:
    global _session  # noqa: PLW0603 - as above
    with _lock:
        if _session is None:
            _session = Session(
                _settings.open_driver,
                interval_s=_settings.interval_s,
                retention_s=_settings.retention_s,
                devices=_settings.devices,
                clock=_settings.clock,
                thresholds=_settings.thresholds,
            )
            for hook in _on_start:
                hook(_session)
            record = _settings.record or os.environ.get(RECORD_VARIABLE)
            if record:
                from gpu_profile.recorder import record_session

                record_session(_session, Path(record))
        if not _session.running and not _in_dataloader_worker():
            _session.start()
        return _session


#: Called with every new session, before it starts.
_on_start: list[Callable[[Session], None]] = []


def on_start(hook: Callable[[Session], None]) -> None:
    """Have `hook` called with the session of this process, now if there is one, and with every later one."""
    with _lock:
        _on_start.append(hook)
        current = _session
    if current is not None:
        hook(current)


def require_driver() -> None:
    """Raise GpuBackendError if no driver can be used; what `strict=True` asks for."""
    current = session()
    if current.sampler.driver is not None:
        return
    try:
        _settings.open_driver().close()
    except GpuBackendError:
        raise
    except GpuProfileError as error:
        raise GpuBackendError(str(error)) from error


def stop() -> None:
    """End the session: a last sample, the last joins, and both threads. The next region starts a new one."""
    global _session
    with _lock:
        current, _session = _session, None
    if current is not None:
        current.stop()


def _in_dataloader_worker() -> bool:
    """Whether this is a PyTorch DataLoader's worker: its regions are the parent's business."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _after_fork() -> None:
    """In the child neither threads nor NVML's handles live on: forget them without touching them."""
    global _session, _lock  # noqa: PLW0603 - as above
    _session = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(stop)
