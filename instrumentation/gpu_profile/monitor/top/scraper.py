"""A thread that scrapes one Prometheus endpoint for regions: a slow or dead endpoint delays nothing else."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.monitor.top.endpoint import TIMEOUT_S, NoAnswerError, fetch, shown_url
from gpu_profile.monitor.top.region_rates import RegionRates, ScrapeError, region_values
from gpu_profile.monitor.top.snapshot import RegionLine
from gpu_profile.units import NS_PER_S

#: The time between two scrapes, and until the second, in s.
PERIOD_S: Final = 2.0
SECOND_S: Final = 1.0
#: The age from which rates are too old to show, in s: an answer that is just in time has this age at most.
STALE_S: Final = PERIOD_S + TIMEOUT_S + 1

_log = logging.getLogger("gpu_profile")


class RegionScraper:
    """Scrapes `url` every `PERIOD_S` in a thread of its own, from `start` to `stop`. `lines` may be called at any time.

    A failed scrape leaves no rates: they come back with the next one that succeeds. One without an answer leaves them
    until they are `STALE_S` old.
    """

    def __init__(self, url: str, *, clock: Clock = SYSTEM_CLOCK, get: Callable[[str], str] = fetch) -> None:
        self.url = url
        self._clock = clock
        self._get = get
        #: Belongs to the thread that scrapes. The lock is for the fields below, which the view reads.
        self._rates = RegionRates()
        self._lock = threading.Lock()
        self._scrapes = 0
        self._lines: tuple[RegionLine, ...] | None = None
        self._problem = ""
        self._answered = False
        #: The time of the last scrape that succeeded or, before any, the beginning of the first.
        self._since_ns: int | None = None
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
            return self._answered

    def lines(self) -> tuple[tuple[RegionLine, ...], str]:
        """The regions, and a note: the reason for a failed scrape, or why there are none."""
        now_ns, url = self._clock.elapsed_ns(), shown_url(self.url)
        with self._lock:
            silent_s = 0.0 if self._since_ns is None else (now_ns - self._since_ns) / NS_PER_S
            if self._problem:
                return (), f"{url}: {self._problem}"
            if silent_s > STALE_S:
                return (), f"{url}: no answer for {silent_s:.0f} s"
            if self._lines is None:
                return (), f"waiting for {url}"
            return self._lines, "" if self._lines else f"{url} has no metrics of regions (gpu_profile_region_…)"

    def scrape(self) -> None:
        """Scrape once, in the caller's thread."""
        at_ns = self._clock.elapsed_ns()
        with self._lock:
            if self._since_ns is None:
                self._since_ns = at_ns
        problem, lines = "", None
        try:
            text = self._get(self.url)
            at_ns = self._clock.elapsed_ns()
            self._rates.take(at_ns, region_values(text))
            lines = self._rates.lines()
        except NoAnswerError:
            _log.debug("no answer from %s", shown_url(self.url))
        except ScrapeError as error:
            _log.debug("the scrape of %s failed", shown_url(self.url), exc_info=True)
            problem = str(error)
        with self._lock:
            self._scrapes += 1
            self._problem = problem
            if lines is not None:
                self._lines, self._since_ns = lines, at_ns
            self._answered = self._rates.window_s > 0 or (self._scrapes > 1 and lines is None)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.scrape()
            self._clock.wait(self._stop, SECOND_S if self._scrapes == 1 else PERIOD_S)
