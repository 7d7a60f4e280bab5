"""The steps of `make`: a line each, and the whole output of one that fails."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEP = "step:\n\t@$(QUIETLY)\n\tquietly 'A step' sh -c 'echo out; echo err >&2; exit $(CODE)'\n\techo behind it\n"


@pytest.mark.parametrize(
    ("code", "out", "err"),
    [
        (0, r"A step \.\.\. \d+ s\nbehind it\n", r""),
        (3, r"A step \.\.\. failed after \d+ s: sh -c .*\n", r"out\nerr\nmake(\[\d+\])?: .*Error 3\n"),
    ],
)
def test_a_step_is_quiet_unless_it_fails(tmp_path: Path, code: int, out: str, err: str) -> None:
    (tmp_path / "step.mk").write_text(STEP)
    words = ["make", "-f", str(ROOT / "Makefile"), "-f", str(tmp_path / "step.mk"), "step", f"CODE={code}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert re.fullmatch(out, done.stdout)
    assert re.fullmatch(err, done.stderr)
