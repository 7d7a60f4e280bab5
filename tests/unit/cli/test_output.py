import os
import threading
from pathlib import Path

import pytest

from gpu_profile.cli.output import Output
from gpu_profile.errors import UsageError


def test_a_file_is_written_in_place_of_what_was_there_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("what was there, which is longer")
    with Output(str(path)) as output:
        assert path.read_text() == "what was there, which is longer"
        assert output.write(b"new") == ""
    assert path.read_text() == "new"


def test_a_file_that_was_made_for_nothing_is_removed_and_one_that_was_there_is_not(tmp_path: Path) -> None:
    made, there = tmp_path / "made", tmp_path / "there"
    there.write_text("kept")
    with Output(str(made)), Output(str(there)):
        assert made.exists()
    assert not made.exists()
    assert there.read_text() == "kept"


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("{dir}/file/page.html", "Not a directory"),
        ("{dir}/missing/page.html", "No such file or directory"),
        ("{dir}", "Is a directory"),
        ("fd:777", "Bad file descriptor"),
        ("fd:99999999999999999999", "too large"),
        ("nul\0l", "null"),
    ],
)
def test_what_cannot_be_written_is_known_at_once(target: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    target = target.format(dir=tmp_path)
    with pytest.raises(UsageError, match="cannot be written: .*" + reason):
        Output(target)


def test_a_descriptor_that_is_open_for_reading_only_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        with pytest.raises(UsageError, match="open for reading only"):
            Output(f"fd:{fd}")
    finally:
        os.close(fd)


def test_a_full_disk_is_a_line() -> None:
    with Output("/dev/full") as output:
        assert output.write(b"x") == "/dev/full: cannot be written: No space left on device"


def test_a_descriptor_is_written_to_and_kept_from_children() -> None:
    ours, theirs = os.pipe()
    os.set_inheritable(theirs, True)
    with Output(f"fd:{theirs}") as output:
        assert not os.get_inheritable(theirs)
        assert output.write(b"line\n") == ""
    os.close(theirs)
    assert os.read(ours, 100) == b"line\n"
    os.close(ours)


def test_a_reader_that_went_away_is_no_problem() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with Output(f"fd:{theirs}") as output:
        assert output.write(b"line\n") == ""
    os.close(theirs)


def test_a_pipe_by_name_is_not_waited_for_before_there_is_something_to_say(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[bytes] = []
    with Output(str(pipe)) as output:  # nobody reads yet
        reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
        reader.start()
        assert output.write(b"line\n") == ""
    reader.join(10)
    assert found == [b"line\n"]
