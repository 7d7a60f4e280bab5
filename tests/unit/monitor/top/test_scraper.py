import pytest
from support.drivers import wait_for
from unit.monitor.top.scene import exposition

from gpu_profile.monitor.top import scraper as module
from gpu_profile.monitor.top.endpoint import NoAnswerError
from gpu_profile.monitor.top.region_rates import ScrapeError, region_values
from gpu_profile.monitor.top.scraper import STALE_S, RegionScraper
from gpu_profile.testing import FakeClock


def test_a_dead_endpoint_gives_its_reason_and_rates_return_with_it() -> None:
    clock, answers = FakeClock(), list[str | Exception]()

    def get(_: str) -> str:
        answer = answers.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    scraper = RegionScraper("http://node/metrics", clock=clock, get=get)
    assert scraper.lines() == ((), "waiting for http://node/metrics")
    answers[:] = ["<html>", ScrapeError("Connection refused"), exposition(1.0), exposition(0)]
    scraper.scrape()
    assert [line.calls for line in scraper.lines()[0]] == [None, None]
    assert not scraper.answered
    clock.advance(60)
    scraper.scrape()
    lines, note = scraper.lines()
    assert [line.calls for line in lines] == [14.0, 14.0]
    assert note == ""
    assert scraper.answered
    scraper.scrape()
    assert scraper.lines() == ((), "http://node/metrics: Connection refused")
    scraper.scrape()
    assert scraper.lines()[1].startswith("http://node/metrics: not in Prometheus' text format (ValueError: ")
    answers[:] = [exposition(1.0)]
    scraper.scrape()
    assert len(scraper.lines()[0]) == 2


def test_an_endpoint_without_regions_says_so() -> None:
    scraper = RegionScraper("http://node/metrics", clock=FakeClock(), get=lambda _: "up 1\n")
    scraper.scrape()
    assert scraper.lines() == ((), "http://node/metrics has no metrics of regions (gpu_profile_region_…)")


def test_a_silent_endpoint_leaves_its_rates_until_they_are_stale() -> None:
    clock, answers = FakeClock(), [exposition(0.5), exposition(0)]

    def get(_: str) -> str:
        clock.advance(4)
        if not answers:
            raise NoAnswerError("no answer within 5 s")
        return answers.pop()

    scraper = RegionScraper("http://node/metrics?token=secret", clock=clock, get=get)
    scraper.scrape()
    scraper.scrape()
    lines, note = scraper.lines()
    assert (len(lines), note, scraper.answered) == (2, "", True)
    scraper.scrape()
    clock.advance(STALE_S - 4)
    assert scraper.lines() == (lines, "")
    clock.advance(0.5)
    assert scraper.lines() == ((), "http://node/metrics?…: no answer for 8 s")
    clock.advance(30)
    assert scraper.lines()[1].endswith("no answer for 38 s"), "a scrape that hangs is not waited for"
    answers[:] = [exposition(1.0)]
    scraper.scrape()
    assert (len(scraper.lines()[0]), scraper.lines()[1]) == (2, "")


def test_an_endpoint_that_never_answers_is_waited_for_and_then_called_silent() -> None:
    clock = FakeClock()

    def get(_: str) -> str:
        notes.append(scraper.lines()[1])
        clock.advance(5)
        raise NoAnswerError("no answer within 5 s")

    notes: list[str] = []
    scraper = RegionScraper("http://node/metrics", clock=clock, get=get)
    scraper.scrape()
    assert not scraper.answered
    scraper.scrape()
    assert scraper.answered
    assert notes == ["waiting for http://node/metrics"] * 2
    assert scraper.lines() == ((), "http://node/metrics: no answer for 10 s")


def test_the_view_does_not_wait_while_a_scrape_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(text: str) -> object:
        seen.append((scraper._lock.locked(), len(scraper.lines()[0])))
        return region_values(text)

    seen: list[tuple[bool, int]] = []
    monkeypatch.setattr(module, "region_values", parse)
    scraper = RegionScraper("http://node/metrics", clock=FakeClock(), get=lambda _: exposition(1.0))
    scraper.scrape()
    scraper.scrape()
    assert seen == [(False, 0), (False, 2)]


def test_the_thread_scrapes_until_it_is_stopped() -> None:
    counted = []

    def get(url: str) -> str:
        counted.append(url)
        return "up 1\n"

    scraper = RegionScraper("http://node/metrics", clock=FakeClock(), get=get)
    scraper.start()
    wait_for(lambda: len(counted) > 3)
    scraper.stop()
    wait_for(lambda: not scraper.running)
