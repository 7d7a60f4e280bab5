"""The end of the demonstration: its result in sentences, and a page of the recorded run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpu_profile.analysis import analyse
from gpu_profile.analysis.views.conclusion import conclusion
from gpu_profile.analysis.views.page import render_page
from gpu_profile.cli.output import Output
from gpu_profile.errors import RecordingError, UsageError
from gpu_profile.recording import read_recording
from gpu_profile.report.table import folded

#: The page's file, unless `--report` names another.
PAGE: Final = "gpu-profile-demo.html"


class DemoResult:
    """Writes the page at the end, or leaves no file.

    `target`: a path; None for `PAGE` in the working directory. UsageError if the path cannot be written. Without a
    path, the demonstration runs on and reports the problem at its end.
    """

    def __init__(self, target: str | None) -> None:
        self._problem = ""
        self._output: Output | None = None
        try:
            self._output = Output(target or PAGE)
        except UsageError as error:
            if target is not None:
                raise
            self._problem = f"{error}: choose another place with --report PATH"

    def text(self, recording: Path, *, width: int | None) -> str:
        """Write the page of a recorded run. Returns the result in sentences and the page's place.

        `width`: the longest line in characters.
        """
        try:
            source = read_recording(recording)
        except RecordingError as error:
            return folded(f"no report: {error}", width)
        analysis = analyse(source)
        if self._output is not None:
            page = render_page(analysis, title="gpu-profile-exporter demo", recording=source)
            self._problem = self._output.write(page.encode("utf-8", "xmlcharrefreplace"))
        place = f"no report: {self._problem}" if self._problem else f"Report: {self._place()}"
        return "\n".join([*(folded(line, width) for line in conclusion(analysis)), place])

    def _place(self) -> str:
        """An address for a browser. A descriptor (`-`, `fd:N`) stays as it is."""
        target = "" if self._output is None else self._output.target
        return Path(target).resolve().as_uri() if Path(target).is_file() else target

    def close(self) -> None:
        """Release the file."""
        if self._output is not None:
            self._output.close()
