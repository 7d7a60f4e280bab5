"""Names and passwords."""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Final

from gpu_profile.errors import UsageError
from gpu_profile_exporter.server.worker import Worker

#: Verdicts that are remembered, right ones and wrong ones apart: guesses do not push a scraper's out.
_REMEMBERED: Final = 256
#: Checks that may wait at once. Those who were let in before are not among them.
_WAITING: Final = 16
#: bcrypt itself looks at no more of a password.
_BCRYPT_BYTES: Final = 72

Check = Callable[[bytes, bytes], bool]


class Busy(Exception):  # noqa: N818 - a state, told to the client as such
    """Too many passwords wait for their check."""


class Users:
    """Who may ask, by bcrypt hash. A verdict costs one check of some 60 ms at cost 10, and is then remembered.

    What is remembered is a hash under a key that only this process knows. A name that does not exist is checked
    against some user's hash, so that it takes as long as one that does.
    """

    def __init__(self, hashes: Mapping[bytes, bytes], *, check: Check | None = None) -> None:
        self._hashes = dict(hashes)
        self._decoys = list(self._hashes.values())
        self._check = check or bcrypt_check()
        self._secret = os.urandom(32)
        self._right: dict[bytes, None] = {}
        self._wrong: dict[bytes, None] = {}
        self._waiting: dict[bytes, asyncio.Future[bool]] = {}

    async def allow(self, header: str, worker: Worker[bool]) -> bool:
        """Whether an `Authorization` header is a user's; `Busy` if that cannot be told now."""
        credentials = basic(header)
        if credentials is None:
            return False
        name, password = credentials
        key = self._digest(name, password)
        if key in self._right:
            return True
        if key in self._wrong:
            return False
        check = self._waiting.get(key)
        if check is None:
            if len(self._waiting) >= _WAITING:
                raise Busy
            check = self._waiting[key] = worker.do(lambda: self._verdict(name, password))
            check.add_done_callback(lambda done: self._remember(key, done))
        await asyncio.wait((check,))
        return check.result()

    def _verdict(self, name: bytes, password: bytes) -> bool:
        known = self._hashes.get(name)
        # Always the same decoy for a name: else repeated tries would show two different costs.
        decoy = self._decoys[self._digest(name, b"")[0] % len(self._decoys)]
        right = self._check(password[:_BCRYPT_BYTES], known or decoy)
        return right and known is not None

    def _remember(self, key: bytes, done: asyncio.Future[bool]) -> None:
        del self._waiting[key]
        if not done.cancelled() and done.exception() is None:
            memory = self._right if done.result() else self._wrong
            memory[key] = None
            if len(memory) > _REMEMBERED:
                del memory[next(iter(memory))]

    def _digest(self, name: bytes, password: bytes) -> bytes:
        sized = len(name).to_bytes(8, "big") + name + password
        return blake2b(sized, key=self._secret, digest_size=32).digest()


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
