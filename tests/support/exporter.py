"""A driver with values from a test, a node on a fake clock, and a host with pods and processes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import grpc

from gpu_profile.catalogue import SIGNALS, Kind, Signal, Tier
from gpu_profile.catalogue.samples import Device, DeviceKind, Event, ProcessUse, Sample
from gpu_profile.driver import Capability
from gpu_profile.driver.null import SilentDriver
from gpu_profile.errors import DeviceLost, GpuBackendError
from gpu_profile.history.ledger import Ledger
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import FakeClock
from gpu_profile.units import nanoseconds
from gpu_profile_exporter.attribution import Attribution
from gpu_profile_exporter.config import AttributionSettings
from gpu_profile_exporter.exposition.exposition import Exposition
from gpu_profile_exporter.reader.intake import DeviceReports
from gpu_profile_exporter.readings.readings import Identity, MetricReading, readings

#: Metrics of a device that has fallen off the bus.
OF_A_LOST_DEVICE = {"gpu_profile_device_info", "gpu_profile_device_up", "hw_status", "nvidia_gpu_xid_errors_any_total"}
IDENTITY = Identity("fake", "1.2.3", "0.1.0")


@dataclass
class FakeDriver(SilentDriver):
    """Returns `values` for every device: quanta by signal, as numbers or functions of the seconds since the start."""

    clock: FakeClock
    list: Sequence[Device]
    values: dict[Signal, int | Callable[[float], int]]
    lost: set[str] = field(default_factory=set)
    frozen: set[Signal] = field(default_factory=set)
    gone: str = ""
    name: str = "fake"
    version: str = "1.2.3"
    calls: int = 0

    def __post_init__(self) -> None:
        self.start_ns = self.clock.now_ns()
        self.last: dict[tuple[str, Signal], int] = {}

    def devices(self) -> Sequence[Device]:
        if self.gone:
            raise GpuBackendError(self.gone)
        return self.list

    def capabilities(self, device: Device) -> Mapping[Signal, Capability]:
        return {row: Capability(row in self.values, "" if row in self.values else "not supported") for row in SIGNALS}

    def read(self, device: Device, tier: Tier) -> Sequence[Sample]:
        self.calls += 1
        if self.gone:
            raise GpuBackendError(self.gone)
        if device.uuid in self.lost:
            raise DeviceLost(f"{device.uuid} fell off the bus")
        return [self._sample(device, row) for row in self.values if row.tier is tier and row not in self.frozen]

    def _sample(self, device: Device, row: Signal) -> Sample:
        now_ns = self.clock.now_ns()
        value = self.values[row]
        quanta = value((now_ns - self.start_ns) / 1e9) if callable(value) else value
        start = now_ns
        if row.kind is Kind.WINDOW_MEAN:
            start = self.last.get((device.uuid, row), now_ns - nanoseconds(0.1))
            self.last[device.uuid, row] = now_ns
        return Sample(row, start, now_ns, quanta)

    def drain(self, device: Device) -> Sequence[Sample]:
        return ()

    def boundary(self, device: Device) -> Sequence[Sample]:
        return [self._sample(device, row) for row in self.values if row.tier is Tier.GPM and row not in self.frozen]

    def events(self) -> Sequence[Event]:
        return ()

    def processes(self, device: Device) -> Sequence[ProcessUse]:
        return ()

    def close(self) -> None:
        pass


def step_for(sampler: Sampler, clock: FakeClock, seconds: float, *, late: Callable[[], float] = lambda: 0.0) -> None:
    """Run the sampler for `seconds`, with each round late by `late()` seconds."""
    end = clock.now_ns() + nanoseconds(seconds)
    while True:
        delay = sampler.step() + late()
        if clock.now_ns() + nanoseconds(delay) > end:
            break
        clock.advance(delay)
    clock.advance((end - clock.now_ns()) / 1e9)


def read_all(sampler: Sampler, clock: FakeClock) -> list[MetricReading]:
    return list(readings(sampler, IDENTITY, clock.now_ns()))


def scrape(sampler: Sampler, clock: FakeClock, accept: str = "") -> str:
    """The exposition now, without this process's own metrics."""
    return Exposition(lambda: read_all(sampler, clock), process=False).render(accept)[0].decode()


def series(text: str) -> dict[str, float]:
    """An exposition's values by series as written."""
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def of(device: str, names: Iterable[str]) -> set[str]:
    """The metrics of the series with a device's hw_id."""
    return {name.partition("{")[0] for name in names if f'hw_id="{device}"' in name}


GIB = 1 << 30
GPU0, GPU1 = "GPU-0aaaaaaa-0000-4000-8000-000000000000", "GPU-1aaaaaaa-0000-4000-8000-000000000001"
MIG0, MIG1 = "MIG-0bbbbbbb-0000-4000-8000-000000000000", "MIG-1bbbbbbb-0000-4000-8000-000000000001"
DEVICES = (
    Device(GPU0, index=0, minor=0, memory_bytes=80 * GIB),
    Device(GPU1, index=1, minor=1, memory_bytes=80 * GIB),
    Device(MIG0, parent=GPU1, kind=DeviceKind.MIG, index=1, minor=1, mig_instance=3, memory_bytes=20 * GIB),
    Device(MIG1, parent=GPU1, kind=DeviceKind.MIG, index=1, minor=1, mig_instance=4, memory_bytes=20 * GIB),
)
CONTAINER = "4f" * 32
POD_UID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
IN_POD = (
    f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD_UID.replace('-', '_')}.slice"
    f"/cri-containerd-{CONTAINER}.scope\n"
)
#: The kernel's clock ticks of the fake host.
TICKS = 100


def states_of(now_ns: int, processes: Mapping[str, Sequence[ProcessUse]] | None = None) -> dict[str, DeviceReports]:
    """All devices, with the processes that the driver listed at `now_ns`; None if it was not asked."""
    listed_ns = None if processes is None else now_ns
    uses = {uuid: tuple(listed) for uuid, listed in (processes or {}).items()}
    return {
        d.uuid: DeviceReports(d, Ledger(), {}, processes=uses.get(d.uuid, ()), processes_ns=listed_ns) for d in DEVICES
    }


class FakeProc:
    """A /proc of plain files, `uptime_s` after the boot."""

    def __init__(self, root: Path, *, uptime_s: float = 10_000.0, host: bool = True) -> None:
        self.root = root
        namespaces = root / "self" / "ns"
        namespaces.mkdir(parents=True)
        self.up(uptime_s)
        (namespaces / "pid").symlink_to("pid:[4026531836]" if host else "pid:[4026532999]")

    def up(self, seconds: float) -> None:
        (self.root / "uptime").write_text(f"{seconds:.2f} 1.00\n")

    def add(
        self, pid: int, *, group: int = 1, cgroup: str = "0::/\n", started_s: float = 100.0, comm: str = "python"
    ) -> Path:
        """A process that began `started_s` after the boot, in place of any other of this pid."""
        directory = self.root / str(pid)
        directory.mkdir(exist_ok=True)
        fields = ["S", "1", str(group), *["0"] * 16, str(round(started_s * TICKS)), *["0"] * 30]
        (directory / "stat").write_text(f"{pid} ({comm}) {' '.join(fields)}\n")
        (directory / "cgroup").write_text(cgroup)
        (directory / "environ").write_bytes(b"SLURM_JOB_ID=666\0TOKEN=SECRET\0")
        (directory / "cmdline").write_bytes(b"python\0train.py\0--password=SECRET\0")
        return directory

    def end(self, pid: int) -> None:
        for path in (self.root / str(pid)).iterdir():
            path.unlink()
        (self.root / str(pid)).rmdir()


def delimited(number: int, content: str | bytes) -> bytes:
    """A length-delimited field of a protobuf message."""
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def devices(resource: str, *ids: str) -> bytes:
    """A field `devices` of a container, with a topology, which the exporter does not read."""
    topology = delimited(3, delimited(1, varint(1 << 3) + varint(1)))
    return delimited(2, delimited(1, resource) + b"".join(delimited(2, name) for name in ids) + topology)


def claim(name: str, *resources: tuple[str, str, str]) -> bytes:
    """A field `dynamic_resources` of a container; each resource is (driver, device, CDI name)."""
    rows = (
        delimited(
            4,
            (delimited(1, delimited(1, cdi)) if cdi else b"")
            + delimited(2, driver)
            + delimited(3, "node-a")
            + delimited(4, device),
        )
        for driver, device, cdi in resources
    )
    return delimited(5, delimited(2, name) + delimited(3, "ns") + b"".join(rows))


def pod(namespace: str, name: str, **containers: bytes) -> bytes:
    """A field `pod_resources` of the answer, with CPUs and memory, which the exporter does not read."""
    cpus = delimited(3, varint(2) + varint(3))
    rows = (delimited(3, delimited(1, container) + content + cpus) for container, content in containers.items())
    return delimited(1, delimited(1, name) + delimited(2, namespace) + b"".join(rows))


Answer = Callable[[grpc.ServicerContext], bytes]


@contextmanager
def kubelet(path: Path, answer: Answer) -> Iterator[list[int]]:
    """A gRPC server at `path` that answers `List` with `answer`'s result. Yields a list that grows with each call."""
    calls: list[int] = []

    def respond(request: bytes, context: grpc.ServicerContext) -> bytes:
        calls.append(len(request))
        return answer(context)

    handler: Any = grpc.method_handlers_generic_handler(
        "v1.PodResourcesLister", {"List": grpc.unary_unary_rpc_method_handler(respond)}
    )
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, options=[("grpc.max_send_message_length", -1)])
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"unix:{path}")
        server.start()
        try:
            yield calls
        finally:
            server.stop(None).wait()


def rows(readings: Iterable[MetricReading], metric: str) -> list[tuple[dict[str, str], float]]:
    """The series of one metric, by its OpenTelemetry name."""
    return [(dict(r.attributes), r.value) for r in readings if r.metric.otel == metric]


def allocations(readings: Iterable[MetricReading]) -> list[dict[str, str]]:
    return [attributes for attributes, _ in rows(readings, "gpu_profile.allocation.info")]


def status(readings: Iterable[MetricReading]) -> dict[str, str]:
    """The reason why each source is down, "" if it is up."""
    sources = rows(readings, "gpu_profile.attribution.up")
    assert all(value == float("reason" not in attributes) for attributes, value in sources)
    return {attributes["source"]: attributes.get("reason", "") for attributes, _ in sources}


def left_out(readings: Iterable[MetricReading]) -> dict[tuple[str, str], float]:
    """The counts of omitted items above 0, by source and reason."""
    sources = rows(readings, "gpu_profile.attribution.left_out")
    return {(a["source"], a["reason"]): value for a, value in sources if value}


def attribution_of(states: Callable[[], Mapping[str, Any]], **options: Any) -> Attribution:
    """An `Attribution`. The options are fields of its settings, and its parameters."""
    names = {each.name for each in fields(AttributionSettings)}
    settings = AttributionSettings(**{name: value for name, value in options.items() if name in names})
    return Attribution(states, settings, **{name: value for name, value in options.items() if name not in names})


class Host:
    """A host on a fake clock. `settings` are those of `attribution_of`."""

    def __init__(self, root: Path, *, host: bool = True, **settings: Any) -> None:
        self.clock = FakeClock()
        self.proc = FakeProc(root / "proc", host=host)
        self.jobs = root / "jobs"
        self.jobs.mkdir()
        self.states: Mapping[str, DeviceReports] = states_of(self.clock.now_ns(), {})
        self.attribution = attribution_of(
            lambda: self.states,
            **{"pods": "off", "containers": False, **settings},
            kubelet_socket=root / "kubelet.sock",
            clock=self.clock,
            proc=self.proc.root,
        )

    def runs(self, **processes: list[ProcessUse]) -> None:
        """Let the driver list these processes now."""
        by_uuid = {{"gpu0": GPU0, "gpu1": GPU1, "mig0": MIG0}[name]: uses for name, uses in processes.items()}
        self.states = states_of(self.clock.now_ns(), by_uuid)

    def read(self) -> list[MetricReading]:
        return list(self.attribution.readings(self.clock.now_ns()))

    def refreshed(self) -> list[MetricReading]:
        self.attribution.refresh()
        return self.read()
