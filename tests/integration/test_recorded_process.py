"""A process that records itself, as `GPU_PROFILE_RECORD` or `configure(record=...)` asks it to."""

import json
from pathlib import Path

import pytest
from support.programs import python

from gpu_profile.analysis import analyse
from gpu_profile.driver import simulated
from gpu_profile.recording import DeviceInterval, read_recording
from gpu_profile.regions.region import region
from gpu_profile.regions.session import process

#: Records into its second argument, if there is one, else where the environment says; tells what it did.
SERVICE = """
import json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from gpu_profile import configure, region
from gpu_profile.driver.simulated import SimulatedQueue, Work, create

node = create(sys.argv[1])
queue = SimulatedQueue(node)
trace.set_tracer_provider(TracerProvider())
configure(backend=f"simulated:{node}", stream=queue, interval_s=0.02, record=sys.argv[2] if sys.argv[2:] else None)
contexts = []
with region("request", strict=True):  # not before the driver is there
    contexts.append(trace.get_current_span().get_span_context())
    with region("step", items=3):
        contexts.append(trace.get_current_span().get_span_context())
        queue.launch(Work(seconds=0.05, flops=1e9))
queue.synchronize()
print(json.dumps([queue.device_uuid, *((f"{c.trace_id:032x}", f"{c.span_id:016x}") for c in contexts)]))
"""

#: Threads and tasks with regions inside regions, all at the same time, and no OpenTelemetry SDK; some fail.
CROWD = """
import asyncio, sys, threading, time
from gpu_profile import configure, process, region
from gpu_profile.driver.simulated import create

node = create(sys.argv[1], '[[device]]\\nmodel = "A10G"\\n')
configure(backend=f"simulated:{node}", interval_s=0.02, record=sys.argv[2])

def work(n):
    for _ in range(3):
        with region(f"outer-{n}"):
            time.sleep(0.01)
            try:
                with region(f"inner-{n}", items=2):
                    time.sleep(0.01)
                    if n == 1:
                        raise ValueError
            except ValueError:
                pass

async def step(n):
    with region(f"task-{n}"):
        await asyncio.sleep(0.01)
        with region(f"part-{n}"):
            await asyncio.sleep(0.02)

async def tasks():
    await asyncio.gather(*map(step, range(3)))

with region("first", strict=True):
    pass
threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
threads.append(threading.Thread(target=lambda: asyncio.run(tasks())))
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
process.stop()
"""


@pytest.mark.parametrize("by", ["environment", "configure"])
def test_a_process_records_its_samples_and_spans_where_it_is_told_to(by: str, tmp_path: Path) -> None:
    node, directory = tmp_path / "node", tmp_path / "recording"
    arguments = [str(node)] if by == "environment" else [str(node), str(directory)]
    env = {"GPU_PROFILE_RECORD": str(directory)} if by == "environment" else {}
    done = python("-c", SERVICE, *arguments, **env)
    assert (done.returncode, done.stderr) == (0, "")
    uuid, (trace_id, request_id), (_, step_id) = json.loads(done.stdout)
    found = read_recording(directory)
    assert found.problems == ()
    (info,) = found.processes
    assert info.driver.startswith("simulated:")
    assert info.end_ns is not None
    assert uuid in [device.uuid for device in found.devices]
    assert len(found.samples[uuid]["energy"].value) >= 1
    spans = {span.name: span for span in found.spans}
    assert set(spans) == {"request", "step"}
    request, step = spans["request"], spans["step"]
    assert {request.trace_id, step.trace_id} == {trace_id}
    assert (request.span_id, step.span_id, step.parent_span_id) == (request_id, step_id, request_id)
    assert (request.parent_span_id, step.items) == (None, 3)
    (interval,) = step.device_intervals
    assert interval == DeviceInterval(uuid, 0, interval.start_ns, interval.end_ns)
    # From the first mark to the end of the work of 50 ms, which the region's code launches when the machine gets to it.
    after_launch_ns = interval.end_ns - interval.start_ns - 50e6
    assert -1e6 <= after_launch_ns <= step.end_ns - step.start_ns
    assert interval.end_ns > step.end_ns, "the GPU runs behind the host"


def test_a_full_disk_does_not_disturb_the_process_that_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = simulated.create(tmp_path / "node")
    (tmp_path / "file").touch()
    process.configure(backend=f"simulated:{node}", interval_s=0.02, record=tmp_path / "file")
    try:
        with region("step", span=False, strict=True):
            process.session().flush()
    finally:
        process.stop()
        process.configure()
    told = [message for message in caplog.messages if "the recording ends here" in message]
    assert len(told) == 1
    assert "cannot be created" in told[0]
    assert "Traceback" not in caplog.text


def test_threads_and_tasks_of_a_process_without_an_sdk_are_kept_apart(tmp_path: Path) -> None:
    directory = tmp_path / "recording"
    done = python("-c", CROWD, str(tmp_path / "node"), str(directory))
    assert (done.returncode, done.stderr) == (0, "")
    found = read_recording(directory)
    assert found.problems == ()
    names = {span.id: span.name for span in found.spans}
    assert len(names) == len(found.spans) == 1 + 18 + 6
    around = {(span.name, names.get(span.parent or "")) for span in found.spans}
    expected = {(f"inner-{n}", f"outer-{n}") for n in range(3)} | {(f"part-{n}", f"task-{n}") for n in range(3)}
    alone = {(name, None) for name in ("first", *(f"{kind}-{n}" for kind in ("outer", "task") for n in range(3)))}
    assert around == expected | alone
    assert {span.name for span in found.spans if span.failed} == {"inner-1"}
    (where,) = {span.devices for span in found.spans}
    assert where == (found.devices[0].uuid,)
    assert all(span.assumed for span in found.spans)
    analysis = analyse(found)
    assert {use.summary.region: use.failures for use in analysis.regions}["inner-1"] == 3
