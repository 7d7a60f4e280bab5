"""Names of kernels that fit a table: the function, and of its template arguments only what tells it from another."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import takewhile
from typing import Final

from gpu_profile.report.table import printable

#: A function with such a name says what it does in its template arguments.
_SAYS_NOTHING: Final = re.compile(r"(?:device_)?kernel_?\d*", re.IGNORECASE)
_ANONYMOUS: Final = "(anonymous namespace)::"
_DETAIL: Final = 28


def short_name(name: str) -> str:
    """The function in a kernel's full C++ name, without template arguments and parameters.

    A name that is no C++, and one whose brackets do not match, is left as it is.
    """
    bare = name.replace(_ANONYMOUS, "")
    if "<" not in bare and "(" not in bare:
        return name
    out, deep = [], 0
    for letter in bare:
        if letter == "<":
            deep += 1
        elif letter == ">":
            deep -= 1
        elif not deep:
            if letter == "(":
                break
            out.append(letter)
    if deep:
        return name
    found = "".join(out).split(" ")[-1]
    return found if re.search(r"\w", found) else name


def labels(names: Iterable[str], width: int = 64) -> dict[str, str]:
    """A label of at most `width` characters for each name, no two the same; fit for a terminal."""
    every = list(dict.fromkeys(names))
    groups: dict[str, list[str]] = {}
    for name in every:
        groups.setdefault(short_name(name), []).append(name)
    found: dict[str, str] = {}
    for short, members in groups.items():
        found |= zip(members, _apart(short, members, width), strict=True)
    often: Counter[str] = Counter()
    for name in every:
        label = found[name]
        often[label] += 1
        if often[label] > 1:
            number = f" #{often[label]}"
            found[name] = middle(label, width - len(number)) + number
    return {name: found[name] for name in every}


def _apart(short: str, members: list[str], width: int) -> list[str]:
    """The label of each of several names with one function: what comes where they begin to differ."""
    nothing = _SAYS_NOTHING.fullmatch(short.rpartition("::")[2]) is not None
    if len(members) == 1 and not nothing:
        return [middle(printable(short), width)]
    bare = [re.sub(r"\b\w+::", "", name.replace(_ANONYMOUS, "")) for name in members]
    alike = takewhile(lambda letters: len({*letters}) == 1, zip(*bare, strict=False))
    begin = sum(1 for _ in alike) if len(bare) > 1 else bare[0].find("<") + 1
    while begin and (bare[0][begin - 1].isalnum() or bare[0][begin - 1] == "_"):
        begin -= 1
    if len(members) > 1:
        short = short.rpartition("::")[2] or short
    tails = [text[begin:] if begin < len(text) else "" for text in bare]
    room = max(_DETAIL, width - len(short) - 2)
    return [_labelled(short, tail, room, width) for tail in tails]


def _labelled(short: str, tail: str, room: int, width: int) -> str:
    if not tail or tail == short:
        return middle(printable(short), width)
    detail = printable(tail)
    detail = detail if len(detail) <= room else detail[: room - 1] + "…"
    return f"{middle(printable(short), width - len(detail) - 2)} …{detail}"


def middle(text: str, width: int) -> str:
    """`text`, shortened in its middle to at most `width` characters."""
    if len(text) <= width:
        return text
    room = max(2, width) - 1
    return f"{text[: room - room // 2]}…{text[len(text) - room // 2 :]}"
