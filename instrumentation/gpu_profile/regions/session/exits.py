"""Process ends that skip `atexit`: the end of a child of `multiprocessing`, and SIGTERM.

Such children (processes, pools, `concurrent.futures`, DataLoader workers) leave by `os._exit` after the finalisers of
`multiprocessing`. SIGTERM, by which pools end their workers and schedulers their jobs, ends a process at once. A
program's own `os._exit` and SIGKILL cannot be caught, and other signals are not: a recording without an end mark shows
these.
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
#: `multiprocessing` runs finalisers in descending order. This one runs last: others may still run regions.
_PRIORITY: Final = -100
#: The main thread has this long to show that it runs handlers. Another program may starve it for a second.
GRACE_S: Final = 2.0
#: Python writes this number into the pipe for a SIGTERM.
_SIGTERM: Final = signal.SIGTERM
#: Sent to the main thread to check whether it runs handlers. Ignored by default. Its number is higher than SIGTERM's,
#: so Python runs the handler of SIGTERM first.
_PROBE: Final = signal.SIGURG
#: Written into the pipe by the handlers below. No signal has these numbers.
_ASKED, _ANSWERED = 255, 254

#: Whether the finaliser of `multiprocessing` is registered in this process.
_finalised = False
#: Both ends of the pipe into which Python writes the numbers of signals; None while SIGTERM is not caught.
_pipe: tuple[int, int] | None = None
#: The function to call at the end, until one of the exits takes it; `_finished`: whether it has returned.
_to_finish: Final[list[Callable[[], None]]] = []
_finished = threading.Event()
_masks: Final = threading.local()


def watch(finish: Callable[[], None]) -> None:
    """Call `finish` on each of these exits, for at most `FINISH_S`. Another call replaces `finish`."""
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
    """Call the function of `watch`, or wait for another thread that does: a pool may end a worker that is ending.

    It runs in a thread of its own: it may need a lock that the interrupted code holds, or an exporter may not answer.
    """
    with suppress(RuntimeError):  # no more threads: unflushed data is lost, and the process ends
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
    """Whether SIGTERM ends this process by default, and Python can catch it here.

    Not as the first process of a container: it ignores SIGTERM by default. Not beside Trio, which warns of another
    library's wake-up descriptor.
    """
    return (
        threading.current_thread() is threading.main_thread()
        and os.getpid() != 1
        and "trio" not in sys.modules
        and {signal.getsignal(_SIGTERM), signal.getsignal(_PROBE)} == {signal.SIG_DFL}
        and not _caught_in_c()
    )


def _caught_in_c() -> bool:
    """Whether a library has set a handler in C, which Python does not see. PyTorch does in DataLoader workers."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return any(caught >> (number - 1) & 1 for number in (_SIGTERM, _PROBE))


def _catch() -> None:
    """Catch SIGTERM. A listener thread does the work, because the main thread may be in a C call that never returns.

    Python's handler in C writes the signal's number into the pipe even then.
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
        while numbers := os.read(receive, 256):
            if _ASKED in numbers or (_SIGTERM in numbers and _is_due(receive)):
                _wait_for_finish()
                _die()


def _is_due(receive: int) -> bool:
    """Whether a SIGTERM must end the process although `_on_sigterm` has not run.

    Not if another handler got the signal, which `_on_sigterm` may have replaced since. A main thread that runs the
    handler of the later `_PROBE` has run the handler of SIGTERM. A main thread that runs neither is stuck in C.
    """
    if signal.getsignal(_SIGTERM) is not _on_sigterm:
        return False
    signal.pthread_kill(threading.main_thread().ident or 0, _PROBE)
    end_s = time.monotonic() + GRACE_S
    while (left_s := end_s - time.monotonic()) > 0 and select.select([receive], [], [], left_s)[0]:
        numbers = os.read(receive, 256)
        if _ASKED in numbers or not numbers:
            return bool(numbers)
        if _ANSWERED in numbers:
            return False
    return signal.getsignal(_SIGTERM) is _on_sigterm


def _on_probe(_number: int, _frame: FrameType | None) -> None:
    _notify(_ANSWERED)


def _notify(number: int) -> None:
    """Write a number into the listener's pipe."""
    if _pipe is not None:
        with suppress(OSError):  # a full pipe: the listener has enough to read
            os.write(_pipe[1], bytes([number]))


def _on_sigterm(_number: int, _frame: FrameType | None) -> None:
    """Block the main thread until the listener ends the process: the program must not continue meanwhile."""
    if _pipe is not None:
        # Python may not have written into this pipe: an event loop may have replaced the wake-up descriptor, or another
        # handler may have called this one.
        _notify(_ASKED)
        time.sleep(FINISH_S + 1)
    _die()


def _die() -> None:
    """End the process by SIGTERM itself, so that its parent sees the usual exit status."""
    default = ctypes.CDLL(None).signal  # Python's `signal.signal` works in the main thread only
    default.argtypes, default.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    default(_SIGTERM, None)  # SIG_DFL
    os.kill(os.getpid(), _SIGTERM)


def _drop_wakeup(send: int) -> None:
    """Remove the wake-up descriptor `send` if it is still in use."""
    with suppress(ValueError):
        other = signal.set_wakeup_fd(-1)
        if other not in (-1, send):
            signal.set_wakeup_fd(other)


# ---------------------------------------------------------------------- forks


def hold() -> None:
    """Before a fork: block SIGTERM. A SIGTERM for the child must not be written into its parent's pipe."""
    if _pipe is not None:
        _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {_SIGTERM})


def release() -> None:
    """Unblock SIGTERM: after the fork in the parent, in the child at the end of `forget`."""
    before = getattr(_masks, "before", None)
    if before is not None:
        _masks.before = None
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def forget() -> None:
    """In a forked child: drop the parent's finaliser, listener, pipe and handlers."""
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
