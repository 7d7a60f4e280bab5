"""The job mapping directory that dcgm-exporter introduced (`--hpc-job-mapping-dir`).

A workload manager's prolog writes one file per GPU, named by its index, with a job's id on each line; its epilog
empties or removes it. A file named by the UUID of a GPU or MIG instance is read as well.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from gpu_profile_exporter.attribution.sources import (
    HolderSource,
    OmissionCounts,
    OmissionReason,
    Unavailable,
    reason_of,
)

MOST_FILES: Final = 4096
MOST_BYTES: Final = 65_536
_JOB: Final = re.compile(r"[\x21-\x7e]{1,128}")


class Mapping(NamedTuple):
    """A file's name and the jobs that it lists."""

    name: str
    jobs: tuple[str, ...]


def read(directory: Path, tally: OmissionCounts) -> list[Mapping]:
    """The mappings of `directory`, by name. Raises Unavailable if it cannot be listed.

    The writers of the files are not trusted: no link is followed, only plain files of at most 64 KiB are read. Skipped
    files are counted.
    """
    mappings: list[Mapping] = []
    with _opened(directory) as place:
        try:
            names = sorted(os.listdir(place))  # noqa: PTH208 - lists the opened directory, even after a rename
        except OSError as error:
            raise Unavailable(reason_of(error), str(directory)) from error
        if len(names) > MOST_FILES:
            tally[HolderSource.SLURM, OmissionReason.BUDGET] += len(names) - MOST_FILES
        for name in names[:MOST_FILES]:
            content = _content(place, name)
            if isinstance(content, OmissionReason):
                tally[HolderSource.SLURM, content] += 1
            elif content is not None:
                mappings.append(Mapping(name, tuple(_jobs(content, tally))))
    return mappings


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    try:
        place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Unavailable(reason_of(error), str(directory)) from error
    try:
        yield place
    finally:
        os.close(place)


def _content(place: int, name: str) -> bytes | OmissionReason | None:
    """A file's bytes, the reason for skipping it, or None for a directory or a file that was removed."""
    try:
        # O_NONBLOCK: does not wait for a pipe's writer. O_NOCTTY: does not acquire a controlling terminal.
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=place)
    except FileNotFoundError:
        return None
    except OSError as error:
        return OmissionReason.LINK if error.errno == errno.ELOOP else OmissionReason.GARBAGE
    try:
        mode = os.fstat(file).st_mode
        if stat.S_ISDIR(mode):
            return None
        if not stat.S_ISREG(mode):
            return OmissionReason.GARBAGE
        with open(file, "rb", closefd=False) as opened:
            content = opened.read(MOST_BYTES + 1)
    except OSError:
        return OmissionReason.GARBAGE
    finally:
        os.close(file)
    return content if len(content) <= MOST_BYTES else OmissionReason.TOO_LARGE


def _jobs(content: bytes, tally: OmissionCounts) -> Iterator[str]:
    for line in content.decode("utf-8", "replace").split("\n"):
        job = line.strip()
        if not job:
            continue
        if _JOB.fullmatch(job) is None:
            tally[HolderSource.SLURM, OmissionReason.GARBAGE] += 1
            continue
        yield job
