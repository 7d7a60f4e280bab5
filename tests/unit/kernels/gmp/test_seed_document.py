"""What the document of kernels and memory shows runs with the import line changed, on the CPU where it says `cuda`."""

import csv
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from support.programs import python

import gpu_profile.kernels as gmp_python
from gpu_profile.kernels import GmpProfiler, ProfileType, Reduction

torch = pytest.importorskip("torch")

from torch.overrides import TorchFunctionMode  # noqa: E402 - torch may be missing

PAGE = (Path(__file__).parents[3] / "data" / "seed" / "kernels.md").read_text(encoding="utf-8")
BASIC, MEMORY, DECORATOR, GLOBAL = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
(OUTPUT,) = re.findall(r"^```text output\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
NUMBER = r"(\d+(?:\.\d+)?)"


class OnCpu(TorchFunctionMode):  # type: ignore[misc]  # torch is not checked
    """Puts on the CPU what a machine without CUDA cannot hold."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("device") == "cuda" and not torch.cuda.is_available():
            kwargs |= {"device": "cpu"}
        return function(*args, **kwargs)


def translated(block: str) -> str:
    found, count = re.subn(
        r"^import gmp_python$", "import gpu_profile.kernels as gmp_python", block, flags=re.MULTILINE
    )
    assert count == 1
    return found


def run(block: str, **names: Any) -> dict[str, Any]:
    with OnCpu():
        exec(compile(translated(block), "kernels.md", "exec"), names)  # noqa: S102 - the project's own file
    return names


def section(title: str) -> list[str]:
    (text,) = re.findall(rf"^## {re.escape(title)}$(.*?)(?=^## |^```|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return re.findall(r"^- (.*)$", text, re.MULTILINE)


def shape(line: str) -> str:
    """A line of the document's output with any number in place of its own, and with a unit behind it."""
    return re.sub(r"\\?\d+(?:\\\.\d+)?", lambda _: NUMBER, re.escape(line)).replace("\\ ", " ")


def test_its_basic_usage_tells_the_range_s_time(capsys: pytest.CaptureFixture[str]) -> None:
    run(BASIC)
    out = capsys.readouterr().out
    found = re.search(rf"^Range 1: my_operations\n  [cg]pu__time_duration\.sum: {NUMBER} us$", out, re.MULTILINE)
    assert found
    assert float(found[1]) > 0


def test_its_memory_profiling_tells_what_was_taken_and_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    names = run(MEMORY, torch=torch)
    moved = 4 * 5000 * 5000
    out = capsys.readouterr().out
    assert f"Range 1: memory_ops\n  Allocations: 1 operations, {moved} bytes (95.37 MB)" in out
    assert f"\n  Deallocations: 1 operations, {moved} bytes (95.37 MB)" in out
    (entry,) = names["profiler"].get_memory_activity()
    assert [(each["memory_operation_type"], each["bytes"]) for each in entry["records"]] == [
        ("ALLOC", moved),
        ("FREE", moved),
    ]


def test_its_decorated_function_is_a_range(capsys: pytest.CaptureFixture[str]) -> None:
    names = run(DECORATOR, torch=torch)
    assert names["result"].shape == (1000, 1000)
    assert names["my_function"].__name__ == "my_function"
    found = names["profiler"].results().kernels["matrix_multiply"]
    assert found.executions == 1
    assert found.kernel_ns > 0
    assert any(name.endswith(("mm", "matmul")) or "gemm" in name for name in found.kernels)
    assert "Range 1: matrix_multiply\n" in capsys.readouterr().out


def test_its_global_profiler_prints(capsys: pytest.CaptureFixture[str]) -> None:
    run(GLOBAL)
    assert "Number of ranges: 1\nRange 1: operations\n" in capsys.readouterr().out


def test_its_examples_run_in_a_program_that_imports_torch_within_its_first_range(tmp_path: Path) -> None:
    # As the document's reader would run them: one after another, and nothing has imported torch before.
    program = "\n".join(
        translated(block).replace("device='cuda'", "device='cpu'") for block in (BASIC, MEMORY, DECORATOR, GLOBAL)
    )
    done = python("-c", program, cwd=tmp_path, GPU_PROFILE_BACKEND="none", PYTHONIOENCODING="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("my_operations", "matrix_multiply"):
        found = re.search(rf"^Range 1: {name}\n  [cg]pu__time_duration\.sum: {NUMBER} us$", done.stdout, re.MULTILINE)
        assert found
        assert float(found[1]) > 0


def test_the_output_has_the_document_s_lines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made = gmp_python.create_profiler()
    made.init()
    for name in ("matrix_operations", "second", "third"):
        with made.profile_range(name):
            torch.randn(50, 50) @ torch.randn(50, 50)
    with made.profile_memory("memory_ops"):
        torch.randn(50)
    made.print_profiler_ranges()
    made.print_memory_activity()
    lines = capsys.readouterr().out.splitlines()
    # Hardware counters are joined with saved traces only, and the dots stand for more of them.
    wanted = [line for line in OUTPUT.splitlines() if line and "smsp" not in line and "..." not in line]
    assert len(wanted) == 8
    for line in wanted:
        pattern = shape(line)
        if not torch.cuda.is_available():
            pattern = pattern.replace("gpu__", "cpu__")
        assert any(re.match(pattern, found) for found in lines), line
    (path,) = re.findall(r"`(.*)`", section("Files")[0])
    with (tmp_path / path).open(newline="", encoding="utf-8") as file:
        assert next(csv.reader(file)) == ["range", "metric", "unit", "reduction", "value"]


def test_the_profiler_has_the_document_s_methods_with_its_arguments() -> None:
    listed = re.findall(r"`(\w+)\((\w*(?:, \w+)*)\)`", "\n".join(section("`GmpProfiler`: methods")))
    assert len(listed) == 9
    for name, arguments in listed:
        parameters = inspect.signature(getattr(GmpProfiler, name)).parameters
        assert set(filter(None, arguments.split(", "))) <= set(parameters), name


def test_its_types_and_reductions_are_those_that_there_are() -> None:
    for title, kind in (("Profile types", ProfileType), ("Reductions", Reduction)):
        assert re.findall(r'`"(\w+)"`', "\n".join(section(title))) == [str(each) for each in kind]
        assert section(title)[0].endswith("(default)")
