"""The words of `--collect` and the groups of signals that they select."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpu_profile.catalogue import ALL_GROUPS, DEFAULT_GROUPS, Group
from gpu_profile.errors import UsageError

ALL: Final = "all"
NONE: Final = "none"


def group_names() -> Sequence[str]:
    """The values of `--collect`."""
    return (*(str(group) for group in Group), ALL, NONE)


def chosen_groups(words: Sequence[str]) -> frozenset[Group]:
    """All groups for `all`, else the named groups with the default ones or, for `none`, with the core group only."""
    if ALL in words:
        if NONE in words:
            raise UsageError("--collect: all and none exclude each other")
        return ALL_GROUPS
    named = frozenset(Group(word) for word in words if word != NONE)
    return named | ({Group.CORE} if NONE in words else DEFAULT_GROUPS)
