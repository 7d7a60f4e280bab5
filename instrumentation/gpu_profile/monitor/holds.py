"""Requests for samples during runs, and the samplers of drivers other than the process's own."""

from __future__ import annotations

import atexit
import threading
import time
from dataclasses import dataclass
from typing import Final

from gpu_profile.catalogue import LIBRARY_GROUPS
from gpu_profile.driver.grammar import check_spec, open_driver
from gpu_profile.errors import GpuBackendError
from gpu_profile.regions.session import process
from gpu_profile.regions.session.session import IDLE_S, Session
from gpu_profile.sampling.sampler import Sampler

_NOT_HERE: Final = "this process does not sample"


@dataclass(slots=True, eq=False)
class Hold:
    """A request for samples at least every `interval_s`, until `release`. If `sampler` is None, `reason` says why.

    `session`: the process's session if its sampler is used; None if the sampler reads another driver.
    """

    sampler: Sampler | None
    interval_s: float
    session: Session | None = None
    other: _Other | None = None
    reason: str = ""

    def release(self) -> None:
        """End the request. Sampling ends after `IDLE_S` unless another run or a region needs it. Idempotent."""
        with _lock:
            sampler, self.sampler = self.sampler, None
            if sampler is None:
                return
            sampler.release(self.interval_s)
            if self.session is not None:
                self.session.holds -= 1
                # Opening a driver takes longer than many runs, and the next run may follow soon.
                self.session.keep_awake()
            elif self.other is not None:
                self.other.release()


class _Other:
    """The sampler of a driver other than the process's own. It stops after `IDLE_S` without a `Hold`."""

    def __init__(self, spec: str) -> None:
        clock, retention_s = process.settings().clock, process.settings().retention_s
        self.spec = spec
        # Slow by default: every run requests its own interval.
        self.sampler = Sampler(
            lambda: open_driver(spec, clock=clock, groups=LIBRARY_GROUPS),
            interval_s=1.0,
            retention_s=retention_s,
            clock=clock,
        )
        self.holds = 0
        self._last_s = 0.0
        self._waiting = False

    def release(self) -> None:
        """Remove one `Hold`."""
        self.holds -= 1
        self._last_s = time.monotonic()
        self._retire_later()

    def _retire_later(self) -> None:
        if not self.holds and not self._waiting:
            self._waiting = True
            timer = threading.Timer(max(0.0, self._last_s + IDLE_S - time.monotonic()), self.retire)
            timer.daemon = True
            timer.start()

    def retire(self) -> None:
        """Stop, unless a run has used it meanwhile."""
        with _lock:
            self._waiting = False
            if self.holds or _others.get(self.spec) is not self:
                return
            if time.monotonic() < self._last_s + IDLE_S:
                self._retire_later()
                return
            del _others[self.spec]
        self.sampler.stop()


_lock = threading.RLock()
#: By the driver's name, at most one each.
_others: dict[str, _Other] = {}


def hold(backend: str, interval_s: float) -> Hold:
    """Sample through `backend` from now on. `auto`: the backend of the process's settings.

    All requests for one driver share a sampler, at the shortest interval of any. Does not wait for its first answer.
    Raises GpuBackendError for an unknown backend, or one that cannot be used together with those in use.
    """
    check_spec(backend)
    own = process.settings().spec
    if "none" in (backend, own if backend == "auto" else ""):
        return Hold(None, interval_s, reason="sampling is off (backend none)")
    is_own = _is_own(backend, own)
    with _lock:
        if not process.may_sample():
            return Hold(None, interval_s, reason=_NOT_HERE)
        if is_own:
            session = process.session()
            if session.ignoring:
                return Hold(None, interval_s, reason=_NOT_HERE)
            session.holds += 1
            session.sampler.ask(interval_s)
            return Hold(session.sampler, interval_s, session=session)
        other = _others.get(backend)
        if other is None:
            _check_beside(backend, own)
            other = _Other(backend)
            try:
                other.sampler.start()
            except RuntimeError:  # the interpreter shuts down, or the process has reached its limit of threads
                return Hold(None, interval_s, reason=_NOT_HERE)
            _others[backend] = other
        other.holds += 1
        other.sampler.ask(interval_s)
        return Hold(other.sampler, interval_s, other=other)


def _is_own(backend: str, own: str) -> bool:
    """Whether the process's session reads through `backend`."""
    if backend in ("auto", own):
        return True
    if backend == "nvml" and own == "auto":
        process.session().missing_driver()  # waits until `auto` has chosen, most likely NVML
    running = process.running()
    driver = None if running is None else running.sampler.driver
    return driver is not None and driver.name == backend


def _check_beside(backend: str, own: str) -> None:
    running = process.running()
    for spec in [*_others, *([] if running is None else [own])]:
        words = {spec.partition(":")[0], backend.partition(":")[0]}
        if "simulated" in words and words <= {"auto", "nvml", "simulated"}:
            raise GpuBackendError(
                f"backend {backend!r}: this process already reads {spec!r}, and simulated GPUs replace NVML for the "
                "whole process"
            )


def _stop_others() -> None:
    with _lock:
        ended = list(_others.values())
        _others.clear()
    for other in ended:
        other.sampler.stop()


@process.in_child
def _forget() -> None:
    """In a forked child: drop the samplers. Their threads are gone and their locks may be held."""
    global _lock  # noqa: PLW0603 - the parent may have held it
    _lock = threading.RLock()
    _others.clear()


atexit.register(_stop_others)
