"""`KernelReport`: a report's data with the views of it, and the file formats that each view is saved in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from gpu_profile.errors import UsageError
from gpu_profile.kernels.records import Counted, Record
from gpu_profile.kernels.report import ReportData


class KernelReport(ReportData):
    """What a recording of GPU operations holds, as data, and as text, JSON values, a table, a page or a trace."""

    __slots__ = ()

    def text(self, region: str | None = None, *, top: int = 10) -> str:
        """Tables of the whole and its regions, or of one region, with the `top` kernels; as on the console."""
        from gpu_profile.kernels.render.text import render

        return render(self, region=region, top=top)

    def to_dict(self, region: str | None = None, *, top: int = 10) -> dict[str, Any]:
        """The same in values of JSON: None where something is not known."""
        from gpu_profile.kernels.render.document import document

        return document(self, region=region, top=top)

    def save(self, path: str | Path) -> Path:
        """Write the text (`.txt`), values (`.json`), kernels by region (`.csv`), page (`.html`) or Perfetto's trace
        (`.pftrace`), by the name's end. UsageError for another, or a file that cannot be written.
        """
        file = Path(path)
        make = _FORMS.get(file.suffix.lower())
        if make is None:
            raise UsageError(f"{file}: it is written as {', '.join(_FORMS)}, not {file.suffix or 'without one'}")
        data = make(self, file)
        try:
            file.write_bytes(data)
        except OSError as error:
            raise UsageError(f"{file}: cannot be written: {error.strerror or error}") from error
        return file


def report_of(
    records: Iterable[Record],
    *,
    source: str = "",
    dropped: int | None = None,
    counted: Iterable[Counted] | None = None,
    notes: Mapping[str, int] | None = None,
) -> KernelReport:
    """Join operations with the calls that launched them, and calls with the regions that they were made in.

    `counted` are counters of another run of the same program, joined by the names of kernels; without them, those among
    the records are. `notes` counts what whoever reads the records left out.
    """
    return KernelReport.of(records, source=source, dropped=dropped, counted=counted, notes=notes)


def _text(report: KernelReport, _: Path) -> bytes:
    return f"{report.text()}\n".encode()


def _values(report: KernelReport, _: Path) -> bytes:
    from gpu_profile.report.as_json import to_json

    return f"{to_json(report.to_dict())}\n".encode()


def _table(report: KernelReport, _: Path) -> bytes:
    from gpu_profile.kernels.render.table_file import kernels_csv

    return kernels_csv(report).encode()


def _page(report: KernelReport, file: Path) -> bytes:
    from gpu_profile.kernels.render.page import render_page

    return render_page(report, title=file.stem).encode("utf-8", "xmlcharrefreplace")


def _perfetto(report: KernelReport, _: Path) -> bytes:
    from gpu_profile.kernels.render.perfetto import perfetto_trace

    return perfetto_trace(report)


_FORMS: Final[Mapping[str, Callable[[KernelReport, Path], bytes]]] = {
    ".txt": _text,
    ".json": _values,
    ".csv": _table,
    ".html": _page,
    ".pftrace": _perfetto,
}
