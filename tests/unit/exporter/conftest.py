"""What holds for the exporter's tests: its command sets up the process's log, which later tests must not meet."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _log_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers, complains = root.level, root.handlers[:], logging.raiseExceptions
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    logging.raiseExceptions = complains
