"""JSON from a file, one element of a long array at a time: memory contains a part of the text, never the whole tree."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, cast

from gpu_profile.errors import UsageError

_CHUNK: Final = 1 << 18
#: Characters decoded in one call. Fewer cost more calls; more do not fit the processor's cache.
_BATCH: Final = 1 << 16
#: A longer single value is treated as damage: an event has some hundred bytes.
_LONGEST: Final = 1 << 26
#: If the window cuts off a number or word, the decoder's error is at most this many characters before its end.
_CUT: Final = 16
_GZIP_MAGIC: Final = b"\x1f\x8b"
_space = re.compile(r"[ \t\n\r]*").match
#: The rest of a word, a number or an escape that the end of the text cut off.
_word = re.compile(r"[\w.+\\-]*[ \t\n\r]*\Z").match
_number = re.compile(r"[0-9.eE+-]*\Z").match
_between = re.compile(r"\}[ \t\n\r]*,[ \t\n\r]*\{").match


class _Source(io.FileIO):
    """A file of which a read returns at least two bytes, so that a peek shows the mark of gzip. A pipe may contain a
    single byte at first.
    """

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer)
        return count + (super().readinto(memoryview(buffer)[1:]) or 0) if count == 1 else count


class JsonStream:
    """A JSON file, gzip or plain, read in windows. The text `-` is standard input; `Path("-")` is a file.

    Fractions are returned as text, so that the caller can convert them exactly. Any defect of the file raises
    `UsageError` with the path, the byte (of the JSON text, after decompression) and the reason. All values before the
    defect have been returned by then.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._decode = json.JSONDecoder(parse_float=str).raw_decode
        self._buffer = ""
        self._at = 0
        self._before = 0
        self._most = _BATCH
        self._cut = b""
        self._ended = False
        self._problem = ""
        try:
            # Standard input is read through a descriptor of its own, which can be closed.
            plain = io.BufferedReader(_Source(os.dup(0) if path == "-" else path))
            packed = plain.peek(2)[:2] == _GZIP_MAGIC
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror or error}") from error
        self._plain = plain
        self._bytes_read = 0
        self._size = os.fstat(plain.fileno()).st_size
        self._file = cast("BinaryIO", gzip.GzipFile(fileobj=plain) if packed else plain)

    def __enter__(self) -> JsonStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        self._plain.close()

    @property
    def read_share(self) -> float | None:
        """The part of the file that has been read, 0-1, before decompression. None for a pipe, and an empty file."""
        return self._bytes_read / self._size if self._size else None

    def peek(self) -> str:
        """The next character that is no white space; "" at the end."""
        while True:
            self._at = _space(self._buffer, self._at).end()  # type: ignore[union-attr]  # it always matches
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._more():
                return ""

    def take(self, character: str, expected: str) -> None:
        """Step over one character that must come now. `expected` describes it in errors."""
        present = self.peek()
        if present != character:
            raise self.fail(f"{expected} was expected" if present else self._end(f"where {expected} was expected"))
        self._at += 1

    def value(self) -> Any:
        """The next value, of any type."""
        if not self.peek():
            raise self.fail(self._end("where a value was expected"))
        while True:
            try:
                value, end = self._decode(self._buffer, self._at)
            except RecursionError as error:
                raise self.fail("it is nested too deeply") from error
            except json.JSONDecodeError as error:
                open_text = error.msg.startswith("Unterminated string")
                if not open_text and len(self._buffer) - error.pos > _CUT:
                    raise self.fail(_words(error), error.pos) from error
                if len(self._buffer) - self._at > _LONGEST:
                    raise self.fail(f"a value is longer than {_LONGEST >> 20} MiB") from error
                if not self._more():
                    if not (self._problem or open_text or _word(self._buffer, error.pos)):
                        raise self.fail(_words(error), error.pos) from error
                    raise self.fail(self._end("inside a value"), len(self._buffer)) from error
            except ValueError as error:
                raise self.fail("a number has too many digits") from error
            else:
                # A number that touches the end of the window may continue, with digits or an exponent.
                if type(value) is dict or not _number(self._buffer, end) or not self._more():
                    self._at = end
                    return value

    def elements(self) -> Iterator[Any]:
        """The elements of the array that comes next."""
        return chain.from_iterable(self._parts())

    def _parts(self) -> Iterator[Sequence[Any]]:
        self.take("[", "'['")
        if self.peek() == "]":
            self._at += 1
            return
        while True:
            yield (self.value(),)
            between = _between(self._buffer, self._at - 1)
            while between and (values := self._batch(between[0])):
                yield values
            if self.peek() == "]":
                self._at += 1
                return
            self.take(",", "',' or ']'")
            self.peek()

    def _batch(self, between: str) -> list[Any]:
        """The whole objects after the one that ends here, up to the last occurrence of `between` in the window.

        `between` may also occur in text or in nested values. The text before it is then no valid list, and values are
        decoded one at a time.
        """
        start = self._at + len(between) - 2
        cut = self._buffer.rfind(between, start, start + self._most)
        if cut < 0:
            return []
        text = f"[{self._buffer[start : cut + 1]}]"
        values: list[Any] = []
        end = 0
        with suppress(ValueError, RecursionError):
            values, end = self._decode(text)
        if end < len(text):
            self._most //= 2
            return []
        self._at = cut + 1
        return values

    def fail(self, reason: str, at: int | None = None) -> UsageError:
        """The error for a defect at a place of the window, by default the present one."""
        if self._problem and at is None and self._at >= len(self._buffer):
            reason = self._problem
        prefix = self._buffer[: self._at if at is None else at]
        return UsageError(f"{self._path}: byte {self._before + len(prefix.encode()):,}: {reason}")

    def finish(self) -> None:
        """Raise if anything follows, or if the file could not be read to its end."""
        if self.peek():
            raise self.fail("something follows the end of the JSON text")
        if self._problem:
            raise self.fail(self._problem)

    def _end(self, where: str) -> str:
        return self._problem or f"it ends {where}: truncated?"

    def _more(self) -> bool:
        """Read on and drop the consumed text; False if nothing more came."""
        if self._ended:
            return False
        # Double the window: a long value is then decoded again only a few times.
        wanted, data = max(_CHUNK, len(self._buffer) - self._at), bytearray(self._cut)
        try:
            # Not `read`, which would lose the data before a damaged part.
            while wanted > 0 and (part := self._file.read1(wanted)):  # type: ignore[attr-defined]  # both have it
                data += part
                wanted -= len(part)
        except EOFError:
            self._problem = "the compressed data end early: truncated?"
        except (OSError, zlib.error) as error:
            self._problem = f"cannot be read: {error}"
        self._ended = wanted > 0
        self._bytes_read = self._plain.tell() if self._size else 0  # a pipe has neither a size nor a position
        self._cut = b""
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            text = data[: error.start].decode()
            if error.end == len(data) and not self._ended:
                self._cut = bytes(data[error.start :])
            else:
                self._ended = True
                self._problem = self._problem or "the text is not UTF-8"
        if text:
            if not self._before and not self._buffer and text.startswith("\ufeff"):
                self._before, text = 3, text[1:]
            self._before += len(self._buffer[: self._at].encode())
            self._buffer = self._buffer[self._at :] + text
            self._at, self._most = 0, _BATCH
        return bool(text) or not self._ended


def _words(error: json.JSONDecodeError) -> str:
    return f"this is no JSON ({error.msg[0].lower()}{error.msg[1:]})"
