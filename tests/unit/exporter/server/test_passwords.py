import asyncio
import base64
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.servers import MovedLoop

from gpu_profile_exporter.server.auth import SHARE, WAITING, ChecksPending, Passwords, basic, bcrypt_check

ALICE = b"$2b$04$hYSuf45icwxDc2Jg/62M2O6cL2mn6SHs3.8WmUC/0z5Zo0U9GDdv2"
COST_S = 0.06


def header(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


class Bench:
    """Passwords whose checks cost `COST_S`. Stands for bcrypt: a hash is its password."""

    def __init__(self) -> None:
        self.loop = MovedLoop()
        self.seen: list[tuple[bytes, bytes]] = []
        self.spent_s = 0.0
        self.hashes: Mapping[bytes, bytes] = {b"alice": b"secret", b"bob": b"sesame"}
        self.passwords = Passwords(self.loop, check=self._check, worker=self, cpu_s=lambda: self.spent_s)  # type: ignore[arg-type]

    def do(self, action: Callable[[], bool]) -> asyncio.Future[bool]:
        future: asyncio.Future[bool] = self.loop.create_future()
        future.set_result(action())
        return future

    def stop(self) -> None:
        pass

    def _check(self, password: bytes, hashed: bytes) -> bool:
        self.seen.append((password, hashed))
        self.spent_s += COST_S
        self.loop.moved_s += COST_S
        return password == hashed

    def send(self, name: str, password: str, peer: str = "a", patience_s: float = 1e9) -> asyncio.Task[bool]:
        """Ask, and have done what can be done before time goes on."""
        asking = self.passwords.allow(header(name, password), self.hashes, peer=peer, patience_s=patience_s)
        task = self.loop.create_task(asking)
        self.loop.turn(9)
        return task

    def rest(self, checks: int = 1) -> None:
        for _ in range(checks):
            self.loop.advance(COST_S / SHARE)
            self.loop.turn(9)

    def allows(self, name: str, password: str) -> bool:
        task = self.send(name, password)
        self.rest()
        return task.result()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    for task in asyncio.all_tasks(made.loop):
        task.cancel()
    made.loop.turn()
    made.loop.close()


def answers(tasks: list[asyncio.Task[bool]]) -> list[object]:
    return [type(task.exception()) if task.exception() else task.result() for task in tasks if task.done()]


# ------------------------------------------------------------------ verdicts


def test_a_verdict_is_asked_for_once_right_or_wrong(bench: Bench) -> None:
    assert [bench.allows("alice", "secret") for _ in range(3)] == [True] * 3
    assert [bench.allows("alice", "guess") for _ in range(3)] == [False] * 3
    assert bench.seen == [(b"secret", b"secret"), (b"guess", b"secret")]


def test_a_verdict_outlives_a_change_of_other_users_and_ends_with_its_own_hash(bench: Bench) -> None:
    assert bench.allows("alice", "secret")
    assert not bench.allows("alice", "new")
    bench.hashes = {b"alice": b"secret", b"carol": b"x"}
    assert bench.allows("alice", "secret")
    assert len(bench.seen) == 2
    bench.hashes = {b"alice": b"new"}
    assert not bench.allows("alice", "secret")
    assert bench.allows("alice", "new")
    bench.hashes = {b"bob": b"new"}
    assert not bench.allows("alice", "new"), "taken out, and another has the same hash"
    bench.hashes = {b"alice": b"secret"}
    assert bench.allows("alice", "secret")
    assert len(bench.seen) == 5


def test_a_name_that_does_not_exist_costs_a_check_as_well(bench: Bench) -> None:
    assert not bench.allows("carol", "one")
    assert not bench.allows("carol", "two")
    assert not bench.allows("carol", "secret")
    assert not bench.allows("carol", "sesame"), "another user's password"
    assert len(bench.seen) == 4
    assert len({hashed for _, hashed in bench.seen}) == 1, "always the same cost for a name"


def test_users_do_not_share_passwords(bench: Bench) -> None:
    assert bench.allows("bob", "sesame")
    assert not bench.allows("alice", "sesame")
    assert not bench.allows("alic", "esecret")


def test_guesses_push_no_right_verdict_out(bench: Bench) -> None:
    assert bench.allows("alice", "secret")
    for n in range(600):
        assert not bench.allows("alice", str(n))
    before = len(bench.seen)
    assert bench.send("alice", "secret").result()
    assert len(bench.seen) == before


@pytest.mark.parametrize(
    "text", ["", "Basic", "Basic !", "Bearer abc", "Basic YWxpY2U=", "basic \xff", "Basic YWxpY2U6c2VjcmV0 YQ=="]
)
def test_what_is_no_name_and_password_needs_no_check(bench: Bench, text: str) -> None:
    allowing = bench.passwords.allow(text, bench.hashes, peer="a", patience_s=1)
    assert not bench.loop.run_until_complete(allowing)
    assert bench.seen == []


def test_a_password_may_hold_colons_and_any_letters() -> None:
    assert basic(header("alice", "a:b:ü")) == (b"alice", "a:b:ü".encode())
    assert basic("bAsIc  " + header("alice", "x").split()[1]) == (b"alice", b"x")


def test_nothing_that_was_sent_is_kept_as_it_was(bench: Bench) -> None:
    for n in range(WAITING):
        bench.send("alice", f"plainly{n}")
    bench.rest(WAITING)
    passwords = bench.passwords
    kept = repr([value for name, value in vars(passwords).items() if name not in ("_loop", "_worker", "_check")])
    assert "plainly" not in kept
    assert not passwords._checks


# ------------------------------------------------------------------ what it may cost


def test_checks_take_a_quarter_of_a_core_however_many_guess(bench: Bench) -> None:
    began_s = bench.loop.time()
    guesses = [bench.send("alice", str(n)) for n in range(WAITING)]
    while not all(guess.done() for guess in guesses):
        bench.loop.advance(COST_S / 10)
        assert bench.spent_s - COST_S <= SHARE * (bench.loop.time() - began_s) + 1e-6
    assert answers(guesses) == [False] * WAITING


def test_those_who_send_the_same_share_a_check(bench: Bench) -> None:
    same = [bench.send("alice", "secret") for _ in range(5)]
    assert answers(same) == [True] * 5
    assert len(bench.seen) == 1


def test_above_the_limit_one_is_refused_for_each_that_comes(bench: Bench) -> None:
    guesses = [bench.send("alice", str(n)) for n in range(WAITING + 10)]
    bench.rest(WAITING)
    found = answers(guesses)
    assert (found.count(False), found.count(ChecksPending)) == (WAITING + 1, 9)


def test_a_scraper_elsewhere_waits_for_no_guesser(bench: Bench) -> None:
    for n in range(WAITING + 10):
        bench.send("alice", str(n), peer="guesser")
    scraper = bench.send("alice", "secret", peer="scraper")
    bench.rest()
    assert scraper.result()


def test_a_scraper_of_the_guessers_own_host_gets_in_by_asking_again(bench: Bench) -> None:
    for n in range(WAITING + 10):
        bench.send("alice", str(n))
    refused = bench.send("alice", "secret", patience_s=10)
    assert type(refused.exception()) is ChecksPending
    for n in range(1000):
        bench.send("alice", f"more {n}")
    again = bench.send("alice", "secret", patience_s=10)
    bench.rest()
    assert again.result()


def test_who_has_no_time_to_wait_is_told_and_finds_the_verdict_later(bench: Bench) -> None:
    for n in range(9):
        bench.send("alice", str(n))
    early = bench.send("alice", "secret", patience_s=0.1)
    bench.loop.advance(0.11)
    assert type(early.exception()) is ChecksPending
    bench.rest(9)
    assert bench.send("alice", "secret").result()


# ------------------------------------------------------------------ bcrypt


def test_bcrypt_itself_agrees() -> None:
    check = bcrypt_check()
    assert check(b"secret", ALICE)
    assert check(b"secret", ALICE.replace(b"$2b$", b"$2y$"))
    assert not check(b"Secret", ALICE)
    assert not check(b"secret\0", ALICE)


def test_a_password_longer_than_bcrypt_takes_is_no_error(bench: Bench) -> None:
    bench.hashes = {b"alice": b"a" * 72}
    assert bench.allows("alice", "a" * 100)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(bcrypt_check(), b"a" * 72, ALICE).result() is False
