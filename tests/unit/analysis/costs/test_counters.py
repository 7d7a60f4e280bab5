import pytest

from gpu_profile.analysis.costs import EngineCounters, engine_counters
from gpu_profile.errors import UsageError

TEXT = """\
# TYPE gpu_profile_build_info gauge
gpu_profile_build_info{version="1",driver="simulated 580"} 1
# TYPE gpu_profile_serving_energy_joules counter
gpu_profile_serving_energy_joules_total{engine="a",tenant="x",phase="prefill"} 10
gpu_profile_serving_energy_joules_total{engine="a",tenant="y",phase="prefill"} 5
gpu_profile_serving_energy_joules_total{engine="a",phase="decode"} 40
gpu_profile_serving_energy_joules_total{engine="b",phase="decode"} 1000
gpu_profile_serving_device_time_seconds_total{engine="a",phase="decode"} 3
gpu_profile_serving_energy_unallocated_joules_total{engine="a",reason="idle"} 7
gpu_profile_serving_energy_unallocated_joules_total{engine="b",reason="idle"} 8
gpu_profile_serving_tokens_total{engine="a",tenant="x",phase="decode"} 12
gpu_profile_serving_requests_total{engine="a",tenant="x"} 2
gpu_profile_serving_requests_total{engine="a",tenant="y"} 3
gpu_profile_serving_phase_half_width_ratio{engine="a",phase="decode"} 0.01
gpu_profile_serving_waiting{engine="a"} 4
gpu_profile_serving_device{engine="a",hw_id="GPU-1"} 1
gpu_profile_serving_device{engine="a",hw_id="GPU-2"} 1
gpu_profile_serving_device{engine="b",hw_id="GPU-3"} 1
gpu_profile_device_info{hw_id="GPU-1",hw_name="H200"} 1
gpu_profile_device_info{hw_id="GPU-2",hw_name="H200"} 1
gpu_profile_device_info{hw_id="GPU-3",hw_name="A10G"} 1
gpu_profile_series_dropped_total{reason="over_budget"} 6
gpu_profile_series_dropped_total{reason="duplicate"} 1
process_start_time_seconds 1.5
"""
COUNTERS = EngineCounters(
    "a", {"prefill": 15, "decode": 40}, {"decode": 3}, {"decode": 12}, {"decode": 0.01}, {"idle": 7}, 5, 4, True,
    "2 x H200", 1.5, 6,
)  # fmt: skip


def test_an_engines_counters_are_summed_over_tenants() -> None:
    assert engine_counters(TEXT, "a") == COUNTERS
    alone = "\n".join(line for line in TEXT.splitlines() if 'engine="b"' not in line)
    assert engine_counters(alone) == COUNTERS


@pytest.mark.parametrize(
    ("text", "engine", "says"),
    [
        (TEXT, "", "several engines: choose one with --engine: a, b"),
        (TEXT, "c", "no engine 'c': there is a, b"),
        ("", "", "no engine with GPUs; start the exporter with --serving"),
        ('gpu_profile_serving_waiting{engine="a"} 0', "a", "no engine with GPUs"),
        ("<html>", "", "not in Prometheus' text format"),
    ],
)
def test_a_scrape_without_the_engine_is_an_error(text: str, engine: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        engine_counters(text, engine)
