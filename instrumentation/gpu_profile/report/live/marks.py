"""Marks on a device's timeline: its events, and where throttling begins by the counters of throttle time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.event_text import ERROR, WARN, body, severity
from gpu_profile.catalogue.samples import Event
from gpu_profile.catalogue.signals import THROTTLES, THROTTLES_SEEN
from gpu_profile.report.devices import THROTTLE_REASONS
from gpu_profile.report.live.feed import LiveMark

#: The counters of throttle time, with the reason of each.
REASON_OF: Final[Mapping[Signal, str]] = {
    signal: reason
    for counters in (THROTTLES, THROTTLES_SEEN)
    for signal, reason in zip(counters, THROTTLE_REASONS, strict=True)
}
#: Throttling that pauses for less than this is one episode, with one mark.
_PAUSE_MS: Final = 10_000.0
#: A reason is shown as present for this long after the last growth of its counter.
_PRESENT_MS: Final = 2_000.0


def mark_of(event: Event) -> LiveMark:
    """The mark of an event, with its text but without its device's UUID."""
    number = severity(event).number
    tone = "bad" if number >= ERROR.number else "warn" if number >= WARN.number else "soft"
    return LiveMark(event.t_ns / 1e6, event.device, tone, body(event).removeprefix(f"{event.device}: "))


class ThrottleWatch:
    """The throttling of all devices, by device and reason."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, Signal], int] = {}
        self._last_ms: dict[tuple[str, str], float] = {}

    def read(self, device: str, counter: Signal, t_ms: float, value: int) -> LiveMark | None:
        """Take a counter's value. Returns a mark if throttling begins."""
        before = self._values.get((device, counter))
        self._values[device, counter] = value
        grows = before is not None and value > before
        return self.grow(device, REASON_OF[counter], t_ms) if grows else None

    def grow(self, device: str, reason: str, t_ms: float) -> LiveMark | None:
        """Take a moment at which a reason lowered the clocks. Returns a mark if this begins an episode."""
        last_ms = self._last_ms.get((device, reason))
        self._last_ms[device, reason] = t_ms
        if last_ms is not None and 0 <= t_ms - last_ms < _PAUSE_MS:
            return None
        return LiveMark(t_ms, device, "warn", f"throttling begins: {reason}")

    def present(self, device: str, now_ms: float) -> list[str]:
        """The reasons that lower the device's clocks now."""
        return [
            reason
            for reason in THROTTLE_REASONS
            if (last_ms := self._last_ms.get((device, reason))) is not None and abs(now_ms - last_ms) < _PRESENT_MS
        ]
