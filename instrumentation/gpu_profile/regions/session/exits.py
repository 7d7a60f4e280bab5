"""The ways out of a process that skip `atexit`: the end of a child of `multiprocessing`, and SIGTERM.

Such children (processes, pools, `concurrent.futures`, DataLoader workers) leave by `os._exit` after the finalisers of
`multiprocessing`. SIGTERM, by which pools end their workers and schedulers their jobs, ends a process at once.
`os._exit` and SIGKILL leave no way: a recording without an end mark tells of those.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

#: Finishing delays the end of a process by at most this long.
FINISH_S: Final = 3.0
#: `multiprocessing` runs finalisers in descending order: this one last, after those that may still run regions.
_PRIORITY: Final = -100
#: What Python writes for a SIGTERM, and what our own handler does. Signals have no such number.
_SIGTERM: Final = signal.SIGTERM
_ASKED: Final = 255

#: Whether the finaliser of `multiprocessing` is registered in this process.
_finalised = False
#: Both ends of the pipe into which Python writes the numbers of signals; None while SIGTERM is not caught.
_pipe: tuple[int, int] | None = None
_masks: Final = threading.local()


def watch(finish: Callable[[], None]) -> None:
    """Have `finish` called on each of these ways out, for at most `FINISH_S`. To call again is fine."""
    global _finalised  # noqa: PLW0603 - one process
    parent = getattr(sys.modules.get("multiprocessing.process"), "parent_process", None)
    if not _finalised and parent is not None and parent() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _bounded, (finish,), exitpriority=_PRIORITY)
        _finalised = True
    if _pipe is None and _may_catch():
        _catch(finish)


def _bounded(finish: Callable[[], None]) -> None:
    """In a thread of its own: it may need a lock that the interrupted code holds, or an exporter may not answer."""
    thread = threading.Thread(target=finish, name="gpu-profile-finish", daemon=True)
    with suppress(RuntimeError):  # no more threads: what is left is lost, the process ends all the same
        thread.start()
        thread.join(FINISH_S)


# ---------------------------------------------------------------------- SIGTERM


def _may_catch() -> bool:
    """Whether SIGTERM ends this process by default and Python can tell of it.

    The first process of a container ignores SIGTERM by default. Trio warns of a wake-up descriptor that is not its own.
    """
    return (
        threading.current_thread() is threading.main_thread()
        and os.getpid() != 1
        and "trio" not in sys.modules
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        and not _caught_in_c()
    )


def _caught_in_c() -> bool:
    """Whether a library has a handler that Python does not know, as PyTorch has in DataLoader workers."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def _catch(finish: Callable[[], None]) -> None:
    """Catch SIGTERM. A listener does the work, as the main thread may be in a call of C that never returns.

    Python's own handler in C writes the signal's number into the pipe, whatever the main thread does.
    """
    global _pipe  # noqa: PLW0603 - as above
    receive, send = os.pipe()
    os.set_blocking(send, False)
    listener = threading.Thread(target=_listen, args=(receive, finish), name="gpu-profile-sigterm", daemon=True)
    try:
        other = signal.set_wakeup_fd(send, warn_on_full_buffer=False)
        if other != -1:  # an event loop's, which has its own handlers
            signal.set_wakeup_fd(other)
            raise RuntimeError
        listener.start()
    except (RuntimeError, ValueError):  # no more threads; or a sub-interpreter
        _drop_wakeup(send)
        os.close(receive)
        os.close(send)
        return
    _pipe = receive, send
    signal.signal(signal.SIGTERM, _on_sigterm)


def _listen(receive: int, finish: Callable[[], None]) -> None:
    with suppress(OSError):
        while told := os.read(receive, 256):
            # The program may have set a handler of its own meanwhile, which decides what a SIGTERM means.
            if _ASKED in told or (_SIGTERM in told and signal.getsignal(_SIGTERM) is _on_sigterm):
                _bounded(finish)
                _die()


def _on_sigterm(_number: int, _frame: FrameType | None) -> None:
    """Stay here until the listener ends the process: the program must not go on meanwhile."""
    if _pipe is not None:
        with suppress(OSError):  # full: it has been told
            # The wake-up descriptor may be an event loop's by now, or another handler may have called this one.
            os.write(_pipe[1], bytes([_ASKED]))
        time.sleep(FINISH_S + 1)
    _die()


def _die() -> None:
    """End by SIGTERM itself, so that the parent sees the status that it would have seen."""
    default = ctypes.CDLL(None).signal  # Python's own may be called in the main thread alone
    default.argtypes, default.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    default(signal.SIGTERM, None)  # SIG_DFL
    os.kill(os.getpid(), signal.SIGTERM)


def _drop_wakeup(send: int) -> None:
    """Take our descriptor out, if it is still the one in use."""
    with suppress(ValueError):
        other = signal.set_wakeup_fd(-1)
        if other not in (-1, send):
            signal.set_wakeup_fd(other)


# ---------------------------------------------------------------------- forks


def hold() -> None:
    """Before a fork: a SIGTERM for the child must not be written into the pipe of its parent."""
    if _pipe is not None:
        _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def release() -> None:
    """After it, in the parent; in the child after `forget`."""
    before = getattr(_masks, "before", None)
    if before is not None:
        _masks.before = None
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def forget() -> None:
    """In a forked child: neither the finaliser, nor the listener, nor the pipe is its own."""
    global _finalised, _pipe  # noqa: PLW0603 - as above
    _finalised = False
    pipe, _pipe = _pipe, None
    if pipe is not None:
        _drop_wakeup(pipe[1])
        if signal.getsignal(signal.SIGTERM) is _on_sigterm:
            with suppress(ValueError):
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for end in pipe:
            with suppress(OSError):
                os.close(end)
    release()
