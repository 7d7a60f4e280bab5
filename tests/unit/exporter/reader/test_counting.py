"""How GPUs that came later are noticed: by the kernel's list, or by counting."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pynvml
import pytest

from gpu_profile.driver import simulated
from gpu_profile.driver.nvml.enumeration import count_gpus
from gpu_profile.driver.nvml.library import NvmlLibrary
from gpu_profile.testing import FakeClock
from gpu_profile.units import nanoseconds
from gpu_profile_exporter.reader import counting as module
from gpu_profile_exporter.reader.counting import COUNT_S, SHARE, DeviceCounting
from gpu_profile_exporter.reader.heartbeat import Heartbeat
from gpu_profile_exporter.reader.presence import listed

NODE = """
[[device]]
model = "L4"
[[device]]
model = "L4"
[[fault]]
kind = "gpu_removed"
device = 0
from_s = 10
to_s = 20
[[fault]]
kind = "driver_reload"
from_s = 30
to_s = 40
"""


@pytest.fixture
def counting(tmp_path: Path, clock: FakeClock) -> Iterator[DeviceCounting]:
    simulated.create(tmp_path / "node", NODE, clock=clock)
    where = Heartbeat.create()
    with simulated.installed(tmp_path / "node", clock=clock):
        yield DeviceCounting(where, clock)
    where.close()


def run(counting: DeviceCounting, clock: FakeClock, seconds: float) -> list[tuple[float, int]]:
    """When how many were counted."""
    start, found = clock.now_ns(), []
    while clock.now_ns() < start + nanoseconds(seconds):
        delay = counting.step()
        found += [((clock.now_ns() - start) / 1e9, message[1]) for message in counting.news(clock.now_ns())]
        clock.advance(delay)
    return found


def test_a_gpu_that_goes_and_comes_is_counted_soon_and_nvml_is_stopped_in_between(
    counting: DeviceCounting, clock: FakeClock
) -> None:
    found = run(counting, clock, 50)
    changes = [found[0]] + [now for before, now in pairwise(found) if before[1] != now[1]]
    assert [count for _, count in changes] == [2, 1, 2]
    assert all(late <= COUNT_S for late in (changes[1][0] - 10, changes[2][0] - 20))
    assert not [at for at, _ in found if 30 <= at < 40]
    # The same count is sent again only after the driver was away.
    assert len([at for at, _ in found if at >= 40]) == 1
    assert len(found) == 4
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


def test_where_starting_nvml_costs_much_it_is_rarely_done(
    counting: DeviceCounting, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "process_time_ns", iter(range(0, 10**12, nanoseconds(0.1))).__next__)
    counts: list[int] = []

    def counted(library: NvmlLibrary) -> int:
        counts.append(count_gpus(library))
        return counts[-1]

    monkeypatch.setattr(module, "count_gpus", counted)
    run(counting, clock, 300)
    assert len(counts) == round(300 * SHARE / 0.1)


def test_the_kernel_s_list_is_of_gpus_and_their_files_or_cannot_be_seen(tmp_path: Path) -> None:
    gpus, files = tmp_path / "gpus", tmp_path / "dev"
    assert listed(gpus, files) is None
    (gpus / "0000:17:00.0").mkdir(parents=True)
    assert listed(gpus, files) == frozenset({"0000:17:00.0"})
    files.mkdir()
    for name in ("nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "null"):
        (files / name).touch()
    assert listed(gpus, files) == frozenset({"0000:17:00.0", "nvidia0", "nvidia12"})
