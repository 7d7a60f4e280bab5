"""A thread that runs blocking functions for an event loop, one after the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Worker(Generic[T]):
    """Runs functions that would block the loop. Unlike an executor's thread, its thread does not delay process exit."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[asyncio.Future[T], Callable[[], T]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def do(self, action: Callable[[], T], future: asyncio.Future[T] | None = None) -> asyncio.Future[T]:
        """A future of the result of `action`, which runs after all earlier actions. Only from the loop's thread.

        `future`: an existing future for the result, for callers that need the future before `action` may begin.
        """
        future = self._loop.create_future() if future is None else future
        self._queue.put((future, action))
        return future

    def stop(self) -> None:
        """End the thread after all queued actions. Does not wait for them."""
        self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            future, action = item
            try:
                result, error = action(), None
            except Exception as caught:  # noqa: BLE001 - raised where the result is awaited
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
