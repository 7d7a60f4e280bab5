import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.programs import environment

from gpu_profile.driver.grammar import open_driver
from gpu_profile.driver.simulated.temporary import TemporaryFolder

#: Makes a simulated node, says so, and waits for its end.
HOLDER = """
from gpu_profile.driver.grammar import open_driver
held = open_driver("simulated")
print("held", flush=True)
input()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def sweep() -> None:
    TemporaryFolder().remove()


def test_what_a_process_that_was_killed_left_is_swept_by_the_next_one_and_nothing_else_is(temporary: Path) -> None:
    (temporary / "gpu-profile-simulated-of-a-user").mkdir()
    (temporary / "gpu-profile-simulated-file").write_text("precious")
    kept = {*temporary.iterdir()}
    words = [sys.executable, "-c", HOLDER]
    env = environment(TMPDIR=str(temporary))
    with subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        (left,) = {*temporary.iterdir()} - kept
        sweep()
        assert left.exists(), "in use"
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert left.exists()
    open_driver("simulated").close()
    assert {*temporary.iterdir()} == kept


def test_a_child_that_inherits_the_lock_has_the_folder_too() -> None:
    folder = TemporaryFolder()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(folder.fd,)) as child:
        os.close(folder.fd)
        sweep()
        assert folder.path.exists()
        child.communicate(b"\n")
    sweep()
    assert not folder.path.exists()


@pytest.mark.parametrize("kind", ["link", "another's"])
def test_what_is_not_this_user_s_own_folder_stays(temporary: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    victim = temporary / "victim"
    victim.mkdir()
    (victim / "owner.lock").touch()
    if kind == "link":
        (temporary / "gpu-profile-simulated-link").symlink_to(victim)
    else:
        victim = victim.rename(temporary / "gpu-profile-simulated-theirs")
        monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    sweep()
    assert (victim / "owner.lock").exists()
