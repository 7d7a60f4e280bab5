"""The words of `--collect`, and the groups of signals that they choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpu_profile.catalogue import ALL_GROUPS, DEFAULT_GROUPS, Group
from gpu_profile.errors import UsageError

ALL: Final = "all"
NONE: Final = "none"


def known_words() -> Sequence[str]:
    """What `--collect` takes."""
    return (*(str(group) for group in Group), ALL, NONE)


def chosen_groups(words: Sequence[str]) -> frozenset[Group]:
    """The groups that the words choose: besides the default ones, or beside `none`, besides only what is always on."""
    if ALL in words:
        if NONE in words:
            raise UsageError("--collect: all and none exclude each other")
        return ALL_GROUPS
    named = frozenset(Group(word) for word in words if word != NONE)
    return named | ({Group.CORE} if NONE in words else DEFAULT_GROUPS)
