"""Older samples of the live page's charts from the node's timeline, such as those of a previous exporter."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpu_profile.catalogue import Signal
from gpu_profile.catalogue.samples import Sample
from gpu_profile.driver.node.layout import LayoutError
from gpu_profile.driver.node.reader import RingReader
from gpu_profile.driver.node.table import TableFile
from gpu_profile.errors import GpuBackendError
from gpu_profile.report.live.strands import SAMPLES, NumberStrand
from gpu_profile_exporter.server.page.recent import SOURCES

_MS: Final = 1e6
_CHARTS: Final = {source.signal: source for source in SOURCES.values()}
_log = logging.getLogger("gpu_profile_exporter")


def older_samples(directory: Path, since_ns: int) -> dict[tuple[str, str], NumberStrand]:
    """The samples since then in the timeline in `directory`, by device and chart. Empty if it cannot be read.

    Each chart has its best source with samples.
    """
    try:
        devices = TableFile(directory).read().devices
    except GpuBackendError as error:
        _log.debug("the live page has no older samples: %s", error)
        return {}
    strands: dict[tuple[str, str], NumberStrand] = {}
    for one in devices:
        rows: dict[Signal, list[Sample]] = {}
        for name in reversed(one.files):  # the oldest first
            with suppress(OSError, LayoutError):
                for sample in _read(directory / name, since_ns, one.device.uuid):
                    rows.setdefault(sample.signal, []).append(sample)
        best: dict[str, tuple[int, Signal]] = {}
        for signal in rows:
            chart, place = _CHARTS[signal].chart, _CHARTS[signal].place
            best[chart] = min(best.get(chart, (place, signal)), (place, signal), key=lambda each: each[0])
        for chart, (_, signal) in best.items():
            strands[one.device.uuid, chart] = _strand(signal, rows[signal], since_ns)
    return strands


def _read(path: Path, since_ns: int, uuid: str) -> list[Sample]:
    reader = RingReader(path, wants=_CHARTS.__contains__)
    try:
        if reader.uuid != uuid:
            return []
        reader.skip(since_ns)
        return reader.read()
    finally:
        reader.close()


def _strand(signal: Signal, rows: list[Sample], since_ns: int) -> NumberStrand:
    strand, last_ns = NumberStrand(SAMPLES), since_ns
    for _, start_ns, end_ns, value in sorted(rows, key=lambda row: row.t_end_ns):
        if end_ns > last_ns:
            strand.append(end_ns / _MS, (end_ns - start_ns) / _MS, signal.base(value))
            last_ns = end_ns
    return strand
