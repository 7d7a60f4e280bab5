"""Analyses of recordings: regions and devices judged as in a live session, and two recordings compared. Pure.

Nothing here samples or waits: an analysis is a function of recorded files.

Read in this order:

- `runs`: sorts the recorded spans by region and by device, and finds the execution around each.
- `devices`: each device's history, utilisation and energy.
- `clocks`: the clocks of a job's nodes, and a recording with all times by one of them.
- `account`: the heart. `analyse` joins (`device_pool`) and judges the executions and returns an `Analysis`. `ranks`
  compares the same region on several ranks, `causes` says why one is late, and `rank_costs` has the costs of each.
- `comparison`: two analyses, region by region, with intervals. `quantities`: the compared quantities of a region.
  `chance`: the sizes of their intervals. `gate`: the conditions of `--fail-on`. `rules`: thresholds from a file.
- `costs`: the costs of an LLM server's benchmarks, compared in the same way. `fleet`: questions in SQL on many
  recordings, or on a fleet.
- Views of an `Analysis`: `text`, `data` (JSON), `tables` (CSV), `page` (HTML), `perfetto` (a trace), `figure`
  (matplotlib). The last three draw executions on `lanes`. `rank_text` and `rank_data` show the ranks. `drawing` is the
  page's timeline. `profile` has the values by `call_paths`, with `kernel_times` and `kernel_energy`. `labels` has the
  devices' short names; `conclusion` puts the result into sentences. `views` has the public `analyse` for notebooks.
  Views of a `Comparison`: `comparison_text`, `comparison_page`.

Imports `report`, the join, the regimes, the recording and the catalogue; neither a driver nor a session. To add a view,
write a module with a function from `Analysis`, and an option in `cli/analysis.py`. The function takes its form from
`report` and its shared words from `text`. To add a fact of a region, add a field to `account.RegionUse` and a line to
`data`, `tables` and `text`.
"""

from gpu_profile.analysis.account import Analysis, RegionUse
from gpu_profile.analysis.comparison import Comparison, Difference, compare
from gpu_profile.analysis.devices import DeviceUse
from gpu_profile.analysis.gate import Gate, Outcome, parse_gate
from gpu_profile.analysis.rules import parse_thresholds, read_thresholds
from gpu_profile.analysis.views import AnalysisReport, analyse

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
    "parse_gate",
    "parse_thresholds",
    "read_thresholds",
]
