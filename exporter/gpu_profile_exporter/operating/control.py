"""Signals of a running exporter: the main thread waits for them, and each action runs in its own thread."""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

_log = logging.getLogger("gpu_profile_exporter")

Action = Callable[[], object]
_STOP: Final = (signal.SIGTERM, signal.SIGINT)
_OTHERS: Final = (signal.SIGHUP, signal.SIGUSR1)


class Control:
    """Receives the process's signals. Made by `signals()`."""

    def __init__(self, reading: int) -> None:
        self._reading = reading
        self._lock = threading.Lock()
        #: Signals with a running action -> whether the signal has arrived again since it began.
        self._again: dict[signal.Signals, bool] = {}

    def wait(
        self, actions: Mapping[int, Action] | None = None, *, beat: Action | None = None, beat_s: float | None = None
    ) -> None:
        """Start the action of each signal that arrives, until SIGTERM or SIGINT.

        `beat` is called in this thread after each `beat_s` seconds without a signal.
        """
        while True:
            ready = select.select([self._reading], [], [], beat_s)[0]
            if not ready and beat is not None:
                beat()
            for number in os.read(self._reading, 64) if ready else b"":
                if number in _STOP:
                    return
                if number in _OTHERS:
                    self._act(signal.Signals(number), (actions or {}).get(number))

    def _act(self, number: signal.Signals, action: Action | None) -> None:
        if action is None:
            _log.warning("%s is ignored: this exporter has no action for it", number.name)
            return
        with self._lock:
            running = number in self._again
            self._again[number] = running
        if not running:
            # In a thread, so that an action that waits does not delay SIGTERM.
            threading.Thread(target=self._run, args=(number, action), name=number.name, daemon=True).start()

    def _run(self, number: signal.Signals, action: Action) -> None:
        """Run the action, and again if the signal arrived meanwhile: files may have changed after they were read."""
        while True:
            try:
                action()
            except Exception as error:  # noqa: BLE001 - the exporter continues after any failure of an action
                _log.error("%s could not be acted on: %s", number.name, error)
                _log.debug("it failed here", exc_info=True)
            with self._lock:
                if not self._again[number]:
                    del self._again[number]
                    return
                self._again[number] = False


@contextmanager
def signals() -> Iterator[Control]:
    """Install the handlers, and restore the previous ones at the end."""
    # The interpreter itself writes to the pipe when a signal arrives. A handler in Python would run only after a
    # read that has just begun to block, so possibly never.
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before_fd = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    # A signal that was ignored at the start stays ignored, such as SIGHUP under nohup.
    numbers = [n for n in (*_STOP, *_OTHERS) if n in _STOP or signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    try:
        yield Control(reading)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before_fd)
        os.close(reading)
        os.close(writing)
