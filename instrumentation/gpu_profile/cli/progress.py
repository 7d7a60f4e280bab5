"""One line on the terminal that shows how far long work has come."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

#: Shorter work draws nothing, in s.
PATIENCE_S: Final = 2.0
#: The time between two drawings, in s.
PERIOD_S: Final = 0.2
_BAR: Final = 30
_CLEAR: Final = "\r\x1b[2K"


class Progress:
    """Draws a line on stderr while a `with` block runs, and removes it at the end.

    Nothing is drawn, and no thread started, where stderr is no terminal. `share` returns the finished part as 0-1, or
    None if it is unknown. The drawing thread calls it.
    """

    def __init__(self, title: str, share: Callable[[], float | None] = lambda: None) -> None:
        self._title = title
        self._share = share
        self._began = time.monotonic()
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._drawn = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            self._thread = threading.Thread(target=self._draw, name="gpu-profile-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
            self._clear()

    def say(self, text: str) -> None:
        """Print a permanent line above the drawn one."""
        with self._lock:
            self._clear()
            print(text, file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._drawn:
            self._write(_CLEAR)
            self._drawn = False

    def _draw(self) -> None:
        wait = PATIENCE_S
        while not self._done.wait(wait):
            wait = PERIOD_S
            columns = shutil.get_terminal_size().columns
            line = progress_line(self._title, self._share(), time.monotonic() - self._began, columns - 1)
            with self._lock:
                self._drawn = True
                self._write(_CLEAR + line)

    @staticmethod
    def _write(text: str) -> None:
        with suppress(OSError, UnicodeError):  # the terminal is gone, or has no such characters
            sys.stderr.write(text)
            sys.stderr.flush()


def progress_line(title: str, share: float | None, elapsed_s: float, columns: int) -> str:
    """The title, a bar with the percentage if `share` (0-1) is known, and the elapsed time in at most `columns`."""
    minutes, seconds = divmod(int(elapsed_s), 60)
    clock = f"{minutes}:{seconds:02}"
    bar = ""
    if share is not None:
        whole = min(1.0, max(0.0, share))
        full = int(whole * _BAR)
        bar = f"{'█' * full}{'░' * (_BAR - full)} {whole * 100:3.0f} %  "
    room = max(0, columns - len(bar) - len(clock) - 2)
    return f"{title[:room]}  {bar}{clock}"[: max(0, columns)]
