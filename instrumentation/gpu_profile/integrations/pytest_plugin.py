"""A pytest plugin: budgets of energy, busy share, time, power and memory for tests, and a table of their use.

Every pytest run loads this module in every project with gpu-profile installed, so it imports almost nothing. The first
measured test loads the code that measures.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from gpu_profile.integrations.budgets import Budget, GpuWork
    from gpu_profile.integrations.measured_test import MeasuredTest

_MARK: Final = "gpu_budget"
_PROPERTY: Final = "gpu_profile"
_BACKEND_VARIABLE: Final = "GPU_PROFILE_BACKEND"
_UNTOLD: Final = ("fail", "skip", "ignore")
#: Arguments of the mark that are no budgets, and their defaults.
_OPTIONS: Final[Mapping[str, Any]] = {"device": 0, "sync_fn": "auto"}

_budgets_key: Final = pytest.StashKey[tuple[list["Budget"], dict[str, Any]]]()
_wrong_key: Final = pytest.StashKey[str]()
_work_key: Final = pytest.StashKey["GpuWork"]()
_plugin_key: Final = pytest.StashKey["_Measuring"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--gpu-profile` and its companions, each with a setting of the same name."""
    group = parser.getgroup("gpu-profile", "GPU use of tests")
    group.addoption("--gpu-profile", action="store_true", help="measure every test, and print a table at the end")
    backend = "auto|nvml|smi|none|node[:DIR]|simulated[:DIR]|replay:DIR, for this run (default: auto)"
    group.addoption("--gpu-profile-backend", metavar="BACKEND", help=backend)
    untold = "outcome of a budget that cannot be decided (default: fail)"
    group.addoption("--gpu-profile-untold", choices=_UNTOLD, help=untold)
    parser.addini("gpu_profile_backend", f"the same as --gpu-profile-backend: {backend}")
    parser.addini("gpu_profile_untold", f"the same as --gpu-profile-untold: {untold}")


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark and the plugin. Raises UsageError for invalid options."""
    config.addinivalue_line(
        "markers",
        f'{_MARK}(energy="<=12 J", busy=">=60%", busy_time=…, duration=…, power=…, memory=…, coverage=…, '
        'energy_per_token=…, energy_per_request=…, busy_time_per_request=…, device=0, sync_fn="auto"): fail if the '
        "test, without its fixtures, uses more or less of a GPU than this.",
    )
    config.stash[_plugin_key] = plugin = _Measuring(config)
    config.pluginmanager.register(plugin, "gpu-profile-measuring")


@pytest.fixture
def gpu_work(request: pytest.FixtureRequest) -> GpuWork:
    """The test's `tokens` and `requests`, which it sets for budgets per unit of work."""
    from gpu_profile.integrations.budgets import GpuWork

    work = request.node.stash[_work_key] = GpuWork()
    return work


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the sampling that tests have started."""
    plugin = config.stash.get(_plugin_key, None)
    if plugin is not None:
        plugin.end()


class _Measuring:
    """The measurements of one pytest process, and the results of its workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._worker = hasattr(config, "workerinput")
        self._all = bool(config.getoption("--gpu-profile"))
        self._untold = config.getoption("--gpu-profile-untold") or config.getini("gpu_profile_untold") or _UNTOLD[0]
        if self._untold not in _UNTOLD:
            raise pytest.UsageError(f"gpu_profile_untold is {' or '.join(_UNTOLD)}, not {self._untold!r}")
        self._rows: dict[str, dict[str, Any]] = {}
        self._measured = False
        self._backend_before = os.environ.get(_BACKEND_VARIABLE)
        self._backend = config.getoption("--gpu-profile-backend") or config.getini("gpu_profile_backend")
        if self._backend:
            self._use(self._backend)

    def _use(self, backend: str) -> None:
        from gpu_profile.driver.grammar import check_spec
        from gpu_profile.errors import GpuProfileError

        try:
            check_spec(backend)
        except GpuProfileError as error:
            raise pytest.UsageError(f"--gpu-profile-backend: {error}") from None
        # In the environment, so that the regions and the child processes of tests use it too.
        os.environ[_BACKEND_VARIABLE] = backend

    def end(self) -> None:
        """Stop sampling and restore the environment."""
        if self._measured:
            from gpu_profile.regions.session import process

            process.stop()
        if self._backend and self._backend_before is None:
            os.environ.pop(_BACKEND_VARIABLE, None)
        elif self._backend and self._backend_before is not None:
            os.environ[_BACKEND_VARIABLE] = self._backend_before

    # ------------------------------------------------------------------ the marks

    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        """Read the marks. An invalid mark ends the run before any test, with file and line."""
        wrong = []
        for item in items:
            marks = list(item.iter_markers(_MARK))
            if marks:
                try:
                    item.stash[_budgets_key] = _asked(marks)
                except ValueError as error:
                    path, line, _ = item.location
                    wrong.append(f"{path}:{(line or 0) + 1}: @pytest.mark.{_MARK}: {error}")
                    item.stash[_wrong_key] = wrong[-1]
        if wrong and not self._worker:
            raise pytest.UsageError("\n".join(dict.fromkeys(wrong)))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Fail a test with an invalid mark in a worker of pytest-xdist, which must not end by itself."""
        if _wrong_key in item.stash:
            pytest.fail(item.stash[_wrong_key], pytrace=False)

    # ------------------------------------------------------------------ a test

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Measure the test itself, without fixtures and other plugins' wrappers: this wrapper is the innermost."""
        asked, options = item.stash.get(_budgets_key, ([], dict(_OPTIONS)))
        if not (asked or self._all):
            return (yield)
        from gpu_profile.integrations.measured_test import MeasuredTest

        self._measured = True
        measured = MeasuredTest(**options)
        measured.begin()
        try:
            result = yield
        except BaseException as error:
            measured.end(error)
            self._note(item, measured, [])
            raise
        measured.end()
        self._judge(item, measured, asked)
        return result

    def _judge(self, item: pytest.Item, measured: MeasuredTest, asked: list[Budget]) -> None:
        from gpu_profile.integrations.budgets import judge, per_unit

        quantities = measured.quantities()
        broken, untold = judge(asked, {**quantities, **per_unit(quantities, item.stash.get(_work_key, None))})
        failed = broken + (untold if self._untold == "fail" else [])
        self._note(item, measured, ["broken"] if broken else ["untold"] if untold else ["kept"] if asked else [])
        if failed:
            hint = ["(with --gpu-profile-untold=skip or ignore a budget that cannot be decided does not fail)"]
            lines = [*failed, measured.described(), *(hint if untold and self._untold == "fail" else [])]
            pytest.fail("GPU budget: " + "\n  ".join(lines), pytrace=False)
        if untold and self._untold == "skip":
            pytest.skip("GPU budget: " + "; ".join(untold))

    def _note(self, item: pytest.Item, measured: MeasuredTest, verdict: list[str]) -> None:
        """Add the row as a property: reports, also of pytest-xdist's workers, and JUnit files contain properties."""
        item.user_properties[:] = [pair for pair in item.user_properties if pair[0] != _PROPERTY]
        item.user_properties.append((_PROPERTY, json.dumps({**measured.row(), "budget": "".join(verdict)})))

    # ------------------------------------------------------------------ the table

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the row of a test from its report."""
        if report.when == "call" and self._all:
            for name, value in report.user_properties:
                if name == _PROPERTY:
                    self._rows[report.nodeid] = json.loads(str(value))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        if self._rows:
            from gpu_profile.integrations.measured_test import table

            terminalreporter.section("gpu-profile")
            terminalreporter.write_line(table(self._rows))


def _asked(marks: Sequence[pytest.Mark]) -> tuple[list[Budget], dict[str, Any]]:
    """The budgets of a test's marks, its own first, and the options of its measurement. Raises ValueError."""
    from gpu_profile.integrations.budgets import BudgetError, budgets

    asked: list[Budget] = []
    options = dict(_OPTIONS)
    for mark in reversed(marks):  # so that the options of the nearest mark take precedence
        if mark.args:
            raise BudgetError(f'{mark.args[0]!r}: name the quantity, as in energy="<=12 J"')
        named = {name: value for name, value in mark.kwargs.items() if name not in _OPTIONS}
        if not named:
            raise BudgetError('it has no budget; give one, such as energy="<=12 J"')
        options |= {name: value for name, value in mark.kwargs.items() if name in _OPTIONS}
        asked[:0] = budgets(named)
    return asked, options
