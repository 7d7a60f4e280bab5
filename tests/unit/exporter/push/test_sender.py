"""A queue and its endpoint: what is tried again, what is given up, and what the log is told."""

import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.push import batch, killed

from gpu_profile.testing import FakeClock
from gpu_profile_exporter.push.batch import Batch
from gpu_profile_exporter.push.disk_queue import DiskQueue
from gpu_profile_exporter.push.outcome import MOST_PATIENCE_S, Accepted, PushFailed
from gpu_profile_exporter.push.queue import BatchQueue
from gpu_profile_exporter.push.sender import FIRST_PAUSE_S, LONGEST_PAUSE_S, Sender

AWAY = PushFailed("unreachable", "refuses the connection", retry=True)
UNKNOWN = PushFailed("unauthenticated", "refuses the credentials", retry=False)


class Endpoint:
    """Answers as it is told: with `outcome`, or with what comes first in `script`."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.outcome: Accepted | Exception = Accepted()
        self.script: list[Accepted | Exception] = []
        self.tries: list[tuple[bytes, float]] = []
        self.taken: list[bytes] = []
        self.closed = 0
        self.takes_s = 0.0
        self.meanwhile: Callable[[], None] = lambda: None

    def send(self, given: Batch, timeout_s: float) -> Accepted:
        self.tries.append((given.unpacked(), timeout_s))
        self.clock.advance(min(self.takes_s, timeout_s))
        self.meanwhile()
        outcome = self.script.pop(0) if self.script else self.outcome
        if isinstance(outcome, Exception):
            raise outcome
        self.taken.append(given.unpacked())
        return outcome

    def close(self) -> None:
        self.closed += 1


class World:
    def __init__(
        self, *, most_bytes: int = 1 << 20, most_batches: int = 1_000, seed: int = 1, queue: BatchQueue | None = None
    ) -> None:
        self.clock = FakeClock()
        self.endpoint = Endpoint(self.clock)
        self.sender = Sender(
            "metrics",
            self.endpoint,
            where="http://collector:4318",
            timeout_s=10.0,
            clock=self.clock,
            queue=BatchQueue(most_bytes, most_batches) if queue is None else queue,
            rng=random.Random(seed),  # noqa: S311 - a test's
        )

    def put(self, *texts: bytes) -> None:
        for text in texts:
            self.sender.put(batch(text))

    def run(self, seconds: float) -> None:
        """Do everything that falls due."""
        end = self.clock.now_ns() + int(seconds * 1e9)
        while True:
            delay_s = self.sender.step()
            if self.clock.now_ns() + int(delay_s * 1e9) > end:
                return
            self.clock.advance(delay_s)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "gpu_profile_exporter")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture
def world() -> World:
    return World()


def test_batches_go_out_in_order_and_once_each(world: World) -> None:
    world.put(b"1", b"2", b"3")
    world.run(1)
    assert world.endpoint.taken == [b"1", b"2", b"3"]
    assert len(world.endpoint.tries) == 3
    assert world.sender.stats.sent == 3
    assert world.sender.waiting() == (0, 0)
    world.run(3600)
    assert len(world.endpoint.tries) == 3


def test_a_batch_that_could_not_be_sent_is_sent_later_before_those_after_it(world: World) -> None:
    world.endpoint.outcome = AWAY
    world.put(b"1", b"2")
    world.run(60)
    world.endpoint.outcome = Accepted()
    world.run(120)
    assert world.endpoint.taken == [b"1", b"2"]
    assert world.sender.stats.failures["unreachable"] == len(world.endpoint.tries) - 2
    assert not world.sender.stats.dropped.total()


@given(st.integers(0, 2**32))
def test_pauses_double_up_to_a_limit_and_are_drawn_at_random(seed: int) -> None:
    world = World(seed=seed)
    world.endpoint.outcome = AWAY
    world.put(b"1")
    for i in range(12):
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**i)
        pause_s = world.sender.step()
        assert longest / 2 <= pause_s <= longest
        world.clock.advance(pause_s)


def test_ten_thousand_nodes_do_not_come_back_in_step() -> None:
    pauses = set()
    for seed in range(50):
        world = World(seed=seed)
        world.endpoint.outcome = AWAY
        world.put(b"1")
        pauses.add(round(world.sender.step(), 3))
    assert len(pauses) > 40


@pytest.mark.parametrize("after_s", [0.0, 7.0, 100.0, 10 * MOST_PATIENCE_S])
def test_a_server_that_says_how_long_is_not_asked_before(after_s: float, world: World) -> None:
    world.endpoint.outcome = PushFailed("throttled", "is too busy", retry=True, after_s=after_s)
    world.put(b"1")
    pause_s = world.sender.step()
    assert min(after_s, MOST_PATIENCE_S) <= pause_s <= min(after_s * 1.1, MOST_PATIENCE_S)


def test_a_pause_ends_with_the_clock_that_was_set_back(world: World) -> None:
    world.endpoint.outcome = AWAY
    world.put(b"1")
    world.sender.step()
    world.clock.set_back(7200)
    world.endpoint.outcome = Accepted()
    world.sender.step()
    assert world.endpoint.taken == [b"1"]


def test_a_batch_that_is_refused_for_good_is_dropped_and_the_next_is_tried(world: World) -> None:
    world.endpoint.script = [UNKNOWN]
    world.put(b"1", b"2")
    world.run(1)
    assert world.endpoint.taken == [b"2"]
    assert [text for text, _ in world.endpoint.tries] == [b"1", b"2"]
    assert world.sender.stats.failures == {"unauthenticated": 1}
    assert world.sender.stats.dropped["not taken"] == 1


def test_a_defect_of_ours_costs_one_batch(told: Callable[[], list[str]], world: World) -> None:
    world.endpoint.script = [ZeroDivisionError("oh")]
    world.put(b"1", b"2")
    world.run(1)
    assert world.endpoint.taken == [b"2"]
    assert world.sender.stats.failures == {"internal": 1}
    assert "ZeroDivisionError" in told()[0]


def test_items_that_are_rejected_out_of_a_batch_are_counted_and_the_batch_is_not_sent_again(world: World) -> None:
    world.endpoint.script = [Accepted(1, "too old")]
    world.put(b"1", b"2")
    world.run(1)
    assert world.sender.stats.rejected == 1
    assert world.sender.stats.sent == 2
    assert len(world.endpoint.tries) == 2


def test_no_more_items_are_counted_as_rejected_than_were_sent(world: World) -> None:
    world.endpoint.script = [Accepted(2_147_483_647, "all of them, and more")]
    world.put(b"1")
    world.run(1)
    assert world.sender.stats.rejected == 1


@given(st.lists(st.binary(min_size=0, max_size=300), max_size=40), st.integers(1, 500), st.integers(1, 10))
def test_the_queue_never_holds_more_than_it_may_and_drops_the_oldest(
    texts: list[bytes], most_bytes: int, most_batches: int
) -> None:
    world = World(most_bytes=most_bytes, most_batches=most_batches)
    for text in texts:
        world.put(text)
        length, size = world.sender.waiting()
        assert length <= most_batches
        assert size <= most_bytes
    kept, _ = world.sender.waiting()
    assert world.sender.stats.dropped["queue full"] == len(texts) - kept
    world.run(1)
    assert world.endpoint.taken == texts[len(texts) - kept :]


def test_a_batch_that_comes_back_finds_the_queue_full_and_is_the_oldest() -> None:
    world = World(most_batches=2)
    world.put(b"1", b"2")
    world.endpoint.script = [AWAY]
    world.endpoint.meanwhile = lambda: world.put(b"3") if len(world.endpoint.tries) == 1 else None
    world.run(100)
    assert world.endpoint.taken == [b"2", b"3"]
    assert world.sender.stats.dropped["queue full"] == 1


def test_the_log_is_told_of_changes_only(told: Callable[[], list[str]]) -> None:
    world = World(most_batches=2)
    world.endpoint.outcome = AWAY
    world.put(b"1", b"2", b"3", b"4")
    world.run(600)
    assert len(told()) == 2  # the queue is full, the endpoint is away
    world.endpoint.outcome = UNKNOWN
    world.run(600)
    world.put(b"5", b"6")
    world.run(600)
    assert len(told()) == 3
    world.endpoint.outcome = Accepted()
    world.put(b"7", b"8")
    world.run(600)
    assert len(told()) == 4
    assert told()[1:] == [
        "OTLP metrics: http://collector:4318 refuses the connection; the batch is tried again",
        "OTLP metrics: http://collector:4318 refuses the credentials; the batch is dropped",
        "OTLP metrics: http://collector:4318 takes batches again",
    ]


def test_a_last_try_is_made_when_it_stops_even_in_a_pause(world: World) -> None:
    world.endpoint.script = [AWAY]
    world.put(b"1")
    world.sender.step()
    world.put(b"2")
    world.sender.ask_to_stop(2.0)
    world.sender.wait_until_stopped(2.0)
    assert world.endpoint.taken == [b"1", b"2"]
    assert world.endpoint.closed == 1
    assert max(timeout_s for _, timeout_s in world.endpoint.tries[1:]) <= 2.0


def test_an_endpoint_that_asked_for_patience_gets_it_when_it_stops_too(world: World) -> None:
    world.endpoint.outcome = PushFailed("throttled", "is too busy", retry=True, after_s=60)
    world.put(b"1", b"2")
    world.sender.step()
    world.sender.ask_to_stop(2.0)
    world.sender.wait_until_stopped(2.0)
    assert len(world.endpoint.tries) == 1
    assert world.sender.stats.dropped["stopped"] == 2


def test_an_endpoint_that_is_away_or_slow_does_not_keep_it_from_stopping() -> None:
    for outcome, takes_s in ((AWAY, 0.0), (Accepted(), 1.5)):
        world = World()
        world.endpoint.outcome, world.endpoint.takes_s = outcome, takes_s
        world.put(*(b"%d" % i for i in range(100)))
        before = world.clock.now_ns()
        world.sender.ask_to_stop(2.0)
        world.sender.wait_until_stopped(2.0)
        assert world.clock.now_ns() - before <= 2.0e9
        assert len(world.endpoint.tries) <= 2
        assert world.sender.stats.dropped["stopped"] == 100 - len(world.endpoint.taken)


def test_its_thread_pushes_what_is_put_and_ends(clock: FakeClock, world: World) -> None:
    world.sender._clock = type("Real", (FakeClock,), {"wait": lambda _, event, s: event.wait(s)})(clock.now_ns())
    world.sender.start()
    world.put(b"1", b"2")
    world.sender.ask_to_stop(5.0)
    world.sender.wait_until_stopped(5.0)
    assert world.endpoint.taken == [b"1", b"2"]


# ---------------------------------------------------------------------- a queue on disk


class Kept(World):
    """Whose queue is on disk too."""

    def __init__(self, directory: Path, *, most_bytes: int = 1 << 20, together: int = 0) -> None:
        self.disk = DiskQueue(directory, 4 << 20)
        super().__init__(queue=BatchQueue(most_bytes, 1_000, together, self.disk))


def read_anew(directory: Path) -> list[bytes]:
    world = Kept(directory)
    world.run(1)
    world.sender.wait_until_stopped(1.0)
    return world.endpoint.taken


def test_what_waits_is_pushed_by_the_next_process_and_what_was_taken_is_not(tmp_path: Path) -> None:
    world = Kept(tmp_path)
    world.endpoint.script = [Accepted(), AWAY]
    world.put(b"taken", b"first", b"second")
    world.sender.step()
    world.sender.step()
    killed(world.disk)
    after = Kept(tmp_path)
    assert says(after, "restored") == says(after, "queue.items") == 2
    after.run(1)
    assert after.endpoint.taken == [b"first", b"second"]
    assert says(after, "queue.disk") < 64 << 10
    after.sender.wait_until_stopped(1.0)
    assert read_anew(tmp_path) == []


def test_what_memory_has_no_room_for_waits_on_disk_alone_and_is_pushed_in_order(tmp_path: Path) -> None:
    world = Kept(tmp_path, most_bytes=100)
    texts = [b"%d" % n * 40 for n in range(10)]
    for text in texts:
        world.sender.put(Batch(text, 1, plain=True))
    assert says(world, "queue.size") <= 100
    assert says(world, "queue.length") == says(world, "queue.items") == 10
    world.run(1)
    assert world.endpoint.taken == texts
    world.sender.wait_until_stopped(1.0)


def test_at_the_end_what_is_not_taken_stays_on_disk_and_is_not_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = Kept(tmp_path)
    world.endpoint.script = [AWAY]
    world.put(b"a", b"b")
    with caplog.at_level("INFO", logger="gpu_profile_exporter"):
        world.sender.ask_to_stop(1.0)
        world.sender.wait_until_stopped(1.0)
    assert "2 items stay on disk until the next start" in caplog.text
    assert sum(world.sender.stats.dropped.values()) == 0
    assert read_anew(tmp_path) == [b"a", b"b"]


def test_a_full_disk_refuses_new_batches_and_keeps_old_ones(tmp_path: Path) -> None:
    world = Kept(tmp_path)
    world.endpoint.script = [AWAY]
    for _ in range(6):
        world.sender.put(Batch(bytes(1 << 20), 1, plain=True))
    assert not world.sender.has_room(1 << 20)
    assert world.sender.stats.dropped_items["queue full"] == 3
    assert says(world, "queue.items") == 3
    world.sender.wait_until_stopped(1.0)


def test_requests_that_wait_on_disk_go_together_too(tmp_path: Path) -> None:
    world = Kept(tmp_path, most_bytes=0, together=100)
    for n in range(6):
        world.sender.put(Batch(b"%d" % n * 30, 2, plain=True))
    world.run(1)
    assert [len(taken) for taken in world.endpoint.taken] == [90, 90]
    assert world.sender.stats.sent_items == 12
    world.sender.wait_until_stopped(1.0)


def test_damage_on_disk_is_counted_and_the_rest_goes_on(tmp_path: Path) -> None:
    world = Kept(tmp_path, together=100)
    for text, items in ((b"a" * 40, 1), (b"b" * 40, 2), (b"c" * 90, 4)):
        world.sender.put(Batch(text, items, plain=True))
    killed(world.disk)
    (path,) = tmp_path.glob("*.queue")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"bb", b"bx").replace(b"cc", b"xc"))
    after = Kept(tmp_path, together=100)
    after.run(1)
    assert after.endpoint.taken == [b"a" * 40]
    assert after.sender.stats.dropped_items["damaged"] == 6
    assert after.sender.stats.sent_items == 1
    assert says(after, "queue.items") == 0
    after.sender.wait_until_stopped(1.0)
    assert read_anew(tmp_path) == []


def says(world: World, name: str) -> float:
    (found,) = [
        reading.value
        for reading in world.sender.readings(world.clock.now_ns())
        if reading.metric.otel == f"gpu_profile.push.{name}"
    ]
    return found
