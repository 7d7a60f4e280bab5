"""Sampling of devices beside a command, in threads of its own: no driver can block the command."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpu_profile.errors import GpuBackendError, GpuProfileError, RecordingError, UsageError

if TYPE_CHECKING:
    from gpu_profile.catalogue.samples import Device, Sample
    from gpu_profile.driver import Driver
    from gpu_profile.regions.session.recorder import Recorder
    from gpu_profile.sampling.sampler import DeviceState, Sampler

#: The interval between tries to open the driver, in s.
RETRY_S: Final = 1.0
#: The longest wait for the driver's first answer, in s.
ANSWER_S: Final = 10.0
#: The interval at which that wait checks for an interruption, in s.
LOOK_S: Final = 0.02
#: The time from the command's end to the last reading of the energy counter: a little more than one of its periods.
SETTLE_S: Final = 0.12
#: The extra time for a driver that has not answered when the command ends, in s.
LATE_S: Final = 1.0
#: The time for which history is kept row by row. Older rows are kept as sums from the run's start.
RETENTION_S: Final = 2 * 3600.0


class DeviceWatch:
    """Reads the devices of the driver `spec` every `interval_s`, and records them into `directory` if there is one.

    `groups`: the groups of signals to read, by default the library's.
    `choose` picks from the driver's devices, and may raise UsageError. Nothing is imported, opened or read before
    `start()`, and all of it happens in other threads than the caller's. With `strict` a driver that fails is not tried
    again, and a recording that cannot be written ends with an error.
    """

    def __init__(
        self,
        spec: str,
        *,
        interval_s: float,
        choose: Callable[[Driver, Sequence[Device]], Sequence[Device]],
        directory: Path | None = None,
        strict: bool = False,
        retention_s: float = RETENTION_S,
        groups: Collection[str] | None = None,
    ) -> None:
        self.interval_s = interval_s
        self.sampler: Sampler | None = None
        self.recorder: Recorder | None = None
        #: Why there is no usable driver; empty once there is.
        self.problem = "the driver has not answered yet"
        self.error: GpuProfileError | None = None
        self.driver_name = ""
        #: The chosen devices.
        self.devices: tuple[Device, ...] = ()
        self._spec = spec
        self._choose = choose
        self._directory = directory
        self._anchor_ns: int | None = None
        self._strict = strict
        self._retention_s = retention_s
        self._groups = groups
        self._stop = threading.Event()
        self._answered = threading.Event()
        self._anchored: set[str] = set()
        self._thread = threading.Thread(target=self._begin, name="gpu-profile-watch", daemon=True)

    def start(self) -> None:
        """Open the driver, with retries, then sample. Returns at once."""
        self._thread.start()

    def keep_from(self, moment_ns: int) -> None:
        """Keep sums of everything from this moment on, however long the run. Call it before any row is dropped."""
        self._anchor_ns = moment_ns

    @property
    def answered(self) -> bool:
        """Whether the driver has answered, or failed."""
        return self._answered.is_set()

    def require(self, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Wait for the driver's first answer, or until `interrupted`.

        Raises the driver's GpuProfileError if it cannot be used, GpuBackendError if it does not answer in time.
        """
        end = time.monotonic() + ANSWER_S
        while not (self._answered.wait(LOOK_S) or interrupted()):
            if time.monotonic() > end:
                raise GpuBackendError(f"driver {self._spec!r} has not answered within {ANSWER_S:g} s")
        if self.error is not None:
            raise self.error

    @property
    def why_unread(self) -> str:
        """Why no device has a state."""
        problem = self.problem or ("" if self.sampler is None else self.sampler.problem)
        return problem or "the driver lists none of the devices any more"

    @property
    def states(self) -> list[DeviceState]:
        """The state of each device, in the driver's order."""
        return [] if self.sampler is None else list(self.sampler.states.values())

    def finish(self) -> None:
        """Take the last samples and end. A driver that hangs is abandoned. A second call has no effect."""
        if self._stop.is_set():
            return
        # A driver's buffer reaches back to before it was opened: even a shorter run has samples.
        if not self._answered.wait(LATE_S):
            self.problem = "the command ended before the driver had answered"
        elif self.sampler is not None:
            from gpu_profile.driver import lag_s

            time.sleep(max(SETTLE_S, lag_s(self.sampler.driver)))
            self.sampler.flush(0.25)
        self.stop()

    def stop(self) -> None:
        """End without a last sample. A second call has no effect."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(0.5)
        if self.sampler is not None:
            self.sampler.stop()
        if self.recorder is not None:
            self.recorder.close()

    # ------------------------------------------------------------------ in the thread

    def _begin(self) -> None:
        while not self._stop.is_set():
            try:
                self._open()
            except GpuProfileError as error:
                self._failed(error)
            except Exception as error:
                logging.getLogger("gpu_profile").debug("the watch failed", exc_info=True)
                self._failed(GpuBackendError(f"unexpected {type(error).__name__}: {error}"))
            else:
                return
            # A wrong choice of devices stays wrong. A driver may still appear.
            if self._strict or isinstance(self.error, UsageError):
                return
            self._stop.wait(RETRY_S)

    def _failed(self, error: GpuProfileError) -> None:
        self.error, self.problem = error, str(error)
        self._answered.set()

    def _open(self) -> None:
        from gpu_profile.catalogue import LIBRARY_GROUPS
        from gpu_profile.driver.grammar import open_driver
        from gpu_profile.sampling.sampler import Sampler

        groups = LIBRARY_GROUPS if self._groups is None else self._groups
        driver = open_driver(self._spec, groups=groups, node_s=self.interval_s)
        try:
            devices = driver.devices()
            if not devices:
                # A driver that reads devices may still get one.
                kind = UsageError if self._spec == "none" else GpuBackendError
                raise kind(f"driver {self._spec!r} has no device")
            self.devices = tuple(self._choose(driver, devices))
            self.driver_name = driver.name
            if self._strict:
                self._read_one(driver)
            self._open_recorder(driver)
        except BaseException:
            driver.close()
            raise
        opened: list[Driver] = [driver]
        sampler = Sampler(
            lambda: opened.pop() if opened else open_driver(self._spec, groups=groups, node_s=self.interval_s),
            interval_s=self.interval_s,
            retention_s=self._retention_s,
            choose=lambda *_: {device.uuid for device in self.devices},
        )
        sampler.ask(self.interval_s)  # then memory and temperature come as often as a short run needs them
        sampler.sinks.append(self._take)
        if self.recorder is not None:
            sampler.event_sinks.append(self.recorder.take_event)
        if self._stop.is_set():  # opening took longer than the command
            driver.close()
            return
        self.sampler = sampler
        sampler.start()
        self.problem, self.error = "", None
        self._answered.set()

    def _read_one(self, driver: Driver) -> None:
        """Check that at least one device can be read: a driver may list lost ones too."""
        from gpu_profile.catalogue import Tier
        from gpu_profile.errors import DeviceLost

        reasons = []
        for device in self.devices:
            try:
                driver.read(device, Tier.FAST)
            except DeviceLost as lost:
                reasons.append(str(lost))
            else:
                return
        raise GpuBackendError("no GPU can be read: " + "; ".join(reasons))

    def _open_recorder(self, driver: Driver) -> None:
        if self._directory is None or self.recorder is not None:
            return
        from gpu_profile.clock import SYSTEM_CLOCK
        from gpu_profile.driver import live_driver
        from gpu_profile.regions.session.recorder import Recorder

        name, version = live_driver(driver), driver.version
        self.recorder = Recorder(
            self._directory, clock=SYSTEM_CLOCK, driver=lambda: (name, version), strict=self._strict
        )
        self.recorder.open()

    def _take(self, device: Device, samples: Sequence[Sample]) -> None:
        if self._anchor_ns is not None and device.uuid not in self._anchored:
            self._anchored.add(device.uuid)
            timeline = self.sampler.timeline(device.uuid) if self.sampler is not None else None
            if timeline is not None:
                timeline.anchor(self._anchor_ns)
        if self.recorder is not None:
            with suppress(RecordingError):  # callers read it from `recorder.problem`
                self.recorder.take(device, samples)
