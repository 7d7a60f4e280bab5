"""The line of progress: drawn on a terminal for long work only, and gone afterwards."""

import io
import threading
from pathlib import Path

import pytest

from gpu_profile.cli import progress
from gpu_profile.cli.progress import Progress, progress_line
from gpu_profile.kernels.trace import Trace


class Terminal(io.StringIO):
    """Remembers its text; `drawn` is set after a drawing."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        count = super().write(text)
        if "work" in text:
            self.drawn.set()
        return count


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error as a terminal. Not a fixture: pytest sets its own between a fixture and the test."""
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    return shown


@pytest.mark.parametrize(
    ("share", "columns", "line"),
    [
        (None, 80, "work  1:05"),
        (0.5, 80, f"work  {'█' * 15}{'░' * 15}  50 %  1:05"),
        (1.7, 80, f"work  {'█' * 30} 100 %  1:05"),
        (None, 8, "wo  1:05"),
    ],
)
def test_the_line_has_a_bar_if_the_finished_part_is_measured(share: float | None, columns: int, line: str) -> None:
    assert progress_line("work", share, 65.4, columns) == line


def test_long_work_on_a_terminal_has_a_line_that_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    shown_on = terminal(monkeypatch)
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    with Progress("work", lambda: 0.25) as shown:
        assert shown_on.drawn.wait(60)
        shown.say("a line that stays")
    text = shown_on.getvalue()
    assert " 25 %  0:00" in text
    assert "\r\x1b[2Ka line that stays\n" in text
    assert text.rpartition("work")[2].count("\x1b[2K") == 1


def test_short_work_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shown_on = terminal(monkeypatch)
    with Progress("work"):
        pass
    assert shown_on.getvalue() == ""


def test_work_in_a_pipe_draws_nothing_and_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr("sys.stderr", pipe)
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    before = threading.active_count()
    with Progress("work") as shown:
        assert threading.active_count() == before
        shown.say("a line")
    assert pipe.getvalue() == "a line\n"


def test_the_share_of_a_trace_is_the_part_of_its_file_that_was_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    event = '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {"device": 0, "stream": 7}}'
    path.write_text(f'{{"traceEvents": [{", ".join([event] * 50_000)}]}}')
    trace = Trace(path)
    assert trace.read_share is None
    shares = [trace.read_share for _ in trace]
    assert 0 < (shares[0] or 0) < 0.5
    assert [share or 0 for share in shares] == sorted(share or 0 for share in shares)
    assert trace.read_share == 1.0
