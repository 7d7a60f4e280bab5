"""The ways out of a process that skip `atexit`: the end of a child of `multiprocessing`, and SIGTERM.

Such children (processes, pools, `concurrent.futures`, DataLoader workers) leave by `os._exit` after the finalisers of
`multiprocessing`. SIGTERM, by which pools end their workers and schedulers their jobs, ends a process at once.
`os._exit` and SIGKILL leave no way: a recording without an end mark tells of those.
"""

from __future__ import annotations

import ctypes
import os
import select
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
#: The main thread has this long to show that it runs handlers.
GRACE_S: Final = 1.0
#: What Python writes for a SIGTERM.
_SIGTERM: Final = signal.SIGTERM
#: By this signal, which is ignored by default, the main thread is asked whether it runs handlers. Its number is higher
#: than SIGTERM's, whose handler Python therefore runs first.
_PROBE: Final = signal.SIGURG
#: What our handlers write. Signals have no such numbers.
_ASKED, _ANSWERED = 255, 254

#: Whether the finaliser of `multiprocessing` is registered in this process.
_finalised = False
#: Both ends of the pipe into which Python writes the numbers of signals; None while SIGTERM is not caught.
_pipe: tuple[int, int] | None = None
#: What is to be called, until one of the ways out has taken it, and whether it has been.
_to_finish: Final[list[Callable[[], None]]] = []
_finished = threading.Event()
_masks: Final = threading.local()


def watch(finish: Callable[[], None]) -> None:
    """Have `finish` called on each of these ways out, for at most `FINISH_S`. To call again is fine."""
    global _finalised  # noqa: PLW0603 - one process
    _to_finish[:] = [finish]
    parent = getattr(sys.modules.get("multiprocessing.process"), "parent_process", None)
    if not _finalised and parent is not None and parent() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _wait_for_finish, exitpriority=_PRIORITY)
        _finalised = True
    if _pipe is None and _may_catch():
        _catch()


def _wait_for_finish() -> None:
    """Finish, or wait for whoever does so already: a pool may end a worker that is ending by itself.

    In a thread of its own: it may need a lock that the interrupted code holds, or an exporter may not answer.
    """
    with suppress(RuntimeError):  # no more threads: what is left is lost, the process ends all the same
        threading.Thread(target=_finish_once, name="gpu-profile-finish", daemon=True).start()
        _finished.wait(FINISH_S)


def _finish_once() -> None:
    with suppress(IndexError):  # another thread has taken it
        finish = _to_finish.pop()
        try:
            finish()
        finally:
            _finished.set()


# ---------------------------------------------------------------------- SIGTERM


def _may_catch() -> bool:
    """Whether SIGTERM ends this process by default and Python can tell of it.

    The first process of a container ignores SIGTERM by default. Trio warns of a wake-up descriptor that is not its own.
    """
    return (
        threading.current_thread() is threading.main_thread()
        and os.getpid() != 1
        and "trio" not in sys.modules
        and {signal.getsignal(_SIGTERM), signal.getsignal(_PROBE)} == {signal.SIG_DFL}
        and not _caught_in_c()
    )


def _caught_in_c() -> bool:
    """Whether a library has a handler that Python does not know, as PyTorch has in DataLoader workers."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return any(caught >> (number - 1) & 1 for number in (_SIGTERM, _PROBE))


def _catch() -> None:
    """Catch SIGTERM. A listener does the work, as the main thread may be in a call of C that never returns.

    Python's own handler in C writes the signal's number into the pipe, whatever the main thread does.
    """
    global _pipe  # noqa: PLW0603 - as above
    receive, send = os.pipe()
    os.set_blocking(send, False)
    listener = threading.Thread(target=_listen, args=(receive,), name="gpu-profile-sigterm", daemon=True)
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
    signal.signal(_SIGTERM, _on_sigterm)
    signal.signal(_PROBE, _on_probe)


def _listen(receive: int) -> None:
    with suppress(OSError):
        while told := os.read(receive, 256):
            if _ASKED in told or (_SIGTERM in told and _is_due(receive)):
                _wait_for_finish()
                _die()


def _is_due(receive: int) -> bool:
    """Whether a SIGTERM, of which Python has told, is to end the process though our handler has not asked for it.

    Not if another handler got it, which may have been replaced by ours since: a main thread that runs the handler of a
    later signal has run that of this one. Where it does not even do that, it is stuck in C.
    """
    if signal.getsignal(_SIGTERM) is not _on_sigterm:
        return False
    signal.pthread_kill(threading.main_thread().ident or 0, _PROBE)
    end_s = time.monotonic() + GRACE_S
    while (left_s := end_s - time.monotonic()) > 0 and select.select([receive], [], [], left_s)[0]:
        told = os.read(receive, 256)
        if _ASKED in told or not told:
            return bool(told)
        if _ANSWERED in told:
            return False
    return signal.getsignal(_SIGTERM) is _on_sigterm


def _on_probe(_number: int, _frame: FrameType | None) -> None:
    _tell(_ANSWERED)


def _tell(what: int) -> None:
    if _pipe is not None:
        with suppress(OSError):  # full: it has been told enough
            os.write(_pipe[1], bytes([what]))


def _on_sigterm(_number: int, _frame: FrameType | None) -> None:
    """Stay here until the listener ends the process: the program must not go on meanwhile."""
    if _pipe is not None:
        _tell(
            _ASKED
        )  # the wake-up descriptor may be an event loop's by now, or another handler may have called this one
        time.sleep(FINISH_S + 1)
    _die()


def _die() -> None:
    """End by SIGTERM itself, so that the parent sees the status that it would have seen."""
    default = ctypes.CDLL(None).signal  # Python's own may be called in the main thread alone
    default.argtypes, default.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    default(_SIGTERM, None)  # SIG_DFL
    os.kill(os.getpid(), _SIGTERM)


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
        _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {_SIGTERM})


def release() -> None:
    """After it, in the parent; in the child after `forget`."""
    before = getattr(_masks, "before", None)
    if before is not None:
        _masks.before = None
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def forget() -> None:
    """In a forked child: neither the finaliser, nor the listener, nor the pipe is its own."""
    global _finalised, _finished, _pipe
    _finalised, _finished = False, threading.Event()
    _to_finish.clear()
    pipe, _pipe = _pipe, None
    if pipe is not None:
        _drop_wakeup(pipe[1])
        for number, ours in ((_SIGTERM, _on_sigterm), (_PROBE, _on_probe)):
            if signal.getsignal(number) is ours:
                with suppress(ValueError):
                    signal.signal(number, signal.SIG_DFL)
        for end in pipe:
            with suppress(OSError):
                os.close(end)
    release()
