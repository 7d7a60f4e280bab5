"""What `make gpu` leaves: `record.json` with every figure, `table.md` for a person, and an archive for each stage."""

from __future__ import annotations

import gzip
import json
import re
import socket
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpu_profile.recording import format as recording_format

#: An archive never is larger; files that would make it so are left out, the largest first.
LARGEST: Final = 15 << 20
_UUID: Final = re.compile(rb"(?i)\b(?:(GPU|MIG)-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
#: Rows and columns of a table beyond which it says nothing to a person.
_ROWS, _COLUMNS = 100, 9


class Folder:
    """The results so far. Everything is replaced at once, so that a reader never sees half a file."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._uuids: dict[bytes, bytes] = {}
        names = {socket.gethostname(), socket.gethostname().partition(".")[0]} - {"", "localhost"}
        words = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
        self._host = re.compile(rf"(?<![\w.-])(?:{words})(?![\w-])".encode()) if words else None
        out.mkdir(parents=True, exist_ok=True)

    def read(self) -> dict[str, Any]:
        """The record that is there; empty without one."""
        try:
            found: dict[str, Any] = json.loads((self._out / "record.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return found

    def write(self, record: Mapping[str, Any]) -> None:
        """Replace `record.json` and `table.md`."""
        text = json.dumps(record, indent=1, default=str).encode()
        self._replace("record.json", self._anonymous(text) + b"\n")
        self._replace("table.md", self._anonymous("\n".join(_page(record)).encode()) + b"\n")

    def pack(self, stage: str, directory: Path) -> list[str]:
        """Replace a stage's archive by what its directory holds; returns the files that had to be left out: those that
        would make it too large, and those that are cut off, so that nobody knows what names are in them."""
        files = sorted((path for path in directory.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
        left_out, size = [], 0
        target = self._out / f"{stage}.tar.xz"
        draft = target.with_suffix(".draft")
        with tarfile.open(draft, "w:xz") as archive:
            for n, path in enumerate(files):
                name = path.relative_to(directory)
                if path.suffix == recording_format.SUFFIX:
                    # A recording is called after the machine.
                    name = name.with_name(f"run{n}{path.suffix}")
                try:
                    self._without_names(path)
                except (OSError, EOFError, ValueError, zlib.error) as error:
                    left_out.append(f"{name}: {error}")
                    continue
                size += path.stat().st_size
                # Recordings and traces are packed already.
                if size > LARGEST:
                    left_out.append(f"{name}: too large")
                else:
                    archive.add(path, f"{stage}/{name}", filter=_nobodys)
        draft.replace(target)
        return left_out

    def _replace(self, name: str, content: bytes) -> None:
        draft = self._out / f"{name}.draft"
        draft.write_bytes(content)
        draft.replace(self._out / name)

    def _without_names(self, path: Path) -> None:
        data = path.read_bytes()
        if path.suffix == recording_format.SUFFIX:
            frames = (
                recording_format.frame(each.type, self._anonymous(recording_format.inflate(each.payload)))
                for each in recording_format.frames(data)
            )
            path.write_bytes(recording_format.header() + b"".join(frames))
        elif path.suffix == ".gz":
            path.write_bytes(gzip.compress(self._anonymous(gzip.decompress(data)), 6, mtime=0))
        elif path.suffix in {".json", ".txt"}:
            path.write_bytes(self._anonymous(data))

    def _anonymous(self, data: bytes) -> bytes:
        """Without UUIDs and this machine's name. A UUID's stand-in is as long as it and the same everywhere."""
        data = _UUID.sub(self._stand_in, data)
        return data if self._host is None else self._host.sub(b"host", data)

    def _stand_in(self, found: re.Match[bytes]) -> bytes:
        kind = found[1] + b"-" if found[1] else b""
        bare = found[0].removeprefix(kind).lower()
        own = self._uuids.setdefault(bare, f"00000000-0000-4000-8000-{len(self._uuids):012d}".encode())
        return kind + own


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _page(record: Mapping[str, Any]) -> list[str]:
    lines = [f"# {record.get('device') or 'a GPU'}", ""]
    lines += [f"- {key}: {value}" for key, value in record.items() if key != "stages"]
    for stage, parts in record["stages"].items():
        lines += ["", f"## {stage}"]
        for name, part in parts.items():
            took = f", {part['seconds']} s" if "seconds" in part else ""
            lines += ["", f"### {name}{took}", "", part.get("about", ""), ""]
            for word in ("skipped", "failed"):
                if word in part:
                    lines.append(f"**{word}**: {part[word]}")
            lines += _lines(part.get("figures", {}))
    return lines


def _lines(value: Mapping[str, Any], depth: int = 0) -> list[str]:
    """A mapping as a list, its mappings of mappings as tables."""
    lines, tables = [], []
    for key, each in value.items():
        if isinstance(each, Mapping) and each and all(isinstance(row, Mapping) for row in each.values()):
            tables += ["", f"**{key}**", "", *_table(each)]
        elif isinstance(each, Mapping) and depth < 2:
            lines += [f"{'  ' * depth}- {key}", *_lines(each, depth + 1)]
        elif isinstance(each, list) and len(each) > 12:
            lines.append(f"{'  ' * depth}- {key}: {len(each)} entries, see record.json")
        else:
            lines.append(f"{'  ' * depth}- {key}: {_text(each)}")
    return lines + tables


def _table(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    columns = list(dict.fromkeys(key for row in rows.values() for key in row))[:_COLUMNS]
    lines = ["| | " + " | ".join(columns) + " |", "|" + "---|" * (len(columns) + 1)]
    for name, row in list(rows.items())[:_ROWS]:
        lines.append("| " + " | ".join([name, *(_text(row.get(key, "")) for key in columns)]) + " |")
    return lines


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(each)}" for key, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return str(value).replace("|", "\\|").replace("\n", " ")
