"""The colours of the regimes: the same hues on pages, in notebooks, in figures and on terminals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from gpu_profile.regimes.rule import Regime


class RegimeColour(NamedTuple):
    """A regime's colour on light ground, on dark ground, on ground that may be either, and the name for a terminal."""

    light: str
    dark: str
    either: str
    terminal: str


#: Waits are warm or violet, work is cold, and no result is grey: red stays for faults.
COLOURS: Final[Mapping[Regime, RegimeColour]] = {
    Regime.HOST_BOUND: RegimeColour("#cc5b02", "#ffa057", "#d9730d", "yellow"),
    Regime.SPINNING: RegimeColour("#9a6700", "#e8b339", "#b07d12", "bright_yellow"),
    Regime.MEDIA_BOUND: RegimeColour("#4f5bd5", "#a3adff", "#6a74dd", "blue"),
    Regime.TRANSFER_BOUND: RegimeColour("#c2298a", "#ff8dcc", "#c2478e", "bright_magenta"),
    Regime.COMMUNICATION_BOUND: RegimeColour("#a11a72", "#f06bb8", "#c2478e", "bright_magenta"),
    Regime.OVERHEAD_BOUND: RegimeColour("#8347b9", "#c79bf2", "#8e5bc9", "magenta"),
    Regime.LATENCY_BOUND: RegimeColour("#0d74ce", "#70b8ff", "#2a83d1", "bright_blue"),
    Regime.MEMORY_BOUND: RegimeColour("#0f7f76", "#2bc8b7", "#17948a", "cyan"),
    Regime.BALANCED: RegimeColour("#5a7d1e", "#bde56c", "#6d9128", "bright_green"),
    Regime.MIXED: RegimeColour("#6b7280", "#aab2c0", "#8089a0", "white"),
    Regime.COMPUTE_BOUND: RegimeColour("#2a7e3b", "#6bc77c", "#37934a", "green"),
    Regime.IDLE: RegimeColour("#8b8d98", "#8b8d98", "#8b8d98", "bright_black"),
    Regime.UNKNOWN: RegimeColour("#80838d", "#9a9ca6", "#8b8d98", "bright_black"),
}
