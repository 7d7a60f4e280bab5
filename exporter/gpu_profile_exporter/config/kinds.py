"""The kinds of values that settings have: how each is read from text and from TOML, checked, and written as TOML.

They are types of click's, but stricter than its own: those accept `nan`, `1_0` and digits of other scripts as numbers,
accept TOML's numbers as text, and name no nearest word.

Every reason that a ValueError gives here completes the sentence "SETTING: …".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import click
from click.types import BoolParamType

from gpu_profile_exporter.config.address import Address, address

_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WHOLE: Final = re.compile(r"[+-]?\d{1,15}", re.ASCII)
_YES: Final = ("true", "yes", "on", "1")
_NO: Final = ("false", "no", "off", "0")
#: What would break a line of the log, a header or a path; and what is not UTF-8 where it came from.
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_PRINTABLE: Final = re.compile(r"[\x20-\x7e]*")
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

Pairs = tuple[tuple[str, str], ...]


def nearest(word: str, known: Sequence[str]) -> str:
    """`; did you mean 'ecc'?`, or nothing."""
    close = get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def listed(words: Sequence[str]) -> str:
    """Words for a documentation page."""
    return ", ".join(f"`{word}`" for word in words)


def shown(found: object) -> str:
    """A wrong value, cut short, on one line."""
    text = repr(found)
    return text if len(text) <= 60 else f"{text[:57]}..."


class Text(click.ParamType):  # type: ignore[type-arg]  # it takes arguments since click 8.4
    """One line of text; empty means that there is none. The other kinds are read from one."""

    name = "setting"
    #: What stands for the value on a help page.
    word = "TEXT"
    #: The types of such a value in TOML, and what a message says of any other.
    types: tuple[type, ...] = (str,)
    wrong = "is not text in quotation marks"
    #: What values there are, in a sentence; empty if any will do.
    bounds = ""

    def __init__(self, word: str = "") -> None:
        self.word = word or self.word
        if "|" in word:
            self.bounds = f"One of {listed(word.split('|'))}."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A value from text, from what TOML has for it, or from a value; BadParameter for what cannot be."""
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def of_toml(self, found: object) -> None:
        """Raise ValueError for a value of another of TOML's types."""
        # In Python true is an int; in a configuration it is a slip.
        if type(found) not in self.types:
            raise ValueError(f"{shown(found)} {self.wrong}")

    def read(self, found: Any) -> Any:
        """As `convert`; ValueError with the reason for what cannot be."""
        if _UNPRINTABLE.search(found):
            raise ValueError(f"{shown(found)} has a character that is not printable UTF-8")
        return found

    def toml(self, value: Any) -> str:
        """The value as TOML, from which `read` gives it again. Text, truth values and lists are as in JSON."""
        return json.dumps(value, ensure_ascii=False)


class Number(Text):
    """A number of `unit` between `low` and `high`; `whole` for an int."""

    def __init__(self, low: float, high: float, unit: str, *, whole: bool = False) -> None:
        super().__init__(unit.upper())
        self.low, self.high, self.unit, self.whole = low, high, unit, whole
        self.types = (int,) if whole else (int, float)
        self.wrong = "is not a whole number" if whole else "is not a number"
        self.bounds = f"From {low:.10g} to {high:.10g}."

    def read(self, found: str | float) -> float | int:
        """From text or a number within the bounds."""
        if isinstance(found, str):
            if not (_WHOLE if self.whole else _NUMBER).fullmatch(found.strip()):
                raise ValueError(f"{shown(found)} {self.wrong}{'' if self.whole else f' of {self.unit}'}")
            found = float(found)
        try:
            value = float(found)
        except OverflowError:  # Python's integers have no end
            value = math.inf if found > 0 else -math.inf
        if not self.low <= value <= self.high:  # `nan` is not either
            raise ValueError(f"must lie between {self.low:.10g} and {self.high:.10g} {self.unit}, not {value:g}")
        return int(value) if self.whole else value

    def toml(self, value: float) -> str:
        """Without a fraction where there is none."""
        return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(value)


class Switch(Text, BoolParamType):
    """Yes or no. click gives a `--no-…` only to options of its own type for truth values."""

    word = ""
    types = (bool,)
    wrong = "is neither true nor false"

    def read(self, found: str | bool) -> bool:
        """From text or a truth value."""
        plain = str(found).strip().lower()
        if plain not in _YES + _NO:
            raise ValueError(f"{shown(found)} {self.wrong}")
        return plain in _YES


class Choice(Text):
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        super().__init__("|".join(words))
        self.words = words

    def read(self, found: str) -> str:
        """The case of the letters does not matter unless two of the words differ by nothing else."""
        plain = found.strip()
        value = plain if plain in self.words else plain.lower()
        if value not in self.words:
            raise ValueError(f"{shown(value)} is not one of {', '.join(self.words)}{nearest(value, self.words)}")
        return value


class File(Text):
    """A file or a directory; empty for none. Whether it is there is for its reader to say."""

    word = "FILE"

    def read(self, found: str | Path | None) -> Path | None:
        """From text or a path."""
        text = super().read(str(found or ""))
        return Path(text) if text else None

    def toml(self, value: Path | None) -> str:
        """In quotation marks."""
        return super().toml(str(value or ""))


class FileMode(Text):
    """Who may read a file, in octal as `chmod` has it. Its owner may read and write it, nobody may execute it."""

    word = "MODE"

    def read(self, found: str) -> str:
        """From text."""
        plain = found.strip()
        if not re.fullmatch(r"0?6[04]{2}", plain, re.ASCII):
            raise ValueError(f"{shown(found)} is not a mode such as 644, 640 or 600")
        return plain.removeprefix("0")


class Listen(Text):
    """An address to listen on."""

    word = "ADDRESS"

    def read(self, found: str | Address) -> Address:
        """From text or an address."""
        value = address(str(found))
        super().read(value.host)
        return value

    def toml(self, value: Address) -> str:
        """In quotation marks."""
        return super().toml(value.short)


class ListenIfAny(Text):
    """An address to listen on; empty for none."""

    word = "ADDRESS"

    def read(self, found: str | Address | None) -> Address | None:
        """From text or an address."""
        return Listen().read(found) if found else None

    def toml(self, value: Address | None) -> str:
        """In quotation marks."""
        return super().toml(value.short if value is not None else "")


class Words(Text):
    """Words out of those that `known()` gives, each once, in the order in which they were given."""

    def __init__(self, known: Callable[[], Sequence[str]], word: str) -> None:
        super().__init__(word)
        self.known = known

    def of_toml(self, found: object) -> None:
        """A list of strings."""
        if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
            raise ValueError(f'{shown(found)} is not a list of words, such as ["{self.known()[0]}"]')

    def read(self, found: str | Sequence[str]) -> tuple[str, ...]:
        """From text, separated by commas, or from a list."""
        words = (word.strip().lower() for word in (found.split(",") if isinstance(found, str) else found))
        value = tuple(dict.fromkeys(word for word in words if word))
        for word in value:
            if word not in (known := self.known()):
                raise ValueError(f"unknown {shown(word)}: one of {', '.join(known)}{nearest(word, known)}")
        return value

    @property
    def bounds(self) -> str:  # type: ignore[override]  # not before it is asked: the words may take an import
        """The words."""
        return f"Any of {listed(self.known())}."


class Headers(Text):
    """HTTP headers. They may be secret, so no reason given here tells a value."""

    word = "NAME=VALUE,..."

    def of_toml(self, found: object) -> None:
        """A table of strings."""
        if not isinstance(found, Mapping) or not all(isinstance(value, str) for value in found.values()):
            raise ValueError('is not a table of texts, such as {authorization = "…"}')

    def read(self, found: str | Mapping[str, str] | Pairs) -> Pairs:
        """From a table, pairs, or text as OpenTelemetry has it: `name=value` with commas between, values URL-encoded.

        ValueError for what HTTP cannot carry.
        """
        pairs = self._pairs(found) if isinstance(found, str) else dict(found).items()
        value = {name.strip().lower(): text for name, text in pairs}
        for number, (name, text) in enumerate(value.items(), start=1):
            if not _HEADER.fullmatch(name):
                raise ValueError(f"header {number} has a name that HTTP cannot carry")
            if not _PRINTABLE.fullmatch(text):
                raise ValueError(f"header {name!r} has a value that HTTP cannot carry")
        return tuple(value.items())

    @staticmethod
    def _pairs(text: str) -> Iterator[tuple[str, str]]:
        for number, part in enumerate(text.split(","), start=1):
            name, equals, value = part.partition("=")
            if equals:
                yield unquote(name), unquote(value.strip())
            elif part.strip():
                raise ValueError(f"header {number} is not written as name=value")

    def toml(self, value: Pairs) -> str:
        """A table in one line."""
        return json.dumps(dict(value), ensure_ascii=False, separators=(", ", " = "))
