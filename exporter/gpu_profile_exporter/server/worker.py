"""A thread that does one thing after the other for an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Worker(Generic[T]):
    """Runs what would hold the loop up. Unlike an executor's, its thread does not keep the process from ending."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[asyncio.Future[T], Callable[[], T]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def do(self, action: Callable[[], T], future: asyncio.Future[T] | None = None) -> asyncio.Future[T]:
        """The result of `action`, once its turn has come. Only from the loop's thread.

        `future`: where the result goes, for who must have it at hand before `action` may begin.
        """
        future = self._loop.create_future() if future is None else future
        self._queue.put((future, action))
        return future

    def stop(self) -> None:
        """End after what is waiting now. What runs is not waited for."""
        self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            future, action = item
            try:
                result, error = action(), None
            except Exception as caught:  # noqa: BLE001 - it is raised where the result is awaited
                result, error = None, caught
            try:
                self._loop.call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:  # the loop was closed meanwhile
                return


def _settle(future: asyncio.Future[T], result: T | None, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)  # type: ignore[arg-type]  # it is a T: there was no error
