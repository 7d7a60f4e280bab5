"""The settings of the costs of LLM serving."""

# ruff: noqa: RUF009 - `setting` returns a dataclass field
from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gpu_profile_exporter.config.address import address
from gpu_profile_exporter.config.kinds import Number, Pairs, Text, shown
from gpu_profile_exporter.config.setting import Alias, check, setting

_NAME = re.compile(r"[\w.:/-]{1,64}", re.ASCII)
_ENGINE = re.compile(r"tcp://[^\s:/,]+:\d{1,5}|tcp://\[[0-9a-fA-F:.]+\]:\d{1,5}|(ipc://|unix:(//)?)/[^\s,]{1,100}")
_DEVICE = re.compile(r"\d{1,4}|[\w/-]{4,96}", re.ASCII)


class Named(Text):
    """Values by name. Each value is one that `wrong_value` returns no reason for."""

    several = True

    def __init__(self, word: str, wrong_value: Callable[[str], str]) -> None:
        super().__init__(word)
        self.wrong_value = wrong_value

    def of_toml(self, raw: object) -> None:
        """A table of strings."""
        if not isinstance(raw, Mapping) or not all(isinstance(value, str) for value in raw.values()):
            raise ValueError(f"{shown(raw)} is not a table of texts, such as {{NAME = {json.dumps('…')}}}")

    def read(self, raw: str | Mapping[str, str] | Pairs) -> Pairs:
        """From a table, pairs, or text: `name=value` separated by commas. A part without `=` belongs to the value
        before it."""
        pairs = list(self._pairs(raw) if isinstance(raw, str) else dict(raw).items())
        value = dict(pairs)
        if len(value) < len(pairs):
            raise ValueError(f"{shown(max(value, key=[name for name, _ in pairs].count))} is there twice")
        for name, text in value.items():
            if not _NAME.fullmatch(name):
                raise ValueError(f"{shown(name)} is no name of letters, digits and . : / _ -; write NAME=VALUE")
            if reason := self.wrong_value(text):
                raise ValueError(f"{name}: {reason}")
        return tuple(value.items())

    @staticmethod
    def _pairs(text: str) -> Iterator[tuple[str, str]]:
        parts: list[list[str]] = []
        for part in filter(None, map(str.strip, text.split(","))):
            name, equals, value = part.partition("=")
            if equals or not parts:
                parts.append([name.strip(), value.strip()])
            else:
                parts[-1][1] += f",{part}"
        return ((name, value) for name, value in parts)

    def toml(self, value: Pairs) -> str:
        """A table in one line."""
        return json.dumps(dict(value), ensure_ascii=False, separators=(", ", " = "))


def _wrong_engine(text: str) -> str:
    if _ENGINE.fullmatch(text):
        return _wrong_port(text.removeprefix("tcp://")) if text.startswith("tcp://") else ""
    return f"{shown(text)} is no address such as tcp://localhost:5557, ipc:///run/engine or unix:///run/e.sock"


def _wrong_port(text: str) -> str:
    try:
        address(text)
    except ValueError as error:
        return str(error)
    return ""


def _wrong_devices(text: str) -> str:
    if text and all(_DEVICE.fullmatch(one) for one in text.split(",")):
        return ""
    return f"{shown(text)} is no list of indices or UUIDs of GPUs, such as 0,1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings:
    """Costs of LLM serving."""

    engines: Pairs = setting(
        (),
        Named("NAME=ADDRESS", _wrong_engine),
        "Engines that publish iterations, as in llm=tcp://localhost:5557; "
        "or workers, prefill:llm=... and decode:llm=...",
        Alias(("--serving",)),
    )
    devices: Pairs = setting(
        (),
        Named("NAME=DEVICE,...", _wrong_devices),
        "The GPUs of each engine, by index or UUID, as in sglang=0,1; a single engine has all by default.",
    )
    tenant: str = setting(
        "", Text("ATTRIBUTE"), "Attribute of a request's span or of its resource that names the tenant; empty for none."
    )
    tenants: int = setting(
        64, Number(1, 1000, "tenants", whole=True), "Most tenants with series of their own; the rest is other."
    )
    wait_s: float = setting(
        60.0,
        Number(10, 600, "seconds"),
        "Longest wait of a span for its request's cost; longer requests may have none.",
    )

    def __post_init__(self) -> None:
        check(self, "serving")
