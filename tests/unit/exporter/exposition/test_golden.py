"""The whole exposition of a simulated node, byte for byte. GPU_PROFILE_UPDATE_GOLDEN=1 writes it anew."""

import os
from pathlib import Path

from support.exporter import step_for

from gpu_profile.driver import simulated
from gpu_profile.driver.grammar import open_driver
from gpu_profile.sampling.sampler import Sampler
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.exposition.exposition import Exposition
from gpu_profile_exporter.readings.readings import Identity, readings

GOLDEN = Path(__file__).parents[3] / "golden" / "metrics-simulated.txt"
VERSIONS = (("cuda.version", "13.0"), ("hw.driver_version", "580.126.09"), ("nvml.version", "13.580.126.09"))
IDENTITY = Identity("simulated", "580.126.09", "0.1.0", VERSIONS)

#: The models of the built-in node, with work: training, a square wave, and one of two MIG instances in use.
SCENARIO = """
[[device]]
model = "H200 SXM"
memory_used_mib = 51200
  [[device.phase]]
  duration_s = 60
  flops = 4e12
  bytes = 4e9
  precision = "bf16"
  launches = 8
  launch_gap_s = 1e-3
  pcie_bytes = 64e6
  nvlink_bytes = 32e6

[[device]]
model = "A10G"
  [[device.phase]]
  duration_s = 60
  duty = 0.25
  period_s = 1

[[device]]
model = "H100 SXM"
  [[device.mig]]
  profile = "3g.40gb"
    [[device.mig.phase]]
    duration_s = 60
    duty = 0.5
    period_s = 0.1
  [[device.mig]]
  profile = "3g.40gb"
"""


def test_the_exposition_of_a_simulated_node_is_the_golden_one(tmp_path: Path, clock: FakeClock) -> None:
    simulated.create(tmp_path, SCENARIO, clock=clock)
    sampler = Sampler(lambda: open_driver(f"simulated:{tmp_path}", clock=clock), clock=clock, retention_s=60)
    try:
        step_for(sampler, clock, 30)
        exposition = Exposition(lambda: readings(sampler, IDENTITY, clock.now_ns()), process=False)
        text = exposition.render()[0].decode()
    finally:
        sampler.stop()
    if os.environ.get("GPU_PROFILE_UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
