from collections.abc import Iterator
from typing import Any

import pytest
from support.kernels import FakeSource

from gpu_profile import region, stop
from gpu_profile.errors import GpuBackendError, UsageError
from gpu_profile.kernels.windows.window import Recording, Window, record
from gpu_profile.regions.session.session import Session
from gpu_profile.testing import FakeClock


@pytest.fixture
def stopped() -> Iterator[None]:
    """The process's own session, which ends with the test."""
    yield
    stop()


def test_a_recording_is_read_when_its_report_is_asked_for(session: Session, clock: FakeClock) -> None:
    source = FakeSource()
    with Recording(Window(source, clock=clock)) as recording:
        with region("step", span=False):
            clock.advance(0.001)
            source.kernel(clock.now_ns())
            clock.advance(0.001)
        with pytest.raises(UsageError, match="must end first"):
            _ = recording.report
    assert recording.report.region("step").operations == 1
    assert recording.report is recording.report


@pytest.mark.parametrize("where", ["stop", "read"])
def test_a_recording_that_fails_lets_the_block_go_on_and_says_so_in_the_report(
    session: Session, clock: FakeClock, where: str
) -> None:
    with Recording(Window(FakeSource(fails=where), clock=clock)) as recording:
        pass
    for _ in range(2):
        with pytest.raises(GpuBackendError, match="today"):
            _ = recording.report


def test_the_blocks_own_exception_passes_through(session: Session, clock: FakeClock) -> None:
    with pytest.raises(KeyError), Recording(Window(FakeSource(fails="stop"), clock=clock)):
        raise KeyError


def test_a_recording_of_pytorch_on_a_cpu_tells_each_regions_operators(stopped: None) -> None:
    torch: Any = pytest.importorskip("torch")
    with record() as recording:
        with region("exponents", span=False):
            torch.ones(4).exp()
        with region("nothing", span=False):
            pass
    report = recording.report
    assert (report.source, report.on_host) == ("torch", True)
    assert report.region("exponents").kernels["aten::exp"].count == 1
    assert report.region("nothing").kernels == {}
    assert report.region("exponents").memory


def test_two_recordings_at_once_are_refused(stopped: None) -> None:
    pytest.importorskip("torch")
    with record(), pytest.raises(UsageError, match="only one window"), record():
        pass
