"""The files of a configuration, and whether they have changed since they were read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpu_profile.errors import UsageError

_SIZE: Final = 1 << 20
Stamp = tuple[int, int, int]


@dataclass(slots=True)
class Files:
    """The files of a configuration, with their stamps at the time of reading."""

    seen: dict[Path, Stamp | None] = field(default_factory=dict)

    def read(self, path: Path, at: str) -> bytes:
        """A file's content. Raises UsageError, which begins with `at`, if it cannot be read."""
        self.seen[path] = _stamp(path)
        try:
            with path.open("rb") as file:
                data = file.read(_SIZE + 1)
        except OSError as error:
            raise UsageError(f"{at}: cannot read {path}: {error.strerror or error}") from error
        if len(data) > _SIZE:
            raise UsageError(f"{at}: {path} is larger than 1 MiB")
        return data

    def changed(self) -> bool:
        """Whether one of the files has changed since it was read."""
        return any(_stamp(path) != stamp for path, stamp in self.seen.items())


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_size)
