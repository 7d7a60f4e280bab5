"""The push at work: readings at an interval, events as they come, what it says of itself."""

import logging
import random
from collections.abc import Iterable
from itertools import pairwise

import pytest
from support.push import RESOURCE, Answer, HttpEndpoint, attributes, metrics_of, points_of, records_of

from gpu_profile.catalogue import metrics as m
from gpu_profile.catalogue.push import PUSH_METRICS
from gpu_profile.catalogue.samples import Event
from gpu_profile.errors import UsageError
from gpu_profile.testing import START_NS, FakeClock
from gpu_profile.units import NS_PER_S
from gpu_profile_exporter.push import Endpoint, Pusher
from gpu_profile_exporter.readings.readings import MetricReading


class World:
    """A pusher whose threads do not run: a test takes their steps."""

    def __init__(self, endpoint: HttpEndpoint, *, logs: bool = True, interval_s: float = 15.0) -> None:
        self.clock = FakeClock()
        self.value = 0.0
        made = Endpoint(url=endpoint.url)
        self.pusher = Pusher(
            self.read,
            metrics=made,
            logs=Endpoint(url=endpoint.url.replace("metrics", "logs")) if logs else None,
            interval_s=interval_s,
            resource=RESOURCE,
            version="1.2.3",
            clock=self.clock,
            rng=random.Random(3),  # noqa: S311 - a test's
        )

    def read(self) -> Iterable[MetricReading]:
        self.value += 1
        yield MetricReading(m.BUSY, {"hw.id": "GPU-a"}, self.value)

    def run(self, seconds: float) -> None:
        end = self.clock.now_ns() + int(seconds * NS_PER_S)
        while True:
            delay_s = self.pusher.step()
            for sender in self.pusher.senders.values():
                delay_s = min(delay_s, sender.step())
            if self.clock.now_ns() + int(delay_s * NS_PER_S) > end:
                break
            self.clock.advance(delay_s)
        self.clock.advance((end - self.clock.now_ns()) / NS_PER_S)

    def told(self) -> dict[str, float]:
        """What it says of itself, by name and attributes."""
        readings = list(self.pusher.readings(self.clock.now_ns()))
        return {f"{r.metric.otel} {' '.join(r.attributes.values())}": r.value for r in readings}


@pytest.fixture
def world(endpoint: HttpEndpoint) -> World:
    return World(endpoint)


def times_and_values(endpoint: HttpEndpoint) -> list[tuple[int, float]]:
    return [
        (point.time_unix_nano, point.as_double)
        for body in endpoint.bodies
        for metric in metrics_of(body)
        for point in points_of(metric)
    ]


def test_readings_are_pushed_at_the_interval_with_the_time_at_which_they_were_read(
    world: World, endpoint: HttpEndpoint
) -> None:
    world.run(60)
    found = times_and_values(endpoint)
    assert [value for _, value in found] == [1.0, 2.0, 3.0, 4.0]
    times = [time_ns for time_ns, _ in found]
    assert START_NS <= times[0] <= START_NS + 15 * NS_PER_S
    assert {later - earlier for earlier, later in pairwise(times)} == {15 * NS_PER_S}


def test_nodes_that_start_together_push_at_different_moments(endpoint: HttpEndpoint) -> None:
    due = {round(Pusher(list, metrics=Endpoint(url=endpoint.url), clock=FakeClock()).step(), 3) for _ in range(50)}
    assert len(due) > 40


def test_while_the_endpoint_is_away_readings_wait_and_keep_their_time(world: World, endpoint: HttpEndpoint) -> None:
    endpoint.answer = Answer(503)
    world.run(120)
    assert world.told()["gpu_profile.push.queue.length metrics"] == 8
    assert world.told()["gpu_profile.push.queue.size metrics"] > 0
    tries = len(endpoint.requests)
    endpoint.answer = Answer()
    world.run(61)
    found = times_and_values(endpoint)[tries:]
    assert [value for _, value in found] == [float(n) for n in range(1, 13)]
    times = [time_ns for time_ns, _ in found]
    assert {later - earlier for earlier, later in pairwise(times)} == {15 * NS_PER_S}
    assert world.told()["gpu_profile.push.queue.length metrics"] == 0


def test_events_go_out_as_records_with_their_time(world: World, endpoint: HttpEndpoint) -> None:
    for device in ("GPU-a", "GPU-b"):
        world.pusher.event(Event(device, START_NS - 5, "xid", 79))
    world.run(1)
    ((path, _, body),) = [request for request in endpoint.requests if request[0].endswith("logs")]
    first, second = records_of(body)
    assert path == "/v1/logs"
    assert first.time_unix_nano == second.time_unix_nano == START_NS - 5
    assert [attributes(one.attributes)["hw.id"] for one in (first, second)] == ["GPU-a", "GPU-b"]


def test_without_an_endpoint_for_logs_events_are_let_go(endpoint: HttpEndpoint) -> None:
    world = World(endpoint, logs=False)
    world.pusher.event(Event("GPU-a", START_NS, "xid", 79))
    world.run(1)
    world.pusher.stop()
    assert [path for path, _, _ in endpoint.requests] == ["/v1/metrics"]


def test_what_it_says_of_itself_begins_at_0_and_is_in_the_catalogue(world: World) -> None:
    readings = list(world.pusher.readings(world.clock.now_ns()))
    assert {reading.value for reading in readings} == {0.0}
    world.run(40)
    after = list(world.pusher.readings(world.clock.now_ns()))
    on_disk = {row for row in PUSH_METRICS if row.brief.endswith("absent without one")}
    assert {reading.metric for reading in after} == set(PUSH_METRICS) - on_disk
    assert {reading.metric for reading in after} - {reading.metric for reading in readings} == {
        row for row in PUSH_METRICS if row.otel == "gpu_profile.push.success.age"
    }
    for reading in (*readings, *after):
        assert set(reading.attributes) == set(reading.metric.labels)
    told = world.told()
    assert told["gpu_profile.push.batches metrics"] == 2 or told["gpu_profile.push.batches metrics"] == 3
    assert 0 <= told["gpu_profile.push.success.age metrics"] <= 15
    assert told["gpu_profile.push.io metrics"] > 0


def test_failures_are_counted_by_reason_and_signal(world: World, endpoint: HttpEndpoint) -> None:
    endpoint.answer = Answer(401)
    world.run(30)
    told = world.told()
    assert told["gpu_profile.push.failures metrics unauthenticated"] == 2
    assert told["gpu_profile.push.dropped metrics not_taken"] == 2
    assert told["gpu_profile.push.failures logs unauthenticated"] == 0
    assert told["gpu_profile.push.batches metrics"] == 0


def test_a_reading_that_fails_is_told_once_and_the_next_push_is_tried(
    caplog: pytest.LogCaptureFixture, world: World, endpoint: HttpEndpoint
) -> None:
    good = world.pusher._read

    def fail() -> Iterable[MetricReading]:
        raise ZeroDivisionError

    world.pusher._read = fail
    with caplog.at_level(logging.ERROR, "gpu_profile_exporter"):
        world.run(60)
    assert len(caplog.records) == 1
    assert "ZeroDivisionError" in caplog.text
    assert world.told()["gpu_profile.push.failures metrics internal"] == 4
    world.pusher._read = good
    world.run(15)
    assert len(endpoint.requests) == 1


def test_a_clock_that_is_set_back_does_not_stop_the_push(world: World, endpoint: HttpEndpoint) -> None:
    world.run(30)
    world.clock.set_back(86_400)
    before = len(endpoint.requests)
    world.run(30)
    assert len(endpoint.requests) - before >= 2
    for body in endpoint.bodies:
        for metric in metrics_of(body):
            assert all(point.start_time_unix_nano <= point.time_unix_nano for point in points_of(metric))


def test_a_round_that_was_missed_is_not_made_up_for(world: World, endpoint: HttpEndpoint) -> None:
    world.run(30)
    before = len(endpoint.requests)
    world.clock.advance(3600)
    world.run(1)
    assert len(endpoint.requests) - before == 1


def test_when_it_stops_it_reads_and_pushes_a_last_time(endpoint: HttpEndpoint) -> None:
    pusher = Pusher(
        lambda: [MetricReading(m.BUSY, {"hw.id": "GPU-a"}, 4.0)],
        metrics=Endpoint(url=endpoint.url),
        logs=Endpoint(url=endpoint.url.replace("metrics", "logs")),
        interval_s=3600,
    )
    pusher.start()
    pusher.event(Event("GPU-a", START_NS, "lost"))
    pusher.stop()
    paths = sorted(path for path, _, _ in endpoint.requests)
    assert paths == ["/v1/logs", "/v1/metrics"]
    assert all(sender.stats.sent == 1 for sender in pusher.senders.values())


def test_an_endpoint_that_is_away_costs_a_stop_no_more_than_its_time(world: World, endpoint: HttpEndpoint) -> None:
    endpoint.answer = Answer(503)
    world.run(60)
    before_ns = world.clock.now_ns()
    world.pusher.stop(2.0)
    assert world.clock.now_ns() - before_ns <= 2 * NS_PER_S
    told = world.told()
    assert told["gpu_profile.push.dropped metrics stopped"] == 5
    assert told["gpu_profile.push.queue.length metrics"] == 0


def test_an_interval_that_is_none_and_a_file_that_is_missing_are_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        Pusher(list, metrics=None, interval_s=0)
    with pytest.raises(UsageError, match=r"/nowhere/ca\.pem"):
        Pusher(list, metrics=Endpoint(url="https://c:1/v1/metrics", ca_file="/nowhere/ca.pem"))
