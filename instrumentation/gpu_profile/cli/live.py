"""One line at the foot of the terminal with the GPUs' present state, kept apart from the command's output."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gpu_profile.units import percent, si

if TYPE_CHECKING:
    from gpu_profile.catalogue import Signal
    from gpu_profile.cli.watch import DeviceWatch
    from gpu_profile.history.timeline import Timeline

#: The time between two drawings of the line, in s.
PERIOD_S: Final = 1.0
#: A terminal with fewer rows has no room for the line.
_LEAST_ROWS: Final = 4
#: With more GPUs the line shows their mean and extremes.
_MOST_EACH: Final = 3
#: The length of the shown means.
_LATELY_NS: Final = 1_000_000_000


class LiveLine:
    """Draws `text()` in the last row of the terminal behind `fd`, about once a second; nothing without a terminal.

    The rows above scroll as if the terminal were one row lower, as with apt's progress line. So the command's output
    stays whole. Nothing is drawn while another job is in the foreground.
    """

    def __init__(self, text: Callable[[], str], fd: int = 2, *, on: bool = True) -> None:
        self._text = text
        self._fd = fd
        self._rows = 0
        self._next = 0.0
        self._on = on and os.isatty(fd) and os.environ.get("TERM", "dumb") != "dumb"

    def tick(self) -> None:
        """Draw the line if it is due."""
        now = time.monotonic()
        if not self._on or now < self._next or not self._in_foreground():
            return
        self._next = now + PERIOD_S
        columns, rows = self._size()
        if rows < _LEAST_ROWS:
            return
        if rows != self._rows:
            # If the cursor is in the last row, a new line scrolls that row's text up. Setting margins moves the cursor.
            self._write(f"\n\x1b7\x1b[1;{rows - 1}r\x1b8\x1b[1A")
            self._rows = rows
        line = "".join(c if c.isprintable() else "?" for c in self._text())[: max(0, columns - 1)]
        # Save the cursor, write the last row, and go back.
        self._write(f"\x1b7\x1b[{rows};1H\x1b[2K\x1b[7m{line}\x1b[0m\x1b8")

    def clear(self) -> None:
        """Remove the line and free its row. The next `tick` draws it again."""
        rows, self._rows, self._next = self._rows, 0, 0.0
        if rows:
            self._write(f"\x1b7\x1b[r\x1b[{rows};1H\x1b[2K\x1b8")

    def _in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:
            return False

    def _size(self) -> tuple[int, int]:
        try:
            return os.get_terminal_size(self._fd)
        except OSError:
            return shutil.get_terminal_size()

    def _write(self, text: str) -> None:
        with suppress(OSError):
            os.write(self._fd, text.encode(errors="replace"))


def describe(watch: DeviceWatch, started_s: float) -> str:
    """The present state of a watch's devices: utilisation, power, memory, and energy since the start."""
    minutes, seconds = divmod(int(time.monotonic() - started_s), 60)
    clock = f"{minutes}:{seconds:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    return f" {clock}  {_devices(watch)}"


def _devices(watch: DeviceWatch) -> str:
    states = watch.states
    if not states:
        return watch.problem
    timelines = [state.timeline for state in states]
    if len(states) <= _MOST_EACH:
        return "   ".join(
            f"GPU {timeline.device.index if timeline.device.index is not None else timeline.device.uuid}: "
            + (_one(timeline) if state.up else state.reason)
            for state, timeline in zip(states, timelines, strict=True)
        )
    return _several(timelines, sum(not state.up for state in states))


def _one(timeline: Timeline) -> str:
    busy, watts, used, joules = _now(timeline)
    total = timeline.device.memory_bytes
    parts = []
    if busy is not None:
        parts.append(percent(busy, 0))
    if watts is not None:
        parts.append(si(watts, "W"))
    if used is not None:
        parts.append(f"{used / (1 << 30):.1f}" + (f"/{total / (1 << 30):.0f}" if total else "") + " GiB")
    if joules is not None:
        parts.append(si(joules, "J"))
    return " ".join(parts) or "no readings yet"


def _several(timelines: list[Timeline], down: int) -> str:
    readings = [_now(timeline) for timeline in timelines]
    busy, watts, used, joules = ([v for each in readings if (v := each[place]) is not None] for place in range(4))
    parts = [f"{len(timelines)} devices:"]
    if busy:
        parts.append(f"{percent(sum(busy) / len(busy), 0)} busy ({min(busy) * 100:.0f} to {max(busy) * 100:.0f})")
    parts += [si(sum(watts), "W")] if watts else []
    parts += [f"{sum(used) / (1 << 30):.1f} GiB"] if used else []
    parts += [si(sum(joules), "J")] if joules else []
    return " ".join(parts) + (f", {down} not answering" if down else "")


def _now(timeline: Timeline) -> tuple[float | None, float | None, float | None, float | None]:
    """Recent utilisation (0-1) and watts, bytes in use, and joules since the first reading."""
    from gpu_profile.catalogue import BUSY_SOURCES, ENERGY_SOURCES, signals
    from gpu_profile.catalogue.samples import Interval
    from gpu_profile.join.reading import read

    def lately(*sources: Signal) -> float | None:
        column = timeline.best(sources)
        mark = None if column is None else column.watermark_ns
        if column is None or mark is None:
            return None
        reading = read(column, Interval(mark - _LATELY_NS, mark))
        return None if reading is None else reading.mean

    energy = timeline.best(ENERGY_SOURCES)
    joules = None
    if energy is not None and energy.watermark_ns is not None:
        anchors = timeline.anchors
        start = anchors[0] if anchors else energy.oldest_ns
        reading = None if start is None else read(energy, Interval(start, energy.watermark_ns))
        joules = None if reading is None else reading.total
    busy = lately(*BUSY_SOURCES)
    used = lately(signals.MEMORY_USED)
    return None if busy is None else min(1.0, busy), lately(signals.POWER, signals.POWER_AVERAGE), used, joules
