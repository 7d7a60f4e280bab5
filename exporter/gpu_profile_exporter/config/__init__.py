"""The settings of an exporter, and where they come from: flags, then the environment, then a TOML file.

Each setting is an option of click's. Read in this order:

- `model`: the table of settings. A new one is a row there; flag, variable, key, help and documentation follow from it.
  `receive` has those of one table.
- `kinds` (with `address`, `groups`): the types of values, read from text and from TOML.
- `setting`: the option, and other programs' words for it.
- `options`, `toml`: the command line with its help page, and the file, which is click's `default_map`.
- `sources`: `load`, which has click read all of them.
- `printed`: settings as text, for `--print-config`, the example file and the documentation.
"""

from __future__ import annotations

from gpu_profile_exporter.config.address import Address
from gpu_profile_exporter.config.model import SETTINGS, AttributionSettings, Config, DcgmSettings, Forward, Log, Otlp
from gpu_profile_exporter.config.receive import Receive
from gpu_profile_exporter.config.setting import ENVIRONMENT, Setting
from gpu_profile_exporter.config.sources import Loaded, load

__all__ = [
    "ENVIRONMENT",
    "SETTINGS",
    "Address",
    "AttributionSettings",
    "Config",
    "DcgmSettings",
    "Forward",
    "Loaded",
    "Log",
    "Otlp",
    "Receive",
    "Setting",
    "load",
]
