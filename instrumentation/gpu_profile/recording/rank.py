"""A process's place in a launched job. Pure: the environment comes in as a mapping."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Rank:
    """A process's place among all processes of a launch; None for a missing value.

    `rank` counts over all of them, `local_rank` over those on this node, both from 0. `size` is their number.
    """

    rank: int | None
    local_rank: int | None
    size: int | None


#: Rank, local rank and size, by launcher. Slurm comes last: inside its jobs other launchers start several processes
#: under one task, and its task number is not their rank.
_LAUNCHERS: Final = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
)


def rank(environ: Mapping[str, str]) -> Rank | None:
    """The rank from the launcher's variables: torchrun and compatible ones, Open MPI, MPICH and Intel MPI, Slurm.

    One launcher's variables are never mixed with another's. A value that is no number, or a size too small for the
    rank, counts as missing.
    """
    for names in _LAUNCHERS:
        whole, local, size = (_natural(environ.get(name)) for name in names)
        if whole is not None or local is not None:
            fits = size is not None and size > max(whole or 0, local or 0)
            return Rank(whole, local, size if fits else None)
    return None


def _natural(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,9}", text.strip()) else None
