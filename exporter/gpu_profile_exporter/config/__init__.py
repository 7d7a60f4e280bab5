"""The settings of an exporter, and where they come from: flags, then the environment, then a TOML file.

`model` is the table of them; `sources.load` reads them all.
"""

from __future__ import annotations

from gpu_profile_exporter.config.address import Address, parse_listen
from gpu_profile_exporter.config.model import SETTINGS, Attribution, Config, Dcgm, Log, Otlp
from gpu_profile_exporter.config.setting import ENVIRONMENT, Setting
from gpu_profile_exporter.config.sources import Loaded, load

__all__ = [
    "ENVIRONMENT",
    "SETTINGS",
    "Address",
    "Attribution",
    "Config",
    "Dcgm",
    "Loaded",
    "Log",
    "Otlp",
    "Setting",
    "load",
    "parse_listen",
]
