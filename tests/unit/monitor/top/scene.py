"""A node for the view: three simulated GPUs on a fake clock, a program with regions, and their source."""

from collections.abc import Sequence
from pathlib import Path

from support.exporter import step_for
from support.nodes import busy

from gpu_profile.catalogue.samples import Device, ProcessUse
from gpu_profile.driver import Driver, simulated
from gpu_profile.driver.grammar import open_driver
from gpu_profile.monitor.top.scraper import RegionScraper
from gpu_profile.monitor.top.source import GROUPS, TopSource
from gpu_profile.testing import FakeClock

URL = "http://localhost:9464/metrics"
#: A GPU that works in turns, one without activity counters, and one that is lost after 50 s.
NODE = f"""
[[device]]
model = "H100 SXM"
memory_used_mib = 61440
[[device.phase]]
duration_s = 12
duty = 0.9
period_s = 0.1
[[device.phase]]
duration_s = 8
duty = 0.2
period_s = 0.1
[[device]]
model = "A10G"
memory_used_mib = 2048
{busy(0.35)}
[[device]]
model = "H100 SXM"
{busy(0.6)}
[[fault]]
kind = "gpu_lost"
device = 2
from_s = 50
"""
#: Counters of a scrape, by region: calls, joules, uncertain joules, busy and uncertain busy seconds, and the regime.
COUNTED = {
    "train step": (840.0, 70.0, 12_600.0, 2.0, 30.0, "HOST_BOUND"),
    "forward": (840.0, 27_300.0, 0.0, 42.0, 0.0, "COMPUTE_BOUND"),
}


def exposition(share: float) -> str:
    """A scrape after this share of the counts."""
    lines = []
    for region, (calls, joules, about, busy_s, busy_about, regime) in COUNTED.items():
        of = f'region="{region}",hw_id="GPU-0"'
        lines += [
            f'gpu_profile_region_calls_total{{{of},regime="{regime}"}} {share * calls}',
            f"gpu_profile_region_energy_joules_total{{{of}}} {share * joules}",
            f"gpu_profile_region_energy_uncertain_joules_total{{{of}}} {share * about}",
            f"gpu_profile_region_busy_seconds_total{{{of}}} {share * busy_s}",
            f"gpu_profile_region_busy_uncertain_seconds_total{{{of}}} {share * busy_about}",
        ]
    return "\n".join(lines) + "\n"


class TopScene:
    """The node after a minute, with `source` over it. `programs`: the processes on the first GPU."""

    def __init__(self, directory: Path, *, text: str = NODE) -> None:
        self.clock = FakeClock()
        self.programs: Sequence[ProcessUse] = (ProcessUse(4242, 60 << 30, 0.62), ProcessUse(977, 1 << 30))
        node = simulated.create(directory / "node", text, clock=self.clock)
        (directory / "proc" / "4242").mkdir(parents=True)
        (directory / "proc" / "4242" / "comm").write_text("python3\n")

        def opener() -> Driver:
            driver = open_driver(f"simulated:{node}", clock=self.clock, groups=GROUPS)
            driver.processes = self._processes  # type: ignore[method-assign]
            return driver

        self.source = TopSource(
            "simulated", interval_s=0.1, clock=self.clock, opener=opener, proc=directory / "proc", url=URL
        )
        self.share = 0.0
        self.source.scraper = RegionScraper(URL, clock=self.clock, get=lambda _: exposition(self.share))

    def _processes(self, device: Device) -> Sequence[ProcessUse]:
        return self.programs if device.index == 0 else ()

    def pass_(self, seconds: float, *, share: float = 0.0) -> None:
        """Sample for `seconds`, after which the program has done this share of its work."""
        step_for(self.source.sampler, self.clock, seconds)
        self.share = share
        if self.source.scraper is not None:
            self.source.scraper.scrape()

    def close(self) -> None:
        self.source.stop()
