"""Runs functions beside a test, in threads and in a forked child."""

import os
import traceback
from collections.abc import Callable
from threading import Thread


def in_threads(*calls: Callable[[], object]) -> None:
    """Run `calls` concurrently, each in its own thread, and wait for all."""
    threads = [Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_child(act: Callable[[], object], meanwhile: Callable[[], object] = lambda: None) -> str:
    """The result of `act` in a forked child, as text. `meanwhile` runs here. Fails if either raises."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        code = 1
        try:
            os.write(writing, str(act()).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        meanwhile()
        result = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return result
