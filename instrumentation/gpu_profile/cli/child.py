"""The profiled command: started with clean signal settings, sent every signal once, and awaited."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import click

#: The forwarded signals. SIGTSTP and SIGCONT also stop and wake this process: a terminal expects that of a whole job.
_PASSED: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGCONT,
)
#: Signals that Python ignores. A command must not inherit them ignored.
_PYTHONS_OWN: Final = tuple(getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name))
#: Linux' `si_code` of a signal that the kernel itself sent, such as a terminal's Ctrl-C.
_SI_KERNEL: Final = 0x80
#: The interval at which the child is polled even without a SIGCHLD.
LOOK_S: Final = 0.25


class CommandNotExecutableError(click.ClickException):
    """The command may not be executed."""

    exit_code = 126


class CommandNotFoundError(click.ClickException):
    """There is no such program."""

    exit_code = 127


@contextmanager
def held_signals(*, for_good: bool = False) -> Iterator[set[signal.Signals]]:
    """Block the forwarded signals, so that they can be awaited. Yields the mask from before.

    With `for_good` they stay blocked: a Ctrl-C while the interpreter exits must not change the exit code.

    Enter it before any thread starts: threads inherit the mask, and no thread may take a signal. Ignored signals
    (SIGHUP under `nohup`) stay ignored.
    """
    held = {number for number in _PASSED if signal.getsignal(number) is not signal.SIG_IGN}
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # else the kernel throws exit codes away
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held | {signal.SIGCHLD})
    try:
        yield {signal.Signals(number) for number in before}
    finally:
        # A signal that came too late to be forwarded must not end a command with a known exit code.
        while signal.sigtimedwait(held - before | {signal.SIGCHLD}, 0) is not None:
            pass
        if not for_good:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def asked_to_end() -> int:
    """The number of a blocked signal that asks for the end; 0 without one."""
    ends = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
    return min(signal.sigpending() & ends, default=0)


class ChildCommand:
    """A running command, with this process's standard streams and other open files.

    `mask` is its initial signal mask. Raises CommandNotFoundError (127) or CommandNotExecutableError (126) if the start
    fails.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], mask: set[signal.Signals]) -> None:
        self.pid = _spawn(command, environment, mask)
        self._orphans: set[int] = set()

    def wait(self, tick: Callable[[], None], *, stopping: Callable[[], None] = lambda: None) -> int:
        """Wait for its end and return its exit code, 128 + n if signal n ended it. Needs `held_signals`.

        `tick` is called several times a second, `stopping` before this process stops with the job (Ctrl-Z).
        """
        watched = {number for number in _PASSED if signal.getsignal(number) is not signal.SIG_IGN} | {signal.SIGCHLD}
        while True:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return 128 - code if code < 0 else code
            self._reap_orphans()
            tick()
            received = signal.sigtimedwait(watched, LOOK_S)
            if received is not None and received.si_signo != signal.SIGCHLD:
                self._pass_on(received, stopping)

    def _pass_on(self, received: signal.struct_siginfo, stopping: Callable[[], None]) -> None:
        if received.si_code != _SI_KERNEL or not self._in_our_group():
            os.kill(self.pid, received.si_signo)
        # else the terminal sent it to every process in the foreground, the child among them
        if received.si_signo == signal.SIGTSTP:
            stopping()
            os.kill(os.getpid(), signal.SIGSTOP)

    def _in_our_group(self) -> bool:
        try:
            return os.getpgid(self.pid) == os.getpgrp()
        except ProcessLookupError:
            return True

    def _reap_orphans(self) -> None:
        """As process 1 of a container, reap orphans. Each gets one round first, for a thread that waits for it."""
        if os.getpid() != 1:
            return
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None or ended.si_pid == self.pid:
            return
        if ended.si_pid in self._orphans:
            self._orphans.discard(ended.si_pid)
            os.waitpid(ended.si_pid, os.WNOHANG)
        else:
            self._orphans.add(ended.si_pid)


def _spawn(command: Sequence[str], environment: Mapping[str, str], mask: set[signal.Signals]) -> int:
    name = command[0]

    def start(program: str, arguments: Sequence[str]) -> int:
        # Not subprocess: only this call can give the child another signal mask than its parent's without running
        # Python between fork and exec.
        return os.posix_spawnp(program, list(arguments), environment, setsigmask=mask, setsigdef=_PYTHONS_OWN)

    try:
        return start(name, command)
    except OSError as error:
        if error.errno == errno.ENOEXEC:  # a script without a first line: a shell would run it
            return start("/bin/sh", ["sh", shutil.which(name) or name, *command[1:]])
        raise _not_started(name, error) from error
    except ValueError as error:  # a null byte
        raise CommandNotFoundError(f"{name!r}: cannot be run: {error}") from error


def _not_started(name: str, error: OSError) -> click.ClickException:
    if error.errno not in (errno.ENOENT, errno.ENOTDIR):
        return CommandNotExecutableError(f"{name}: cannot be run: {error.strerror}")
    if shutil.which(name):
        return CommandNotFoundError(f"{name}: cannot be run: the interpreter in its first line does not exist")
    return CommandNotFoundError(f"{name}: no such {'file' if '/' in name else 'command on PATH'}")
