"""Samples and columns for recordings, and a full disk."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

from gpu_profile.catalogue import signals as rows
from gpu_profile.catalogue.samples import Sample
from gpu_profile.recording import Columns

T = 1_750_000_000_000_000_000


class Now:
    ns = T

    def __call__(self) -> int:
        return self.ns


def power(at: int, value: int = 250_000) -> Sample:
    return Sample(rows.POWER, T + at - 25, T + at, value)


def triples(columns: Columns) -> list[list[int]]:
    return [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """Simulate a full disk: a write beyond `size` bytes of a file fails after a part of it."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
