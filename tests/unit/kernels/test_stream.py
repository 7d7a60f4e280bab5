import gzip
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_profile.errors import UsageError
from gpu_profile.kernels import stream
from gpu_profile.kernels.stream import JsonStream


def file(tmp_path: Path, data: bytes, *, packed: bool = False) -> Path:
    path = tmp_path / "file.json"
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


def elements(path: str | Path) -> list[Any]:
    with JsonStream(path) as source:
        found = list(source.elements())
        source.finish()
    return found


def problem(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        elements(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


SOME = [{"a": 1, "ü": ']},{\\" 漢'}, [], {}, 7, 1234567, "x,y", None, [{"b": [1, 2]}], -1, True, {"c": {"d": "e" * 50}}]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 1 << 18])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("packed", [False, True])
def test_windows_of_any_size_give_what_the_whole_text_gives(
    chunk: int, indent: int | None, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_CHUNK", chunk)
    for ascii_only in (True, False):
        text = json.dumps(SOME, indent=indent, ensure_ascii=ascii_only)
        assert elements(file(tmp_path, text.encode(), packed=packed)) == SOME


#: What stands between two objects stands in text and deeper down as well.
NESTED = [
    {"a": [{"b": 1}, {"b": [{}, {}]}], "name": "{x}, {y},{z},\n  {"},
    {"a": "}, {"},
    5,
    {"a": {}},
    {"b": [[], []]},
]


@pytest.mark.parametrize("batch", [1, 20, 100, 1 << 16])
@pytest.mark.parametrize("chunk", [16, 1 << 18])
@pytest.mark.parametrize(("indent", "separators"), [(None, (",", ":")), (None, (", ", ": ")), (2, None), (0, None)])
def test_what_looks_like_the_end_of_an_element_is_told_from_it(
    batch: int, chunk: int, indent: int | None, separators: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_BATCH", batch)
    monkeypatch.setattr(stream, "_CHUNK", chunk)
    several = NESTED * 7
    data = json.dumps(several, indent=indent, separators=separators).encode()
    assert elements(file(tmp_path, data)) == several
    lists = f'{{"first": {data.decode()}, "second": {data.decode()}}}'.encode()
    with JsonStream(file(tmp_path, lists)) as source:
        source.take("{", "'{'")
        assert source.value() == "first"
        source.take(":", "':'")
        assert list(source.elements()) == several
        assert source.peek() == ","


def test_damage_behind_many_elements_leaves_them_all(tmp_path: Path) -> None:
    good = [{"i": i, "args": {"x": [i]}} for i in range(500)]
    text = json.dumps(good, indent=1)
    damaged = text.replace('"i": 400', '"i" 400').encode()
    found: list[Any] = []
    with (
        JsonStream(file(tmp_path, damaged)) as source,
        pytest.raises(UsageError, match=r"this is no JSON \(expecting ':' delimiter\)") as caught,
    ):
        found.extend(source.elements())
    assert found == good[:400]
    assert f"byte {damaged.index(b' 400') + 1:,}: " in str(caught.value)


@pytest.mark.parametrize("text", ["[]", " [ ] ", "\ufeff[]\n"])
def test_an_empty_array_has_no_elements(text: str, tmp_path: Path) -> None:
    assert elements(file(tmp_path, text.encode())) == []


def test_fractions_keep_every_digit(tmp_path: Path) -> None:
    assert elements(file(tmp_path, b"[1695835542514261.123, 17]")) == ["1695835542514261.123", 17]


@pytest.mark.parametrize("chunk", range(1, 9))
def test_a_number_goes_on_in_the_next_window(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_CHUNK", chunk)
    assert elements(file(tmp_path, b"[0.5,1.25e+3,1E-7, -2.0 ,3]")) == ["0.5", "1.25e+3", "1E-7", "-2.0", 3]


def test_what_came_before_damage_is_handed_out(tmp_path: Path) -> None:
    found = []
    with JsonStream(file(tmp_path, b'[{"a": 1}, {"b": 2}, {"c": tru}]')) as source:
        each = source.elements()
        found += [next(each), next(each)]
        with pytest.raises(UsageError, match=r"byte 27: this is no JSON \(expecting value\)"):
            next(each)
    assert found == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "byte 0: it ends where '[' was expected: truncated?"),
        (b"{}", "byte 0: '[' was expected"),
        (b"[", "byte 1: it ends where a value was expected: truncated?"),
        (b'[{"a": 1}', "byte 9: it ends where ',' or ']' was expected: truncated?"),
        (b'[{"a": 1},', "byte 10: it ends where a value was expected: truncated?"),
        (b'[{"a": 1}, {"b"', "byte 15: it ends inside a value: truncated?"),
        (b'[{"a": tru', "byte 10: it ends inside a value: truncated?"),
        (b'[{"a": -1', "byte 9: it ends inside a value: truncated?"),
        (b'[{"a": "\\u12', "byte 12: it ends inside a value: truncated?"),
        (b'[{"a": "never closed', "byte 20: it ends inside a value: truncated?"),
        (b'[{"a": 1} {"b": 2}]', "byte 10: ',' or ']' was expected"),
        (b'[{"a": 1}] x', "byte 11: something follows the end of the JSON text"),
        (b'[{"a" 1, "and": "so on and on"}]', "byte 6: this is no JSON (expecting ':' delimiter)"),
        ('["é", {"é" 1, "and": "so on and on"}]'.encode(), "byte 13: this is no JSON (expecting ':' delimiter)"),
        (b'[{"a": "\x00", "and": "so on and on"}]', "byte 8: this is no JSON (invalid control character at)"),
        (b'[{"a": 1}, "\xff"]', "byte 12: the text is not UTF-8"),
        (b'[{"a": 1}, "\xe6\xbc', "byte 12: the text is not UTF-8"),
        (b"[" + b"1" * 5000 + b"]", "byte 1: a number has too many digits"),
        (b"[" * 200_000, "byte 1: it is nested too deeply"),
    ],
)
def test_damage_is_told_with_its_byte_and_the_reason(data: bytes, says: str, tmp_path: Path) -> None:
    assert problem(file(tmp_path, data)) == says


def test_a_value_that_never_ends_is_not_read_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_LONGEST", 1 << 20)
    assert problem(file(tmp_path, b'["' + b"x" * (1 << 23))) == "byte 1: a value is longer than 1 MiB"


def test_packed_data_that_end_early_are_told_from_damaged_ones(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps([{"i": i, "x": str(i * i)} for i in range(5000)]).encode())
    path = tmp_path / "file.json.gz"
    path.write_bytes(packed[: len(packed) // 2])
    assert problem(path).endswith("the compressed data end early: truncated?")
    path.write_bytes(packed[:5000] + b"\x00\xff\x00\xff" + packed[5004:])
    assert "byte " in problem(path)
    path.write_bytes(packed[:-8] + b"\x00" * 8)
    assert "cannot be read: CRC check failed" in problem(path)


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    assert problem(tmp_path / "missing") == "No such file or directory"
    assert problem(tmp_path) == "Is a directory"


@contextmanager
def standard_input(*writes: bytes) -> Iterator[None]:
    """Each read of standard input returns one of these, whole."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = os.dup(0)
    try:
        with theirs:
            os.dup2(theirs.fileno(), 0)
        with ours:
            for each in writes:
                ours.send(each)
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("first", [1, 2, 3])
def test_the_first_write_into_a_pipe_may_be_a_single_byte(packed: bool, first: int) -> None:
    data = json.dumps(SOME).encode()
    data = gzip.compress(data) if packed else data
    with standard_input(data[:first], data[first:]):
        assert elements("-") == SOME


@pytest.mark.parametrize(("data", "says"), [(b"[", "truncated"), (b"\x1f", "expected"), (b"", "truncated")])
def test_an_input_of_one_byte_is_not_waited_on(data: bytes, says: str) -> None:
    with standard_input(*([data] if data else [])), pytest.raises(UsageError, match=f"^-: byte .*{says}"):
        elements("-")


def test_a_path_is_never_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-").write_text("[1]")
    with standard_input(b"[2]"):
        assert elements(Path("-")) == elements("./-") == [1]
        assert elements("-") == [2]
