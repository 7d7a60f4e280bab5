"""Samples as columns: differences in byte planes, which deflate well, in one `.npy` array per record."""

from __future__ import annotations

import io
import json
import struct
from array import array
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpu_profile.catalogue import Signal
from gpu_profile.recording.format import to_json
from gpu_profile.units import NS_PER_S

Column = NDArray[np.int64]
_LENGTH: Final = struct.Struct("<I")
#: A process without a sample of a signal for longer than this did not sample it meanwhile.
_PAUSE_NS: Final = 10 * NS_PER_S


class Block(NamedTuple):
    """The samples of one signal of one device in one record, with the catalogue's row at the time of writing."""

    device: str
    signal: str
    quantum: float
    unit: str
    kind: str
    t_start: Column
    t_end: Column
    value: Column


def encode_blocks(pending: Mapping[tuple[str, Signal], array[int]]) -> bytes:
    """The content of a samples record. Each array holds `t_start, t_end, value` per sample, one after the other.

    Arithmetic wraps around at 64 bits in both directions, so that any values come back exactly.
    """
    heads: list[list[object]] = []
    parts: list[Column] = []
    for (device, signal), flat in pending.items():
        t_start, t_end, value = np.array(flat, dtype=np.int64).reshape(-1, 3).T
        rows = np.stack([t_end, t_end - t_start, value])
        deltas = np.diff(rows, axis=1)
        # Driver stamps are whole microseconds and some values move in steps: dividing by the step saves two bytes each.
        steps = np.maximum(np.gcd.reduce(deltas, axis=1), 1)
        parts.append(deltas // steps[:, None])
        count, first = rows.shape[1], rows[:, 0].tolist()
        heads.append([device, signal.key, signal.quantum, signal.unit, str(signal.kind), count, first, steps.tolist()])
    stacked = np.ascontiguousarray(np.concatenate(parts, axis=1), dtype="<i8")
    planes = stacked.view(np.uint8).reshape(3, stacked.shape[1], 8).transpose(2, 0, 1)
    body = io.BytesIO()
    np.lib.format.write_array(body, np.ascontiguousarray(planes), version=(1, 0), allow_pickle=False)
    head = to_json(heads).encode()
    return _LENGTH.pack(len(head)) + head + body.getvalue()


def decode_blocks(content: bytes) -> Iterator[Block]:
    """The blocks of a samples record. ValueError, TypeError or OverflowError if the content is not one."""
    (length,) = _LENGTH.unpack(content[: _LENGTH.size].ljust(_LENGTH.size, b"\0"))
    heads: list[Any] = json.loads(content[_LENGTH.size : _LENGTH.size + length])
    body = io.BytesIO(content[_LENGTH.size + length :])
    planes = np.lib.format.read_array(body, allow_pickle=False)
    if planes.dtype != np.uint8 or planes.ndim != 3 or planes.shape[:2] != (8, 3):
        raise ValueError(f"array of {planes.dtype} {planes.shape}, expected uint8 (8, 3, n)")
    deltas = np.ascontiguousarray(planes.transpose(1, 2, 0)).view("<i8")[:, :, 0].astype(np.int64, copy=False)
    at = 0
    for device, signal, quantum, unit, kind, count, first, steps in heads:
        if count < 1 or at + count - 1 > deltas.shape[1]:
            raise ValueError(f"{signal}: {count} samples announced, {deltas.shape[1] - at + 1} found")
        rows = np.empty((3, count), dtype=np.int64)
        rows[:, 0] = first
        rows[:, 1:] = deltas[:, at : at + count - 1] * np.array(steps, dtype=np.int64)[:, None]
        t_end, duration, value = np.cumsum(rows, axis=1)
        yield Block(str(device), str(signal), float(quantum), str(unit), str(kind), t_end - duration, t_end, value)
        at += count - 1


class Columns(NamedTuple):
    """The samples of one signal of one device, ordered by end: int64, of one length.

    Times are ns since the epoch, values are quanta of today's catalogue row.
    """

    t_start: Column
    t_end: Column
    value: Column


def joined(blocks: list[Columns]) -> Columns:
    """The samples of some blocks, ordered by end."""
    t_start, t_end, value = (np.concatenate(column) for column in zip(*blocks, strict=True))
    order = np.argsort(t_end, kind="stable")
    return Columns(t_start[order], t_end[order], value[order])


def merged(sources: list[Columns]) -> Columns:
    """At most one process's samples at any moment: of overlapping stretches, the longest wins."""
    if len(sources) == 1:
        return sources[0]
    stretches = [stretch for source in sources for stretch in _stretches(source)]
    stretches.sort(key=lambda s: (int(s.t_end[0] - s.t_end[-1]), int(s.t_end[0]), s.value.tobytes()))
    kept: list[Columns] = []
    for stretch in stretches:
        free = np.ones(len(stretch.t_end), dtype=np.bool_)
        for other in kept:
            free &= (stretch.t_end < other.t_end[0]) | (stretch.t_end > other.t_end[-1])
        if free.any():
            kept.append(Columns(*(column[free] for column in stretch)))
    return joined(kept)


def _stretches(source: Columns) -> list[Columns]:
    """The samples of one process, cut at long pauses: it was idle meanwhile."""
    breaks = np.flatnonzero(np.diff(source.t_end) > _PAUSE_NS) + 1
    return [Columns(*parts) for parts in zip(*(np.split(column, breaks) for column in source), strict=True)]


def rescaled(value: Column, old: float, new: float) -> Column:
    """Values in another quantum, rounded half up. OverflowError if one does not fit 64 bits."""
    ratio = Fraction(str(old)) / Fraction(str(new))
    doubled = [2 * number * ratio.numerator + ratio.denominator for number in value.tolist()]
    return np.array([number // (2 * ratio.denominator) for number in doubled], dtype=np.int64)
