"""Names of kernels that fit a table: the function, and the template arguments that distinguish it from others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import takewhile
from typing import Final

from gpu_profile.report.table import printable

#: The template arguments of a function with such a name describe its work.
_GENERIC: Final = re.compile(r"(?:device_)?kernel_?\d*", re.IGNORECASE)
_ANONYMOUS: Final = "(anonymous namespace)::"
_DETAIL: Final = 28


def short_name(name: str) -> str:
    """The function in a kernel's full C++ name, without template arguments and parameters.

    A name that is no C++, or whose brackets do not match, is returned unchanged.
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
    function = "".join(out).split(" ")[-1]
    return function if re.search(r"\w", function) else name


def labels(names: Iterable[str], width: int = 64) -> dict[str, str]:
    """A unique label of at most `width` characters for each name, fit for a terminal."""
    every = list(dict.fromkeys(names))
    groups: dict[str, list[str]] = {}
    for name in every:
        groups.setdefault(short_name(name), []).append(name)
    result: dict[str, str] = {}
    for short, members in groups.items():
        result |= zip(members, _apart(short, members, width), strict=True)
    often: Counter[str] = Counter()
    for name in every:
        label = result[name]
        often[label] += 1
        if often[label] > 1:
            number = f" #{often[label]}"
            result[name] = middle(label, width - len(number)) + number
    return {name: result[name] for name in every}


def _apart(short: str, members: list[str], width: int) -> list[str]:
    """The labels of several names with one function: each shows the text from the first difference on."""
    generic = _GENERIC.fullmatch(short.rpartition("::")[2]) is not None
    if len(members) == 1 and not generic:
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
