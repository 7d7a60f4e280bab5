"""The types of settings: each is parsed from text and from TOML, checked, and written as TOML.

They are click types, but stricter than click's own. Those accept `nan`, `1_0` and digits of other scripts as numbers,
accept TOML's numbers as text, and suggest no nearest word.

The message of each ValueError here completes the sentence "SETTING: …".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import click
from click.types import BoolParamType

from gpu_profile.errors import few
from gpu_profile_exporter.config.address import Address, address

_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WHOLE: Final = re.compile(r"[+-]?\d{1,15}", re.ASCII)
_YES: Final = ("true", "yes", "on", "1")
_NO: Final = ("false", "no", "off", "0")
#: Characters that would break a line of the log, a header or a path, and bytes of the source that are not UTF-8.
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_PRINTABLE: Final = re.compile(r"[\x20-\x7e]*")
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

Pairs = tuple[tuple[str, str], ...]


def nearest(word: str, choices: Sequence[str]) -> str:
    """`; did you mean 'ecc'?`, or "" if no choice is similar."""
    from difflib import get_close_matches

    close = get_close_matches(word, choices, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def listed(words: Sequence[str]) -> str:
    """Words as a list in Markdown."""
    return ", ".join(f"`{word}`" for word in words)


def shown(raw: object) -> str:
    """A wrong value on one line of at most 60 characters."""
    text = repr(raw)
    return text if len(text) <= 60 else f"{text[:57]}..."


class Text(click.ParamType):  # type: ignore[type-arg]  # it takes arguments since click 8.4
    """One line of text; empty means no value. The base of all other types."""

    name = "setting"
    #: The placeholder of the value on a help page.
    word = "TEXT"
    #: The Python types of such a value in TOML, and the error message for other types.
    types: tuple[type, ...] = (str,)
    wrong = "is not text in quotation marks"
    #: The permitted values in a sentence; empty if every text is permitted.
    bounds = ""
    #: Whether the flag may be repeated, with a part of the value each time.
    several = False

    def __init__(self, word: str = "") -> None:
        self.word = word or self.word
        if "|" in word:
            self.bounds = f"One of {listed(word.split('|'))}."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value of text, of a TOML value, or of a converted value. Raises BadParameter if it is invalid."""
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def of_toml(self, raw: object) -> None:
        """Raise ValueError if the TOML value has another type."""
        # In Python true is an int. In a configuration it is a mistake.
        if type(raw) not in self.types:
            raise ValueError(f"{shown(raw)} {self.wrong}")

    def read(self, raw: Any) -> Any:
        """Like `convert`, but raises ValueError with the reason."""
        if _UNPRINTABLE.search(raw):
            raise ValueError(f"{shown(raw)} has a character that is not printable UTF-8")
        return raw

    def toml(self, value: Any) -> str:
        """The value as TOML, which `read` converts back. Text, booleans and lists are written as in JSON."""
        return json.dumps(value, ensure_ascii=False)


class Number(Text):
    """A number of `unit` between `low` and `high`; `whole` for an int."""

    def __init__(self, low: float, high: float, unit: str, *, whole: bool = False) -> None:
        super().__init__(unit.upper())
        self.low, self.high, self.unit, self.whole = low, high, unit, whole
        self.types = (int,) if whole else (int, float)
        self.wrong = "is not a whole number" if whole else "is not a number"
        self.bounds = f"From {low:.10g} to {high:.10g}."

    def read(self, raw: str | float) -> float | int:
        """From text or a number within the bounds."""
        if isinstance(raw, str):
            if not (_WHOLE if self.whole else _NUMBER).fullmatch(raw.strip()):
                raise ValueError(f"{shown(raw)} {self.wrong}{'' if self.whole else f' of {self.unit}'}")
            raw = float(raw)
        try:
            value = float(raw)
        except OverflowError:  # Python's integers are unbounded
            value = math.inf if raw > 0 else -math.inf
        if not self.low <= value <= self.high:  # also true for `nan`
            raise ValueError(f"must lie between {self.low:.10g} and {self.high:.10g} {self.unit}, not {value:g}")
        return int(value) if self.whole else value

    def toml(self, value: float) -> str:
        """Whole numbers are written without a fraction."""
        return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(value)


class Switch(Text, BoolParamType):
    """Yes or no. A subclass of BoolParamType, because click adds `--no-…` only to options of this type."""

    word = ""
    types = (bool,)
    wrong = "is neither true nor false"

    def read(self, raw: str | bool) -> bool:
        """From text or a boolean."""
        plain = str(raw).strip().lower()
        if plain not in _YES + _NO:
            raise ValueError(f"{shown(raw)} {self.wrong}")
        return plain in _YES


class Choice(Text):
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        super().__init__("|".join(words))
        self.words = words

    def read(self, raw: str) -> str:
        """From text. Case is ignored, except for words that differ only in case."""
        plain = raw.strip()
        value = plain if plain in self.words else plain.lower()
        if value not in self.words:
            raise ValueError(f"{shown(value)} is not one of {', '.join(self.words)}{nearest(value, self.words)}")
        return value


class File(Text):
    """A file or a directory; empty for none. Whether it exists is not checked here."""

    word = "FILE"

    def read(self, raw: str | Path | None) -> Path | None:
        """From text or a path."""
        text = super().read(str(raw or ""))
        return Path(text) if text else None

    def toml(self, value: Path | None) -> str:
        """In quotation marks."""
        return super().toml(str(value or ""))


class FileMode(Text):
    """A file's mode in octal, as for `chmod`: 6 for the owner, 0 or 4 for group and others."""

    word = "MODE"

    def read(self, raw: str) -> str:
        """From text."""
        plain = raw.strip()
        if not re.fullmatch(r"0?6[04]{2}", plain, re.ASCII):
            raise ValueError(f"{shown(raw)} is not a mode such as 644, 640 or 600")
        return plain.removeprefix("0")


class Listen(Text):
    """An address to listen on."""

    word = "ADDRESS"

    def read(self, raw: str | Address) -> Address:
        """From text or an address."""
        value = address(str(raw))
        super().read(value.host)
        return value

    def toml(self, value: Address) -> str:
        """In quotation marks."""
        return super().toml(value.short)


class ListenIfAny(Text):
    """An address to listen on; empty for none."""

    word = "ADDRESS"

    def read(self, raw: str | Address | None) -> Address | None:
        """From text or an address."""
        return Listen().read(raw) if raw else None

    def toml(self, value: Address | None) -> str:
        """In quotation marks."""
        return super().toml(value.short if value is not None else "")


class Words(Text):
    """A list of words from `choices()`, without duplicates, in the given order."""

    several = True

    def __init__(self, choices: Callable[[], Sequence[str]], word: str) -> None:
        super().__init__(word)
        self.choices = choices

    def of_toml(self, raw: object) -> None:
        """A list of strings."""
        if not isinstance(raw, list) or not all(isinstance(word, str) for word in raw):
            raise ValueError(f'{shown(raw)} is not a list of words, such as ["{self.choices()[0]}"]')

    def read(self, raw: str | Sequence[str]) -> tuple[str, ...]:
        """From text, separated by commas, or from a list."""
        words = (word.strip().lower() for word in (raw.split(",") if isinstance(raw, str) else raw))
        value = tuple(dict.fromkeys(word for word in words if word))
        for word in value:
            if word not in (choices := self.choices()):
                raise ValueError(f"unknown {shown(word)}: one of {few(choices, 80)}{nearest(word, choices)}")
        return value

    @property
    def bounds(self) -> str:  # type: ignore[override]  # computed late: the choices may need an import
        """The sentence with all choices."""
        return f"Any of {listed(self.choices())}."


class Headers(Text):
    """HTTP headers. They may be secret, so no error message contains a value."""

    word = "NAME=VALUE,..."
    several = True

    def of_toml(self, raw: object) -> None:
        """A table of strings."""
        if not isinstance(raw, Mapping) or not all(isinstance(value, str) for value in raw.values()):
            raise ValueError('is not a table of texts, such as {authorization = "…"}')

    def read(self, raw: str | Mapping[str, str] | Pairs) -> Pairs:
        """From a table, pairs, or text in OpenTelemetry's format: `name=value` separated by commas, values URL-encoded.

        Raises ValueError for names and values that HTTP cannot carry.
        """
        pairs = self._pairs(raw) if isinstance(raw, str) else dict(raw).items()
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
