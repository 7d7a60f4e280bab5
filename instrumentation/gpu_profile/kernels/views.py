"""`KernelReport`: a report's data with its views, and the file formats in which each view is saved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpu_profile.errors import UsageError
from gpu_profile.kernels.report import ReportData

#: The file formats, by the end of the file's name.
FORMS: Final = (".txt", ".json", ".csv", ".html", ".pftrace")


class KernelReport(ReportData):
    """A recording of GPU operations as data, and as text, JSON values, a table, a page or a trace."""

    __slots__ = ()

    def text(self, region: str | None = None, *, top: int = 10) -> str:
        """Tables of the whole and its regions, or of one region, with the `top` kernels, as on the console."""
        from gpu_profile.kernels.render.text import render

        return render(self, region=region, top=top)

    def to_dict(self, region: str | None = None, *, top: int = 10) -> dict[str, Any]:
        """The content of `text` as JSON values; None for unknown values."""
        from gpu_profile.kernels.render.document import document

        return document(self, region=region, top=top)

    def _repr_html_(self) -> str:
        """The page, as notebooks display it."""
        from gpu_profile.kernels.render.page import render_page
        from gpu_profile.report.page import framed

        return framed(render_page(self, title=self.source or "gpu-profile"))

    def save(self, path: str | Path) -> Path:
        """Write text (`.txt`), values (`.json`), kernels by region (`.csv`), a page (`.html`) or Perfetto's trace
        (`.pftrace`), by the name's suffix. UsageError for another suffix, or a file that cannot be written.
        """
        file = Path(path)
        form = file.suffix.lower()
        if form not in FORMS:
            raise UsageError(f"{file}: it is written as {', '.join(FORMS)}, not {file.suffix or 'without one'}")
        data = as_file(self, form, title=file.stem)
        try:
            file.write_bytes(data)
        except OSError as error:
            raise UsageError(f"{file}: cannot be written: {error.strerror or error}") from error
        return file


#: Joins records with regions; see `ReportData.of`.
report_of: Final = KernelReport.of


def as_file(
    report: KernelReport,
    form: str,
    *,
    title: str = "",
    notes: Mapping[str, int] | None = None,
    region: str | None = None,
    base_ns: int = 0,
) -> bytes:
    """The content of a file of one of the `FORMS`.

    A page has a `title`, and `notes`: by reason, how many records its reader left out. A table can be of one `region`.
    `base_ns` is added to the times of a trace, so that they are nanoseconds since the epoch.
    """
    if form == ".txt":
        return f"{report.text()}\n".encode()
    if form == ".json":
        from gpu_profile.report.as_json import to_json

        return f"{to_json(report.to_dict())}\n".encode()
    if form == ".csv":
        from gpu_profile.kernels.render.table_file import kernels_csv

        return kernels_csv(report, region=region).encode()
    if form == ".html":
        from gpu_profile.kernels.render.page import render_page

        return render_page(report, title=title, notes=notes).encode("utf-8", "xmlcharrefreplace")
    from gpu_profile.kernels.render.perfetto import perfetto_trace

    return perfetto_trace(report, base_ns=base_ns)
