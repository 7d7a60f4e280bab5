from dataclasses import replace

from support.analysis import GPU, B, Run

from gpu_profile.analysis.device_pool import device_pool
from gpu_profile.analysis.devices import timeline_of
from gpu_profile.analysis.runs import gather


def test_a_region_of_another_device_leaves_no_open_column() -> None:
    run = Run(calls=8)
    elsewhere = run.spans[0]._replace(name="elsewhere", span_id="f" * 16, device_intervals=(), devices=(B.uuid,))
    recording = replace(run.recording(), spans=(*run.spans, elsewhere))
    work = gather(recording.spans, GPU.uuid).devices[GPU.uuid]
    assert "elsewhere" in work.regions
    pool = device_pool(timeline_of(GPU, recording.samples[GPU.uuid], []), work, ())
    assert set(pool.attribution.names) == {"load", "forward", "step"}
