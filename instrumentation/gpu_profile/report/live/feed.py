"""The protocol of the live page: each viewer asks for the rows after its cursor, and receives each row once.

A cursor names a cut: the number of rows in every strand at one moment. A cut is made at most every `CUT_MS`, however
many viewers ask, so that viewers share cuts, and an answer is rendered once for all viewers with the same cursor.
Answers to an unusable cursor begin anew with all rows that are kept: the server was restarted, its clock was set, or
the viewer was away for longer than rows are kept.
"""

from __future__ import annotations

import gzip
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from gpu_profile.report.live.strands import BLOCKS, KEEP_MS, SAMPLES, NumberStrand, RowStrand

#: The shortest time between two cuts, and the time between two requests of a viewer, in ms.
CUT_MS: Final = 900.0
POLL_MS: Final = 1_000.0
#: Cuts that a viewer may continue from.
_MOST_CUTS: Final = int(KEEP_MS / CUT_MS)
#: Events that are kept.
MOST_MARKS: Final = 500
#: Names of regions that are visible at once, and their length; further regions share `OTHER`.
MOST_NAMES: Final = 256
LONGEST_NAME: Final = 200
OTHER: Final = "other"
#: The newest names for viewers that continue. A viewer that missed more begins anew.
_NEW_NAMES: Final = 4 * MOST_NAMES
#: Answers of one cut that are kept.
_MOST_ANSWERS: Final = 16
#: A sample this much older than the newest one of its strand was taken after the clock was set back.
SET_BACK_MS: Final = 5_000.0

Where = tuple[str, str]
State = Mapping[str, Any]


class LiveMark(NamedTuple):
    """A mark on a device's timeline. `tone`: `bad`, `warn` or `soft`. `device`: a UUID."""

    t_ms: float
    device: str
    tone: str
    text: str


class _Cut(NamedTuple):
    number: int
    totals: Mapping[Where, int]
    marks: int
    names: int


class LiveFeed:
    """The rows, cuts and answers of one server. Not thread-safe. `epoch` identifies this server and its clock."""

    def __init__(self, epoch: str) -> None:
        #: The numbers of the visible names, and the numbers without a name.
        self._numbers: dict[str, int] = {}
        self._free = list(reversed(range(MOST_NAMES)))
        #: Numbers in the state of the next cut, and of the newest one. Whether names were looked through since it.
        self._asked: set[int] = set()
        self._shown: set[int] = set()
        self._looked = False
        #: Samples by device and chart, and executions by device.
        self._strands: dict[Where, NumberStrand] = {}
        self._marks = RowStrand(MOST_MARKS)
        self._names = RowStrand(_NEW_NAMES)
        self._restarts = 0
        self._first_epoch = self.epoch = epoch
        self._cuts: deque[_Cut] = deque(maxlen=_MOST_CUTS)
        self._cut_ms = -KEEP_MS
        self._state: State = {}
        self._answers: dict[tuple[int, bool], bytes] = {}

    # ------------------------------------------------------------------ rows

    def samples(self, device: str, chart: str) -> NumberStrand:
        """The strand of a device's chart, with the columns `SAMPLES`."""
        strand = self._strands.get((device, chart))
        if strand is None:
            strand = self._strands[device, chart] = NumberStrand(SAMPLES)
        return strand

    def blocks(self, device: str) -> NumberStrand:
        """The strand of the executions on a device, with the columns `BLOCKS`."""
        strand = self._strands.get((device, ""))
        if strand is None:
            strand = self._strands[device, ""] = NumberStrand(BLOCKS)
        return strand

    def add(self, device: str, chart: str, t_ms: float, length_ms: float, value: float) -> bool:
        """Add a sample. False if it is not newer than the newest one. A clock that was set back begins a new epoch."""
        strand = self.samples(device, chart)
        behind_ms = strand.newest_ms - t_ms
        if behind_ms >= 0:
            if behind_ms < SET_BACK_MS:
                return False
            self.restart(LiveMark(t_ms, device, "warn", "the clock was set back: the history begins here"))
            strand = self.samples(device, chart)
        strand.append(t_ms, length_ms, value)
        return True

    def mark(self, mark: LiveMark) -> None:
        """Add a mark."""
        self._marks.append(list(mark))

    def number(self, name: str) -> int:
        """The number of a region's name in the column `region`.

        It is the name's own while rows or the state contain it. Then another name may get it.
        """
        name = name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
        number = self._numbers.get(name)
        if number is None:
            if name == OTHER:
                number = MOST_NAMES
            elif self._free or self._reclaim():
                number = self._free.pop()
            else:
                return self.number(OTHER)
            self._numbers[name] = number
            self._names.append([number, name])
        self._asked.add(number)
        return number

    def _reclaim(self) -> bool:
        """Take the numbers of names that are not visible any more, once in a cut. Whether there are any."""
        if self._looked:
            return False
        self._looked = True
        rows = (strand.values("region") for (_, chart), strand in self._strands.items() if not chart)
        visible = self._asked.union(self._shown, *rows)
        for name, number in list(self._numbers.items()):
            if number not in visible and name != OTHER:
                del self._numbers[name]
                self._free.append(number)
        return bool(self._free)

    def prepend(self, older: Mapping[Where, NumberStrand]) -> None:
        """Insert older samples, by device and chart. Begins a new epoch, so that viewers receive them."""
        added = [self.samples(*where).prepend(strand) for where, strand in older.items()]
        if any(added):
            self._renew()

    def restart(self, reason: LiveMark) -> None:
        """Drop all samples and executions, and begin a new epoch."""
        self._strands.clear()
        self._renew()
        self.mark(reason)

    def _renew(self) -> None:
        self._cuts.clear()
        self._answers.clear()
        self._cut_ms = -KEEP_MS
        self._restarts += 1
        self.epoch = f"{self._first_epoch}-{self._restarts}"

    # ------------------------------------------------------------------ answers

    def answer(self, after: str, now_ms: float, state: Callable[[], State], *, packed: bool = False) -> bytes:
        """The rows after the cursor `after` as JSON, with the newest state. `packed`: compressed with gzip.

        `state` describes the present. It is called for new cuts only, and may add rows.
        """
        if not 0 <= now_ms - self._cut_ms < CUT_MS:
            self._state = state()
            self._cut(now_ms)
        since = self._since(after)
        key = since.number if since is not None else 0, packed
        body = self._answers.get(key)
        if body is None:
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            text = json.dumps(self._content(since), separators=(",", ":"), allow_nan=False).encode()
            body = self._answers[key] = gzip.compress(text, compresslevel=1, mtime=0) if packed else text
        return body

    def _cut(self, now_ms: float) -> None:
        number = self._cuts[-1].number + 1 if self._cuts else 1
        self._shown, self._asked, self._looked = self._asked, set(), False
        for (_, chart), strand in self._strands.items():
            if not chart:
                strand.expire(now_ms - KEEP_MS)
        totals = {where: strand.total for where, strand in self._strands.items()}
        self._cuts.append(_Cut(number, totals, self._marks.total, self._names.total))
        self._cut_ms = now_ms
        self._answers.clear()

    def _since(self, after: str) -> _Cut | None:
        """The cut of a cursor. None if rows after it are not kept any more, or it is none of this epoch."""
        epoch, _, digits = after.rpartition(".")
        # Cursors come from the network: a longer number is none of ours, and costly to convert.
        if epoch != self.epoch or not (digits.isascii() and digits.isdigit() and len(digits) <= 12) or not self._cuts:
            return None
        place = int(digits) - self._cuts[0].number
        if not 0 <= place < len(self._cuts):
            return None
        cut = self._cuts[place]
        kept = all(cut.totals.get(where, 0) >= strand.dropped for where, strand in self._strands.items())
        kept = kept and cut.marks >= self._marks.dropped and cut.names >= self._names.dropped
        return cut if kept else None

    def _content(self, since: _Cut | None) -> dict[str, Any]:
        until = self._cuts[-1]
        samples: dict[str, dict[str, Any]] = {}
        blocks: dict[str, Any] = {}
        for (device, chart), part in self._parts(since, until):
            if chart:
                samples.setdefault(device, {})[chart] = part
            else:
                blocks[device] = part
        return {
            **self._state,
            "cursor": f"{self.epoch}.{until.number}",
            "reset": since is None,
            "now_ms": self._cut_ms,
            "poll_ms": POLL_MS,
            "keep_ms": KEEP_MS,
            "samples": samples,
            "blocks": blocks,
            "marks": self._marks.part(since.marks if since else 0, until.marks),
            "names": self._names.part(since.names, until.names)
            if since
            else [[n, x] for x, n in self._numbers.items()],
        }

    def _parts(self, since: _Cut | None, until: _Cut) -> Iterator[tuple[Where, dict[str, str]]]:
        for where, last in until.totals.items():
            first = since.totals.get(where, 0) if since is not None else 0
            if first < last:
                yield where, self._strands[where].part(first, last)
