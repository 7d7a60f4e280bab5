"""Runs attribution: a thread queries every source in turn, and readings never wait for it."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from gpu_profile.catalogue.allocation import HOLDER_LABELS
from gpu_profile.catalogue.samples import Device, ProcessUse
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.errors import UsageError
from gpu_profile.units import NS_PER_S, nanoseconds
from gpu_profile_exporter.attribution import allocation, kubelet, mapping, podresources
from gpu_profile_exporter.attribution.allocation import DeviceHolder
from gpu_profile_exporter.attribution.devices import DeviceNames
from gpu_profile_exporter.attribution.instances import InstanceEnergy
from gpu_profile_exporter.attribution.ledger import HolderLedger, MeteredDevice
from gpu_profile_exporter.attribution.processes import HostProcess, Uptime, look_up, require_host_pids
from gpu_profile_exporter.attribution.shares import shares
from gpu_profile_exporter.attribution.snapshot import ProcessUsage, Snapshot, is_listed
from gpu_profile_exporter.attribution.sources import HolderSource, OmissionCounts, Reason, Unavailable
from gpu_profile_exporter.config.model import KUBELET_SOCKET, AttributionSettings
from gpu_profile_exporter.readings.health import DeviceStatus
from gpu_profile_exporter.readings.readings import MetricReading

_log = logging.getLogger("gpu_profile_exporter")

#: The first refreshes follow each other fast, because the devices and their processes are still being discovered.
_FIRST_TURNS: Final = 5
_FIRST_S: Final = 1.0
#: Longest refresh: the kubelet's two deadlines and the other sources.
_REFRESH_S: Final = 5.0
#: Reasons that are not logged. A driver that does not answer is logged elsewhere.
_EXPECTED: Final = frozenset({None, Reason.STARTING, Reason.NO_DEVICES, Reason.NO_PROCESSES})


class Attribution:
    """The certain holders of each device, and the processes on it.

    `states` returns the sampler's states by UUID. With `pods = "on"`, the `settings` require the package for the
    kubelet; `auto` does not. Containers and `processes` are looked up in `proc`, which must be the host's.
    `process_names` adds the executable's file name to the series of processes. Each source is queried every `period_s`
    and yields at most `most_rows` rows per device. Raises UsageError for `on` without the package.
    """

    def __init__(
        self,
        states: Callable[[], Mapping[str, DeviceStatus]],
        settings: AttributionSettings,
        *,
        processes: bool = False,
        process_names: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        proc: Path = Path("/proc"),
        period_s: float = 10.0,
        most_rows: int = 128,
    ) -> None:
        pods = settings.pods
        if pods == "on" and not kubelet.installed():
            raise UsageError("asking the kubelet for pods needs gRPC: pip install 'gpu-profile[pods]'")
        asked = {
            HolderSource.KUBELET: pods != "off",
            HolderSource.DRA: settings.dra and pods != "off",
            HolderSource.SLURM: settings.job_mapping_dir is not None,
            HolderSource.CONTAINERS: settings.containers,
            HolderSource.PROCESSES: processes,
        }
        self._sources = tuple(source for source, on in asked.items() if on)
        self._optional = (HolderSource.KUBELET, HolderSource.DRA) if pods == "auto" else ()
        self._states = states
        self._socket = settings.kubelet_socket or KUBELET_SOCKET
        self._slurm_dir = settings.job_mapping_dir
        self._names = process_names
        self._labels = tuple(HOLDER_LABELS[label] for label in settings.labels)
        self._clock = clock
        self._proc = proc
        self._period_s = period_s
        self._life_ns = nanoseconds(2 * period_s + _REFRESH_S)
        self._most = most_rows
        self._tally = OmissionCounts()
        self._instances = InstanceEnergy()
        self._ledger = HolderLedger(self._life_ns, self._instances.parts)
        self._snapshot = Snapshot(clock.elapsed_ns(), dict.fromkeys(self._sources, Reason.STARTING), {})
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ running

    def start(self) -> None:
        """Refresh in a thread of its own until `stop()`."""
        # A new flag, because an abandoned thread of an earlier start may still use the old one.
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(self._stop,), name="gpu-profile-attribution", daemon=True
        )
        self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the thread. A thread that a source blocks for longer than `timeout_s` is abandoned."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            self._thread = None

    def _run(self, stop: threading.Event) -> None:
        for turn in itertools.count():
            if stop.is_set():
                break
            self.refresh()
            soon = turn < _FIRST_TURNS or Reason.NO_DEVICES in self._snapshot.status.values()
            self._clock.wait(stop, min(_FIRST_S, self._period_s) if soon else self._period_s)

    def take_samples(self, uuid: str, values: Sequence[int]) -> None:
        """Take a device's samples as the readers send them, in the reader's thread."""
        if (state := self._states().get(uuid)) is not None:
            self._instances.take(state.device, values)

    def refresh(self) -> None:
        """Query every source now, in this thread."""
        started_ns = self._clock.elapsed_ns()
        states = list(self._states().values())
        status: dict[HolderSource, Reason | None] = {}
        holders: list[DeviceHolder] = []
        processes: dict[str, ProcessUsage] = {}
        names = DeviceNames(state.device for state in states)
        for sources, ask in (
            ((HolderSource.KUBELET, HolderSource.DRA), lambda: self._pods(names)),
            ((HolderSource.SLURM,), lambda: self._jobs(names)),
            ((HolderSource.CONTAINERS, HolderSource.PROCESSES), lambda: self._processes(states, processes)),
        ):
            wanted = [source for source in sources if source in self._sources]
            if wanted:
                reason, rows = self._asked(len(states), ask)
                status.update(dict.fromkeys(wanted, reason))
                holders += rows
        self._log_changes(status)
        kept = allocation.within(holders, self._most, self._tally)
        labels = allocation.labels(holders, self._labels) if self._labels else {}
        metered = [MeteredDevice.of(state) for state in states]
        self._instances.settle(state.device for state in states)
        self._ledger.take(self._clock.elapsed_ns(), metered, holders, status)
        self._snapshot = Snapshot(started_ns, status, dict(self._tally), kept, labels, processes)

    def _asked(
        self, devices: int, ask: Callable[[], Iterable[DeviceHolder]]
    ) -> tuple[Reason | None, list[DeviceHolder]]:
        try:
            if not devices:
                raise Unavailable(Reason.NO_DEVICES)
            return None, list(ask())
        except Unavailable as error:
            _log.debug("attribution: %s", error)
            return error.reason, []
        except Exception:  # noqa: BLE001 - a source may be wrong, but never ends the exporter
            _log.debug("attribution failed", exc_info=True)
            return Reason.FAILED, []

    def _log_changes(self, status: Mapping[HolderSource, Reason | None]) -> None:
        """Log each source that fails or recovers. With `auto`, a missing kubelet is no failure."""
        for source, reason in status.items():
            before = self._snapshot.status.get(source)
            expected = _EXPECTED | {Reason.NOT_FOUND} if source in self._optional else _EXPECTED
            if reason is before:
                continue
            if reason not in expected:
                _log.warning("attribution from %s: %s", source, reason)
            elif reason is None and before not in expected:
                _log.info("attribution from %s: answers again", source)

    # ------------------------------------------------------------------ the sources

    def _pods(self, names: DeviceNames) -> Iterator[DeviceHolder]:
        rows = podresources.read(kubelet.list_pods(self._socket))
        if HolderSource.KUBELET in self._sources:
            plugins = (row for row in rows if isinstance(row, podresources.PluginDevice))
            yield from allocation.of_plugins(plugins, names, self._tally)
        if HolderSource.DRA in self._sources:
            claims = (row for row in rows if isinstance(row, podresources.ClaimedDevice))
            yield from allocation.of_claims(claims, names, self._tally)

    def _jobs(self, names: DeviceNames) -> Iterator[DeviceHolder]:
        if self._slurm_dir is not None:
            yield from allocation.of_mappings(mapping.read(self._slurm_dir, self._tally), names, self._tally)

    def _processes(self, states: Iterable[DeviceStatus], by_device: dict[str, ProcessUsage]) -> Iterable[DeviceHolder]:
        """The holders of devices by their processes. Adds the processes to `by_device` if they are published."""
        require_host_pids(self._proc)
        uptime, now_ns = Uptime.read(self._proc), self._clock.now_ns()
        rows: list[DeviceHolder] = []
        listed: dict[str, ProcessUsage] = {}
        for state in states:
            # The time first: if the sampler renews the list between the two reads, the list only seems older.
            listed_ns = state.processes_ns
            uses = state.processes
            if listed_ns is None or listed_ns > now_ns or not is_listed(state, now_ns):
                # Its holder is unknown, whatever the lists of other devices contain.
                rows.append(DeviceHolder(state.device.uuid, HolderSource.CONTAINERS, ()))
                continue
            running = look_up(
                sorted({use.pid for use in uses}),
                proc=self._proc,
                uptime=uptime,
                listed_s_ago=(now_ns - listed_ns) / NS_PER_S,
                names=self._names,
                tally=self._tally,
            )
            uuid = state.device.uuid
            listed[uuid] = self._shares(state.device, uses, running)
            places = (process.place for process in running.values())
            rows += [DeviceHolder.of(uuid, HolderSource.CONTAINERS, place.attributes()) for place in places]
        if not listed:
            raise Unavailable(Reason.NO_PROCESSES)
        if HolderSource.PROCESSES in self._sources:
            by_device.update(listed)
        return rows if HolderSource.CONTAINERS in self._sources else ()

    def _shares(self, device: Device, uses: Sequence[ProcessUse], running: Mapping[int, HostProcess]) -> ProcessUsage:
        rows = []
        for share in shares(uses, memory_bytes=device.memory_bytes, most=self._most, tally=self._tally):
            if share.pid is None:
                rows.append((share, {"hw.id": device.uuid, "process.pid": "other"}))
            elif (process := running.get(share.pid)) is not None:
                attributes = {"hw.id": device.uuid, "process.pid": str(share.pid)}
                if process.name:
                    attributes["process.executable.name"] = process.name
                if HolderSource.CONTAINERS in self._sources:
                    attributes |= process.place.attributes()
                rows.append((share, attributes))
        return ProcessUsage(len({use.pid for use in uses}), tuple(rows))

    # ------------------------------------------------------------------ results

    def readings(self, now_ns: int) -> Iterator[MetricReading]:
        """The readings of the last refresh, without holders if it is too old. Queries no source."""
        snapshot = self._snapshot
        yield from snapshot.health(fresh=(fresh := self._fresh(snapshot)))
        if fresh:
            yield from snapshot.holders(self._states(), now_ns)
        yield from self._ledger.readings()

    def holders(self) -> Mapping[str, Sequence[Mapping[str, str]]]:
        """The OpenTelemetry attributes of each device's holders, by UUID."""
        snapshot = self._snapshot
        holders: dict[str, list[Mapping[str, str]]] = {}
        for row in snapshot.allocations if self._fresh(snapshot) else ():
            holders.setdefault(row.uuid, []).append(dict(row.attributes))
        return holders

    def labels_for(self, uuid: str) -> Mapping[str, str]:
        """The requested labels on which all holders of a device agree, by OpenTelemetry attribute."""
        snapshot = self._snapshot
        return snapshot.labels.get(uuid, {}) if self._fresh(snapshot) else {}

    def _fresh(self, snapshot: Snapshot) -> bool:
        return self._clock.elapsed_ns() - snapshot.taken_ns <= self._life_ns
