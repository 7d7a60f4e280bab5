"""The log: one line a record on standard error, as text or as JSON, whatever happens to standard error."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Final

_TEXT: Final = "%(asctime)s %(levelname)s %(message)s"


def one_line(text: str) -> str:
    """`text` with its line ends and other control characters written out."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


class TextLines(logging.Formatter):
    """Time, level and message; a traceback follows on the same line."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        return one_line(super().format(record))


class JsonLines(logging.Formatter):
    """An object with `time` (UTC), `level`, `logger`, `message` and, where there is one, `error`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        said = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        return json.dumps(said)


def now() -> tuple[str, str]:
    """The level and the style of the last `set_up`; of other handlers, text."""
    root = logging.getLogger()
    json_lines = any(isinstance(handler.formatter, JsonLines) for handler in root.handlers)
    return logging.getLevelName(root.level).lower(), "json" if json_lines else "text"


def set_up(level: str, style: str = "text") -> None:
    """Log to standard error from now on. A second call changes level and style."""
    # What cannot be written is lost; to complain of it on the same stream would not help.
    logging.raiseExceptions = False
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(logging.StreamHandler(sys.stderr))
    for handler in root.handlers:
        if type(handler) is logging.StreamHandler:
            handler.setFormatter(JsonLines() if style == "json" else TextLines())
    root.setLevel(level.upper())
