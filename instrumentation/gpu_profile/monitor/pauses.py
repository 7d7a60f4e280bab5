"""Waits that serve threads and event loops alike: generators of pauses in seconds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator
from contextlib import closing
from typing import Final, TypeAlias

from gpu_profile.clock import SYSTEM_CLOCK
from gpu_profile.regions.session import process

Pauses: TypeAlias = Generator[float, None, None]

_never: Final = threading.Event()


def sleep_through(pauses: Pauses) -> None:
    """Run a generator of pauses to its end, sleeping in this thread."""
    clock = process.settings().clock
    with closing(pauses):
        for pause_s in pauses:
            clock.wait(_never, pause_s)


async def await_through(pauses: Pauses) -> None:
    """Run a generator of pauses to its end without blocking asyncio's loop. Any other loop is blocked."""
    clock = process.settings().clock
    with closing(pauses):
        for pause_s in pauses:
            asyncio = sys.modules.get("asyncio")
            if asyncio is not None and asyncio._get_running_loop() is not None and clock is SYSTEM_CLOCK:
                await asyncio.sleep(pause_s)
            else:
                clock.wait(_never, pause_s)
