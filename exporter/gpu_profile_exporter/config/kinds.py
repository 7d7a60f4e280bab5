"""The kinds of values that settings have: how each is read from text and from TOML, checked, and written as TOML.

Every reason that a ValueError gives here completes the sentence "SETTING: …".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote

from gpu_profile_exporter.config.address import Address, address

_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_YES: Final = ("true", "yes", "on", "1")
_NO: Final = ("false", "no", "off", "0")
#: What would break a line of the log, a header or a path; and what is not UTF-8 where it came from.
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Kind(Protocol):
    """How one kind of value is read, checked and written. `word` stands for the value on a help page."""

    @property
    def word(self) -> str:
        """What to write, in a word."""
        ...

    def read(self, text: str) -> Any:
        """A value from a flag or an environment variable."""
        ...

    def take(self, found: object) -> Any:
        """A value from TOML."""
        ...

    def check(self, value: Any) -> None:
        """Raise ValueError for a value of the right type that cannot be."""
        ...

    def toml(self, value: Any) -> str:
        """The value as TOML, such that `take` gives it again."""
        ...


def nearest(word: str, known: Sequence[str]) -> str:
    """`; did you mean 'ecc'?`, or nothing."""
    close = get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def shown(found: object) -> str:
    """A wrong value, cut short, on one line."""
    text = repr(found)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True, slots=True)
class Number:
    """A number of `unit` between `low` and `high`; `whole` for an int."""

    low: float
    high: float
    unit: str = ""
    whole: bool = False

    @property
    def word(self) -> str:
        """`SECONDS` or `NUMBER`."""
        return self.unit.upper() or "NUMBER"

    def read(self, text: str) -> float | int:
        """From text."""
        plain = text.strip()
        if self.whole:
            if not re.fullmatch(r"[+-]?\d{1,15}", plain, re.ASCII):
                raise ValueError(f"{shown(text)} is not a whole number")
            return int(plain)
        if not _NUMBER.fullmatch(plain):
            raise ValueError(f"{shown(text)} is not a number{f' of {self.unit}' if self.unit else ''}")
        return float(plain)

    def take(self, found: object) -> float | int:
        """From TOML: an integer, or a float where fractions make sense."""
        # In Python true is an int; in a configuration it is a slip.
        if isinstance(found, bool) or not isinstance(found, int if self.whole else int | float):
            raise ValueError(f"{shown(found)} is not a {'whole number' if self.whole else 'number'}")
        if self.whole:
            return int(found)
        try:
            return float(found)
        except OverflowError:  # Python's integers have no end
            return math.inf if found > 0 else -math.inf

    def check(self, value: float) -> None:
        """Bounds; also holds off what is not a number."""
        if not self.low <= value <= self.high:
            unit = f" {self.unit}" if self.unit else ""
            raise ValueError(f"must lie between {self.low:.10g} and {self.high:.10g}{unit}, not {value:g}")

    def toml(self, value: float) -> str:
        """Without a fraction where there is none."""
        return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(value)


@dataclass(frozen=True, slots=True)
class Switch:
    """Yes or no."""

    word: str = "true|false"

    def read(self, text: str) -> bool:
        """From text."""
        plain = text.strip().lower()
        if plain not in _YES + _NO:
            raise ValueError(f"{shown(text)} is neither true nor false")
        return plain in _YES

    def take(self, found: object) -> bool:
        """From TOML."""
        if not isinstance(found, bool):
            raise ValueError(f"{shown(found)} is neither true nor false")
        return found

    def check(self, value: bool) -> None:
        """Nothing to check."""

    def toml(self, value: bool) -> str:
        """`true` or `false`."""
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class Text:
    """One line of text. Empty means that there is none."""

    word: str = "TEXT"

    def read(self, text: str) -> str:
        """From text."""
        return text

    def take(self, found: object) -> str:
        """From TOML."""
        if not isinstance(found, str):
            raise ValueError(f"{shown(found)} is not text in quotation marks")
        return self.read(found)

    def check(self, value: str) -> None:
        """No control characters."""
        if _UNPRINTABLE.search(value):
            raise ValueError(f"{shown(value)} has a character that is not printable UTF-8")

    def toml(self, value: str) -> str:
        """In quotation marks."""
        return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Choice(Text):
    """One of a few words."""

    words: tuple[str, ...] = ()
    word: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "word", "|".join(self.words))

    def read(self, text: str) -> str:
        """From text; the case of the letters does not matter unless two of the words differ by nothing else."""
        plain = text.strip()
        return plain if plain in self.words else plain.lower()

    def check(self, value: str) -> None:
        """One of the words."""
        if value not in self.words:
            raise ValueError(f"{shown(value)} is not one of {', '.join(self.words)}{nearest(value, self.words)}")


@dataclass(frozen=True, slots=True)
class File:
    """A file or a directory; empty for none."""

    word: str = "FILE"

    def read(self, text: str) -> Path | None:
        """From text."""
        return Path(text) if text else None

    def take(self, found: object) -> Path | None:
        """From TOML."""
        return self.read(Text().take(found))

    def check(self, value: Path | None) -> None:
        """A name that a file can have. Whether it is there is for its reader to say."""
        Text().check(str(value or ""))

    def toml(self, value: Path | None) -> str:
        """In quotation marks."""
        return Text().toml(str(value or ""))


@dataclass(frozen=True, slots=True)
class Listen:
    """An address to listen on."""

    word: str = "ADDRESS"

    def read(self, text: str) -> Address:
        """From text."""
        return address(text)

    def take(self, found: object) -> Address:
        """From TOML."""
        return address(Text().take(found))

    def check(self, value: Address) -> None:
        """A host without control characters."""
        Text().check(value.host)
        if not 0 <= value.port <= 65535:
            raise ValueError(f"port {value.port} is not between 0 and 65535")

    def toml(self, value: Address) -> str:
        """In quotation marks."""
        return Text().toml(value.short)


@dataclass(frozen=True, slots=True)
class Words:
    """Words out of those that `known()` gives, each once, in the order in which they were given."""

    known: Callable[[], Sequence[str]]
    word: str = "WORD,..."

    def read(self, text: str) -> tuple[str, ...]:
        """From text: separated by commas."""
        return self._once(part.strip().lower() for part in text.split(","))

    def take(self, found: object) -> tuple[str, ...]:
        """From TOML: a list of strings."""
        if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
            raise ValueError(f'{shown(found)} is not a list of words, such as ["{self.known()[0]}"]')
        return self._once(word.strip().lower() for word in found)

    @staticmethod
    def _once(words: Any) -> tuple[str, ...]:
        return tuple(dict.fromkeys(word for word in words if word))

    def check(self, value: Sequence[str]) -> None:
        """Only known ones."""
        for word in value:
            if word not in (known := self.known()):
                raise ValueError(f"unknown {shown(word)}: one of {', '.join(known)}{nearest(word, known)}")

    def toml(self, value: Sequence[str]) -> str:
        """A list."""
        return f"[{', '.join(map(Text().toml, value))}]"


@dataclass(frozen=True, slots=True)
class Headers:
    """HTTP headers. They may be secret, so no reason given here tells a value."""

    word: str = "NAME=VALUE,..."

    def read(self, text: str) -> tuple[tuple[str, str], ...]:
        """From text as OpenTelemetry has it: `name=value`, separated by commas, values URL-encoded."""
        pairs = []
        for number, part in enumerate(text.split(","), start=1):
            name, equals, value = part.partition("=")
            if equals:
                pairs.append((name.strip().lower(), unquote(value.strip())))
            elif part.strip():
                raise ValueError(f"header {number} is not written as name=value")
        return tuple(dict(pairs).items())

    def take(self, found: object) -> tuple[tuple[str, str], ...]:
        """From TOML: a table of strings."""
        if not isinstance(found, Mapping) or not all(isinstance(value, str) for value in found.values()):
            raise ValueError('is not a table of texts, such as {authorization = "…"}')
        return tuple({name.strip().lower(): value for name, value in found.items()}.items())

    def check(self, value: Sequence[tuple[str, str]]) -> None:
        """Names and values that HTTP can carry."""
        for number, (name, text) in enumerate(value, start=1):
            if not _HEADER.fullmatch(name):
                raise ValueError(f"header {number} has a name that HTTP cannot carry")
            if _UNPRINTABLE.search(text):
                raise ValueError(f"header {name!r} has a value that HTTP cannot carry")

    def toml(self, value: Sequence[tuple[str, str]]) -> str:
        """A table in one line."""
        quote = Text().toml
        return f"{{{', '.join(f'{quote(name)} = {quote(text)}' for name, text in value)}}}"
