"""The settings of an exporter and their sources: flags, then the environment, then a TOML file.

Each setting is a click option. Read in this order:

- `model`: the table of settings. A new setting is a field there. Its flag, variable, key, help and documentation follow
  from the field. `receive` and `serving` contain the tables of receiving and of the costs of LLM serving.
- `kinds` (with `address`, `groups`): the types of values, parsed from text and from TOML.
- `setting`: the click option, and the flags and variables of other programs for it.
- `options`, `toml`: the command line with its help page, and the file, which becomes click's `default_map`.
- `sources`: `load`, which makes click read all sources.
- `printed`: settings as text, for `--print-config`.
"""

from __future__ import annotations

from gpu_profile_exporter.config.address import Address
from gpu_profile_exporter.config.model import SETTINGS, AttributionSettings, Config, DcgmSettings, Forward, Log, Otlp
from gpu_profile_exporter.config.receive import Receive
from gpu_profile_exporter.config.serving import ServingSettings
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
    "ServingSettings",
    "Setting",
    "load",
]
