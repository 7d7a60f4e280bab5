"""The pytest plugin, in pytest runs of its own on simulated GPUs."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.programs import printed

from gpu_profile.driver import simulated
from gpu_profile.integrations.budgets import BudgetError, GpuWork, Measured, budgets, judge, per_unit, show

pytest_plugins = ["pytester"]

PLUGIN = "gpu_profile.integrations.pytest_plugin"
PACKAGES = str(Path(__file__).parents[3] / "instrumentation")

#: What the tests of the inner runs share: `work(s, share)` keeps GPU 0 busy, and waits for it.
SUPPORT = """
import os, time
import pytest
from gpu_profile.driver.simulated import SimulatedQueue, Work

NODE = os.environ.get("NODE", "")

def work(seconds, share=1.0):
    queue = SimulatedQueue(NODE)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        queue.launch(Work(seconds=0.05 * share, flops=1e12, bytes=1e9))
        time.sleep(0.05)
    queue.close()
"""

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a file of tests by the plugin, on a simulated node unless another backend is named."""
    node = simulated.create(tmp_path / "node", '[[device]]\nmodel = "H200 SXM"\n')
    monkeypatch.setenv("NODE", str(node))
    monkeypatch.setenv("PYTHONPATH", PACKAGES)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("GPU_PROFILE_BACKEND", raising=False)
    pytester.makeconftest("")
    pytester.makeini("[pytest]")  # the root, whatever lies in the directories above

    def go(code: str, *arguments: str, backend: str | None = f"simulated:{node}") -> pytest.RunResult:
        pytester.makepyfile(test_it=SUPPORT + code)
        named = [f"--gpu-profile-backend={backend}"] if backend else []
        return pytester.runpytest_subprocess("-p", PLUGIN, "--strict-markers", "-W", "error", *named, *arguments)

    return go


# ---------------------------------------------------------------------- what budgets say


@pytest.mark.parametrize(
    ("quantity", "text", "bound", "kept", "broken"),
    [
        ("energy", "<=12 J", 12.0, 12.0, 12.01),
        ("energy", "< 1.5kJ", 1500.0, 1499.0, 1500.0),
        ("energy", "<=1e-3 Wh", 3.6, 3.5, 3.7),
        ("busy", ">=60%", 0.6, 0.6, 0.59),
        ("busy", ">0.5", 0.5, 0.51, 0.5),
        ("busy_time", "<=500 ms", 0.5, 0.5, 0.6),
        ("duration", "<=2 min", 120.0, 119.0, 121.0),
        ("power", "<=300 W", 300.0, 299.0, 301.0),
        ("memory", "<=2 GB", 2e9, 1.9e9, 2.1e9),
        ("memory", "<=2 GiB", 2.0**31, 2.0**31, 2.0**31 + 1),
        ("coverage", ">=.9", 0.9, 0.95, 0.8),
    ],
)
def test_a_bound_is_a_sign_a_number_and_a_unit(
    quantity: str, text: str, bound: float, kept: float, broken: float
) -> None:
    (budget,) = budgets({quantity: text})
    assert budget.bound == pytest.approx(bound)
    assert budget.holds(kept)
    assert not budget.holds(broken)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"energie": "<=1 J"}, "did you mean 'energy'?"),
        ({"energy": 12}, "a budget is a text with a bound and a unit"),
        ({"energy": "12 J"}, "write <=, >=, < or >"),
        ({"energy": "<=12"}, "no unit; one of J, mJ, kJ, Wh"),
        ({"energy": "<=12 W"}, "unknown unit 'W'"),
        ({"energy": "<=-1 J"}, "not a bound"),
        ({"busy": ">=60"}, "a share is at most 100 %"),
        ({"duration": "<=nan s"}, "not a bound"),
    ],
)
def test_a_budget_that_cannot_be_judged_says_why_in_one_line(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(BudgetError) as caught:
        budgets(arguments)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_broken_budget_tells_the_value_and_its_source_and_an_unknown_one_why() -> None:
    asked = budgets({"energy": "<=12 J", "busy": ">=60%", "memory": "<=1 GB"})
    measured = {
        "energy": Measured(15.3, "the energy counter"),
        "busy": Measured(None, reason="the test took 50 ms"),
        "memory": Measured(0.5e9),
    }
    broken, untold = judge(asked, measured)
    assert broken == ["energy <=12 J: it was 15.3 J, from the energy counter"]
    assert untold == ["busy >=60%: not measured: the test took 50 ms"]
    assert judge(budgets({"power": "<=1 W"}), {})[1] == ["power <=1 W: not measured: it was not measured"]
    assert show("memory", 2048.0**2 * 1024) == "4,096 MiB"


@pytest.mark.parametrize(("value", "broken", "untold"), [(0.75, 0, 0), (0.65, 0, 1), (0.55, 0, 1), (0.45, 1, 0)])
def test_a_value_whose_doubt_reaches_over_the_bound_neither_keeps_nor_breaks_it(
    value: float, broken: int, untold: int
) -> None:
    found = judge(budgets({"busy": ">=60%"}), {"busy": Measured(value, "utilization", off=0.1)})
    assert [len(lines) for lines in found] == [broken, untold]
    if untold:
        assert found[1][0].startswith("busy >=60%: too close to decide: it was ")
        assert "± 10.0 %, from utilization" in found[1][0]


def test_a_budget_per_unit_of_work_needs_the_tests_own_count() -> None:
    asked = budgets({"energy_per_token": "<=2 mJ/token", "busy_time_per_request": "<=50 GPU-ms/request"})
    measured = {"energy": Measured(15.0, "the counter", off=1.0), "busy_time": Measured(None, reason="no samples")}
    for tokens, broken in ((10_000, 0), (5_000, 1)):
        lines = judge(asked, per_unit(measured, GpuWork(tokens=tokens)))
        assert len(lines[0]) == broken
        (untold,) = lines[1]
        assert untold.endswith("the test states no requests: it sets gpu_work.requests, with the fixture gpu_work")
    assert lines[0] == ["energy_per_token <=2 mJ/token: it was 0.003 J/token ± 0.0002 J/token, from the counter"]
    assert per_unit(measured, GpuWork(requests=5))["busy_time_per_request"].reason == "no samples"
    assert per_unit(measured, None)["energy_per_token"].value is None


# ---------------------------------------------------------------------- tests with budgets


def test_a_budget_that_is_kept_passes_and_one_that_is_broken_fails_with_the_measured_value(run: Run) -> None:
    result = run(
        """
@pytest.mark.gpu_budget(energy="<=2 kJ", busy=">=60%", duration="<=20 s", memory="<=100 GB", coverage=">=90%")
def test_kept():
    work(0.8)

@pytest.mark.gpu_budget(energy="<=1 J", busy="<=10%")
def test_broken():
    work(0.8)

@pytest.mark.gpu_budget(energy_per_token="<=1 J/token", busy_time_per_request="<=1 GPU-s/request")
@pytest.mark.gpu_budget(energy_per_request="<=1 J/request")
def test_broken_per_request(gpu_work):
    work(0.8)
    gpu_work.tokens, gpu_work.requests = 10_000, 1
"""
    )
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.re_match_lines([r"GPU budget: energy_per_request <=1 J/request: it was [0-9.]+ J/request, from .*"])
    result.stdout.re_match_lines(
        [
            r"GPU budget: energy <=1 J: it was [0-9.]+ J, from the energy counter",
            r"  busy <=10%: it was [0-9.]+ %( ± [0-9.]+ %)?, from utilization",
            r"  measured: duration 0\.\d+ s, coverage [0-9.]+ %, busy [0-9.]+ %, .*",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_fixtures_are_no_part_of_the_test(run: Run) -> None:
    result = run(
        """
@pytest.fixture
def heavy():
    work(0.8)
    yield
    work(0.4)

@pytest.mark.gpu_budget(busy="<=40%", duration="<=1.3 s")
def test_idle(heavy):
    time.sleep(1.0)
"""
    )
    result.assert_outcomes(passed=1)


def test_classes_parameters_stacked_marks_and_async_tests_have_budgets_too(run: Run, pytester: pytest.Pytester) -> None:
    code = """
import asyncio

@pytest.mark.gpu_budget(busy="<=10%")
class TestAll:
    @pytest.mark.parametrize("seconds", [0.4, 0.5])
    @pytest.mark.gpu_budget(duration="<=450 ms")
    def test_sleeps(self, seconds):
        time.sleep(seconds)

@pytest.mark.gpu_budget(duration=">=300 ms", busy="<=10%")
async def test_awaits():
    await asyncio.sleep(0.4)
"""
    pytester.makefile(".py", runs_coroutines=RUNS_COROUTINES)
    result = run(code, "-p", "runs_coroutines", "-v")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*test_sleeps?0.5? FAILED*"])
    result.stdout.fnmatch_lines(["GPU budget: duration <=450 ms: it was 0.5* s, from the clock"])


#: As plugins for asyncio do it: the coroutine runs to its end inside the call.
RUNS_COROUTINES = """
import asyncio, inspect
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        asyncio.run(pyfuncitem.obj())
        return True
"""


def test_a_test_that_fails_or_skips_by_itself_is_not_judged_and_what_it_raised_is_what_is_shown(run: Run) -> None:
    result = run(
        """
@pytest.mark.gpu_budget(duration="<=1 ms")
def test_wrong():
    time.sleep(0.05)
    assert 1 == 2

@pytest.mark.gpu_budget(duration="<=1 ms")
def test_skips():
    time.sleep(0.05)
    pytest.skip("no need")

@pytest.mark.xfail(strict=True)
@pytest.mark.gpu_budget(duration="<=1 ms")
def test_known_to_be_slow():
    time.sleep(0.05)
"""
    )
    result.assert_outcomes(failed=1, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(["*assert 1 == 2*"])
    result.stdout.no_fnmatch_line("*GPU budget*")


UNTOLD = """
@pytest.mark.gpu_budget(energy="<=1 J", duration="<=10 s")
def test_without_a_gpu():
    pass
"""


@pytest.mark.parametrize(
    ("arguments", "outcome"),
    [((), "failed"), (("--gpu-profile-untold=skip",), "skipped"), (("--gpu-profile-untold=ignore",), "passed")],
)
def test_a_budget_that_cannot_be_measured_fails_unless_it_was_told_otherwise(
    run: Run, arguments: tuple[str, ...], outcome: str
) -> None:
    result = run(UNTOLD, *arguments, "-rs", backend="none")
    result.assert_outcomes(**{outcome: 1})
    if outcome != "passed":
        result.stdout.fnmatch_lines(["*energy <=1 J: not measured: sampling is off (backend none)*"])


def test_the_setting_in_the_projects_file_does_what_the_option_does_and_the_option_wins(
    run: Run, pytester: pytest.Pytester
) -> None:
    pytester.makeini("[pytest]\ngpu_profile_backend = none\ngpu_profile_untold = skip\n")
    run(UNTOLD, backend=None).assert_outcomes(skipped=1)
    run(UNTOLD, "--gpu-profile-untold=ignore", backend=None).assert_outcomes(passed=1)


def test_a_test_too_short_for_its_sensors_is_not_judged_by_what_was_before_it(run: Run) -> None:
    result = run(
        """
@pytest.mark.gpu_budget(energy="<=50 J")
def test_short():
    time.sleep(0.03)
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [r"GPU budget: energy <=50 J: not measured: the energy counter is renewed every 100 ms, and .* took .* ms"]
    )


# ---------------------------------------------------------------------- slips


WRONG = """
@pytest.mark.gpu_budget(energy="12 J")
def test_a(): pass

@pytest.mark.gpu_budget("<=12 J")
def test_b(): pass

@pytest.mark.gpu_budget()
def test_c(): pass
"""


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "2")])
def test_malformed_budgets_end_the_run_before_any_test_with_file_and_line(run: Run, workers: tuple[str, ...]) -> None:
    result = run(WRONG, *workers)
    assert result.ret != 0
    assert "passed" not in result.stdout.str()
    if not workers:
        assert result.ret == pytest.ExitCode.USAGE_ERROR
    first = SUPPORT.strip().count("\n") + 3
    shown = result.stderr.str() + result.stdout.str()
    reasons = ("energy='12 J': not a bound", "'<=12 J': name the quantity", "it has no budget")
    for line, words in zip(range(first, first + 9, 3), reasons, strict=True):
        assert re.search(rf"test_it\.py:{line}: @pytest\.mark\.gpu_budget: {words}", shown)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--gpu-profile-backend=nvlm",), "did you mean 'nvml'?"),
        (("-o", "gpu_profile_untold=never"), "gpu_profile_untold is fail or skip or ignore, not 'never'"),
    ],
)
def test_an_option_that_makes_no_sense_is_a_usage_error(run: Run, arguments: tuple[str, ...], words: str) -> None:
    result = run("def test_a(): pass", *arguments, backend=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert words in result.stderr.str()
    assert "Traceback" not in result.stderr.str()


# ---------------------------------------------------------------------- the table


TWO = """
def test_busy():
    work(0.8)

@pytest.mark.gpu_budget(duration="<=1 min")
def test_idle():
    time.sleep(0.5)
"""


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "2")])
def test_the_table_has_every_test_whether_workers_ran_it_or_not(run: Run, workers: tuple[str, ...]) -> None:
    result = run(TWO, "--gpu-profile", *workers)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*= gpu-profile =*", "test  *duration*GPU busy*energy*power*memory*regime*budget"])
    result.stdout.re_match_lines_random(
        [
            r"test_it\.py::test_busy +0\.\d+ s +\d+\.\d %( ±\d+)? +[0-9.]+ J +[0-9.]+ W +[0-9,]+ MiB +[A-Z_]+$",
            # Tests of two workers share the GPU: each has what the other does in its numbers.
            r"test_it\.py::test_idle +0\.\d* s +\d+\.\d % .* kept$",
        ]
    )


def test_numbers_are_in_the_junit_file_once_for_every_test(run: Run, pytester: pytest.Pytester) -> None:
    run(TWO, "--gpu-profile", "--junit-xml=report.xml").assert_outcomes(passed=2)
    properties = list(ElementTree.parse(pytester.path / "report.xml").iter("property"))  # noqa: S314 - our own file
    found = [json.loads(one.attrib["value"]) for one in properties if one.attrib["name"] == "gpu_profile"]
    assert [row["budget"] for row in found] == ["", "kept"]
    assert found[0]["busy"] > 0.4
    assert found[1]["busy"] < 0.2
    assert found[0]["energy"] > 0
    assert found[0]["regime"]


def test_without_a_gpu_the_table_says_why_and_no_test_fails(run: Run) -> None:
    result = run(TWO.replace("work(0.8)", "pass"), "--gpu-profile", backend="none")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["test_it.py::test_idle *–*kept", "not measured: sampling is off (backend none)"])


def test_without_options_and_marks_nothing_is_measured_nor_shown(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_other="""
import sys, threading

def test_plain():
    assert "gpu_profile.monitor" not in sys.modules
    assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
"""
    )
    result = pytester.runpytest_subprocess("-p", PLUGIN, "test_other.py")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*gpu-profile*")


def test_the_plugin_lists_its_mark_and_its_options(run: Run) -> None:
    assert "@pytest.mark.gpu_budget(energy=" in run("", "--markers", backend=None).stdout.str()
    shown = run("", "--help", backend=None).stdout.str()
    assert all(option in shown for option in ("--gpu-profile ", "--gpu-profile-backend", "--gpu-profile-untold"))


def test_loading_the_plugin_loads_nothing_heavy() -> None:
    code = f"import pytest, sys; before = set(sys.modules); import {PLUGIN}; print(*(set(sys.modules) - before))"
    loaded = set(printed("-c", code).split())
    assert PLUGIN in loaded
    assert not {name.partition(".")[0] for name in loaded} & {"numpy", "opentelemetry", "pynvml", "prometheus_client"}
    assert {name for name in loaded if name.startswith("gpu_profile")} == {
        "gpu_profile",
        "gpu_profile.integrations",
        PLUGIN,
    }
