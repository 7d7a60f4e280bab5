"""The queue of batches for an endpoint: in memory, and optionally also on disk."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_profile_exporter.push.batch import Batch

if TYPE_CHECKING:
    from gpu_profile_exporter.push.disk_queue import DiskQueue, QueuedItem


@dataclass(slots=True)
class QueuedBatch:
    """A batch in the queue, with its records on disk. `content` is None if it is only on disk.

    `part`: it is a part of a refused batch.
    """

    content: bytes | None
    size: int
    items: int
    plain: bool
    records: tuple[QueuedItem, ...] = ()
    part: bool = False


class BatchQueue:
    """Keeps up to `most_bytes` and `most_batches` in memory. Merges adjacent plain batches up to `most_together` bytes.

    With `disk`, every batch is on disk until it is `finished`, and in memory only up to `most_bytes`. Not thread-safe.
    """

    def __init__(
        self, most_bytes: int, most_batches: int, most_together: int = 0, disk: DiskQueue | None = None
    ) -> None:
        self._most_bytes, self._most_batches, self._most_together = most_bytes, most_batches, most_together
        self._disk = disk
        self._queue: deque[QueuedBatch] = deque()
        #: Bytes in memory; items of all batches, including a taken one until it is `finished`.
        self.bytes = self.items = 0
        #: The items that an earlier process left on disk.
        self.restored = 0
        for record in disk.left if disk else ():
            self._add(QueuedBatch(None, record.size, record.items, record.plain, (record,)))
            self.restored += record.items

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def disk_bytes(self) -> int | None:
        """Bytes of the files on disk. None without a disk queue."""
        return None if self._disk is None else self._disk.size

    @property
    def kept(self) -> bool:
        """Whether waiting batches outlive this process."""
        return self._disk is not None

    def has_room(self, size: int) -> bool:
        """True if a batch of this many bytes fits without dropping another."""
        if self._disk is not None:
            return self._disk.has_room(size)
        return len(self._queue) < self._most_batches and self.bytes + size <= self._most_bytes

    def put(self, batch: Batch) -> list[QueuedBatch]:
        """Add a batch. Returns the batches dropped for lack of room: the oldest, or with a disk the new one."""
        if self.offer(batch):
            return self._trimmed()
        self.items += batch.items
        return [QueuedBatch(batch.packed, len(batch.packed), batch.items, batch.plain)]

    def offer(self, batch: Batch) -> bool:
        """Add a batch without dropping another. False if the disk does not accept it."""
        new = QueuedBatch(batch.packed, len(batch.packed), batch.items, batch.plain)
        if self._disk is not None:
            record = self._disk.append(batch.packed, batch.items, plain=batch.plain)
            if record is None:
                return False
            new.records = (record,)
            if self.bytes + new.size > self._most_bytes:
                new.content = None
        self._add(new)
        return True

    def _add(self, new: QueuedBatch) -> None:
        last = self._queue[-1] if self._queue else None
        self.items += new.items
        self.bytes += _memory(new)
        if (
            last is not None and last.plain and new.plain and last.size + new.size <= self._most_together
            and (last.content is None) == (new.content is None) and not last.part
        ):  # fmt: skip
            # Two concatenated requests are one request.
            if last.content is not None and new.content is not None:
                last.content += new.content
            last.size += new.size
            last.items += new.items
            last.records += new.records
        else:
            self._queue.append(new)

    def _trimmed(self) -> list[QueuedBatch]:
        over = []
        while (
            self._disk is None
            and self._queue
            and (self.bytes > self._most_bytes or len(self._queue) > self._most_batches)
        ):
            over.append(self._queue.popleft())
            self.bytes -= over[-1].size
        return over

    def take(self) -> QueuedBatch | None:
        """Remove and return the oldest. It counts in `items` until it is `finished`."""
        if not self._queue:
            return None
        taken = self._queue.popleft()
        self.bytes -= _memory(taken)
        return taken

    def content(self, waiting: QueuedBatch) -> tuple[Batch, int]:
        """The batch to send for a taken one, and the number of its items that are damaged on disk."""
        if waiting.content is not None or self._disk is None:
            return Batch(waiting.content or b"", waiting.items, waiting.plain), 0
        parts = [(record.items, self._disk.read(record)) for record in waiting.records]
        damaged = sum(items for items, part in parts if part is None)
        content = b"".join(part for _, part in parts if part is not None)
        return Batch(content, waiting.items - damaged, waiting.plain), damaged

    def put_back(self, waiting: QueuedBatch) -> list[QueuedBatch]:
        """Make a taken batch the oldest again. Returns the batches dropped for it."""
        self._queue.appendleft(waiting)
        self.bytes += _memory(waiting)
        return self._trimmed()

    def put_back_halves(self, waiting: QueuedBatch, halves: tuple[Batch, Batch]) -> list[QueuedBatch]:
        """Make the halves of a taken batch the oldest two. Returns the batches dropped for them.

        The second half has the records on disk, so that a killed process leaves all of it.
        """
        self.items += halves[0].items + halves[1].items - waiting.items
        for half, records in ((halves[1], waiting.records), (halves[0], ())):
            new = QueuedBatch(half.packed, len(half.packed), half.items, half.plain, records, part=True)
            self._queue.appendleft(new)
            self.bytes += new.size
        return self._trimmed()

    def finished(self, waiting: QueuedBatch) -> None:
        """Forget a batch that was sent or dropped, also on disk."""
        self.items -= waiting.items
        for record in waiting.records:
            if self._disk is not None:
                self._disk.done(record)

    def clear(self) -> list[QueuedBatch]:
        """Remove and return all batches. Records on disk stay."""
        left = list(self._queue)
        self._queue.clear()
        self.bytes = 0
        return left

    def close(self) -> None:
        """Close the disk queue. Its records stay for the next process."""
        if self._disk is not None:
            self._disk.close()


def _memory(waiting: QueuedBatch) -> int:
    return 0 if waiting.content is None else waiting.size
