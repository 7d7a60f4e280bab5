"""How a running exporter is told things: by signals. It waits for them, and acts on each in a thread of its own."""

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
    """The signals that arrive from the moment on at which it is made."""

    def __init__(self, reading: int) -> None:
        self._reading = reading
        self._lock = threading.Lock()
        #: Signals that are being acted on, and whether they have come again since.
        self._again: dict[signal.Signals, bool] = {}

    def wait(
        self, actions: Mapping[int, Action] | None = None, *, beat: Action | None = None, beat_s: float | None = None
    ) -> None:
        """Return at SIGTERM or SIGINT; until then, start the action of each other signal when it comes.

        `beat` is called about every `beat_s` seconds, in this thread.
        """
        while True:
            heard = select.select([self._reading], [], [], beat_s)[0]
            if not heard and beat is not None:
                beat()
            for number in os.read(self._reading, 64) if heard else b"":
                if number in _STOP:
                    return
                if number in _OTHERS:
                    self._act(signal.Signals(number), (actions or {}).get(number))

    def _act(self, number: signal.Signals, action: Action | None) -> None:
        if action is None:
            _log.warning("%s means nothing to this exporter", number.name)
            return
        with self._lock:
            running = number in self._again
            self._again[number] = running
        if not running:
            # In a thread, so that whatever it has to wait for does not keep SIGTERM waiting.
            threading.Thread(target=self._run, args=(number, action), name=number.name, daemon=True).start()

    def _run(self, number: signal.Signals, action: Action) -> None:
        """Act, and once more if the signal has come again meanwhile: what it is about may have changed since."""
        while True:
            try:
                action()
            except Exception as error:  # noqa: BLE001 - whatever went wrong, the exporter goes on as it was
                _log.error("%s could not be acted on: %s", number.name, error)
                _log.debug("it failed here", exc_info=True)
            with self._lock:
                if not self._again[number]:
                    del self._again[number]
                    return
                self._again[number] = False


@contextmanager
def signals() -> Iterator[Control]:
    """Take over the signals; what they meant before comes back at the end."""
    # The interpreter itself writes to the pipe when a signal comes: a handler in Python might only run after a read
    # that has just begun to block, which is never.
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before_fd = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    # Who starts a program with SIGHUP ignored (nohup) wants it to be.
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
