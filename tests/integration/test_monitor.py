"""Monitored runs in real time, with threads, forks, signals and the ends of processes. The GPUs are simulated."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.programs import environment

from gpu_profile import configure
from gpu_profile.driver import simulated
from gpu_profile.driver.simulated import SimulatedQueue, Truth, Work
from gpu_profile.monitor import GpuMonitor, gpu_profile
from gpu_profile.monitor.gpu_summary import GpuSummary
from gpu_profile.regions.session import process

#: Busy time in windows of 105 ms, and in trailing windows of longer than that.
MODELS = ["H200 SXM", "A10G"]


@pytest.fixture(params=MODELS)
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SimulatedQueue]:
    node = simulated.create(tmp_path / "node", f'[[device]]\nmodel = "{request.param}"\n')
    configure(backend=f"simulated:{node}")
    with SimulatedQueue(node) as queue:
        yield queue
        process.stop()
        configure()


def busy(queue: SimulatedQueue, seconds: float) -> None:
    queue.launch(Work(seconds=seconds, flops=1e12))
    queue.synchronize()


def test_report_agrees_with_what_the_gpu_did(queue: SimulatedQueue) -> None:
    time.sleep(0.5)
    begun_ns = time.time_ns()
    with GpuMonitor(interval_s=0.1) as monitor:
        for _ in range(4):
            busy(queue, 0.4)
            time.sleep(0.3)
    got = monitor.summary
    assert got is not None
    truth = Truth(queue._directory).device(0, begun_ns, time.time_ns())
    assert truth.busy_s == pytest.approx(1.6, abs=0.1)
    assert got.coverage > 0.9
    assert got.busy_time_est_s == pytest.approx(truth.busy_s, rel=0.1)
    assert got.util_gpu_mean == pytest.approx(100 * truth.busy_s / got.duration_s, rel=0.1)
    assert got.energy_j is not None
    assert got.energy_j > 0
    assert len(got.sparkline) == 40


def test_threads_share_one_sampler_and_each_has_its_own_run(queue: SimulatedQueue) -> None:
    samplers: set[int] = set()

    @gpu_profile(return_profile=True, report=False, interval_s=0.05)
    def work(seconds: float) -> None:
        time.sleep(seconds)
        samplers.add(sum(thread.name == "gpu-profile-sampler" for thread in threading.enumerate()))

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, [0.1 + 0.02 * i for i in range(8)]))
    assert samplers == {1}
    durations = [result.gpu.duration_s for result in results]
    assert all(duration >= 0.1 + 0.02 * i - 1e-3 for i, duration in enumerate(durations))
    assert process.session().holds == 0
    assert process.session().sampler.interval_s == 0.05


def test_event_loop_goes_on_while_a_coroutine_waits_for_its_numbers(queue: SimulatedQueue) -> None:
    turns = 0
    at_end: list[int] = []
    seen: list[GpuSummary] = []

    @gpu_profile(report=seen.append)
    async def work() -> None:
        await asyncio.sleep(0.3)
        at_end.append(turns)

    async def spin() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    async def main() -> int:
        spinning = asyncio.create_task(spin())
        await asyncio.gather(work(), work())
        spinning.cancel()
        return turns

    turned = asyncio.run(main())
    assert len(seen) == 2
    assert turned > at_end[-1] + 5


def test_task_that_is_cancelled_is_summed_up_and_leaves_nothing_behind(queue: SimulatedQueue) -> None:
    seen: list[GpuSummary] = []
    at_work = asyncio.Event()

    @gpu_profile(report=seen.append)
    async def work(seconds: float) -> None:
        at_work.set()
        await asyncio.sleep(seconds)

    async def main() -> None:
        running = asyncio.create_task(work(60))
        # Before the function is at work there is nothing to sum up.
        await at_work.wait()
        await asyncio.sleep(0.4)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert len(seen) == 1
        # Cancelled while it waits for its numbers: they will not come.
        waiting = asyncio.create_task(work(0))
        while not process.session().holds:
            await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    assert len(seen) == 1
    assert process.session().holds == 0
    assert process.session().sampler.sinks == []
    assert process.session().sampler.interval_s == 0.05


def script(code: str, *arguments: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(GPU_PROFILE_BACKEND="simulated", **more),
    )


def finished(running: subprocess.Popen[str]) -> tuple[str, str]:
    """What it printed, once it has ended by itself and well."""
    out, errors = running.communicate(timeout=60)
    assert (running.returncode, errors) == (0, ""), errors
    return out, errors


def test_interrupted_function_is_reported_before_the_program_ends() -> None:
    code = """
import time
from gpu_profile.monitor import gpu_profile

@gpu_profile
def train():
    print("running", flush=True)
    time.sleep(60)

train()
"""
    running = script(code)
    assert running.stdout is not None
    assert running.stdout.readline() == "running\n"
    running.send_signal(signal.SIGINT)
    out, errors = running.communicate(timeout=60)
    assert out.startswith("[GPU 0] NVIDIA ")
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert running.returncode == -signal.SIGINT


ENDINGS = {
    "in a daemon thread": "threading.Thread(target=forever, daemon=True).start(); time.sleep(0.3)",
    "never left": "GpuMonitor().__enter__(); time.sleep(0.3)",
    "left by exit": "\nwith GpuMonitor(): sys.exit()",
    "by another driver": "GpuMonitor(backend='none').__enter__()",
    "at exit": "late.append(inside)",
    "in an abandoned generator": "steps = generate(); next(steps)",
}


@pytest.mark.parametrize("how", ENDINGS)
def test_program_ends_while_a_monitor_runs(how: str) -> None:
    code = f"""
import atexit, sys, threading, time
late = []
atexit.register(lambda: [call() for call in late])  # after those of what is imported later
from gpu_profile.monitor import GpuMonitor, gpu_profile

def forever():
    with GpuMonitor():
        time.sleep(1000)

def inside():
    with GpuMonitor() as monitor:
        pass
    print(monitor.summary.notes)

@gpu_profile(report=False, return_profile=True)
def generate():
    while True:
        yield 1

{ENDINGS[how]}
print("end", flush=True)
"""
    out, _ = finished(script(code))
    expected = [] if how == "left by exit" else ["end"]
    assert out.splitlines() == [*expected, *(["this process does not sample"] if how == "at exit" else [])]


def test_fork_inside_a_run_leaves_the_numbers_to_the_parent_and_the_child_has_its_own() -> None:
    code = """
import os, sys, time
from gpu_profile.monitor import GpuMonitor, gpu_profile

def tell(who, monitor):
    print(who, monitor.summary.n_samples > 0, "forked" in monitor.summary.notes, flush=True)

@gpu_profile
def forks():
    return os.fork()

with GpuMonitor() as around:
    time.sleep(0.4)
    child = os.fork()
    if child == 0:
        with GpuMonitor() as own:
            time.sleep(0.4)
        tell("child", own)
    else:
        assert os.waitpid(child, 0)[1] == 0
tell("around", around)
if child == 0:
    sys.stdout.flush()
    os._exit(0)
if (grandchild := forks()) == 0:
    print("no report", flush=True)
    os._exit(0)
assert os.waitpid(grandchild, 0)[1] == 0
"""
    lines = finished(script(code))[0].splitlines()
    told = [line for line in lines if line.startswith(("child", "around", "no report"))]
    assert told == ["child True False", "around False True", "around True False", "no report"]
    assert sum(line.startswith("[GPU 0]") for line in lines) == 1


def test_driver_opened_for_a_monitor_alone_is_closed_with_the_program() -> None:
    code = """
import time
from gpu_profile import configure
from gpu_profile.monitor import GpuMonitor
configure(backend="none")
with GpuMonitor(backend="simulated") as monitor:
    time.sleep(0.5)
print(monitor.summary.n_samples > 0, monitor.summary.name)
"""
    assert finished(script(code))[0].startswith("True NVIDIA ")


def test_driver_that_hangs_holds_a_run_up_no_longer_than_promised(tmp_path: Path) -> None:
    code = """
import sys, time
from gpu_profile import configure
from gpu_profile.driver import simulated
from gpu_profile.monitor import GpuMonitor
hang = '[[device]]\\nmodel = "L4"\\n\\n[[fault]]\\nkind = "hang"\\nfrom_s = 1.5\\nhang_s = 20.0\\n'
configure(backend=f"simulated:{simulated.create(sys.argv[1], hang)}")
with GpuMonitor() as monitor:
    time.sleep(2.0)
summary = monitor.summary
print(summary.duration_s < 10.0, 0.0 < summary.coverage < 0.95, "samples cover" in summary.notes)
"""
    assert finished(script(code, str(tmp_path / "node")))[0] == "True True True\n"
