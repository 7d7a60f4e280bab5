"""How answers are rendered: each is at most as old as its question, however the threads take turns."""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event
from typing import Any

import pytest

from gpu_profile_exporter.server import Limits, Rendering, worker
from gpu_profile_exporter.server.answers import AuthorizedRequest
from gpu_profile_exporter.server.counts import Counts
from gpu_profile_exporter.server.routes import Request, Response


class Eager(SimpleQueue[Any]):
    """Whoever takes from it has done what it took before the one who put it there goes on."""

    done = Event()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self.done.clear()
        super().put(item)
        if item is not None:
            assert self.done.wait(10)


async def never(_: Callable[[bytes], None]) -> None:
    """There is no body."""


def test_an_answer_that_is_rendered_at_once_is_not_given_to_who_asks_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "SimpleQueue", Eager)
    rendered = iter(range(3))

    def respond(_: Request) -> Response:
        Eager.done.set()
        return Response(200, str(next(rendered)).encode())

    async def ask() -> list[bytes]:
        loop = asyncio.get_running_loop()
        rendering = Rendering(respond, Limits(), Counts(), loop)
        asked = AuthorizedRequest("GET", "/metrics", {}, never)
        found = [await rendering.answer(asked, loop.time() + 10) for _ in range(3)]
        rendering.stop()
        return [answer.body for answer in found if answer is not None]

    assert asyncio.run(ask()) == [b"0", b"1", b"2"]
