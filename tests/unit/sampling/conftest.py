"""One device, and samplers in threads of their own, which end with the test."""

from collections.abc import Callable, Iterator

import pytest
from support.drivers import A, Sampling, World

from gpu_profile.driver import Driver
from gpu_profile.sampling.sampler import Sampler


@pytest.fixture
def world() -> World:
    """A node with one device."""
    return World(A)


@pytest.fixture
def sampling() -> Iterator[Sampling]:
    """Makes a sampler that by itself has nothing to do for an hour: on a fake clock it would race through time."""
    made: list[Sampler] = []

    def make(opens: Callable[[], Driver], interval_s: float = 3600) -> Sampler:
        made.append(Sampler(opens, interval_s=interval_s))
        return made[-1]

    yield make
    for sampler in made:
        sampler.stop()
