"""What a recording says: regions and devices judged as a live session judges them, and two recordings compared. Pure.

Nothing here samples or waits: an analysis is a function of recorded files.
"""

from gpu_profile.analysis.account import Analysis, DeviceUse, RegionUse, analyse
from gpu_profile.analysis.comparison import Comparison, Difference, compare
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
