"""Logging to standard error: one line per record, as text or JSON. A broken standard error is ignored."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Final

_TEXT: Final = "%(asctime)s %(levelname)s %(message)s"


def one_line(text: str) -> str:
    """`text` with line ends and other unprintable characters as backslash escapes."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


class TextLines(logging.Formatter):
    """Time, level and message, then a traceback on the same line."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        return one_line(super().format(record))


class JsonLines(logging.Formatter):
    """A JSON object with `time` (UTC), `level`, `logger`, `message`, and `error` if there is an exception."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def now() -> tuple[str, str]:
    """The root logger's level, and `json` or `text`. Handlers of others count as text."""
    root = logging.getLogger()
    json_lines = any(isinstance(handler.formatter, JsonLines) for handler in root.handlers)
    return logging.getLevelName(root.level).lower(), "json" if json_lines else "text"


def set_up(level: str, style: str = "text") -> None:
    """Log to standard error from now on. A second call changes level and style."""
    # A record that cannot be written is lost: an error message would go to the same broken stream.
    logging.raiseExceptions = False
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(logging.StreamHandler(sys.stderr))
    for handler in root.handlers:
        if type(handler) is logging.StreamHandler:
            handler.setFormatter(JsonLines() if style == "json" else TextLines())
    root.setLevel(level.upper())
