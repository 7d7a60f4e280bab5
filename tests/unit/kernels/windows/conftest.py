"""A session that is driven by hand, on a clock of the tests' own, and a profiler that yields what a test says."""

from collections.abc import Iterator

import pytest
from support.kernels import FakeSource, regions

from gpu_profile.kernels.windows.window import OPEN
from gpu_profile.regions.session.session import Session
from gpu_profile.testing import FakeClock


@pytest.fixture
def session(clock: FakeClock) -> Iterator[Session]:
    with regions(clock) as made:
        yield made
        assert OPEN.holder is None
        assert made.watchers == ()


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()
