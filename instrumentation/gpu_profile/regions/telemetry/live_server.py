"""The live page of one process, on the port of its region metrics."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

import numpy as np

from gpu_profile.catalogue.samples import Event
from gpu_profile.clock import SYSTEM_CLOCK
from gpu_profile.driver import is_simulated
from gpu_profile.regions.session import process
from gpu_profile.regions.session.session import Session
from gpu_profile.regions.telemetry.live_regions import LiveRegions
from gpu_profile.report.blocks import rows_with_length
from gpu_profile.report.devices import CHARTS
from gpu_profile.report.live import LiveFeed, LivePage, ThrottleWatch, device_state, mark_of
from gpu_profile.report.live.marks import REASON_OF
from gpu_profile.report.live.served_page import ANSWERS, accepts_gzip
from gpu_profile.report.live.strands import KEEP_MS
from gpu_profile.units import NS_PER_S

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from gpu_profile.sampling.sampler import DeviceState

_MS: Final = 1e6
_LINKS: Final = (("metrics", "metrics"),)
_NEVER_STORED: Final = ("Cache-Control", "no-store")
_MOST_EVENTS: Final = 200
#: Executions that the join has left for longer than this are missing on the page, which then says so.
_BEHIND_NS: Final = 4 * NS_PER_S
BEHIND: Final = "Regions come late: the join has been busy with the sensors' timing for {} s."
NO_SESSION: Final = "No region has run yet."
PAUSED: Final = "no region has run for 30 s: sampling pauses until the next one"
NO_USERS: Final = "This page shows the program's own use. The exporter's page shows the processes of a GPU."


class SessionLive:
    """The rows and the state of one session. Not thread-safe, except that the session's threads call `_event`."""

    def __init__(self, session: Session) -> None:
        self.session: Final = session
        self.feed: Final = LiveFeed(os.urandom(6).hex())
        self._regions = LiveRegions(session.joiner, session.clock)
        self._throttling = ThrottleWatch()
        self._events: deque[Event] = deque(maxlen=_MOST_EVENTS)
        #: The time up to which each column of a device was taken, in ns.
        self._taken_ns: dict[tuple[str, str], int] = {}
        session.sampler.event_sinks.append(self._events.append)

    def state(self) -> dict[str, Any]:
        """Add the new rows to the feed, and describe the present."""
        session, feed = self.session, self.feed
        now_ns, driver = session.clock.now_ns(), session.sampler.driver
        states = list(session.sampler.states.values())
        for state in states:
            self._take(state, now_ns)
        while self._events:
            feed.mark(mark_of(self._events.popleft()))
        regions = self._regions.state(feed)
        self._regions.fill(feed)
        return {
            **regions,
            "region_note": self._behind(now_ns) or regions["region_note"],
            **_about(driver.name if driver is not None else "no driver"),
            "simulated": driver is not None and is_simulated(driver),
            "interval_s": session.sampler.interval_s,
            "reason": self._reason(),
            "devices": [self._device(state, now_ns) for state in states],
        }

    def _behind(self, now_ns: int) -> str:
        """Whether executions wait for a long search of the join, which takes only a tenth of a processor."""
        waiting = self.session.began
        oldest_ns = min((execution.start_ns for execution in list(waiting)[:1]), default=0)
        behind_ns = now_ns - oldest_ns
        return BEHIND.format(behind_ns // NS_PER_S) if oldest_ns and behind_ns > _BEHIND_NS else ""

    def _reason(self) -> str:
        sampler = self.session.sampler
        if not sampler.running:
            return PAUSED
        return sampler.problem if sampler.driver is None and sampler.stats.turned_ns else ""

    def _device(self, state: DeviceState, now_ns: int) -> dict[str, Any]:
        uuid = state.device.uuid
        return device_state(
            state.device,
            state.timeline,
            now_ns,
            status="ok" if state.up else "failed",
            reason="" if state.up else state.reason or "lost",
            gone=not state.up,
            throttled=self._throttling.present(uuid, now_ns / _MS),
        )

    def _take(self, state: DeviceState, now_ns: int) -> None:
        uuid, timeline = state.device.uuid, state.timeline
        for chart in CHARTS:
            column = timeline.best(chart.sources)
            until = None if column is None else column.watermark_ns
            if column is None or until is None:
                continue
            starts, ends, values = rows_with_length(column, self._since(uuid, chart.key, until, now_ns), until)
            lengths = (ends - starts) / _MS
            for t_ms, length_ms, value in zip((ends / _MS).tolist(), lengths.tolist(), values.tolist(), strict=True):
                self.feed.add(uuid, chart.key, t_ms, length_ms, value)
        for signal, reason in REASON_OF.items():
            counter = timeline.column(signal)
            until = None if counter is None else counter.watermark_ns
            if counter is None or until is None:
                continue
            _, ends, growths = counter.edges(self._since(uuid, signal.key, until, now_ns), until)
            for t_ms in (ends[np.asarray(growths) > 0] / _MS).tolist():
                if (mark := self._throttling.grow(uuid, reason, t_ms)) is not None:
                    self.feed.mark(mark)

    def _since(self, uuid: str, key: str, until: int, now_ns: int) -> int:
        """The time after which rows are new. They are new up to `until` from now on."""
        since = self._taken_ns.get((uuid, key), now_ns - int(KEEP_MS * _MS))
        self._taken_ns[uuid, key] = until
        # After the clock was set back, all rows are new.
        return since if since <= until else until - NS_PER_S


class ProcessLive:
    """The live page of this process: of its session, and of each later one. Any thread may call `answer`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: SessionLive | None = None
        self._empty = LiveFeed(os.urandom(6).hex())
        process.on_start(self._begin)

    def _begin(self, session: Session) -> None:
        self._current = SessionLive(session)

    @property
    def page(self) -> LivePage:
        """The page itself."""
        from gpu_profile.report.live.page import live_page

        return live_page(f"{_program()} ({os.getpid()})", _LINKS)

    def answer(self, after: str, *, packed: bool) -> bytes:
        """The rows after a cursor, as JSON. `packed`: compressed with gzip."""
        live = self._current
        with self._lock:
            if live is None:
                return self._empty.answer(after, SYSTEM_CLOCK.now_ns() / _MS, _nothing, packed=packed)
            return live.feed.answer(after, live.session.clock.now_ns() / _MS, live.state, packed=packed)


def with_live_page(metrics: WSGIApplication) -> WSGIApplication:
    """`metrics`, and the live page for browsers at `/`. Any other client still gets the metrics there."""
    live = ProcessLive()

    def get(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path, packed = environ.get("PATH_INFO", ""), accepts_gzip(environ.get("HTTP_ACCEPT_ENCODING", ""))
        if path == f"/{ANSWERS}":
            after = parse_qs(environ.get("QUERY_STRING", "")).get("after", [""])[0]
            body, headers = live.answer(after, packed=packed), [("Content-Type", "application/json"), _NEVER_STORED]
        elif path == "/" and "text/html" in environ.get("HTTP_ACCEPT", ""):
            page = live.page
            headers = [("Content-Type", "text/html; charset=utf-8"), ("Vary", "Accept, Accept-Encoding"), *page.headers]
            if page.is_current(environ.get("HTTP_IF_NONE_MATCH", "")):
                start_response("304 Not Modified", headers)
                return []
            body = page.packed if packed else page.body
        else:
            # prometheus_client compresses for `gzip;q=0` too.
            return metrics({**environ, "HTTP_ACCEPT_ENCODING": "gzip" if packed else ""}, start_response)
        encoding = [("Content-Encoding", "gzip")] if packed else []
        start_response("200 OK", [*headers, *encoding, ("Content-Length", str(len(body)))])
        return [body]

    def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        match environ["REQUEST_METHOD"]:
            case "GET":
                return get(environ, start_response)
            case "HEAD":
                return _without_body(get, environ, start_response)
            case "OPTIONS":
                start_response("200 OK", [("Allow", "GET, HEAD, OPTIONS"), ("Content-Length", "0")])
                return []
            case _:
                return metrics(environ, start_response)

    return application


def _without_body(get: WSGIApplication, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """The answer to HEAD: that of GET, with its length and without its body."""
    head: list[Any] = []
    body = b"".join(get({**environ, "REQUEST_METHOD": "GET"}, lambda *start: head.extend(start)))  # type: ignore[arg-type]
    status, headers = head[:2]
    lengths = [] if "Content-Length" in dict(headers) or not body else [("Content-Length", str(len(body)))]
    start_response(status, [*headers, *lengths])
    return []


def _nothing() -> dict[str, Any]:
    unknown = {"simulated": False, "interval_s": 1.0, "reason": "", "devices": []}
    regions = {"regions": [], "regions_left_out": 0, "running": [], "region_note": NO_SESSION}
    return {**_about("no driver yet"), **unknown, **regions}


def _about(driver: str) -> dict[str, str]:
    number = version("gpu-profile")
    return {"version": number, "source": f"gpu-profile {number}, reading {driver}", "user_note": NO_USERS}


def _program() -> str:
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
