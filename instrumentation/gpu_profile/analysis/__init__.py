"""What a recording says: regions and devices judged as a live session judges them, and two recordings compared. Pure.

Nothing here samples or waits: an analysis is a function of recorded files.

Read in this order:

- `runs`: the recorded spans, sorted out: what ran on which device, inside what.
- `devices`: the history of each device, and what it did in all.
- `account`: the heart: `analyse` joins, pools and judges them, and gives an `Analysis`. `ranks` sets the same region on
  several ranks side by side.
- `comparison`: two analyses, region by region, with intervals. `quantities`: what is compared of a region. `chance`:
  how far chance may put a value from the truth. `gate`: the conditions of `--fail-on`. `rules`: thresholds from a file.
- Views of an `Analysis`: `text`, `data` (JSON), `tables` (CSV), `page` (HTML), `perfetto` (a trace), `figure`
  (matplotlib). The last three draw executions on `lanes`; `drawing` is the page's timeline.

Imports `report`, the join, the regimes, the recording and the catalogue; neither a driver nor a session. One more view
is a module with a function from `Analysis`, which uses `report` for its form and `text` for words that views share, and
an option in `cli/analysis.py`. One more fact of a region is a field of `account.RegionUse`, and a line in `data`,
`tables` and `text`.
"""

from gpu_profile.analysis.account import Analysis, RegionUse, analyse
from gpu_profile.analysis.comparison import Comparison, Difference, compare
from gpu_profile.analysis.devices import DeviceUse
from gpu_profile.analysis.gate import Gate, Outcome, parse_gate
from gpu_profile.analysis.rules import parse_thresholds, read_thresholds

__all__ = [
    "Analysis",
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
