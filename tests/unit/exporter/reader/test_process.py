"""A reader is a program of this package, whatever lies in the directory that it is started in."""

import time
from pathlib import Path

import pytest

from gpu_profile_exporter.reader.launcher import Launcher, module_paths
from gpu_profile_exporter.reader.process import ReaderProcess
from gpu_profile_exporter.reader.settings import ReaderSettings


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with modules of somebody's that have the names of Python's own."""
    monkeypatch.chdir(tmp_path)
    for name in ("json", "struct", "sitecustomize", "pynvml"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r})\n")
    return tmp_path


def test_a_module_in_the_working_directory_is_not_executed(elsewhere: Path) -> None:
    launcher = Launcher()
    reader = ReaderProcess(ReaderSettings("none", 0.1, (), False, -1, -1, -1), launcher)
    try:
        deadline = time.monotonic() + 60
        while not (heard := list(reader.messages())) and reader.exit_code is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert heard
        assert not (elsewhere / "executed").exists()
    finally:
        reader.kill()
        assert reader.wait(30)
        reader.close()
        launcher.close()


def test_the_directory_that_python_m_puts_first_is_left_out(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [str(elsewhere), "/a", "", "/b"])
    assert module_paths() == ["/a", "/b"]
    (elsewhere / "gpu_profile_exporter").mkdir()
    assert module_paths() == [str(elsewhere), "/a", "/b"]
