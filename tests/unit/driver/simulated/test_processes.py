"""Processes of a simulated node as the NVML driver lists them, judged by what really happened."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_profile.driver.nvml import NvmlDriver
from gpu_profile.driver.simulated import SimulatedQueue, Truth, Work
from gpu_profile.testing import FakeClock
from gpu_profile.units import MIB

NODE = 'start_ns = {start}\n[[device]]\nmodel = "H200 SXM"\n'
MIG = '[[device]]\nmodel = "H100 SXM"\n[[device.mig]]\nprofile = "3g.40gb"\n[[device.mig]]\nprofile = "3g.40gb"\n'
OTHER = os.getppid()


@pytest.fixture
def as_other(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, FakeClock], SimulatedQueue]:
    """Makes a queue of another process, which is there for as long as this one."""

    def make(directory: Path, clock: FakeClock) -> SimulatedQueue:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: OTHER)
            return SimulatedQueue(directory, clock=clock)

    return make


def test_shares_of_two_processes_are_what_their_kernels_did(
    install: Callable[..., Path],
    clock: FakeClock,
    as_other: Callable[[Path, FakeClock], SimulatedQueue],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = install(NODE.format(start=clock.now_ns()))
    mine, other = SimulatedQueue(directory, clock=clock), as_other(directory, clock)
    mine.allocate(64 * MIB)
    driver = NvmlDriver(clock=clock)
    device = driver.devices()[0]
    clock.advance(1)
    assert {use.pid: use.utilization for use in driver.processes(device)} == {os.getpid(): None, OTHER: None}
    for mine_s, other_s in ((1.0, 0.0), (2.0, 1.0), (0.0, 3.0), (0.5, 0.5), (5.0, 5.0)):
        before = clock.now_ns()
        if mine_s:
            mine.launch(Work(seconds=mine_s, flops=1e9), tag="mine")
        if other_s:
            with monkeypatch.context() as patch:
                patch.setattr(os, "getpid", lambda: OTHER)
                other.launch(Work(seconds=other_s, flops=1e9), tag="other")
        clock.advance(5)
        found = {use.pid: use for use in driver.processes(device)}
        truth, after = Truth(directory, clock=clock), clock.now_ns()
        for pid, tag in ((os.getpid(), "mine"), (OTHER, "other")):
            share = truth.tag(device.uuid, tag, before, after).busy_s / 5 if tag in truth.tags else 0.0
            if share:
                # Per cents in whole numbers; either end lies up to 0.1 s and what is not published yet before.
                assert found[pid].utilization == pytest.approx(share, abs=0.03)
            else:
                assert found[pid].utilization is None
        assert sum(use.utilization or 0 for use in found.values()) <= 1.0
    assert found[os.getpid()].memory_bytes == 64 * MIB


def test_a_process_on_a_mig_instance_is_listed_there_alone(install: Callable[..., Path], clock: FakeClock) -> None:
    directory = install(MIG)
    driver = NvmlDriver(clock=clock)
    gpu, first, second = driver.devices()
    with SimulatedQueue(directory, second.uuid, clock=clock) as queue:
        queue.allocate(MIB)
        queue.launch(Work(seconds=3))
        for _ in range(2):
            clock.advance(1)
            assert list(driver.processes(gpu)) == list(driver.processes(first)) == []
            (use,) = driver.processes(second)
            assert (use.pid, use.memory_bytes, use.utilization) == (os.getpid(), MIB, None)
