"""The command that is watched: started as if nobody watched it, told every signal once, and waited for."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import click

#: What is passed on. SIGTSTP and SIGCONT also stop and wake this process, as a terminal expects of a whole job.
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
#: What Python ignores, and a command must not inherit ignored.
_PYTHONS_OWN: Final = tuple(getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ") if hasattr(signal, name))
#: Linux' `si_code` of a signal that the kernel itself sent, such as a terminal's Ctrl-C.
_SI_KERNEL: Final = 0x80
#: How often the child is looked at even if no signal says that it ended.
LOOK_S: Final = 0.25


class CommandNotExecutableError(click.ClickException):
    """The command may not be executed."""

    exit_code = 126


class CommandNotFoundError(click.ClickException):
    """There is no such program."""

    exit_code = 127


@contextmanager
def held_signals(*, for_good: bool = False) -> Iterator[set[signal.Signals]]:
    """Hold back the signals that are passed on, so that they can be waited for; yields the mask from before.

    With `for_good` they stay held back: a Ctrl-C while the interpreter goes down must not change the exit code.

    To be entered before any thread is started: threads inherit the mask, and a signal must find no thread that takes
    it. What is ignored (SIGHUP under `nohup`) stays ignored.
    """
    held = {number for number in _PASSED if signal.getsignal(number) is not signal.SIG_IGN}
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # else the kernel throws exit codes away
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held | {signal.SIGCHLD})
    try:
        yield {signal.Signals(number) for number in before}
    finally:
        # What came too late to be passed on must not end a command that has its exit code by now.
        while signal.sigtimedwait(held - before | {signal.SIGCHLD}, 0) is not None:
            pass
        if not for_good:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def asked_to_end() -> int:
    """The number of a signal that is held back and asks to end; 0 without one."""
    ends = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
    return min(signal.sigpending() & ends, default=0)


class ChildCommand:
    """A running command, with this process's standard streams and other open files.

    `mask` is the signal mask that it starts with. If it cannot be started: CommandNotFoundError (127), or
    CommandNotExecutableError (126).
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], mask: set[signal.Signals]) -> None:
        self.pid = _spawn(command, environment, mask)
        self._strangers: set[int] = set()

    def wait(self, tick: Callable[[], None], *, stopping: Callable[[], None] = lambda: None) -> int:
        """Wait for its end and return its exit code, 128 + n if signal n ended it; `held_signals` must be in force.

        `tick` is called several times a second, `stopping` before this process stops with the job (Ctrl-Z).
        """
        watched = {number for number in _PASSED if signal.getsignal(number) is not signal.SIG_IGN} | {signal.SIGCHLD}
        while True:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return 128 - code if code < 0 else code
            self._bury_strangers()
            tick()
            told = signal.sigtimedwait(watched, LOOK_S)
            if told is not None and told.si_signo != signal.SIGCHLD:
                self._pass_on(told, stopping)

    def _pass_on(self, told: signal.struct_siginfo, stopping: Callable[[], None]) -> None:
        if told.si_code != _SI_KERNEL or not self._in_our_group():
            os.kill(self.pid, told.si_signo)
        # else the terminal sent it to every process in the foreground, the child among them
        if told.si_signo == signal.SIGTSTP:
            stopping()
            os.kill(os.getpid(), signal.SIGSTOP)

    def _in_our_group(self) -> bool:
        try:
            return os.getpgid(self.pid) == os.getpgrp()
        except ProcessLookupError:
            return True

    def _bury_strangers(self) -> None:
        """As process 1 of a container, take in orphans that ended; those that someone here waits for are gone soon."""
        if os.getpid() != 1:
            return
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None or found.si_pid == self.pid:
            return
        if found.si_pid in self._strangers:
            self._strangers.discard(found.si_pid)
            os.waitpid(found.si_pid, os.WNOHANG)
        else:
            self._strangers.add(found.si_pid)


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
