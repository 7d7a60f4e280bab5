import asyncio
import base64
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from gpu_profile_exporter.server.auth import Busy, Users, basic, bcrypt_check
from gpu_profile_exporter.server.worker import Worker

ALICE = b"$2b$04$hYSuf45icwxDc2Jg/62M2O6cL2mn6SHs3.8WmUC/0z5Zo0U9GDdv2"


def header(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


class Checks:
    """Stands for bcrypt: a hash is its password, and each check is noted."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes, bytes]] = []

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        self.seen.append((password, hashed))
        return password == hashed


class Later:
    """A worker whose work a test lets happen."""

    def __init__(self) -> None:
        self.work: list[tuple[asyncio.Future[bool], Callable[[], bool]]] = []

    def do(self, action: Callable[[], bool]) -> asyncio.Future[bool]:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.work.append((future, action))
        return future

    def happen(self) -> None:
        for future, action in self.work:
            future.set_result(action())
        self.work.clear()


@contextmanager
def users(checks: Checks, **hashes: str) -> Iterator[Callable[[str], bool]]:
    known = Users({name.encode(): value.encode() for name, value in hashes.items()}, check=checks)
    loop = asyncio.new_event_loop()
    worker: Worker[bool] = Worker("passwords", loop)
    try:
        yield lambda text: loop.run_until_complete(known.allow(text, worker))
    finally:
        worker.stop()
        loop.close()


def test_a_verdict_is_asked_for_once_right_or_wrong() -> None:
    checks = Checks()
    with users(checks, alice="secret") as allow:
        assert [allow(header("alice", "secret")) for _ in range(3)] == [True] * 3
        assert [allow(header("alice", "guess")) for _ in range(3)] == [False] * 3
    assert checks.seen == [(b"secret", b"secret"), (b"guess", b"secret")]


def test_a_name_that_does_not_exist_costs_a_check_as_well() -> None:
    checks = Checks()
    with users(checks, alice="secret", bob="sesame") as allow:
        assert not allow(header("carol", "one"))
        assert not allow(header("carol", "two"))
        assert not allow(header("carol", "secret"))
        assert not allow(header("carol", "sesame")), "another user's password"
    assert len(checks.seen) == 4
    assert len({hashed for _, hashed in checks.seen}) == 1, "always the same cost for a name"


def test_users_do_not_share_passwords() -> None:
    with users(Checks(), alice="secret", bob="sesame") as allow:
        assert allow(header("bob", "sesame"))
        assert not allow(header("alice", "sesame"))
        assert not allow(header("alic", "esecret"))


def test_guesses_push_no_right_verdict_out() -> None:
    checks = Checks()
    with users(checks, alice="secret") as allow:
        assert allow(header("alice", "secret"))
        for n in range(600):
            assert not allow(header("alice", str(n)))
        before = len(checks.seen)
        assert allow(header("alice", "secret"))
        assert len(checks.seen) == before


@pytest.mark.parametrize(
    "text", ["", "Basic", "Basic !", "Bearer abc", "Basic YWxpY2U=", "basic \xff", "Basic YWxpY2U6c2VjcmV0 YQ=="]
)
def test_what_is_no_name_and_password_needs_no_check(text: str) -> None:
    checks = Checks()
    with users(checks, alice="secret") as allow:
        assert not allow(text)
    assert checks.seen == []


def test_a_password_may_hold_colons_and_any_letters() -> None:
    assert basic(header("alice", "a:b:ü")) == (b"alice", "a:b:ü".encode())
    assert basic("bAsIc  " + header("alice", "x").split()[1]) == (b"alice", b"x")


def test_those_who_come_at_the_same_time_share_a_check_and_a_flood_is_refused() -> None:
    async def flood() -> tuple[list[object], int]:
        checks, later = Checks(), Later()
        known = Users({b"alice": b"secret"}, check=checks)
        same = [asyncio.ensure_future(known.allow(header("alice", "secret"), later)) for _ in range(5)]  # type: ignore[arg-type]
        others = [asyncio.ensure_future(known.allow(header("alice", str(n)), later)) for n in range(20)]  # type: ignore[arg-type]
        await asyncio.sleep(0)
        later.happen()
        return await asyncio.gather(*same, *others, return_exceptions=True), len(checks.seen)

    results, checked = asyncio.run(flood())
    assert results[:5] == [True] * 5
    assert results[5:20] == [False] * 15
    assert all(isinstance(result, Busy) for result in results[20:])
    assert checked == 16


def test_bcrypt_itself_agrees() -> None:
    check = bcrypt_check()
    assert check(b"secret", ALICE)
    assert check(b"secret", ALICE.replace(b"$2b$", b"$2y$"))
    assert not check(b"Secret", ALICE)
    assert not check(b"secret\0", ALICE)


def test_a_password_longer_than_bcrypt_takes_is_no_error() -> None:
    with users(Checks(), alice="a" * 72) as allow:
        assert allow(header("alice", "a" * 100))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(bcrypt_check(), b"a" * 72, ALICE).result() is False
