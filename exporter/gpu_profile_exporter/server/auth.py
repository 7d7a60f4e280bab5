"""Checks user names and passwords, with a limit on the CPU time of the checks."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from gpu_profile.errors import UsageError
from gpu_profile_exporter.server.worker import Worker

#: Share of one core for checks: four checks a second at bcrypt cost 10.
SHARE: Final = 0.25
#: Most checks that wait at once. At cost 10 the last of them waits longer than a scrape's timeout.
WAITING: Final = 64
#: Cached verdicts, right and wrong ones separately: guesses do not evict a scraper's verdict.
_REMEMBERED: Final = 256
#: Most peers with a count of failures, and most credentials with a count of repetitions.
_RANKED: Final = 4096
#: bcrypt ignores the rest of a longer password.
_BCRYPT_BYTES: Final = 72

Check = Callable[[bytes, bytes], bool]
Hashes = Mapping[bytes, bytes]
K = TypeVar("K")
V = TypeVar("V")


class ChecksPending(Exception):  # noqa: N818 - a state, which the client gets as an answer
    """Too many passwords are waiting for their check."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A check that is running or queued. Requests with the same credentials share one check."""

    peer: str
    action: Callable[[], bool]
    verdict: asyncio.Future[bool]
    running: bool = False
    spent_s: float = 0.0


class Passwords:
    """Checks names and passwords against bcrypt hashes. A verdict stays valid until the user's hash changes.

    bcrypt is slow on purpose, some 60 ms at cost 10, so that guessing passwords could overload the node. One check runs
    at a time, with a pause after each, so that checks take at most `SHARE` of a core. The peer with the fewest failures
    comes first, then the credentials that were sent most often, then the oldest check. A scraper repeats its
    credentials, guessers do not. If too many checks wait, the last in this order is rejected.

    The cache contains hashes under a key of this process, no passwords. An unknown name is checked against the hash of
    some user, so that it takes as long as an existing one. Only the checks run outside the loop's thread.
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
        self._repeats: dict[bytes, int] = {}
        self._occupied = False

    def stop(self) -> None:
        """End the thread of the checks."""
        if self._worker is not None:
            self._worker.stop()

    async def allow(self, header: str, hashes: Hashes, *, peer: str, patience_s: float) -> bool:
        """Whether an `Authorization` header has the name and password of a user in `hashes` (hash by name, not empty).

        Raises `ChecksPending` after `patience_s` seconds without a verdict. The check may still finish later and serve
        the next request.
        """
        credentials = basic(header)
        if credentials is None:
            return False
        name, password = credentials
        hashed = hashes.get(name)
        # Always the same decoy for a name: otherwise, repeated attempts could show two different costs.
        decoys = list(hashes.values())
        against = decoys[self._digest(name)[0] % len(decoys)] if hashed is None else hashed
        key = self._digest(name, password, b"decoy" if hashed is None else b"hash", against)
        if key in self._right:
            return True
        if key in self._wrong:
            return False
        _keep(self._repeats, key, self._repeats.get(key, 0) + 1, _RANKED)
        check = self._checks.get(key)
        if check is None:
            exists = hashed is not None
            check = _Waiting(peer, lambda: self._verdict(password, against) and exists, self._loop.create_future())
            self._checks[key] = check
            self._limit_queue()
            self._start()
        await asyncio.wait((check.verdict,), timeout=patience_s)
        if not check.verdict.done() or check.verdict.cancelled():
            raise ChecksPending
        return check.verdict.result()

    def _verdict(self, password: bytes, hashed: bytes) -> bool:
        self._check = self._check or bcrypt_check()
        return self._check(password[:_BCRYPT_BYTES], hashed)

    # ------------------------------------------------------------------ the queue

    def _queue(self) -> list[bytes]:
        """The keys of the waiting checks, in the order of their turns."""
        queue = [key for key, check in self._checks.items() if not check.running]
        failures = {key: self._failures.get(self._checks[key].peer, 0) for key in queue}
        return sorted(queue, key=lambda key: (failures[key], -self._repeats.get(key, 0)))

    def _limit_queue(self) -> None:
        queue = self._queue()
        if len(queue) > WAITING:
            self._checks.pop(queue[-1]).verdict.cancel()

    def _start(self) -> None:
        """Start the next check, unless a check or the pause after one is in progress."""
        queue = self._queue()
        if self._occupied or not queue:
            return
        self._occupied = True
        self._worker = self._worker or Worker("gpu-profile-passwords", self._loop)
        check = self._checks[queue[0]]
        check.running = True
        done = self._worker.do(lambda: self._run(check))
        done.add_done_callback(lambda future: self._finish(queue[0], check, future))

    def _run(self, check: _Waiting) -> bool:
        began_s = self._cpu_s()
        try:
            return check.action()
        finally:
            check.spent_s = self._cpu_s() - began_s

    def _finish(self, key: bytes, check: _Waiting, future: asyncio.Future[bool]) -> None:
        del self._checks[key]
        self._repeats.pop(key, None)
        error = future.exception()
        if error is not None:
            check.verdict.set_exception(error)
        else:
            right = future.result()
            check.verdict.set_result(right)
            _keep(self._right if right else self._wrong, key, None, _REMEMBERED)
            if not right:
                _keep(self._failures, check.peer, self._failures.get(check.peer, 0) + 1, _RANKED)
        self._loop.call_later(check.spent_s * (1 / SHARE - 1), self._end_pause)

    def _end_pause(self) -> None:
        self._occupied = False
        self._start()

    def _digest(self, *parts: bytes) -> bytes:
        from hashlib import blake2b  # loads OpenSSL: only for a listener with passwords

        sized = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return blake2b(sized, key=self._secret, digest_size=32).digest()


def _keep(memory: dict[K, V], key: K, value: V, most: int) -> None:
    """Set `key` as the newest entry, and remove the oldest one above `most` entries."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > most:
        del memory[next(iter(memory))]


def basic(header: str) -> tuple[bytes, bytes] | None:
    """Name and password of a `Basic` header; None for any other header."""
    scheme, _, coded = header.strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(coded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None


def bcrypt_check() -> Check:
    """bcrypt's check of a password. Raises UsageError if the package is missing."""
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
