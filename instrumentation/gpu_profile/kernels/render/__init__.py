"""What people are shown of a report: text, JSON values, a table, a page, a trace for Perfetto. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpu_profile.errors import UsageError

if TYPE_CHECKING:
    from gpu_profile.kernels.report import KernelReport


def as_file(report: KernelReport, file: Path) -> bytes:
    """What a file of this name holds of a report; UsageError for an ending that is none of `.txt`, `.json`, `.csv`,
    `.html` and `.pftrace`.
    """
    make = _FORMS.get(file.suffix.lower())
    if make is None:
        raise UsageError(f"{file}: it is written as {', '.join(_FORMS)}, not {file.suffix or 'without one'}")
    return make(report, file)


def _text(report: KernelReport, _: Path) -> bytes:
    from gpu_profile.kernels.render.text import render

    return f"{render(report)}\n".encode()


def _values(report: KernelReport, _: Path) -> bytes:
    from gpu_profile.analysis.data import to_json
    from gpu_profile.kernels.render.document import document

    return f"{to_json(document(report))}\n".encode()


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
