import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from support.drivers import wait_for
from unit.monitor.top.scene import exposition

from gpu_profile.errors import UsageError
from gpu_profile.monitor.top.scraper import RegionScraper, ScrapeError, check_url, fetch
from gpu_profile.testing import FakeClock


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = exposition(1.0).encode()
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("localhost:9464", "http://localhost:9464/metrics"),
        ("http://[::1]:9464/", "http://[::1]:9464/metrics"),
        ("https://node/gpu/metrics", "https://node/gpu/metrics"),
    ],
)
def test_a_url_may_leave_out_scheme_and_path(url: str, whole: str) -> None:
    assert check_url(url) == whole


@pytest.mark.parametrize(
    "url", ["", "ftp://node/metrics", "file:///etc/passwd", "node:port", "node:0", "http://a:b@node"]
)
def test_a_wrong_url_is_refused_with_the_right_form(url: str) -> None:
    with pytest.raises(UsageError, match="is not written as http://HOST:PORT/metrics"):
        check_url(url)


def test_an_endpoint_is_read_and_a_failed_one_gives_its_reason(server: HTTPServer) -> None:
    port = server.server_port
    assert fetch(f"http://127.0.0.1:{port}/metrics") == exposition(1.0)
    with pytest.raises(ScrapeError, match="HTTP 404"):
        fetch(f"http://127.0.0.1:{port}/other")
    with pytest.raises(ScrapeError, match="Connection refused"):
        fetch("http://127.0.0.1:9/metrics")


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
