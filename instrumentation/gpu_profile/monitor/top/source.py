"""The sources of the view: a sampler over the driver, the node's table, `/proc`, and an endpoint with regions."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from gpu_profile.catalogue import Group
from gpu_profile.catalogue.samples import Device
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver import Driver, is_simulated, lag_s, live_driver
from gpu_profile.driver.grammar import open_driver
from gpu_profile.driver.node.table import TableFile, TimelineTable, pid_namespace
from gpu_profile.driver.own_process import own_ids
from gpu_profile.errors import GpuBackendError, GpuProfileError, UsageError
from gpu_profile.monitor.top.frame import NO_URL
from gpu_profile.monitor.top.readings import device_line
from gpu_profile.monitor.top.scraper import RegionScraper
from gpu_profile.monitor.top.snapshot import HolderLine, ProcessLine, TopSnapshot
from gpu_profile.report.devices import device_label, holder_name
from gpu_profile.sampling.sampler import DeviceState, Sampler
from gpu_profile.units import NS_PER_S

#: The signals that the view shows.
GROUPS: Final = frozenset({Group.CORE, Group.PCIE, Group.GPM})
#: `auto` prefers the node's timeline if it has a sample at least this often, in s.
NODE_S: Final = 1.0
#: The history that is read from the node's timeline: a little more than the view shows, in s.
HISTORY_S: Final = 65.0
#: Rows of history: a little more than a minute of samples that a driver takes itself, every 10 ms at most.
ROWS: Final = 7_000
#: The longest wait for the driver's first answer, and the time of sampling before a single frame, in s.
ANSWER_S: Final = 10.0
FIRST_S: Final = 1.3
_LOOK_S: Final = 0.02

Choose = Callable[[Driver, Sequence[Device]], Sequence[Device]]


class TopSource:
    """Samples the devices of the driver `spec` every `interval_s` from `start` to `stop`, and makes snapshots.

    `choose` picks from the driver's devices, and may raise UsageError. Nothing is opened before `start`. The driver is
    called in the sampler's thread alone: one that hangs does not delay a snapshot.
    """

    def __init__(
        self,
        spec: str,
        *,
        interval_s: float,
        choose: Choose = lambda _, devices: devices,
        url: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        opener: Callable[[], Driver] | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        self.spec = spec
        #: Why no driver could be opened, or its devices could not be chosen.
        self.error: GpuProfileError | None = None
        self._opener = opener or (lambda: _driver(spec, interval_s))
        self._choose = choose
        self._chosen: frozenset[str] | None = None
        self._clock = clock
        self._proc = proc
        self._file: TableFile | None = None
        self.scraper = None if url is None else RegionScraper(url, clock=clock)
        self.sampler = Sampler(
            self._open,
            interval_s=interval_s,
            retention_s=ROWS * interval_s,
            choose=self._uuids,
            clock=clock,
            processes=True,
        )

    def start(self) -> None:
        """Begin to sample and to scrape, in threads."""
        self.sampler.start()
        if self.scraper is not None:
            self.scraper.start()

    def stop(self) -> None:
        """End."""
        if self.scraper is not None:
            self.scraper.stop()
        self.sampler.stop(0.5)

    def wait(self) -> None:
        """Wait until a snapshot has a second of samples and rates of regions.

        Raises the driver's error, or GpuBackendError if it does not answer in time.
        """
        end = time.monotonic() + ANSWER_S
        while not self.sampler.stats.turned_ns:
            if time.monotonic() > end:
                raise GpuBackendError(f"driver {self.spec!r} has not answered within {ANSWER_S:g} s")
            time.sleep(_LOOK_S)
        self.check()
        if self.sampler.driver is None:
            raise self.error or GpuBackendError(self.sampler.problem)
        if not lag_s(self.sampler.driver):  # the node's timeline has a minute of samples already
            time.sleep(FIRST_S)
            self.sampler.flush()
        end = time.monotonic() + ANSWER_S
        while self.scraper is not None and not self.scraper.answered and time.monotonic() < end:
            time.sleep(_LOOK_S)

    def check(self) -> None:
        """Raise the UsageError of a driver or a device that does not exist, if no driver was ever read."""
        if self._chosen is None and isinstance(self.error, UsageError):
            raise self.error

    def checked_snapshot(self) -> TopSnapshot:
        """`snapshot`. Raises the UsageError of `check`."""
        self.check()
        return self.snapshot()

    def snapshot(self) -> TopSnapshot:
        """The present state of everything."""
        now_ns, driver = self._clock.now_ns(), self.sampler.driver
        states = list(self.sampler.states.values())
        late_s = lag_s(driver) + self.sampler.interval_s
        devices = tuple(device_line(state, now_ns, order=n, late_s=late_s) for n, state in enumerate(states))
        processes, holders, note = self._users(driver, states)
        regions, region_note = ((), NO_URL) if self.scraper is None else self.scraper.lines()
        waiting = driver is None and not self.sampler.stats.turned_ns
        return TopSnapshot(
            source=_source(driver) or self.spec,
            time=datetime.fromtimestamp(now_ns / NS_PER_S).astimezone().strftime("%H:%M:%S"),
            waiting=waiting,
            problem="" if waiting or driver is not None else self.sampler.problem,
            devices=devices,
            processes=processes,
            holders=holders,
            regions=regions,
            process_note=note,
            region_note=region_note,
        )

    # ------------------------------------------------------------------

    def _open(self) -> Driver:
        try:
            return self._opener()
        except GpuProfileError as error:
            self.error = error
            raise

    def _uuids(self, driver: Driver, devices: Sequence[Device]) -> Collection[str]:
        try:
            self._chosen = frozenset(device.uuid for device in self._choose(driver, devices))
            self.error = None
        except UsageError as error:
            # The chosen devices of a view that has begun may come back.
            if self._chosen is None:
                self.error = error
                raise
        return self._chosen

    def _users(
        self, driver: Driver | None, states: Sequence[DeviceState]
    ) -> tuple[tuple[ProcessLine, ...], tuple[HolderLine, ...], str]:
        """The processes and the holders of the devices, and a note if no process is listed."""
        table = self._node_table(driver)
        rows = {row.device.uuid: row for row in table.devices} if table is not None else {}
        names = _names_are_certain(driver)
        processes, holders = [], dict[HolderLine, None]()
        for order, state in enumerate(states):
            label = device_label(state.device)
            for use in state.processes:
                name = self._name(use.pid) if names else ""
                processes.append(ProcessLine(label, order, use.pid, name, use.memory_bytes, use.utilization))
            row = rows.get(state.device.uuid)
            holders |= {HolderLine(label, order, *holder_name(each)): None for each in (row.holders if row else ())}
        note = "" if processes or driver is None else _why_none(table)
        return tuple(processes), tuple(holders), note

    def _node_table(self, driver: Driver | None) -> TimelineTable | None:
        """The node's table, if the samples come from there.

        It is read here and not through the driver, which belongs to the sampler's thread.
        """
        directory = getattr(driver, "directory", None)
        if driver is None or directory is None or not driver.name.startswith("node:"):
            self._file = None
            return None
        if self._file is None or self._file.path.parent != directory:
            self._file = TableFile(directory)
        try:
            return self._file.read()
        except GpuBackendError:
            return None

    def _name(self, pid: int) -> str:
        """The name of a process; empty if it has ended or may not be read."""
        try:
            return (self._proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""


def _driver(spec: str, interval_s: float) -> Driver:
    return open_driver(spec, groups=GROUPS, node_s=max(interval_s, NODE_S), node_history_s=HISTORY_S)


def _source(driver: Driver | None) -> str:
    if driver is None:
        return ""
    live = live_driver(driver)
    return driver.name if live == driver.name else f"{driver.name} ({live})"


def _why_none(table: TimelineTable | None) -> str:
    """Why no process is listed, by the node's table if there is one."""
    if table is not None and table.devices and all(row.processes is None for row in table.devices):
        return "unknown: the exporter of this timeline does not list processes (--processes)"
    if table is not None and table.pid_namespace != pid_namespace():
        return "unknown: the exporter's process ids are those of another PID namespace"
    return "none that the driver lists"


def _names_are_certain(driver: Driver | None) -> bool:
    """Whether the driver's process ids and this process's `/proc` certainly belong to one PID namespace."""
    return driver is not None and (own_ids().on_host or is_simulated(driver))
