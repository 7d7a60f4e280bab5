"""How to have a real exporter meet a fault of its driver, and what held.

Each fault runs against an exporter process of its own, which is scraped all the while; `judge` says from the scrapes
alone what held and what did not.
"""

import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from support.nvml_stub.build import SONAME, child_environment
from support.programs import Exporter, exporter

from benchmarks.exporter_children import tree
from benchmarks.fault_scripts import ALL, GPUS, Fault
from gpu_profile_exporter.operating.release import ask
from gpu_profile_exporter.reader.launcher_process import LAUNCHER_NAME

SCRAPE_EVERY_S: Final = 0.2
#: A scrape during the fault takes no longer; the worst of all is told beside it.
SCRAPE_S: Final = 0.05
#: What an exporter under a fault may say of a device that is lost. The sums of its holders stay for a while.
_LEFT: Final = (
    "gpu_profile_device_info", "gpu_profile_device_up", "hw_status", "nvidia_gpu_xid", "gpu_profile_allocation_energy",
    "gpu_profile_allocation_time",
)  # fmt: skip


class Bench:
    """A running exporter over the stub, and what can be done to it."""

    def __init__(self, running: Exporter, directory: Path, library: Path) -> None:
        self.exporter = running
        self.directory = directory
        self.library = library

    @property
    def port(self) -> int:
        """Where it serves."""
        return int(self.exporter.url.rpartition(":")[2])

    def control(self, *lines: str) -> None:
        """Have these faults from now on, and no others."""
        write_control(self.directory, *lines)

    def readers(self) -> list[int]:
        """Process ids of its readers, the listener among them, without the launcher."""
        return [pid for pid, name in self.children().items() if name != LAUNCHER_NAME]

    def children(self) -> dict[int, str]:
        """Its processes, and what they call themselves."""
        found = {}
        for pid in tree(self.exporter.process.pid)[1:]:
            with suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/comm").read_text().strip()
        return found

    def signal_readers(self, number: int) -> None:
        """Send every reader a signal."""
        for pid in self.readers():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def garble(self) -> None:
        """Write into a reader's pipe what is no message."""
        (pid, *_) = self.readers()
        pipes = (one for one in Path(f"/proc/{pid}/fd").iterdir() if str(one.readlink()).startswith("pipe:"))
        # Besides standard error, it writes to no other.
        out = next(one for one in pipes if int(one.name) > 2 and one.lstat().st_mode & stat.S_IWUSR)
        fd = os.open(out, os.O_WRONLY)
        try:
            os.write(fd, b"\x10\0\0\0" + os.urandom(60))
        finally:
            os.close(fd)

    def install(self) -> None:
        """Put the driver's library where it is looked for."""
        (self.directory / "lib" / SONAME).symlink_to(self.library)

    def release(self, seconds: float) -> None:
        """Ask it to let go of the GPUs."""
        ask(self.port, seconds)


def write_control(directory: Path, *lines: str) -> None:
    """Put the file of faults in its place whole."""
    changed = directory / "control.new"
    changed.write_text("".join(f"{line}\n" for line in lines))
    changed.replace(directory / "control")


class Scrape(NamedTuple):
    """One look at /metrics: the moment of its answer, how long it took, the series by name and labels, the counters."""

    t: float
    took: float
    series: dict[str, float]
    counters: frozenset[str]

    def value(self, metric: str, device: str = "") -> float | None:
        """The value of the first series of this metric (of this device)."""
        for name, value in self.series.items():
            if name.startswith(metric) and name[len(metric) : len(metric) + 1] in ("{", "") and device in name:
                return value
        return None

    def metrics(self, device: str) -> frozenset[str]:
        """The metrics that this device has."""
        mark = f'hw_id="{device}"'
        return frozenset(name.partition("{")[0] for name in self.series if mark in name)

    def up(self, device: str) -> bool:
        """Whether it is told to answer."""
        return self.value("gpu_profile_device_up", device) == 1


@dataclass
class Watch:
    """What the scrapes of one run saw. `began`, `ended`: of the fault, in the same seconds."""

    scrapes: list[Scrape] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0
    exit_code: int | None = None
    errors: str = ""

    def during(self) -> list[Scrape]:
        return [one for one in self.scrapes if self.began <= one.t < self.ended]

    def last_before(self, moment: float) -> Scrape | None:
        return next((one for one in reversed(self.scrapes) if one.t < moment), None)


class Outcome(NamedTuple):
    """What one fault came to: `problems` is empty if it was survived as promised.

    Seconds: the others' longest pause; until it was told, and recovered from; the scrape that nine of ten were as fast
    as, and the slowest. None: not asked.
    """

    fault: Fault
    problems: list[str]
    gap_s: float | None
    told_s: float | None
    recovery_s: float | None
    usual_s: float
    scrape_s: float


def parse(body: bytes, t: float, took: float) -> Scrape:
    """An exposition's series and which of its families are counters."""
    series: dict[str, float] = {}
    counters = set()
    for line in body.decode().splitlines():
        if line.startswith("# TYPE ") and line.endswith(" counter"):
            counters.add(line.split(" ")[2])
        elif line and line[0] != "#":
            name, _, value = line.rpartition(" ")
            series[name] = float(value)
    return Scrape(t, took, series, frozenset(counters))


class _Watcher:
    """Scrapes until it is told to end."""

    def __init__(self, bench: Bench) -> None:
        self.watch = Watch()
        self._bench = bench
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                status, _, body = self._bench.exporter.get("/metrics")
                ended = time.monotonic()
                if status != 200:
                    self.watch.failures.append(f"/metrics answered {status}")
                else:
                    self.watch.scrapes.append(parse(body, ended, ended - started))
            except OSError as error:
                self.watch.failures.append(f"/metrics: {error}")
            self._stop.wait(max(0.0, SCRAPE_EVERY_S - (time.monotonic() - started)))

    def wait_for(self, what: Callable[[Scrape], bool], timeout_s: float) -> bool:
        """Until the newest scrape is as wanted."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.watch.scrapes and what(self.watch.scrapes[-1]):
                return True
            time.sleep(0.05)
        return False

    def end(self) -> Watch:
        """Scrape no more."""
        self._stop.set()
        self._thread.join(15)
        return self.watch


@contextmanager
def bench(library: Path, directory: Path, fault: Fault) -> Iterator[Bench]:
    """An exporter over a stub of its own, with the faults that are there from the start."""
    home = directory / "lib"
    home.mkdir(parents=True)
    absent = [f"gone {ALL.index(device)}" for device in fault.absent]
    write_control(directory, *absent, *(fault.lines if fault.from_start else ()))
    if not fault.library_later:
        (home / SONAME).symlink_to(library)
    stub = child_environment(home / SONAME, gpus=GPUS, gpm=1, control=directory / "control")
    changed = {name: stub[name] for name in stub if name.startswith(("NVML_STUB", "LD_LIBRARY"))}
    with exporter("--driver", "nvml", **changed) as running:
        yield Bench(running, directory, library)


def run(fault: Fault, library: Path, directory: Path) -> Watch:
    """Have an exporter meet the fault."""
    with bench(library, directory, fault) as node:
        watcher = _Watcher(node)
        watch = watcher.watch
        if not fault.from_start:
            there = [device for device in ALL if device not in fault.absent]
            if not watcher.wait_for(lambda one: all(_well(one, device) for device in there), 20):
                watch.failures.append("the GPUs were never read before the fault")
            time.sleep(1.2)
            if fault.ahead:
                node.control(*fault.ahead)
                time.sleep(4.0)
            node.control(*fault.ahead, *fault.lines)
        watch.began = time.monotonic()
        watch.failures += fault.act(node) or ()
        time.sleep(max(0.0, fault.seconds - (time.monotonic() - watch.began)))
        node.control(*fault.kept)
        watch.failures += fault.undo(node) or ()
        watch.ended = time.monotonic()
        watcher.wait_for(lambda one: _recovered(fault, watch, one), fault.recovery_s + 6)
        time.sleep(0.5)
        watcher.end()
        readers = node.readers()
        watch.exit_code = node.exporter.process.poll()
        if watch.exit_code is None:
            code, watch.errors = node.exporter.end(signal.SIGTERM)
            watch.failures += [f"it ended with exit code {code}"] if code else []
            watch.failures += [f"reader {pid} outlived it" for pid in readers if Path(f"/proc/{pid}/maps").exists()]
    return watch


# ---------------------------------------------------------------------- what held


def _well(scrape: Scrape, device: str) -> bool:
    least = 10 if device.startswith("MIG") else 25
    return scrape.up(device) and len(scrape.metrics(device)) > least


def _recovered(fault: Fault, watch: Watch, scrape: Scrape) -> bool:
    """Whether, after the fault, all that should be there is told again, and what should not be is not."""
    before, last = watch.last_before(watch.began), watch.last_before(watch.ended)
    if scrape.t < watch.ended or not all(_well(scrape, device) for device in fault.after):
        return False
    if any(scrape.metrics(device) for device in fault.appear if device not in fault.after):
        return False
    for device in fault.after:
        lacking = (before.metrics(device) if before is not None else frozenset()) - scrape.metrics(device)
        if lacking and not (fault.for_good and device in (*fault.touched, *fault.appear)):
            return False
        then, now = (one and one.value("gpu_profile_samples_total", device) for one in (last, scrape))
        if now is None or (then is not None and now <= then):
            return False
    return True


def judge(fault: Fault, watch: Watch) -> Outcome:
    """What held of the promises, by the scrapes."""
    problems = list(dict.fromkeys(watch.failures))
    if watch.exit_code is not None:
        problems.append(f"the exporter ended ({watch.exit_code})")
    during = watch.during()
    if not during:
        return Outcome(fault, [*problems, "nothing was scraped during the fault"], None, None, None, 0.0, 0.0)
    took = sorted(one.took for one in during)
    usual = took[int(0.9 * (len(took) - 1))]
    if usual > SCRAPE_S:
        problems.append(f"scrapes took {usual * 1e3:.0f} ms")
    gap = told = None
    others = [device for device in ALL if device not in (*fault.lost, *fault.touched)]
    if others and not fault.from_start:
        gap = max(_gap(watch, device) for device in others)
        if gap > fault.gap_s:
            problems.append(f"another GPU had no samples for {gap:.1f} s")
        problems += [f"{device} was told as down" for device in others if any(not one.up(device) for one in during)]
    if fault.lost and fault.told_s is not None:
        moments = [one.t - watch.began for one in during if all(_vanished(one, device) for device in fault.lost)]
        told = min(moments, default=None)
        if told is None:
            problems.append("it was never told that a GPU is lost")
        elif told > fault.told_s:
            problems.append(f"that a GPU is lost was told after {told:.1f} s")
    for device in fault.appear:
        met = min(
            (one.t - watch.began for one in watch.scrapes if one.t >= watch.began and one.up(device)), default=99.0
        )
        if met > fault.appear_s:
            problems.append(f"{device} was not met within {fault.appear_s:.0f} s")
    problems += [
        f"{metric} is told all the same" for metric in fault.missing if metric in during[-1].metrics(fault.touched[0])
    ]
    back = next((one.t - watch.ended for one in watch.scrapes if _recovered(fault, watch, one)), None)
    if back is None or back > fault.recovery_s:
        problems.append("it did not recover" if back is None else f"it took {back:.1f} s to recover")
    problems += [*_backwards(watch, fault.resets), *_mixed_up(watch), *fault.holds(watch)]
    return Outcome(fault, problems, gap, told, back, usual, max(took))


def _gap(watch: Watch, device: str) -> float:
    """The longest time, from the fault's start to its end, in which the device's samples did not grow."""
    since, value, longest = watch.began, -1.0, 0.0
    for one in watch.scrapes:
        now = one.value("gpu_profile_samples_total", device)
        if now is not None and now != value:
            if one.t >= watch.began:
                longest = max(longest, one.t - since)
            since, value = one.t, now
        if one.t > watch.ended:
            break
    return max(longest, watch.ended - since)


def _vanished(scrape: Scrape, device: str) -> bool:
    failed = [name for name in scrape.series if name.startswith("hw_status") and device in name and '"failed"' in name]
    told = not scrape.up(device) and (not failed or scrape.series[failed[0]] == 1)
    return told and all(name.startswith(_LEFT) for name in scrape.metrics(device))


def _backwards(watch: Watch, resets: tuple[str, ...]) -> list[str]:
    """Counters that went back. What busy time is taken from is settled in the first second of a device."""
    first: dict[str, float] = {}
    seen: dict[str, float] = {}
    found = {}
    for one in watch.scrapes:
        for name, value in one.series.items():
            family = name.partition("{")[0]
            if family not in one.counters or family.startswith("process_") or family in resets:
                continue
            if one.t - first.setdefault(name, one.t) > 1.0 and value < seen.get(name, value):
                found[family] = f"{family} went back from {seen[name]:g} to {value:g}"
            seen[name] = value
    return list(found.values())


def _mixed_up(watch: Watch) -> list[str]:
    """Each of the stub's GPUs uses its own amount of memory."""
    found = set()
    for one in watch.scrapes:
        for gpu, device in enumerate(ALL):
            used = one.value("hw_gpu_memory_usage_bytes", device)
            if used not in (None, (4 + gpu) << 30):
                found.add(f"{device} was told another GPU's memory")
    return sorted(found)
