from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("IPython")

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from gpu_profile import configure
from gpu_profile.analysis import Analysis
from gpu_profile.driver import simulated
from gpu_profile.integrations import jupyter
from gpu_profile.integrations.jupyter import CellReport
from gpu_profile.regions.session import process

ONE_GPU = '[[device]]\nmodel = "H200 SXM"\n'
#: Long enough that the driver's windows of 100 ms tell something.
WORK = """
for _ in range(12):
    with region("load"):
        time.sleep(0.02)
    with region("decode", items=4):
        queue.launch(Work(flops=1e9, bytes=8e10), tag="decode")
    queue.synchronize()
"""


class Notebook:
    """A shell with the extension loaded, what it displayed, and how a cell ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        make: Any = InteractiveShell
        self.shell: Any = make()
        self.shown: list[CellReport] = []
        monkeypatch.setattr(jupyter, "display", self.shown.append)
        jupyter.load_ipython_extension(self.shell)

    def run(self, cell: str, options: str = "") -> Any:
        return self.shell.run_cell_magic("gpu_profile", options, cell)


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    node = simulated.create(tmp_path / "node", ONE_GPU)
    queue = simulated.SimulatedQueue(node, device=0)
    configure(backend=f"simulated:{node}", stream=queue, interval_s=0.02)
    made = Notebook(monkeypatch)
    made.shell.run_cell("import time\nfrom gpu_profile import region")
    made.shell.user_ns |= {"queue": queue, "Work": simulated.Work}
    yield made
    process.stop()
    configure()
    made.shell.history_manager.end_session()


def test_a_cell_shows_the_summary_of_its_gpu_and_its_own_regions_alone(notebook: Notebook) -> None:
    notebook.run('with region("earlier"):\n    time.sleep(0.05)')
    notebook.run(WORK)
    report = notebook.shown[-1]
    (summary,) = report.summaries
    assert summary.name == "NVIDIA H200"
    assert summary.duration_s > 0.2
    assert summary.util_gpu_mean is not None
    assert summary.util_gpu_mean > 20
    assert report.analysis is not None
    assert [*report.analysis.runs] == ["cell", "load", "decode"]
    assert len(report.analysis.runs["decode"].starts_ns) == 12
    text = repr(report)
    for told in ("[GPU 0] NVIDIA H200", "util trace:", "decode", "items/s"):
        assert told in text


def test_the_report_is_html_where_it_can_be_and_names_cannot_break_out(notebook: Notebook) -> None:
    notebook.run(WORK.replace('"load"', '"<script>alert(1)</script>"'), "--name mine")
    html = notebook.shown[-1]._repr_html_()
    assert html.count("<table>") == 2
    assert "<script>" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    for told in ("mine", "decode", "NVIDIA H200"):
        assert told in html


def test_an_exception_passes_through_after_what_was_measured_is_shown(notebook: Notebook) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        notebook.run('with region("first"):\n    time.sleep(0.03)\n1 / 0')
    assert caught.value.__context__ is None
    (report,) = notebook.shown
    assert report.analysis is not None
    assert [*report.analysis.runs] == ["cell", "first"]
    assert report.analysis.runs["cell"].failures == 1


def test_an_exception_that_reaches_the_shell_makes_the_cell_fail(notebook: Notebook) -> None:
    done = notebook.shell.run_cell("%%gpu_profile\n1 / 0")
    assert isinstance(done.error_in_exec, ZeroDivisionError)


def test_the_cell_runs_in_the_notebook_and_its_last_value_is_shown_as_ever(
    notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook.shell.run_cell("%%gpu_profile --out found\nx = !echo hi\ny = x[0] * 2\ny")
    assert "'hihi'" in capsys.readouterr().out
    assert notebook.shell.user_ns["y"] == "hihi"
    assert isinstance(notebook.shell.user_ns["found"], Analysis)
    notebook.shell.run_cell("%%gpu_profile\ny;")
    assert "'hihi'" not in capsys.readouterr().out


def test_code_that_is_not_python_is_told_before_anything_is_measured(notebook: Notebook) -> None:
    with pytest.raises(SyntaxError):
        notebook.run("for")
    assert notebook.shown == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--interval -1", "interval_s must be a positive number of seconds, not -1.0"),
        ("--interval soon", "invalid float value: 'soon'"),
        ("--backend nvlm", "did you mean 'nvml'"),
        ("--name 'a", "No closing quotation"),
        ("--bogus", "unrecognized arguments: --bogus"),
        ("--out a-b", "--out is the name of a variable, not 'a-b'"),
    ],
)
def test_a_wrong_option_is_one_line_and_the_cell_does_not_run(notebook: Notebook, options: str, reason: str) -> None:
    before = process.settings()
    with pytest.raises(UsageError, match=reason) as caught:
        notebook.run("ran = True", options)
    assert "\n" not in str(caught.value)
    assert "ran" not in notebook.shell.user_ns
    assert process.settings() == before


def test_without_a_gpu_the_cell_runs_and_the_report_says_why_it_knows_nothing(notebook: Notebook) -> None:
    notebook.run("ran = True", "--backend none")
    assert notebook.shell.user_ns["ran"] is True
    assert process.settings().spec == "none"
    (report,) = notebook.shown
    assert report.summaries[0].util_gpu_mean is None
    assert report.summaries[0].notes
    assert "n/a" in repr(report)


def test_a_device_that_is_not_there_is_told_in_the_report(notebook: Notebook) -> None:
    notebook.run("ran = True", "--device nvml:7")
    (report,) = notebook.shown
    assert "nvml:7" in report.summaries[0].notes


def test_nothing_of_a_cell_stays_in_the_session_and_no_file_on_the_disk(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    notebook.run("time.sleep(0.05)")
    session = process.session()
    sampler = session.sampler
    hooks: list[list[Any]] = [sampler.sinks, sampler.event_sinks, session.joiner.on_end, session.joiner.on_settled]
    before = [[*hook] for hook in hooks]
    notebook.run("time.sleep(0.05)")
    assert [[*hook] for hook in hooks] == before
    assert not [*tmp_path.glob("gpu-profile-*")]
