"""A child as process 1 of a container has it; how it is started and told signals is tested with real ones elsewhere."""

from support.programs import printed

#: Takes in orphans as process 1 does, by Linux' leave (PR_SET_CHILD_SUBREAPER), and says whether one is left unburied.
FIRST = """
import ctypes, os, sys
from unittest import mock
from gpu_profile.cli.child import ChildCommand, held_signals

assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
with held_signals() as mask, mock.patch("os.getpid", return_value=int(sys.argv[1])):
    print(ChildCommand(["sh", "-c", "(sleep 0.1 &); sleep 1.5; exit 3"], os.environ, mask).wait(lambda: None))
try:
    print(os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None)
except ChildProcessError:
    print(False)
"""


def first(pid: int) -> list[str]:
    return printed("-c", FIRST, str(pid)).split()


def test_orphans_are_buried_by_process_1_and_by_no_other() -> None:
    assert first(1) == ["3", "False"]
    assert first(2) == ["3", "True"]
