import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.drivers import A, FakeDriver, wait_for
from unit.monitor.scene import Scene

from gpu_profile import GpuBackendError, configure
from gpu_profile.driver.grammar import BACKEND_VARIABLE
from gpu_profile.errors import UnknownBackendError
from gpu_profile.monitor import GpuMonitor, holds
from gpu_profile.monitor.holds import hold
from gpu_profile.regions.session import process
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import FakeClock


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The drivers that were opened, none of which is real; the process has none of its own."""
    found: list[str] = []

    def open_driver(spec: str, **_: object) -> FakeDriver:
        found.append(spec)
        return FakeDriver(FakeClock(), [A], name="nvml" if spec == "auto" else spec)

    monkeypatch.setattr(holds, "open_driver", open_driver)
    monkeypatch.setattr(process, "open_driver", open_driver)
    monkeypatch.delenv(BACKEND_VARIABLE, raising=False)
    configure()
    yield found
    holds._stop_others()
    process.stop()
    configure()


def test_all_who_name_one_driver_share_its_sampler_at_the_smallest_interval(opened: list[str]) -> None:
    first, second = hold("smi", 0.5), hold("smi", 0.2)
    sampler = first.sampler
    assert sampler is not None
    assert sampler is second.sampler
    assert sampler.interval_s == 0.2
    assert first.session is None
    wait_for(lambda: sampler.stats.rounds)
    assert opened == ["smi"]
    second.release()
    second.release()
    assert sampler.interval_s == 0.5
    first.release()
    assert first.sampler is None


def test_driver_that_nobody_has_held_for_a_while_is_closed_and_opened_again_on_demand(
    opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = hold("smi", 0.5)
    sampler, other = held.sampler, held.other
    assert sampler is not None
    assert other is not None
    held.release()
    other.retire()  # too early
    assert sampler.running
    monkeypatch.setattr(holds, "IDLE_S", 0.0)
    with_another = hold("smi", 0.5)
    other.retire()  # held again
    assert sampler.running
    assert with_another.sampler is sampler
    with_another.release()
    wait_for(lambda: not sampler.running)
    fresh = hold("smi", 0.5)
    assert fresh.sampler is not sampler
    fresh.release()


def test_driver_of_the_process_serves_whoever_names_it(opened: list[str]) -> None:
    by_default, by_name = hold("auto", 0.5), hold("nvml", 0.5)
    assert by_default.sampler is by_name.sampler
    assert by_name.session is process.session()
    assert process.session().holds == 2
    by_default.release()
    by_name.release()
    assert process.session().holds == 0
    assert opened == ["auto"]


def test_driver_that_the_process_does_not_use_is_read_beside_it(opened: list[str]) -> None:
    own, beside = hold("auto", 0.5), hold("smi", 0.5)
    assert own.sampler is not beside.sampler
    assert beside.session is None
    with GpuMonitor(backend="smi", strict=True) as monitor:
        pass
    assert monitor.summary is not None
    assert monitor.summary.name == "GPU-A"
    assert sorted(opened) == ["auto", "smi"]
    own.release()
    beside.release()


def test_simulated_and_other_nvml_do_not_share_a_process(tmp_path: Path) -> None:
    with Scene(tmp_path):
        for backend in ("nvml", "simulated", f"simulated:{tmp_path / 'other'}"):
            with pytest.raises(GpuBackendError, match=r"already reads 'simulated:.*', and simulated GPUs replace NVML"):
                hold(backend, 0.5)
        assert hold("none", 0.5).reason == "sampling is off (backend none)"
    with pytest.raises(UnknownBackendError):
        hold("nvlm", 0.5)


def test_worker_of_a_dataloader_leaves_sampling_to_its_parent(
    opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = types.ModuleType("torch.utils.data")
    data.get_worker_info = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.data", data)
    for backend in ("auto", "smi"):
        with GpuMonitor(backend=backend) as monitor:
            pass
        assert monitor.summary is not None
        assert monitor.summary.notes == "this process does not sample"
    assert opened == []


def test_process_that_ends_samples_nothing_more(opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    held = hold("smi", 0.5)
    sampler = held.sampler
    assert sampler is not None
    holds._stop_others()
    assert not sampler.running
    monkeypatch.setattr(process, "_exiting", True)
    assert hold("smi", 0.5).reason == hold("auto", 0.5).reason == "this process does not sample"
    held.release()


def test_session_goes_on_for_a_while_after_the_last_monitor(tmp_path: Path) -> None:
    with Scene(tmp_path) as scene:
        scene.clock.advance(100.0)
        assert scene.session.idle
        with GpuMonitor():
            assert not scene.session.idle
            scene.clock.advance(100.0)
            assert not scene.session.idle
        assert not scene.session.idle
        scene.clock.advance(31.0)
        assert scene.session.idle


def test_process_that_may_have_no_more_threads_goes_on_without_numbers(
    opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Sampler) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Sampler, "start", refuse)
    for backend in ("smi", "auto"):
        assert hold(backend, 0.5).reason == "this process does not sample"
