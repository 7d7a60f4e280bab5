"""The one session of this process: started by the first region, paused while idle, replaced after a fork."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Final, SupportsFloat

from gpu_profile.catalogue import LIBRARY_GROUPS
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver import Driver
from gpu_profile.driver.grammar import BACKEND_VARIABLE, check_spec, open_driver
from gpu_profile.driver.visible import Spec
from gpu_profile.errors import GpuBackendError
from gpu_profile.regimes import DEFAULT_THRESHOLDS, Thresholds
from gpu_profile.regions import frameworks
from gpu_profile.regions.session import exits
from gpu_profile.regions.session.inbox import StreamSetting
from gpu_profile.regions.session.session import RECORD_VARIABLE, Session

_log = logging.getLogger("gpu_profile")

#: The default interval between two readings of the counters.
INTERVAL_S: Final = 0.05
#: The variable that switches regions off unless `configure(enabled=...)` decides: any value except empty and 0.
DISABLED_VARIABLE: Final = "GPU_PROFILE_DISABLED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How this process samples. See `configure`."""

    backend: str | None = None
    interval_s: float | None = None
    retention_s: float = 600.0
    devices: tuple[Spec, ...] | None = None
    stream: StreamSetting = "auto"
    thresholds: Thresholds = DEFAULT_THRESHOLDS
    record: str | None = None
    spans: bool = True
    clock: Clock = SYSTEM_CLOCK

    @property
    def sampling_s(self) -> float:
        """The interval between two readings of the counters, in seconds."""
        return INTERVAL_S if self.interval_s is None else self.interval_s

    @property
    def spec(self) -> str:
        """The driver's specification, from these settings or else from the environment."""
        return self.backend or os.environ.get(BACKEND_VARIABLE) or "auto"

    def open_driver(self) -> Driver:
        """Open the driver that these settings name."""
        with _opening:
            # numpy imports these at the first call of one of their functions: that would be in a background thread.
            import numpy.fft
            import numpy.ma  # noqa: F401

            node_s = inf if self.interval_s is None else self.interval_s
            driver = open_driver(self.spec, clock=self.clock, groups=LIBRARY_GROUPS, node_s=node_s)
        if self.interval_s is not None and self.interval_s < (its_own_s := getattr(driver, "interval_s", 0.0)):
            _log.warning("gpu-profile: %s has samples every %g s; %g s was asked for", driver.name, its_own_s, node_s)
        return driver


#: The current session, for code on the hot path; elsewhere call `session()`.
current: Session | None = None


def _disabled() -> bool:
    return os.environ.get(DISABLED_VARIABLE, "0") not in ("", "0")


#: Whether regions do nothing at all.
disabled: bool = _disabled()

_settings = Settings()
_lock = threading.RLock()  # a signal's handler may run a region while one is being started
#: Held while a background thread imports modules: a child forked in between could never import them.
_opening = threading.RLock()
#: A fork waits for `_opening` at most this long.
_OPENING_S: Final = 1.0
_exiting = False


def configure(
    *,
    backend: str | None = None,
    interval_s: float | None = None,
    retention_s: float = 600.0,
    devices: Spec | None = None,
    stream: StreamSetting = "auto",
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    record: str | os.PathLike[str] | None = None,
    enabled: bool | None = None,
    spans: bool = True,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Set how this process measures regions. A running session ends, and the next region starts a new one.

    Call it before the first region: a region that runs during the call is not counted.

    `backend`: `auto|nvml|smi|none|node[:DIR]|simulated[:DIR]|replay:DIR`, else the environment's
    GPU_PROFILE_BACKEND, else `auto`. `interval_s`: the interval between two readings; by default 0.05 s, or the
    interval of the node's timeline. `auto` ignores a timeline with a longer interval than the one asked for.
    `retention_s`: the length of the history. `devices`: default devices for regions that name none, as
    `region(device=...)` takes them; by default the devices that the process uses. `stream`: the source of device
    intervals; `auto`: PyTorch, CuPy or Numba, as soon as the program uses a GPU with one of them. `thresholds`:
    those of the regimes' rules. `record`: a directory to record samples and spans into, else the environment's
    GPU_PROFILE_RECORD. `enabled`: False makes every region a plain call without a span; by default regions are on
    unless GPU_PROFILE_DISABLED=1. `spans`: False leaves the span processors of the service's tracer provider
    unchanged; wrap a processor in `GpuSpanProcessor` to give it joined spans. `clock`: replaced in tests.
    Raises GpuBackendError for an unknown backend, ValueError for an interval or retention that is not positive.
    """
    global _settings, disabled  # noqa: PLW0603 - one process, one NVML, one sampler
    if backend is not None:
        check_spec(backend)
    for name, value in (("interval_s", INTERVAL_S if interval_s is None else interval_s), ("retention_s", retention_s)):
        if not isinstance(value, SupportsFloat) or not 0 < value < inf:
            raise ValueError(f"{name} must be a positive number of seconds, not {value!r}")
    stop()
    disabled = _disabled() if enabled is None else not enabled
    _settings = Settings(
        backend=backend,
        interval_s=interval_s,
        retention_s=retention_s,
        devices=None if devices is None else _several(devices),
        stream=stream,
        thresholds=thresholds,
        record=None if record is None else os.fspath(record),
        spans=spans,
        clock=clock,
    )


def _several(devices: Spec) -> tuple[Spec, ...]:
    """The devices as a tuple: an iterator could be read only once."""
    return tuple(devices) if isinstance(devices, Iterable) and not isinstance(devices, str) else (devices,)


def settings() -> Settings:
    """The current settings."""
    return _settings


def use_stream(stream: StreamSetting) -> None:
    """From now on take device intervals from this stream, or from the one that the function returns in each thread."""
    global _settings  # noqa: PLW0603 - as above
    with _lock:
        _settings = replace(_settings, stream=stream)
        if current is not None:
            current.use_stream(stream)


def session() -> Session:
    """The running session, started if there is none."""
    existing = current
    return existing if existing is not None and existing.active else _start()


def running() -> Session | None:
    """The session if one was started and not stopped; starts none."""
    return current


def _start() -> Session:
    global current  # noqa: PLW0603 - as above
    with _lock:
        if current is None:
            current = _make()
        if not current.active:
            if _exiting:
                current.ignore()
            else:
                current.start()
                exits.watch(_finish)
        return current


def _make() -> Session:
    made = Session(
        _settings.open_driver if may_sample() else _open_nothing,
        interval_s=_settings.sampling_s,
        retention_s=_settings.retention_s,
        devices=_settings.devices,
        stream=_settings.stream,
        clock=_settings.clock,
        thresholds=_settings.thresholds,
    )
    for hook in _on_start:
        hook(made)
    record = _settings.record or os.environ.get(RECORD_VARIABLE)
    if record:
        from gpu_profile.regions.session.recorder import record_session

        record_session(made, Path(record))
    return made


#: Called with every new session, before it starts.
_on_start: list[Callable[[Session], None]] = []


def on_start(hook: Callable[[Session], None]) -> None:
    """Call `hook` with this process's session, now if there is one, and with every later session."""
    with _lock:
        _on_start.append(hook)
        if current is not None:
            hook(current)


def off_start(hook: Callable[[Session], None]) -> None:
    """Undo `on_start(hook)` for later sessions."""
    with _lock:
        if hook in _on_start:
            _on_start.remove(hook)


def require_driver() -> None:
    """Raise GpuBackendError if no driver can be used, with the drivers that were tried. `strict=True` calls this.

    Waits for the driver's first answer. A driver lost later is no error here, so that a run that has begun continues.
    Does nothing in a DataLoader worker, where the parent samples.
    """
    reason = session().missing_driver() if may_sample() else ""
    if reason:
        raise GpuBackendError(reason)


def stop() -> None:
    """End the session: a last sample, the last joins, and both threads. The next region starts a new one.

    A region that runs at this moment is not counted.
    """
    global current
    with _lock:
        ended, current = current, None
    if ended is not None:
        ended.stop()


def _stop_for_good() -> None:
    global _exiting  # noqa: PLW0603 - as above
    _exiting = True
    stop()


#: Called after the session has ended, where `atexit` is skipped.
_at_finish: list[Callable[[], object]] = []


def at_finish(flush: Callable[[], object]) -> Callable[[], object]:
    """Call `flush` when this process ends without `atexit`. A decorator for a module's function."""
    _at_finish.append(flush)
    return flush


def _finish() -> None:
    _stop_for_good()
    for flush in _at_finish:
        try:
            flush()
        except Exception:  # noqa: BLE001 - the other flushes must run too
            _log.exception("gpu-profile: a flush failed at the end of the process")


def _open_nothing() -> Driver:
    return open_driver("none", clock=_settings.clock, groups=LIBRARY_GROUPS)


def may_sample() -> bool:
    """Whether this process may read GPUs. False while it ends and in a DataLoader worker."""
    return not (_exiting or _in_dataloader_worker())


def _in_dataloader_worker() -> bool:
    """Whether this is a worker of a PyTorch DataLoader: its parent samples the GPUs, it only counts its regions."""
    worker_info = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", None)
    return worker_info is not None and worker_info() is not None


#: Called in a forked child after the session is dropped.
_forget: list[Callable[[], None]] = []


def in_child(forget: Callable[[], None]) -> Callable[[], None]:
    """Call `forget` in every forked child. A decorator for a module's function.

    Streams and the session are dropped first, then these functions run in the order in which they were registered. So
    the modules that a module imports are reset before it.
    """
    _forget.append(forget)
    return forget


def _before_fork() -> None:
    exits.hold()
    _forking.opening = _opening.acquire(timeout=_OPENING_S)


def _after_fork_in_parent() -> None:
    if _forking.opening:
        _opening.release()
    exits.release()


def _after_fork() -> None:
    """Threads and NVML handles do not survive in the child: drop them without calling them."""
    global current, _lock, _opening  # noqa: PLW0603 - as above
    _opening = threading.RLock()
    exits.forget()
    frameworks.forget()
    if current is not None:
        current.forked = True
    current = None
    _lock = threading.RLock()
    for forget in _forget:
        try:
            forget()
        except Exception:  # noqa: BLE001 - the other functions must run too
            _log.exception("gpu-profile: a forked child could not drop its parent's state")


_forking = threading.local()
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork)
atexit.register(_stop_for_good)
