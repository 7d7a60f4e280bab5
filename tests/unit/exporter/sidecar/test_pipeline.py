"""Requests between their receiver and the next one: nothing is lost without being counted."""

import random
import threading
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.otlp_traces import request_of, span, spans_of
from support.push import killed

from gpu_profile.protobuf import message, string
from gpu_profile.testing import FakeClock
from gpu_profile_exporter.push.batch import Batch
from gpu_profile_exporter.push.disk_queue import DiskQueue
from gpu_profile_exporter.push.outcome import Accepted, PushFailed
from gpu_profile_exporter.push.queue import BatchQueue
from gpu_profile_exporter.push.sender import MOST_PARTS, PARTS_PER_S, Sender
from gpu_profile_exporter.sidecar import pipeline
from gpu_profile_exporter.sidecar.attributes import AddedAttributes, SpanColumns
from gpu_profile_exporter.sidecar.joining import JoinedRequest
from gpu_profile_exporter.sidecar.messages import halved
from gpu_profile_exporter.sidecar.pipeline import DEADLINE_S, SpanPipeline
from gpu_profile_exporter.sidecar.trace_request import TraceRequest

AWAY = PushFailed("unavailable", "is away", retry=True)
NEVER = PushFailed("unauthenticated", "does not take it", retry=False)
INVALID = PushFailed("rejected", "does not take the batch (status 400)", retry=False, content=True)
#: Where spans are that were passed on.
WAYS = ("push.items", "push.rejected", "push.dropped.items", "push.queue.items")
ADDED = message(9, string(1, "gpu_profile.region"))
UNJOINED = message(9, string(1, "gpu_profile.unjoined"))


class Join:
    """Gives every span the same attributes, once its request's samples are there."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.counts: Counter[str] = Counter()
        self.lost_rows = 7
        self.waits_s = 0.0
        self.gives = ADDED
        self.fails = self.hurried = False

    def take(self, request: TraceRequest) -> JoinedRequest:
        return JoinedRequest(
            request, SpanColumns([], *np.zeros((2, 0), np.int64)), self.clock.now_ns() + int(self.waits_s * 1e9)
        )

    def added(self, joined: JoinedRequest) -> AddedAttributes:
        if self.fails:
            raise RuntimeError("a defect")
        unjoined = len(joined.request) * (self.gives == UNJOINED)
        return AddedAttributes([self.gives] * len(joined.request), unjoined)

    def stop(self) -> None:
        """Nothing runs."""


class NextReceiver:
    """Takes or refuses as it is told, in turn. Then it takes requests without spans of `refused` names."""

    def __init__(self, *script: Accepted | PushFailed) -> None:
        self.script = list(script)
        self.got: list[str] = []
        self.requests = self.largest = self.tries = 0
        self.refused: Iterable[str] = ()

    def send(self, batch: Batch, timeout_s: float) -> Accepted:
        self.tries += 1
        outcome = self.script.pop(0) if self.script else Accepted()
        if not {one.name for one in spans_of(batch.unpacked())}.isdisjoint(self.refused):
            outcome = INVALID
        if isinstance(outcome, PushFailed):
            raise outcome
        self.requests += 1
        self.largest = max(self.largest, len(batch.unpacked()))
        self.got += [one.name for one in spans_of(batch.unpacked())]
        return outcome

    def close(self) -> None:
        """Nothing is open."""


class World:
    def __init__(
        self, *script: Accepted | PushFailed, gzip: bool = False, most_batches: int = 100, together: int = 1_000,
        kept: Path | None = None,
    ) -> None:  # fmt: skip
        #: What was received, and what is to be sent on.
        self.disks = [] if kept is None else [DiskQueue(kept / name, 1 << 20) for name in ("received", "traces")]
        received, traces = self.disks or (None, None)
        self.clock = FakeClock()
        self.join, self.next = Join(self.clock), NextReceiver(*script)
        self.sender = Sender(
            "traces", self.next, where="http://next", timeout_s=1.0, clock=self.clock,
            queue=BatchQueue(1 << 20, most_batches, together, traces), rng=random.Random(1),  # noqa: S311 - a test's
            halved=partial(halved, signal="traces"),
        )  # fmt: skip
        self.pipeline = SpanPipeline(self.join, self.sender, self.clock, gzip=gzip, disk=received)  # type: ignore[arg-type]

    def take(self, *names: str) -> bool:
        return self.pipeline.take(TraceRequest(request_of([span(name, 1, 2) for name in names])))

    def told(self, name: str, **about: str) -> float:
        return sum(
            r.value
            for r in self.pipeline.readings(self.clock.now_ns())
            if r.metric.otel == f"gpu_profile.{name}" and about.items() <= r.attributes.items()
        )


@pytest.mark.parametrize("gzip", [False, True])
def test_requests_that_are_ready_go_on_together_and_in_order(gzip: bool) -> None:
    world = World(gzip=gzip)
    for names in (("a", "b"), ("c",), ("d",)):
        assert world.take(*names)
    world.pipeline.step()
    world.sender.step()
    assert world.next.got == ["a", "b", "c", "d"]
    assert world.next.requests == 1
    assert world.told("receive.spans", outcome="joined") == world.told("push.items") == 4


def test_a_request_that_waits_takes_no_memory_for_its_parsed_spans() -> None:
    world = World()
    world.join.waits_s = 1.0
    request = TraceRequest(request_of([span("a", 1, 2), span("b", 1, 2)]))
    assert world.pipeline.take(request)
    assert not request.scopes
    world.clock.advance(1.0)
    world.pipeline.step()
    world.sender.step()
    assert world.next.got == ["a", "b"]


def test_what_waited_for_a_next_receiver_goes_on_together_once_it_is_back() -> None:
    world = World(AWAY)
    for name in "abcd":
        world.take(name)
        world.pipeline.step()
    world.sender.step()
    world.clock.advance(60.0)
    world.sender.step()
    assert world.next.got == ["a", "b", "c", "d"]
    assert world.next.requests == 1


def test_a_request_waits_for_its_samples_and_no_longer_than_the_deadline() -> None:
    world = World()
    world.join.waits_s = 1.5
    world.take("a")
    assert world.pipeline.step() == pytest.approx(1.5)
    world.clock.advance(1.5)
    world.join.waits_s = 3600.0
    world.take("b")
    assert world.pipeline.step() == 0
    assert world.pipeline.step() == pytest.approx(DEADLINE_S)
    assert world.told("receive.waiting") == 1
    assert world.told("receive.lost_rows") == 7
    world.clock.advance(DEADLINE_S)
    world.pipeline.step()
    world.sender.step()
    world.sender.step()
    assert world.next.got == ["a", "b"]


def test_a_request_that_grows_too_large_goes_on_in_parts_and_no_two_are_joined_to_too_large_a_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline, "_LARGEST", 400)
    monkeypatch.setattr(pipeline, "MOST_SENT", 300)
    world = World(together=300)
    world.take(*"abcdefghij")
    world.take("k")
    while world.told("receive.waiting"):
        world.pipeline.step()
    while world.told("push.queue.items"):
        world.sender.step()
    assert world.next.got == list("abcdefghijk")
    assert world.next.requests > 2
    assert world.next.largest <= 500


def test_room_that_becomes_free_while_a_request_is_taken_stays_free() -> None:
    world = World()
    world.take("a")
    genuine = world.join.take

    def slowly(request: TraceRequest) -> JoinedRequest:
        world.pipeline.step()
        return genuine(request)

    world.join.take = slowly  # type: ignore[method-assign]
    for _ in range(3):
        world.take("b")
    world.join.take = genuine  # type: ignore[method-assign]
    world.pipeline.step()
    assert (world.pipeline._reserved, world.pipeline._spans) == (0, 0)


def test_the_thread_goes_on_after_a_defect_that_nobody_foresaw(monkeypatch: pytest.MonkeyPatch) -> None:
    world, steps = World(), iter([MemoryError(), RuntimeError()])

    def step(*, final: bool = False) -> float:
        for error in steps:
            raise error
        world.pipeline._stop.set()
        return float(final)

    monkeypatch.setattr(world.pipeline, "step", step)
    world.pipeline._wake.set()
    world.pipeline._run()
    assert world.pipeline._stop.is_set()


def test_requests_of_ten_milliseconds_are_processed_together_and_the_first_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, steps_ns = World(), list[int]()
    began_ns = world.clock.elapsed_ns()

    def step(*, final: bool = False) -> float:
        steps_ns.append(world.clock.elapsed_ns() - began_ns)
        world.pipeline._wake.set()
        if len(steps_ns) == 3:
            world.pipeline._stop.set()
        return float(final)

    monkeypatch.setattr(world.pipeline, "step", step)
    world.pipeline._wake.set()
    world.pipeline._run()
    assert steps_ns == [0, 10_000_000, 20_000_000]


def test_what_is_held_when_it_stops_goes_on_and_what_cannot_is_told(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.join.waits_s = 2.0
    world.take("a", "b")
    world.pipeline.stop(1.0)
    assert world.next.got == ["a", "b"]
    assert world.join.hurried
    other = World(*[AWAY] * 9)
    other.take("c", "d")
    other.pipeline.stop(1.0)
    assert other.told("push.dropped.items", reason="stopped") == 2
    assert "2 items are dropped" in caplog.text


def test_a_clock_that_is_set_ahead_while_it_stops_drops_no_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    added = world.join.added

    def late(joined: JoinedRequest) -> AddedAttributes:
        world.clock.set_forward(3600.0)
        return added(joined)

    monkeypatch.setattr(world.join, "added", late)
    world.take("a")
    world.pipeline.stop(1.0)
    assert world.next.got == ["a"]


@pytest.mark.parametrize("back_s", [0.0, 3600.0])
def test_a_stop_ends_in_time_where_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch, back_s: float) -> None:
    world = World()
    world.take("a")
    tries: list[float] = []

    def send(batch: Batch, timeout_s: float) -> Accepted:
        tries.append(timeout_s)
        world.clock.advance(0.6)
        world.clock.set_back(back_s)
        if len(tries) < 10:
            world.sender.offer(batch)
        return Accepted()

    monkeypatch.setattr(world.next, "send", send)
    world.pipeline.stop(1.0)
    assert tries == pytest.approx([1.0, 0.4])


def test_nothing_waits_for_hours_where_the_clock_was_set_back() -> None:
    world = World()
    world.join.waits_s = 1.0
    world.take("a")
    world.clock.set_back(3600.0)
    world.pipeline.step()
    world.sender.step()
    assert world.next.got == ["a"]


def test_a_defect_of_the_join_costs_attributes_and_no_spans() -> None:
    world = World()
    world.join.fails = True
    world.take("a")
    world.pipeline.step()
    world.sender.step()
    assert world.next.got == ["a"]
    assert world.told("receive.spans", outcome="passed") == 1
    assert world.join.counts["join errors"] == 1


def test_what_is_held_and_what_waits_to_be_sent_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "MOST_HELD", 6_000)
    world = World(most_batches=2)
    world.join.waits_s = 1.0
    taken = 0
    while world.take("a"):
        taken += 1
    assert 0 < taken < 10
    world.clock.advance(2.0)
    assert world.pipeline.step() >= 0
    for _ in range(5):
        world.take("b")
        world.clock.advance(2.0)
        world.pipeline.step()
    assert not world.take("c")
    assert world.told("push.dropped.items") == 0


outcomes = st.sampled_from([Accepted(), Accepted(rejected=1), Accepted(rejected=99), AWAY, NEVER, INVALID])
actions = st.lists(st.one_of(st.integers(1, 4), st.sampled_from(["pass", "send", "wait", "stop waiting"])), max_size=40)


@given(st.lists(outcomes, max_size=20), actions)
def test_received_is_sent_and_rejected_and_dropped_and_waiting(
    script: list[Accepted | PushFailed], acts: list[object]
) -> None:
    world, received = World(*script, most_batches=4), 0
    for act in acts:
        if isinstance(act, int):
            received += act * world.take(*"abcd"[:act])
        elif act == "pass":
            world.pipeline.step()
        elif act == "send":
            world.sender.step()
        else:
            world.join.waits_s = 1.0 if act == "wait" else 0.0
            world.clock.advance(5.0)
        passed = world.told("receive.spans")
        assert passed + world.told("receive.waiting") == received
        assert passed == sum(map(world.told, WAYS))
    world.pipeline.stop(0.0)
    outcomes_told = world.told("receive.spans")
    assert outcomes_told + world.told("receive.waiting") == received
    assert outcomes_told == sum(map(world.told, ("push.items", "push.rejected", "push.dropped.items")))


@pytest.mark.parametrize(("of", "method"), [("sender", "put"), ("queue", "finished"), ("queue", "put_back_halves")])
@pytest.mark.parametrize("outcome", [Accepted(rejected=1), NEVER, INVALID])
def test_a_scrape_while_spans_move_on_counts_each_of_them_once(
    of: str, method: str, outcome: Accepted | PushFailed, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, sums, scrapes = World(outcome), list[tuple[int, int]](), list[threading.Thread]()
    owner = world.sender if of == "sender" else world.sender._queue
    step = getattr(owner, method)

    def scrape() -> None:
        values = Counter[str]()
        for reading in world.pipeline.readings(world.clock.now_ns()):
            values[reading.metric.otel.removeprefix("gpu_profile.")] += int(reading.value)
        sums.append((values["receive.spans"], sum(values[way] for way in WAYS)))

    def observed(*arguments: Any) -> Any:
        result = step(*arguments)
        scrapes.append(threading.Thread(target=scrape))
        scrapes[-1].start()
        scrapes[-1].join(0.1)  # a scrape may also wait
        return result

    monkeypatch.setattr(owner, method, observed)
    world.take("a", "b", "c")
    world.take("d")
    world.pipeline.step()
    while world.sender.waiting()[0]:
        world.sender.step()
    for thread in scrapes:
        thread.join()
    assert [received - counted for received, counted in sums] == [0] * len(sums)


# ---------------------------------------------------------------------- refused parts


@pytest.mark.parametrize("gzip", [False, True])
@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("refused", ["a", "d", "h", "ah", "abcdefgh"])
def test_a_request_that_is_refused_costs_the_requests_beside_it_nothing(
    refused: str, gzip: bool, disk: bool, tmp_path: Path
) -> None:
    world = World(gzip=gzip, kept=tmp_path if disk else None, together=1 << 20)
    world.next.refused = set(refused)
    for name in "abcdefgh":
        assert world.take(name, name)
    world.pipeline.step()
    while world.sender.waiting()[0]:
        world.sender.step()
    kept = [name for name in "abcdefgh" if name not in refused for _ in range(2)]
    assert world.next.got == kept
    assert world.told("push.items") == len(kept)
    assert world.told("push.dropped.items", reason="not_taken") == world.told("push.dropped.items") == 2 * len(refused)
    assert world.told("push.queue.items") == 0
    for queue in world.disks:
        queue.close()
    assert not [record for name in ("received", "traces") for record in DiskQueue(tmp_path / name, 1 << 20).left]


def test_parts_of_a_refused_batch_wait_in_order_while_the_next_receiver_is_away() -> None:
    world = World(INVALID, AWAY, INVALID)
    for name in "abcd":
        world.take(name)
    world.pipeline.step()
    for _ in range(2):
        world.sender.step()
    assert world.told("push.queue.items") == 4
    world.take("e")
    world.pipeline.step()
    world.clock.advance(5.0)
    while world.sender.waiting()[0]:
        world.sender.step()
    assert world.next.got == ["a", "b", "c", "d", "e"]
    assert not world.told("push.dropped.items")


def test_a_receiver_that_refuses_everything_gets_few_requests_more(caplog: pytest.LogCaptureFixture) -> None:
    world = World(together=1 << 20)
    world.next.refused = names = ["a"]
    rounds, each = 60, 100
    for _ in range(rounds):
        for _ in range(each):
            assert world.take("a")
        world.pipeline.step()
        while world.sender.waiting()[0]:
            world.sender.step()
        world.clock.advance(1.0)
    assert world.told("push.dropped.items", reason="not_taken") == rounds * each
    assert world.next.tries <= rounds + MOST_PARTS + rounds * PARTS_PER_S
    assert len(caplog.records) == 1
    names.clear()  # what is taken again is divided again at once
    world.next.script = [INVALID]
    for name in "bcd":
        world.take(name)
    world.pipeline.step()
    while world.sender.waiting()[0]:
        world.sender.step()
    assert world.next.got == ["b", "c", "d"]


def test_a_batch_that_is_killed_while_its_parts_are_sent_arrives_whole(tmp_path: Path) -> None:
    world = World(INVALID, kept=tmp_path)
    for name in "abcd":
        world.take(name)
    world.pipeline.step()
    for _ in range(2):
        world.sender.step()
    assert world.next.got == ["a", "b"]
    for queue in world.disks:
        killed(queue)
    again = World(kept=tmp_path)
    again.sender.step()
    assert again.next.got == ["a", "b", "c", "d"]


# ---------------------------------------------------------------------- on disk


def test_what_a_killed_process_had_taken_in_is_joined_and_sent_on_by_the_next_one(tmp_path: Path) -> None:
    world = World(kept=tmp_path)
    world.take("sent")
    world.pipeline.step()
    world.sender.step()
    world.take("joined")
    world.pipeline.step()
    world.join.waits_s = 1.0
    world.take("held", "too")
    world.pipeline.step()
    for disk in world.disks:
        killed(disk)
    after = World(kept=tmp_path)
    after.sender.step()
    assert after.next.got == ["joined"]
    after.pipeline.step()
    after.sender.step()
    assert after.next.got == ["joined", "held", "too"]
    assert after.told("receive.spans", outcome="joined") == 2
    assert after.told("push.restored") == 1
    after.pipeline.stop()
    last = World(kept=tmp_path)
    last.pipeline.step()
    assert last.sender.step() > 0
    assert last.next.got == []


def test_what_was_left_is_taken_in_as_there_is_room_and_no_new_request_is_lost_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(kept=tmp_path)
    world.join.waits_s = 9.0
    for n in range(8):
        assert world.take(f"left {n}")
    for disk in world.disks:
        killed(disk)
    monkeypatch.setattr(pipeline, "MOST_HELD", 3_500)  # of three requests with what they may grow by
    after = World(kept=tmp_path)
    new = []
    for n in range(40):
        after.pipeline.step()
        after.sender.step()
        if after.take(f"new {n}"):
            new.append(f"new {n}")
    assert len(new) > 5
    assert [name for name in after.next.got if name.startswith("left")] == [f"left {n}" for n in range(8)]
    after.pipeline.stop()
    assert [name for name in after.next.got if name.startswith("new")] == new


def test_a_full_disk_is_said_to_the_sender_of_spans(tmp_path: Path) -> None:
    world = World(AWAY, kept=tmp_path)
    world.join.waits_s = 1.0
    taken = 0
    while world.take("x" * 5_000):
        taken += 1
    assert 50 < taken < 250
    assert world.told("receive.waiting") == taken


def test_what_the_senders_disk_does_not_take_is_not_lost_and_senders_are_asked_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(kept=tmp_path)
    for name in "abc":
        assert world.take(name)
    with monkeypatch.context() as full:
        full.setattr(world.disks[1], "append", lambda *_, **__: None)
        world.pipeline.step()
        assert world.told("receive.waiting") == 3
        assert not world.take("not now")
    assert sum(world.sender.stats.dropped.values()) == 0
    world.clock.advance(1.1)
    assert world.take("d")
    for _ in range(3):
        world.pipeline.step()
        world.sender.step()
    assert sorted(world.next.got) == ["a", "b", "c", "d"]
    assert world.told("receive.spans", outcome="joined") == world.told("push.items") == 4
    world.pipeline.stop()
    assert not list(tmp_path.glob("*/*.queue"))


def test_damaged_requests_are_counted_as_dropped(tmp_path: Path) -> None:
    world = World(kept=tmp_path)
    world.join.waits_s = 1.0
    for name in ("damaged-a", "sound"):
        world.take(name, "b")
    for disk in world.disks:
        killed(disk)
    (path,) = (tmp_path / "received").glob("*.queue")
    path.write_bytes(path.read_bytes().replace(b"damaged-a", b"damaged-b"))
    after = World(kept=tmp_path)
    after.pipeline.step()
    after.sender.step()
    assert after.next.got == ["sound", "b"]
    assert after.told("push.dropped.items", reason="damaged") == 2
    assert sum(after.told("receive.spans", outcome=name) for name in ("joined", "unjoined", "passed")) == 4


STEPS = st.lists(st.sampled_from(["take", "step", "send", "kill", "later", "stop"]), max_size=50)


@settings(deadline=None)
@given(STEPS, st.integers(0, 3))
def test_whenever_it_is_killed_what_was_acknowledged_arrives(steps: list[str], away: int) -> None:
    with TemporaryDirectory() as directory:
        got: list[str] = []
        world, taken = World(kept=Path(directory)), list[str]()
        for n, what in enumerate([*steps, "kill"]):
            if what == "take" and world.take(f"{n}", f"{n}b"):
                taken += [f"{n}", f"{n}b"]
                world.join.waits_s = float(n % 3)
            elif what == "step":
                world.pipeline.step()
            elif what == "send":
                world.sender.step()
            elif what == "later":
                world.clock.advance(1.0)
            elif what in ("kill", "stop"):
                if what == "stop":
                    world.pipeline.stop()
                else:
                    for disk in world.disks:
                        killed(disk)
                got += world.next.got
                world = World(*[AWAY] * (n % (away + 1)), kept=Path(directory))
        for _ in range(30):
            world.pipeline.step()
            world.sender.step()
            world.clock.advance(60.0)
        got += world.next.got
        assert set(got) == set(taken)
        # Only what was on its way at a kill may come twice: here a kill comes between two steps.
        assert len(got) == len(taken)
        world.pipeline.stop()
        assert not list(Path(directory).glob("*/*.queue"))


def test_a_request_is_taken_promptly_unless_another_one_or_a_disk_delays_it(tmp_path: Path) -> None:
    world = World()
    found = [world.pipeline.prompt()]
    taken = world.join.take
    world.join.take = lambda request: found.append(world.pipeline.prompt()) or taken(request)  # type: ignore[func-returns-value,method-assign]
    assert world.take("a")
    assert [*found, world.pipeline.prompt()] == [True, False, True]
    assert not World(kept=tmp_path).pipeline.prompt()
