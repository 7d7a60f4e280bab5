from pathlib import Path

import pytest

from gpu_profile.analysis import parse_thresholds, read_thresholds
from gpu_profile.errors import UsageError
from gpu_profile.regimes import DEFAULT_THRESHOLDS, Thresholds


def test_a_file_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text("# ours\n[thresholds]\nidle_busy = 0.03\nleast_n = 10\nceiling = 1\n")
    assert read_thresholds(path) == Thresholds(idle_busy=0.03, least_n=10, ceiling=1)


@pytest.mark.parametrize("text", ["", "[thresholds]\n", "thresholds = {}\n"])
def test_a_file_that_says_nothing_leaves_the_defaults(text: str) -> None:
    assert parse_thresholds(text) == DEFAULT_THRESHOLDS


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[thresholds]\n\nidle_bsy = 0.03",
            "rules.toml: line 3: unknown threshold 'idle_bsy'; did you mean 'idle_busy'?",
        ),
        ("[thresholds]\nx = 1", "rules.toml: line 2: unknown threshold 'x'; there is idle_busy, starved_busy,"),
        ("[treshold]\nidle_busy = 1", "rules.toml: line 1: unknown key 'treshold'; there is only [thresholds]"),
        ("idle_busy = 0.1", "rules.toml: line 1: unknown key 'idle_busy'; write it below a line [thresholds]"),
        ("thresholds = 3", "rules.toml: line 1: 'thresholds' is no table; begin it with a line [thresholds]"),
        ("[thresholds]\nceiling = '60'", "rules.toml: line 2: ceiling is a number, not '60'"),
        ("[thresholds]\nceiling = true", "line 2: ceiling is a number, not True"),
        ("[thresholds]\nceiling = [0.6]", "line 2: ceiling is a number, not [0.6]"),
        ("[thresholds]\nceiling = nan", "line 2: ceiling is a number, not nan"),
        ("[thresholds]\nceiling = inf", "line 2: ceiling is a number, not inf"),
        ("[thresholds]\nceiling = -0.1", "line 2: ceiling must be positive, not -0.1"),
        ("[thresholds]\nceiling = 0", "line 2: ceiling must be positive, not 0"),
        ("[thresholds]\nceiling = 60", "line 2: ceiling lies between 0 and 1, not 60 (60 % is 0.6)"),
        ("[thresholds]\nleast_n = 4.5", "line 2: least_n is a whole number of windows, not 4.5"),
        ("thresholds.ceiling = -1", "line 1: ceiling must be positive, not -1"),
        ("[thresholds", "rules.toml: not TOML: "),
        ("[thresholds]\nceiling = 0.6\nceiling = 0.7", "rules.toml: not TOML: Cannot overwrite a value (at "),
        ("x = " + "[" * 100_000, "rules.toml: not TOML: "),
        (f"[thresholds]\nceiling = {'9' * 5000}", "rules.toml: not TOML: "),
    ],
)
def test_a_bad_file_is_told_with_its_place_and_the_reason(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        read_thresholds(path)
    assert says in str(error.value)
    assert str(error.value).startswith(str(path))


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.toml: cannot be read: No such file or directory"):
        read_thresholds(tmp_path / "missing.toml")
    (tmp_path / "binary").write_bytes(b"[thresholds]\n\xff")
    with pytest.raises(UsageError, match="binary: byte 13: not UTF-8 text"):
        read_thresholds(tmp_path / "binary")
