"""The running whole: a sampler that reads every device of the node, and a server that tells what it knows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.metadata import entry_points
from types import TracebackType
from typing import Final, Self

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver import Driver
from gpu_profile.driver.grammar import ENTRY_POINTS, open_driver
from gpu_profile.driver.replay import ReplayDriver
from gpu_profile.errors import GpuBackendError, UsageError
from gpu_profile.sampler import Sampler
from gpu_profile_exporter import version
from gpu_profile_exporter.app import Request, Response, respond
from gpu_profile_exporter.config import Config
from gpu_profile_exporter.exposition import Exposition
from gpu_profile_exporter.health import Health, health
from gpu_profile_exporter.page import PageData, describe
from gpu_profile_exporter.readings import Identity, Reading, readings
from gpu_profile_exporter.server import Server

#: These wait for hardware and are tried for ever. What is wrong with any other is what the user typed or wrote.
_HARDWARE: Final = ("auto", "nvml", "smi")
_FIRST_ANSWER_S: Final = 2.0


class Node:
    """An exporter. Between `start()` and `stop()` it samples and serves; a scrape never calls the driver."""

    def __init__(self, config: Config, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.config = config
        self.clock = clock
        self.identity = Identity(config.driver, "", version())
        self.sampler = Sampler(self._open, interval_s=config.interval_s, retention_s=config.retention_s, clock=clock)
        #: Whether the devices are not real, or were not when they were recorded.
        self.simulated = config.driver.partition(":")[0] == "simulated"
        self._exposition = Exposition(self.readings)
        self._server: Server | None = None

    def _open(self) -> Driver:
        driver = open_driver(self.config.driver, clock=self.clock)
        self.identity = Identity(driver.name, driver.version, self.identity.version)
        origin = driver.recorded_driver if isinstance(driver, ReplayDriver) else driver.name
        self.simulated = origin.partition(":")[0] == "simulated"
        return driver

    # ------------------------------------------------------------------ running

    def start(self) -> None:
        """Serve, then read. UsageError for an address, a driver's name or a file that cannot be used."""
        self._server = Server(self.config.listen, self.respond)
        try:
            if not _waits_for_hardware(self.config.driver):
                self.sampler.open()
        except GpuBackendError as error:
            self._server.stop()
            raise UsageError(f"--driver: {error}") from error
        except BaseException:
            self._server.stop()
            raise
        self._server.start()
        self.sampler.start()

    def stop(self) -> None:
        """Stop both; takes less than 2 s even if the driver hangs."""
        if self._server is not None:
            self._server.stop()
        self.sampler.stop(timeout_s=1.0)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where it serves, with the port that was really chosen."""
        return f"http://{self._server.address if self._server is not None else self.config.listen}"

    def headline(self, *, timeout_s: float = _FIRST_ANSWER_S) -> str:
        """One line that says what is read and where it is served; waits a moment for the driver's first answer."""
        deadline = time.monotonic() + timeout_s
        while self.sampler.driver is None and not self.sampler.stats.turned_ns and time.monotonic() < deadline:
            time.sleep(0.01)
        if self.sampler.driver is None:
            what = f"not ready ({health(self.sampler, self.clock.now_ns()).reason})"
        else:
            n = len(self.sampler.states)
            what = f"{n} {'device' if n == 1 else 'devices'} through {self.identity.driver}"
        mark = " (SIMULATED)" if self.simulated else ""
        return f"gpu-profile-exporter {self.identity.version}: {what}{mark} on {self.url}/metrics"

    # ------------------------------------------------------------------ what the routes serve

    def respond(self, request: Request) -> Response:
        """Answer one request."""
        return respond(self, request)

    def readings(self) -> Iterator[Reading]:
        """What is known now."""
        return readings(self.sampler, self.identity, self.clock.now_ns())

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """The exposition and its content type."""
        return self._exposition.render(accept)

    def health(self) -> Health:
        """The exporter's state."""
        return health(self.sampler, self.clock.now_ns())

    def page(self) -> PageData:
        """What the landing page and /api/devices tell."""
        return describe(self.sampler, self.identity, self.clock.now_ns(), simulated=self.simulated)


def _waits_for_hardware(spec: str) -> bool:
    return spec.strip() in _HARDWARE or bool(entry_points(group=ENTRY_POINTS, name=spec.partition(":")[0]))
