"""A thread that scrapes one Prometheus endpoint for regions: a slow or dead endpoint delays nothing else."""

from __future__ import annotations

import http.client
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.errors import UsageError
from gpu_profile.monitor.top.region_rates import RegionRates
from gpu_profile.monitor.top.snapshot import RegionLine

#: The time between two scrapes, the timeout of one, and the time until the second, in s.
PERIOD_S: Final = 2.0
_TIMEOUT_S: Final = 5.0
SECOND_S: Final = 1.0
#: A longer answer is refused.
_MOST_BYTES: Final = 1 << 25

_log = logging.getLogger("gpu_profile")


class ScrapeError(Exception):
    """The endpoint did not answer with text. The message is the reason."""


def check_url(url: str) -> str:
    """`url` with a scheme and a path. Raises UsageError if it is no URL of an endpoint."""
    whole = url if "://" in url else f"http://{url}"
    parts = urlsplit(whole)
    try:
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # not a port number
        valid = False
    if not valid or parts.username is not None:
        raise UsageError(f"--url: {url!r} is not written as http://HOST:PORT/metrics, without a user name")
    return whole if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/metrics"


def fetch(url: str) -> str:
    """The text at `url`. Raises ScrapeError."""
    request = urllib.request.Request(url, headers={"Accept": "text/plain;version=0.0.4"})  # noqa: S310 - checked
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - checked
            data: bytes = answer.read(_MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise ScrapeError(f"HTTP {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise ScrapeError(_reason(error.reason)) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ScrapeError(_reason(error)) from error
    if len(data) > _MOST_BYTES:
        raise ScrapeError(f"more than {_MOST_BYTES >> 20} MiB")
    return data.decode("utf-8", "replace")


def _reason(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_TIMEOUT_S:g} s"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


class RegionScraper:
    """Scrapes `url` every `PERIOD_S` in a thread of its own, from `start` to `stop`. `lines` may be called at any time.

    A failed scrape leaves no rates: they come back with the next one that succeeds.
    """

    def __init__(self, url: str, *, clock: Clock = SYSTEM_CLOCK, get: Callable[[str], str] = fetch) -> None:
        self.url = url
        self._clock = clock
        self._get = get
        self._rates = RegionRates()
        self._scrapes = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-profile-scrape", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, without waiting for a scrape in progress."""
        self._stop.set()

    @property
    def running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread.is_alive()

    @property
    def answered(self) -> bool:
        """Whether there are rates, or two scrapes have passed and the last has failed."""
        with self._lock:
            return self._rates.window_s > 0 or (self._scrapes > 1 and bool(self._rates.problem))

    def lines(self) -> tuple[tuple[RegionLine, ...], str]:
        """The regions, and a note: the reason for a failed scrape, or why there are none."""
        with self._lock:
            if not self._scrapes:
                return (), f"waiting for {self.url}"
            if self._rates.problem:
                return (), f"{self.url}: {self._rates.problem}"
            lines = self._rates.lines()
        return lines, "" if lines else f"{self.url} has no metrics of regions (gpu_profile_region_…)"

    def scrape(self) -> None:
        """Scrape once, in the caller's thread."""
        problem, text = "", ""
        try:
            text = self._get(self.url)
        except ScrapeError as error:
            problem = str(error)
        with self._lock:
            self._scrapes += 1
            try:
                if not problem:
                    self._rates.take(self._clock.elapsed_ns(), text)
            except Exception as error:  # noqa: BLE001 - the parser fails in many ways on text in another format
                _log.debug("the scrape of %s failed", self.url, exc_info=True)
                problem = f"not in Prometheus' text format ({type(error).__name__}: {error})"
            self._rates.problem = problem

    def _run(self) -> None:
        while not self._stop.is_set():
            self.scrape()
            self._clock.wait(self._stop, SECOND_S if self._scrapes == 1 else PERIOD_S)
