"""The beginning of a region stands four times, as a call in between would cost a tenth of it: they must be equal."""

import asyncio
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_profile import region
from gpu_profile.regions.execution import Execution
from gpu_profile.regions.running import Running, begun
from gpu_profile.regions.session import process
from gpu_profile.regions.session.inbox import Inbox
from gpu_profile.testing import FakeClock

Body = Callable[[], None]


def block(body: Body, *, span: bool) -> None:
    with region("step", span=span):
        body()


def block_again(body: Body, *, span: bool) -> None:
    """A region object that was used before begins by `Running.begin`."""
    used = region("step", span=span)
    used.start_ns = used.end_ns = 1
    with used:
        body()


def function(body: Body, *, span: bool) -> None:
    region("step", span=span)(body)()


def coroutine(body: Body, *, span: bool) -> None:
    async def run() -> None:
        body()

    asyncio.run(region("step", span=span)(run)())


WAYS = [block, block_again, function, coroutine]


class FakeSession(Inbox):
    """What a region touches of a session."""

    def __init__(self) -> None:
        self._times = count(100, 10)
        super().__init__(FakeClock(), None)
        self.now_ns = lambda: next(self._times)
        self.active = True


def chain(*ended: bool) -> Execution | None:
    """Executions inside one another, the innermost last; those that `ended` have."""
    around: Execution | None = None
    for i, over in enumerate(ended):
        around = Execution(f"around {i}", around)
        around.start_ns, around.end_ns = 1 + i, 50 * over
    return around


@pytest.mark.parametrize("span", [False, True], ids=["no span", "a span"])
@pytest.mark.parametrize("needs_slow_path", [False, True], ids=["", "shown"])
@pytest.mark.parametrize(
    ("ended", "parent"),
    [
        ((), None),
        ((False,), "around 0"),
        ((True,), None),
        ((False, True), "around 0"),
        ((False, True, True), "around 0"),
        ((False, True, True, True), "around 0"),
        ((True, False, True), "around 1"),
        ((True, True, True), None),
    ],
)
def test_all_ways_to_begin_leave_the_same_behind(
    monkeypatch: pytest.MonkeyPatch, span: bool, needs_slow_path: bool, ended: tuple[bool, ...], parent: str | None
) -> None:
    found: list[Any] = []
    for way in WAYS:
        session, seen = FakeSession(), SimpleNamespace(shown=[])
        session.needs_slow_path = needs_slow_path
        monkeypatch.setattr(process, "current", session)

        def show(self: Running, given: Any, *, seen: SimpleNamespace = seen, **named: bool) -> None:
            self.session = given
            seen.shown.append((self, given, named))

        def body(session: FakeSession = session, seen: SimpleNamespace = seen) -> None:
            (seen.execution,) = session.began
            seen.inside = begun.get()
            seen.end_ns = seen.execution.end_ns

        monkeypatch.setattr(Running, "show", show)
        token = begun.set(chain(*ended))
        try:
            way(body, span=span)
        finally:
            begun.reset(token)
        execution = seen.execution
        assert seen.inside is execution
        assert (execution.name, execution.start_ns, seen.end_ns, execution.end_ns) == ("step", 100, 0, 110)
        assert (execution.parent.name if execution.parent else None) == parent
        found.append([(each is execution, given is session, named) for each, given, named in seen.shown])
    assert found == [[(True, True, {"nested": True, "span": span})] * (span or needs_slow_path)] * len(WAYS)
