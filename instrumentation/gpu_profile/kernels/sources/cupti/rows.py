"""CUPTI's records as plain rows: the only work that is done while CUPTI waits for its buffer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final

# CUpti_ActivityKind; the numbers never change.
MEMCPY: Final = 1
MEMSET: Final = 2
KERNEL: Final = 3
DRIVER: Final = 4
RUNTIME: Final = 5
DEVICE: Final = 8
CONCURRENT_KERNEL: Final = 10
MEMCPY2: Final = 22
EXTERNAL_CORRELATION: Final = 39
MEMORY2: Final = 49

_RAN: Final = ("start", "end", "device_id", "stream_id", "correlation_id", "graph_id")
_KERNEL: Final = (*_RAN, "grid_x", "grid_y", "grid_z", "name")
_COPY: Final = (*_RAN, "copy_kind", "src_kind", "dst_kind", "bytes")
_CALL: Final = ("start", "end", "thread_id", "correlation_id", "cbid")
#: Fields that are read of a record, by its kind. A field that the structure lacks (each release of CUPTI adds some) is
#: None.
FIELDS: Final[Mapping[int, tuple[str, ...]]] = {
    KERNEL: _KERNEL,
    CONCURRENT_KERNEL: _KERNEL,
    MEMCPY: _COPY,
    MEMCPY2: (*_COPY, "src_device_id", "dst_device_id"),
    MEMSET: (*_RAN, "memory_kind", "bytes"),
    DRIVER: _CALL,
    RUNTIME: _CALL,
    DEVICE: ("id", "num_multiprocessors"),
    EXTERNAL_CORRELATION: ("external_kind", "external_id", "correlation_id"),
    MEMORY2: (
        "timestamp",
        "address",
        "bytes",
        "memory_operation_type",
        "memory_kind",
        "device_id",
        "context_id",
        "stream_id",
        "correlation_id",
        "is_async",
    ),
}

Row = tuple[Any, ...]


class CuptiRows:
    """At most `most` rows by the kind of their records. `left_out` counts further and unreadable ones.

    The records themselves are views of CUPTI's buffer, which may be freed when the callback returns. So their values
    are copied at once (a microsecond each), and nothing else is done with them there.
    """

    def __init__(self, most: int) -> None:
        self.kinds: dict[int, list[Row]] = {}
        self.left_out = 0
        self._most = most
        self._count = 0
        self._readers: dict[int, Callable[[Any], Row] | None] = {}
        # CUPTI's worker thread and a thread that flushes may call at the same time.
        self._lock = threading.Lock()

    def add(self, records: Iterable[Any]) -> None:
        """Copy the values of a buffer's records. Never raises."""
        with self._lock:
            for record in records:
                try:
                    kind = record.kind
                    if kind in self._readers:
                        reader = self._readers[kind]
                    else:
                        reader = self._readers[kind] = _reader(kind, record)
                        self.kinds[kind] = []
                    if reader is None:
                        continue
                    if self._count >= self._most:
                        self.left_out += 1
                        continue
                    self.kinds[kind].append(reader(record))
                    self._count += 1
                except Exception:  # noqa: BLE001 - it would reach CUPTI's own thread
                    self.left_out += 1


def _reader(kind: int, record: object) -> Callable[[Any], Row] | None:
    fields = FIELDS.get(kind)
    if fields is None:
        return None
    if all(hasattr(record, field) for field in fields):
        if fields[-1] != "name":
            return attrgetter(*fields)
        numbers = attrgetter(*fields[:-1])
        # Each record makes its own copy of a name, which may be long and is seldom new.
        return lambda each: (*numbers(each), sys.intern(each.name))
    return lambda each: tuple(getattr(each, field, None) for field in fields)
