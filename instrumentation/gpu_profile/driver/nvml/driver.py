"""The NVML driver, which implements the protocol of all drivers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar

from gpu_profile.catalogue import DEFAULT_GROUPS, SIGNALS, Group, Signal, Tier
from gpu_profile.catalogue.samples import Device, DeviceKind, Event, ProcessUse, Sample
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver.nvml.device import OpenDevice
from gpu_profile.driver.nvml.enumeration import EnumeratedDevice, find_devices, handle_of
from gpu_profile.driver.nvml.errors import UninitializedError
from gpu_profile.driver.nvml.events import XidEvents
from gpu_profile.driver.nvml.library import NvmlLibrary
from gpu_profile.driver.nvml.processes import DeviceProcesses
from gpu_profile.driver.nvml.wrapping import LINGER_NS, WrappingCounters
from gpu_profile.driver.protocol import Capability
from gpu_profile.errors import DeviceLost, GpuBackendError
from gpu_profile.units import NS_PER_S, nanoseconds

T = TypeVar("T")

#: The first pause before a device with a failed source is opened again. It doubles each time, up to
#: `_LONGEST_PAUSE_NS`. The conditions for a source's recovery are unknown, and opening takes milliseconds.
_PAUSE_NS: Final = 5 * NS_PER_S
_LONGEST_PAUSE_NS: Final = 300 * NS_PER_S


class NvmlDriver:
    """Reads NVIDIA GPUs and MIG instances through nvidia-ml-py.

    `devices`: the UUIDs to read, None for all. Only signals of `groups` and of the core group are read. `events`:
    whether GPUs are watched for XID errors. `counters_s`: the shortest time between two reads of the counters that are
    slow to read (energy, throttle time). Other signals of their tier are read more often.

    GpuBackendError if NVML cannot be started. After a fork, the child starts NVML itself at its first call and never
    uses its parent's handles. After a reload of the kernel driver, the next call starts NVML again. Not thread-safe.
    """

    def __init__(
        self,
        *,
        clock: Clock = SYSTEM_CLOCK,
        name: str = "nvml",
        devices: Sequence[str] | None = None,
        groups: Collection[Group] = DEFAULT_GROUPS,
        enter: Callable[[int], bool] = lambda _: True,
        events: bool = True,
        counters_s: float = 0.0,
    ) -> None:
        self._name = name
        #: Returns True if another driver should take over. The sampler calls it from time to time.
        self.superseded: Callable[[], bool] | None = None
        self._counters_ns = nanoseconds(counters_s)
        self._clock = clock
        self._wanted = None if devices is None else frozenset(devices)
        self._groups = frozenset(groups) | {Group.CORE}
        self._enter = enter
        self._closed = False
        self._library = NvmlLibrary()
        self._entries: dict[str, EnumeratedDevice] = {}
        self._open: dict[str, OpenDevice] = {}
        self._users: dict[str, DeviceProcesses] = {}
        #: Of the devices with counters that restart, and the elapsed time at which one of them last moved.
        self._wrapping: dict[str, WrappingCounters] = {}
        self._moved_ns = -LINGER_NS
        #: By UUID: the next pause before the device is opened again, in ns.
        self._pauses: dict[str, int] = {}
        #: Signals available before a source failed. The device is opened again until all of them are available.
        self._had: dict[str, frozenset[Signal]] = {}
        self._throttled: dict[str, dict[Signal, int]] = {}
        self._events = XidEvents(self._library, clock)
        self._listens = events

    @property
    def name(self) -> str:
        """The driver's name in the grammar of `--driver`."""
        return self._name

    @property
    def version(self) -> str:
        """Version of the NVIDIA driver on the node."""
        return self._library.version

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of the driver, NVML and CUDA, by the attributes of `gpu_profile.driver.info`."""
        library = self._library
        versions = {
            "hw.driver_version": library.version,
            "nvml.version": library.nvml_version,
            "cuda.version": library.cuda_version,
        }
        return {key: value for key, value in versions.items() if value}

    @property
    def errors(self) -> Counter[str]:
        """Number of occurrences of each NVML error, by its name without the prefix (`GPU_IS_LOST`)."""
        return self._library.errors.counts

    def devices(self) -> Sequence[Device]:
        """The devices that can be opened now, parents before their MIG instances."""
        return self._run(self._enumerate)

    def capabilities(self, device: Device) -> Mapping[Signal, Capability]:
        """The capability of every signal of the catalogue."""
        try:
            return self._run(lambda: self._open_device(device).capabilities(), device)
        except DeviceLost as lost:
            return dict.fromkeys(SIGNALS, Capability(available=False, reason=str(lost)))

    def read(self, device: Device, tier: Tier) -> Sequence[Sample]:
        """Read the signals of `tier` (FAST, SLOW or RARE) now."""
        samples = self._run(lambda: self._open_device(device).read(tier), device)
        wrapping = self._wrapping.get(device.uuid) if tier is Tier.FAST else None
        if wrapping is not None and wrapping.extend(samples, now := self._clock.elapsed_ns()):
            self._moved_ns = now
        return samples

    @property
    def catch_up_ns(self) -> int:
        """The time within which `catch_up` must follow the last round; 0 if no counter can restart unseen by then."""
        now = self._clock.elapsed_ns()
        if now - self._moved_ns >= LINGER_NS:
            return 0  # nearly always, and asked in every round
        return min((due for one in self._wrapping.values() if (due := one.due_ns(now))), default=0)

    def catch_up(self, device: Device) -> None:
        """Read the counters that restart at 2^32, so that the next `read` knows how often they did."""
        wrapping = self._wrapping.get(device.uuid)
        if wrapping is not None and wrapping.due_ns(self._clock.elapsed_ns()):
            read, now = wrapping.catch_up, self._clock.elapsed_ns()
            if self._run(lambda: read(self._library, self._lookup(device).handle, now), device):
                self._moved_ns = now

    def drain(self, device: Device) -> Sequence[Sample]:
        """Samples of utilisation and power that the driver buffered since the last drain, oldest first."""
        return self._run(lambda: self._open_device(device).drain(), device)

    def boundary(self, device: Device) -> Sequence[Sample]:
        """As `Driver.boundary`. A window is at least 100 ms long."""
        return self._run(lambda: self._open_device(device).boundary(), device)

    def events(self) -> Sequence[Event]:
        """XID errors since the last call, of GPUs that were listed or read."""
        return self._run(self._events.poll)

    @property
    def watched(self) -> frozenset[str]:
        """UUIDs of the GPUs that are watched for XID errors, or that support no such events."""
        return self._events.watched

    def processes(self, device: Device) -> Sequence[ProcessUse]:
        """The processes that compute or draw on the device, one per pid. See `own_process` for the namespace of pids.

        `utilization` is the mean since the last call, if the driver reports it. It does not on MIG instances. Processes
        on a GPU in MIG mode are listed by its instances.
        """
        try:
            return self._run(lambda: self._processes(device), device)
        except DeviceLost:
            return []

    def close(self) -> None:
        """Release the handles and shut NVML down. Closing twice is fine."""
        if not self._closed:
            self._closed = True
            self._release()

    # -- within one process and one start of NVML ------------------------------------------------------------------

    def _run(self, call: Callable[[], T], device: Device | None = None) -> T:
        """Make the call on a started NVML. If NVML is not initialised after all, start it and try once more."""
        tried = False
        while True:
            if self._closed or not self._library.started:
                self._start()
            try:
                return call()
            except UninitializedError as failure:
                if tried:
                    raise GpuBackendError(
                        "NVML: does not stay started; another part of this program shuts it down"
                    ) from failure
                tried = True
                self._library.forget()
            except DeviceLost:
                if device is not None:
                    # Handles are stale after a reset: the next call looks the device up again.
                    self._entries.pop(device.uuid, None)
                    self._close_device(device.uuid)
                raise
            except GpuBackendError:
                # NVML counts its starts: only after a full stop does the next start use a reloaded driver.
                self._release()
                raise

    def _start(self) -> None:
        if self._closed:
            raise GpuBackendError("NVML: this driver was closed; make a new one")
        self._forget_all()
        self._library.start()

    def _release(self) -> None:
        """Free all handles and stop NVML. In a forked child, only drop them: they belong to the parent."""
        if self._library.started:
            for uuid in list(self._open):
                self._close_device(uuid)
            self._events.close()
            self._library.stop()
        self._forget_all()

    def _forget_all(self) -> None:
        self._entries.clear()
        self._open.clear()
        self._users.clear()
        self._wrapping.clear()
        self._events = XidEvents(self._library, self._clock)

    def _close_device(self, uuid: str) -> None:
        self._users.pop(uuid, None)
        self._wrapping.pop(uuid, None)
        opened = self._open.pop(uuid, None)
        if opened is not None:
            opened.close()

    # -- devices ---------------------------------------------------------------------------------------------------

    def _enumerate(self) -> list[Device]:
        entries = {one.device.uuid: one for one in find_devices(self._library, self._entries, self._enter)}
        for uuid in list(self._open):
            # A GPU's capabilities change with its MIG instances, and a removed instance has no resources to free.
            if _shape(entries, uuid) != _shape(self._entries, uuid):
                self._had.pop(uuid, None)
                self._close_device(uuid)
        self._entries = entries
        for one in entries.values():
            self._watch(one)
        return [one.device for one in entries.values() if self._wanted is None or one.device.uuid in self._wanted]

    def _watch(self, one: EnumeratedDevice) -> None:
        if self._listens and one.device.kind is DeviceKind.GPU:
            if one.device.index is not None:
                self._enter(one.device.index)
            self._events.watch(one.device.uuid, one.handle)

    def _lookup(self, device: Device) -> EnumeratedDevice:
        entry = self._entries.get(device.uuid)
        if entry is None:
            entry = self._entries[device.uuid] = handle_of(self._library, device)
            self._watch(entry)
        return entry

    def _open_device(self, device: Device) -> OpenDevice:
        opened = self._open.get(device.uuid)
        if opened is not None and opened.lost_ns is not None and self._due_anew(opened, opened.lost_ns, device.uuid):
            self._close_device(device.uuid)
            opened = None
        if opened is None:
            entry = self._lookup(device)
            opened = self._open[device.uuid] = OpenDevice(
                self._library,
                self._clock,
                entry,
                self._groups,
                self._throttled.setdefault(device.uuid, {}),
                self._counters_ns,
            )
            available = frozenset(signal for signal, can in opened.capabilities().items() if can.available)
            if self._had.setdefault(device.uuid, available) <= available:
                self._had[device.uuid] = available
            else:
                opened.lost_ns = opened.opened_ns
            if any(signal.wraps_at for signal in available):
                self._wrapping.setdefault(device.uuid, WrappingCounters.of(device))
        return opened

    def _due_anew(self, opened: OpenDevice, lost_ns: int, uuid: str) -> bool:
        """Whether the pause of a device whose source failed at `lost_ns` has passed, so that it is opened again."""
        well = lost_ns - opened.opened_ns > _LONGEST_PAUSE_NS
        pause = _PAUSE_NS if well else self._pauses.get(uuid, _PAUSE_NS)
        if self._clock.elapsed_ns() - lost_ns < pause:
            return False
        self._pauses[uuid] = min(2 * pause, _LONGEST_PAUSE_NS)
        return True

    def _processes(self, device: Device) -> list[ProcessUse]:
        entry = self._lookup(device)
        users = self._users.get(device.uuid)
        if users is None:
            users = self._users[device.uuid] = DeviceProcesses(self._library, self._clock, device.uuid)
        return users.uses(entry)


def _shape(entries: Mapping[str, EnumeratedDevice], uuid: str) -> tuple[bool, frozenset[str]]:
    """Whether the device is listed, and its MIG instances. An open device is closed if this changes."""
    return uuid in entries, frozenset(one.device.uuid for one in entries.values() if one.device.parent == uuid)
