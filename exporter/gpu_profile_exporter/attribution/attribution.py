"""Attribution as it runs: a thread that asks every source in turn, and readings that never wait for it."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from gpu_profile.catalogue.samples import Device, ProcessUse
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.errors import UsageError
from gpu_profile.sampling.tracked import Tracked
from gpu_profile.units import NS_PER_S, nanoseconds
from gpu_profile_exporter.attribution import allocation, kubelet, mapping, podresources
from gpu_profile_exporter.attribution.allocation import LABELS, DeviceHolder
from gpu_profile_exporter.attribution.devices import DeviceNames
from gpu_profile_exporter.attribution.processes import HostProcess, Uptime, look_up, require_host_pids
from gpu_profile_exporter.attribution.shares import shares
from gpu_profile_exporter.attribution.snapshot import Held, Snapshot, is_listed
from gpu_profile_exporter.attribution.sources import HolderSource, Reason, Tally, Unavailable
from gpu_profile_exporter.readings.readings import MetricReading

_log = logging.getLogger("gpu_profile_exporter")

Mode = Literal["auto", "on", "off"]
KUBELET_SOCKET: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
#: The first turns follow each other fast, as devices and their processes are only just being found.
_FIRST_TURNS: Final = 5
_FIRST_S: Final = 1.0
#: The kubelet's two deadlines and the rest of a refresh.
_REFRESH_S: Final = 5.0
#: Not worth a line in the log: a driver that is away has one of its own.
_EXPECTED: Final = frozenset({None, Reason.STARTING, Reason.NO_DEVICES, Reason.NO_PROCESSES})


class Attribution:
    """Says who holds each device, or nothing.

    `states` gives the sampler's states by UUID. `pods` asks the kubelet what device plugins gave away, and with `dra`
    what resource claims did; `on` differs from `auto` in that the package for it must be there. `slurm_dir` is a job
    mapping directory; `containers` and `processes` follow the driver's list of processes into `proc`, which must be the
    host's. `process_names` adds the executable's file name to the series of processes. `labels` are keys of `LABELS`,
    for `labels_for`. A source is asked every `period_s`; on one device at most `most_rows` rows of each are kept.
    Raises UsageError for a label that is none, and without the package.
    """

    def __init__(
        self,
        states: Callable[[], Mapping[str, Tracked]],
        *,
        pods: Mode = "auto",
        dra: bool = True,
        kubelet_socket: Path = KUBELET_SOCKET,
        slurm_dir: Path | None = None,
        containers: bool = True,
        processes: bool = False,
        process_names: bool = False,
        labels: Sequence[str] = (),
        clock: Clock = SYSTEM_CLOCK,
        proc: Path = Path("/proc"),
        period_s: float = 10.0,
        most_rows: int = 128,
    ) -> None:
        if unknown := [label for label in labels if label not in LABELS]:
            raise UsageError(f"no such label: {unknown[0]!r}; there are {', '.join(LABELS)}")
        if pods == "on" and not kubelet.installed():
            raise UsageError("asking the kubelet for pods needs gRPC: pip install 'gpu-profile[pods]'")
        asked = {
            HolderSource.KUBELET: pods != "off",
            HolderSource.DRA: dra and pods != "off",
            HolderSource.SLURM: slurm_dir is not None,
            HolderSource.CONTAINERS: containers,
            HolderSource.PROCESSES: processes,
        }
        self._sources = tuple(source for source, on in asked.items() if on)
        self._optional = (HolderSource.KUBELET, HolderSource.DRA) if pods == "auto" else ()
        self._states = states
        self._socket = kubelet_socket
        self._slurm_dir = slurm_dir
        self._names = process_names
        self._labels = tuple(LABELS[label] for label in labels)
        self._clock = clock
        self._proc = proc
        self._period_s = period_s
        self._most = most_rows
        self._tally = Tally()
        self._snapshot = Snapshot(clock.now_ns(), dict.fromkeys(self._sources, Reason.STARTING), {})
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ running

    def start(self) -> None:
        """Refresh in a thread of its own until `stop()`."""
        # A flag of its own, as an earlier thread may have been left behind.
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(self._stop,), name="gpu-profile-attribution", daemon=True
        )
        self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the thread; it is left behind if a source keeps it longer than `timeout_s`."""
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

    def refresh(self) -> None:
        """Ask every source now, in this thread."""
        started_ns = self._clock.now_ns()
        states = list(self._states().values())
        status: dict[HolderSource, Reason | None] = {}
        found: list[DeviceHolder] = []
        held: dict[str, Held] = {}
        names = DeviceNames(state.device for state in states)
        for sources, ask in (
            ((HolderSource.KUBELET, HolderSource.DRA), lambda: self._pods(names)),
            ((HolderSource.SLURM,), lambda: self._jobs(names)),
            ((HolderSource.CONTAINERS, HolderSource.PROCESSES), lambda: self._processes(states, held)),
        ):
            wanted = [source for source in sources if source in self._sources]
            if wanted:
                reason, rows = self._asked(len(states), ask)
                status.update(dict.fromkeys(wanted, reason))
                found += rows
        self._tell(status)
        kept = allocation.within(found, self._most, self._tally)
        labels = allocation.labels(found, self._labels) if self._labels else {}
        self._snapshot = Snapshot(started_ns, status, dict(self._tally), kept, labels, held)

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
        except Exception:  # noqa: BLE001 - a source may be wrong, never the exporter's end
            _log.debug("attribution failed", exc_info=True)
            return Reason.FAILED, []

    def _tell(self, status: Mapping[HolderSource, Reason | None]) -> None:
        """One line for each source that fell silent or came back; none for what is only looked for."""
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

    def _processes(self, states: Iterable[Tracked], held: dict[str, Held]) -> Iterable[DeviceHolder]:
        require_host_pids(self._proc)
        uptime, now_ns = Uptime.read(self._proc), self._clock.now_ns()
        rows: list[DeviceHolder] = []
        found: dict[str, Held] = {}
        for state in states:
            # The time first: should the sampler renew the list between the two, it only seems older than it is.
            listed_ns = state.processes_ns
            uses = state.processes
            if listed_ns is None or listed_ns > now_ns or not is_listed(state, now_ns):
                continue
            there = look_up(
                sorted({use.pid for use in uses}),
                proc=self._proc,
                uptime=uptime,
                listed_s_ago=(now_ns - listed_ns) / NS_PER_S,
                names=self._names,
                tally=self._tally,
            )
            uuid = state.device.uuid
            found[uuid] = self._held(state.device, uses, there)
            rows += [DeviceHolder.of(uuid, HolderSource.CONTAINERS, each.place.attributes()) for each in there.values()]
        if not found:
            raise Unavailable(Reason.NO_PROCESSES)
        if HolderSource.PROCESSES in self._sources:
            held.update(found)
        return rows if HolderSource.CONTAINERS in self._sources else ()

    def _held(self, device: Device, uses: Sequence[ProcessUse], there: Mapping[int, HostProcess]) -> Held:
        rows = []
        for share in shares(uses, memory_bytes=device.memory_bytes, most=self._most, tally=self._tally):
            if share.pid is None:
                rows.append((share, {"hw.id": device.uuid, "process.pid": "other"}))
            elif (process := there.get(share.pid)) is not None:
                attributes = {"hw.id": device.uuid, "process.pid": str(share.pid)}
                if process.name:
                    attributes["process.executable.name"] = process.name
                if HolderSource.CONTAINERS in self._sources:
                    attributes |= process.place.attributes()
                rows.append((share, attributes))
        return Held(len({use.pid for use in uses}), tuple(rows))

    # ------------------------------------------------------------------ what is known

    def readings(self, now_ns: int) -> Iterator[MetricReading]:
        """What the last refresh found, as far as it is still true at `now_ns`. Asks nobody."""
        snapshot = self._snapshot
        yield from snapshot.health(fresh=self._fresh(snapshot, now_ns))
        if self._fresh(snapshot, now_ns):
            yield from snapshot.holders(self._states(), now_ns)

    def holders(self) -> Mapping[str, Sequence[Mapping[str, str]]]:
        """What is known of each device's holders, by UUID, as OpenTelemetry attributes."""
        snapshot = self._snapshot
        found: dict[str, list[Mapping[str, str]]] = {}
        for row in snapshot.allocations if self._fresh(snapshot, self._clock.now_ns()) else ():
            found.setdefault(row.uuid, []).append(dict(row.attributes))
        return found

    def labels_for(self, uuid: str) -> Mapping[str, str]:
        """The labels that were asked for, by OpenTelemetry attribute, as far as all holders of a device agree."""
        snapshot = self._snapshot
        return snapshot.labels.get(uuid, {}) if self._fresh(snapshot, self._clock.now_ns()) else {}

    def _fresh(self, snapshot: Snapshot, now_ns: int) -> bool:
        return now_ns - snapshot.taken_ns <= nanoseconds(2 * self._period_s + _REFRESH_S)
