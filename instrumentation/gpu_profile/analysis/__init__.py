"""Analyses of recordings: regions and devices judged as in a live session, and two recordings compared. Pure.

Nothing here samples or waits: an analysis is a function of recorded files.

Read in this order:

- `runs`: sorts the recorded spans by region and by device, and finds the execution around each.
- `devices`: each device's history, utilisation and energy. `device_pool`: the join of its executions with its samples.
- `clocks`: the clocks of a job's nodes, and a recording with all times by one of them.
- `ranks`: the same region on several ranks. `chance`: the sizes of confidence intervals.
- `account`: the heart. `analyse` joins and judges the executions and returns an `Analysis`. `rules` reads its
  thresholds from a file.
- `views`: an analysis as text, JSON, CSV, HTML, a trace or a figure. `profile`: its values by call path, for pprof.
- `comparison`: two analyses, region by region, with intervals, and the conditions of `--fail-on`.
- `costs`: the costs of an LLM server's benchmarks, compared in the same way. `fleet`: questions in SQL on many
  recordings, or on a fleet.

Imports `report`, the join, the regimes, the recording and the catalogue; neither a driver nor a session. To add a view,
write a module in `views` with a function from `Analysis`, and an option in `cli/analysis.py`. To add a fact of a
region, add a field to `account.RegionUse` and a line to `data`, `tables` and `text` in `views`.
"""

from gpu_profile.analysis.account import Analysis, RegionUse
from gpu_profile.analysis.comparison.differences import Comparison, Difference, compare
from gpu_profile.analysis.comparison.gate import Gate, Outcome, parse_gate
from gpu_profile.analysis.comparison.text import render_comparison
from gpu_profile.analysis.devices import DeviceUse
from gpu_profile.analysis.profile.values import profile_of
from gpu_profile.analysis.rules import parse_thresholds, read_thresholds
from gpu_profile.analysis.views.figure import draw
from gpu_profile.analysis.views.page import render_page
from gpu_profile.analysis.views.perfetto import perfetto_packets, perfetto_trace
from gpu_profile.analysis.views.report import AnalysisReport, analyse
from gpu_profile.analysis.views.tables import devices_csv, regions_csv
from gpu_profile.analysis.views.text import render

__all__ = [
    "Analysis",
    "AnalysisReport",
    "Comparison",
    "DeviceUse",
    "Difference",
    "Gate",
    "Outcome",
    "RegionUse",
    "analyse",
    "compare",
    "devices_csv",
    "draw",
    "parse_gate",
    "parse_thresholds",
    "perfetto_packets",
    "perfetto_trace",
    "profile_of",
    "read_thresholds",
    "regions_csv",
    "render",
    "render_comparison",
    "render_page",
]
