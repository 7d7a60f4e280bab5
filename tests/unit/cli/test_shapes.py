"""What the words of a command line mean, whatever is done about them."""

from typing import Any

import pytest
from support.programs import printed

from gpu_profile.cli import commands, run
from gpu_profile.cli.options import BACKEND_VARIABLE, RECORD_VARIABLE, SAMPLED_VARIABLE
from gpu_profile.driver import grammar
from gpu_profile.regions.session import recorder, session

Found = list[dict[str, Any]]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Found:
    """What `run` was asked for, in place of running it."""
    found: Found = []

    def take(**options: Any) -> int:
        found.append({key: value for key, value in options.items() if value})
        return 7

    monkeypatch.setattr(commands.commands["run"], "callback", take)
    return found


USUAL = {"interval": 0.2, "live": True}


@pytest.mark.parametrize(
    ("words", "command", "options"),
    [
        ("-- python train.py", "python train.py", {}),
        ("python train.py", "python train.py", {}),
        ("run python train.py", "python train.py", {}),
        ("run -- python train.py", "python train.py", {}),
        ("--json -- python train.py", "python train.py", {"as_json": True}),
        ("--json python train.py", "python train.py", {"as_json": True}),
        ("-- python t.py --json x", "python t.py --json x", {}),
        ("python t.py --json x", "python t.py --json x", {}),
        ("run --json python t.py --json-file x", "python t.py --json-file x", {"as_json": True}),
        ("-- kernels x", "kernels x", {}),
        ("run kernels x", "kernels x", {}),
        ("run run x", "run x", {}),
        ("-- --odd", "--odd", {}),
        ("-- python -- x", "python -- x", {}),
        ("python -- x", "python -- x", {}),
        ("--json --strict x", "x", {"as_json": True, "strict": True}),
        ("--json-file fd:3 -- x", "x", {"json_file": "fd:3"}),
        ("--device 0 --device nvml:1 x --device 2", "x --device 2", {"devices": ("0", "nvml:1")}),
        ("--interval 0.05 --warmup 2 x", "x", {"interval": 0.05, "warmup": 2.0}),
        ("--backend simulated x", "x", {"backend": "simulated"}),
        ("--driver smi x", "x", {"backend": "smi"}),
        ("--report a.html --trace b.perfetto x", "x", {"report": "a.html", "trace": "b.perfetto"}),
        ("-- op x", "op x", {}),
        ("kernles x", "kernles x", {}),
        ("--no-live x -h", "x -h", {"live": None}),
    ],
)
def test_a_command_line_is_read_as_it_was_meant(words: str, command: str, options: dict[str, Any], ran: Found) -> None:
    assert run(words.split()) == 7
    expected = {key: value for key, value in (USUAL | options).items() if value}
    assert ran == [{"command": tuple(command.split()), **expected}]


@pytest.mark.parametrize("words", ["record --help", "kernels --help", "-h", "--version", ""])
def test_what_is_not_run_is_not_run(words: str, ran: Found, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words.split()) == 0
    assert ran == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--json", "Missing argument 'COMMAND...'"),
        ("run", "Missing argument 'COMMAND...'"),
        ("--", "Missing argument 'COMMAND...'"),
        ("--bogus x", "No such option '--bogus'"),
        ("--interval -1 x", "'--interval': -1.0 is not in the range"),
        ("--interval 0 x", "'--interval': 0.0 is not in the range"),
        ("--interval nan x", "'--interval': nan is not a finite number"),
        ("--warmup -1 x", "'--warmup': -1.0 is not in the range"),
        ("--json-file", "Option '--json-file' requires an argument"),
        ("op matmull", "unknown operation 'matmull': there are cos"),
        ("--profile=matmull", "unknown operation 'matmull': there are cos"),
    ],
)
def test_what_is_wrong_with_it_is_one_line_and_exit_code_2(
    words: str, says: str, ran: Found, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1
    assert ran == []


def test_the_variables_are_those_of_the_library() -> None:
    library = grammar.BACKEND_VARIABLE, session.RECORD_VARIABLE, recorder.SAMPLED_VARIABLE
    assert library == (BACKEND_VARIABLE, RECORD_VARIABLE, SAMPLED_VARIABLE)


def test_what_is_loaded_before_the_command_starts_is_little() -> None:
    heavy = "('numpy', 'pynvml', 'rich', 'textual', 'torch')"
    code = f"import gpu_profile.cli, sys; print([m for m in {heavy} if m in sys.modules])"
    assert printed("-c", code) == "[]\n"
