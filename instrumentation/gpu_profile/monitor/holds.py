"""Who needs samples while a run lasts, and the samplers of other drivers than the process's own."""

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
    """Sampling that goes on until `release`, at least every `interval_s`. Without a `sampler`, `reason` says why.

    `session` is the process's if its sampler serves; None for one that reads through another driver.
    """

    sampler: Sampler | None
    interval_s: float
    session: Session | None = None
    other: _Other | None = None
    reason: str = ""

    def release(self) -> None:
        """Let the sampling end after a while, if nobody else needs it. Twice is fine."""
        with _lock:
            sampler, self.sampler = self.sampler, None
            if sampler is None:
                return
            sampler.release(self.interval_s)
            if self.session is not None:
                self.session.holds -= 1
                # Opening a driver takes longer than many runs do, and the next run may follow soon.
                self.session.keep_awake()
            elif self.other is not None:
                self.other.let_go()


class _Other:
    """The sampler of a driver that is not the process's own; it stops once nobody has held it for `IDLE_S`."""

    def __init__(self, spec: str) -> None:
        clock, retention_s = process.settings().clock, process.settings().retention_s
        self.spec = spec
        # Every run asks for its own interval; without any, there is little to read.
        self.sampler = Sampler(
            lambda: open_driver(spec, clock=clock, groups=LIBRARY_GROUPS),
            interval_s=1.0,
            retention_s=retention_s,
            clock=clock,
        )
        self.holds = 0
        self._last_s = 0.0
        self._waiting = False

    def let_go(self) -> None:
        """One who held it does so no more."""
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
        """Stop, or wait on if somebody came meanwhile."""
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
    """Have samples taken through `backend` from now on; `auto` is whatever the process's settings name.

    One sampler serves all who name the same driver, at the smallest interval that any of them asks for. Does not wait
    for its first answer. GpuBackendError for a backend that is none, or that cannot be read beside those in use.
    """
    check_spec(backend)
    own = process.settings().spec
    if "none" in (backend, own if backend == "auto" else ""):
        return Hold(None, interval_s, reason="sampling is off (backend none)")
    mine = _is_own(backend, own)
    with _lock:
        if not process.may_sample():
            return Hold(None, interval_s, reason=_NOT_HERE)
        if mine:
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
            except RuntimeError:  # the interpreter is going down, or the process may have no more threads
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
        process.session().missing_driver()  # it most likely finds NVML
    running = process.running()
    driver = None if running is None else running.sampler.driver
    return driver is not None and driver.name == backend


def _check_beside(backend: str, own: str) -> None:
    running = process.running()
    for spec in [*_others, *([] if running is None else [own])]:
        words = {spec.partition(":")[0], backend.partition(":")[0]}
        if "simulated" in words and words <= {"auto", "nvml", "simulated"}:
            raise GpuBackendError(
                f"backend {backend!r}: this process reads {spec!r} already, and simulated GPUs take the place of NVML, "
                "of which a process has one"
            )


def _stop_others() -> None:
    with _lock:
        ended = list(_others.values())
        _others.clear()
    for other in ended:
        other.sampler.stop()


@process.in_child
def _forget() -> None:
    """In the child the threads are gone: forget them without touching what they may have held."""
    global _lock  # noqa: PLW0603 - the parent may have held it
    _lock = threading.RLock()
    _others.clear()


atexit.register(_stop_others)
