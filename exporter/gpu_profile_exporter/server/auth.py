"""Names and passwords: who is let in, and what finding out may cost."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, TypeVar

from gpu_profile.errors import UsageError
from gpu_profile_exporter.server.worker import Worker

#: Share of one core that checks may take: four a second at cost 10.
SHARE: Final = 0.25
#: Checks that may wait at once: at cost 10 the last of them waits longer than a scrape does.
WAITING: Final = 64
#: Verdicts that are remembered, right ones and wrong ones apart: guesses do not push a scraper's out.
_REMEMBERED: Final = 256
#: Peers whose failures, and credentials whose repetitions, are remembered.
_RANKED: Final = 4096
#: bcrypt itself looks at no more of a password.
_BCRYPT_BYTES: Final = 72

Check = Callable[[bytes, bytes], bool]
Hashes = Mapping[bytes, bytes]
K = TypeVar("K")
V = TypeVar("V")


class ChecksPending(Exception):  # noqa: N818 - a state, told to the client as such
    """Too many passwords wait for their check."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A check that is under way or to come; all who send the same credentials wait for the same one."""

    peer: str
    action: Callable[[], bool]
    verdict: asyncio.Future[bool]
    running: bool = False
    spent_s: float = 0.0


class Passwords:
    """Checks names and passwords against bcrypt hashes. A verdict is remembered as long as the user's hash stays.

    bcrypt is slow on purpose, some 60 ms at cost 10, so that whoever guesses could keep the node busy. One check runs
    at a time, and after each there is a rest, so that checks take at most `SHARE` of a core. Which one is next: that of
    the peer with the fewest failures, then the credentials that were sent most often, as a scraper repeats its own and
    guessers do not, then the oldest. Where too many wait, the last in this order is turned away.

    What is remembered is a hash under a key that only this process knows. A name that does not exist is checked
    against some user's hash, so that it takes as long as one that does. Everything but the checks themselves runs in
    the loop's thread.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        check: Check | None = None,
        worker: Worker[bool] | None = None,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._loop = loop
        self._check = check
        self._worker = worker
        self._cpu_s = cpu_s
        self._secret = os.urandom(32)
        self._right: dict[bytes, None] = {}
        self._wrong: dict[bytes, None] = {}
        self._checks: dict[bytes, _Waiting] = {}
        self._failures: dict[str, int] = {}
        self._asked: dict[bytes, int] = {}
        self._at_work = False

    def stop(self) -> None:
        """Let the thread end."""
        if self._worker is not None:
            self._worker.stop()

    async def allow(self, header: str, hashes: Hashes, *, peer: str, patience_s: float) -> bool:
        """Whether an `Authorization` header is that of a user in `hashes` (hash by name; at least one).

        `ChecksPending` after `patience_s` seconds without an answer. The check may still finish later and serve the
        next request.
        """
        credentials = basic(header)
        if credentials is None:
            return False
        name, password = credentials
        hashed = hashes.get(name)
        # Always the same decoy for a name: else repeated tries would show two different costs.
        decoys = list(hashes.values())
        against = decoys[self._digest(name)[0] % len(decoys)] if hashed is None else hashed
        key = self._digest(name, password, b"decoy" if hashed is None else b"hash", against)
        if key in self._right:
            return True
        if key in self._wrong:
            return False
        _keep(self._asked, key, self._asked.get(key, 0) + 1, _RANKED)
        check = self._checks.get(key)
        if check is None:
            known = hashed is not None
            check = _Waiting(peer, lambda: self._verdict(password, against) and known, self._loop.create_future())
            self._checks[key] = check
            self._turn_away()
            self._start()
        await asyncio.wait((check.verdict,), timeout=patience_s)
        if not check.verdict.done() or check.verdict.cancelled():
            raise ChecksPending
        return check.verdict.result()

    def _verdict(self, password: bytes, hashed: bytes) -> bool:
        self._check = self._check or bcrypt_check()
        return self._check(password[:_BCRYPT_BYTES], hashed)

    # ------------------------------------------------------------------ whose turn it is

    def _queue(self) -> list[bytes]:
        """Whatever waits, in the order in which it is to be checked."""
        queue = [key for key, check in self._checks.items() if not check.running]
        return sorted(queue, key=lambda key: (self._failures.get(self._checks[key].peer, 0), -self._asked.get(key, 0)))

    def _turn_away(self) -> None:
        queue = self._queue()
        if len(queue) > WAITING:
            self._checks.pop(queue[-1]).verdict.cancel()

    def _start(self) -> None:
        """Have the next one checked, unless one is, or has only just been."""
        queue = self._queue()
        if self._at_work or not queue:
            return
        self._at_work = True
        self._worker = self._worker or Worker("gpu-profile-passwords", self._loop)
        check = self._checks[queue[0]]
        check.running = True
        done = self._worker.do(lambda: self._run(check))
        done.add_done_callback(lambda found: self._finish(queue[0], check, found))

    def _run(self, check: _Waiting) -> bool:
        began_s = self._cpu_s()
        try:
            return check.action()
        finally:
            check.spent_s = self._cpu_s() - began_s

    def _finish(self, key: bytes, check: _Waiting, found: asyncio.Future[bool]) -> None:
        del self._checks[key]
        self._asked.pop(key, None)
        error = found.exception()
        if error is not None:
            check.verdict.set_exception(error)
        else:
            right = found.result()
            check.verdict.set_result(right)
            _keep(self._right if right else self._wrong, key, None, _REMEMBERED)
            if not right:
                _keep(self._failures, check.peer, self._failures.get(check.peer, 0) + 1, _RANKED)
        self._loop.call_later(check.spent_s * (1 / SHARE - 1), self._rested)

    def _rested(self) -> None:
        self._at_work = False
        self._start()

    def _digest(self, *parts: bytes) -> bytes:
        sized = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return blake2b(sized, key=self._secret, digest_size=32).digest()


def _keep(memory: dict[K, V], key: K, value: V, most: int) -> None:
    """Remember as the newest; the oldest is forgotten where there are more than `most`."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > most:
        del memory[next(iter(memory))]


def basic(header: str) -> tuple[bytes, bytes] | None:
    """Name and password of a `Basic` header; None if it is none."""
    scheme, _, coded = header.strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(coded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None


def bcrypt_check() -> Check:
    """bcrypt's check of a password; UsageError if the package is missing."""
    try:
        import bcrypt
    except ImportError as error:
        raise UsageError("basic_auth_users need the package bcrypt: pip install 'gpu-profile[web]'") from error

    def check(password: bytes, hashed: bytes) -> bool:
        try:
            return bcrypt.checkpw(password, hashed)
        except ValueError:  # a NUL byte, in some versions
            return False

    return check
