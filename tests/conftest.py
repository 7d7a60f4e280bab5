"""What holds for every test: those for a real GPU skip where there is none; `--no-skips` lets no other test skip.

Property tests take the same examples in every run, so that a commit fails by its own fault alone, and as long as they
need; `--hypothesis-profile=explore` looks for new examples.
"""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

# There is one worker per core. With more threads each, PyTorch's and OpenBLAS's wait for one another at full load,
# which takes as much time as the tests' own work. Libraries read it when they are loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

from gpu_profile.testing import FakeClock

_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
settings.register_profile("explore", _PATIENT, max_examples=1000)
# The first 40 of the same examples each time: more cost CI minutes and show nothing new. `explore` has many others.
settings.register_profile("same", _PATIENT, derandomize=True, database=None, max_examples=40)
settings.load_profile("same")

#: A module that skips whole in here has not come as far as its own marks.
GPU_TESTS = Path(__file__).parent / "gpu"
INTEGRATION = Path(__file__).parent / "integration"

Reporting = Generator[None, pytest.TestReport, pytest.TestReport]
Collecting = Generator[None, pytest.CollectReport, pytest.CollectReport]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--no-skips`."""
    parser.addoption("--no-skips", action="store_true", help="fail on a skip or xfail of a test that is not marked gpu")


def pytest_configure() -> None:
    """Let tests and their programs hear signals that a shell or `nohup` has its jobs ignore, and choose their width."""
    os.environ.pop("COLUMNS", None)  # set by pytest-xdist
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """Take what has been loaded out of the garbage collector's sight: with all tests in memory, and PyTorch, it looks
    for a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def frozen() -> Iterator[None]:
    """The same of what a module loads."""
    yield
    gc.collect()
    gc.freeze()


def has_gpu() -> bool:
    """Whether this machine shows an NVIDIA device: looked up on disk, as tests must not load a real NVML."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run modules that mostly wait for other programs beside those that compute; skip the tests that need a GPU where
    there is none."""
    paths = dict.fromkeys(item.path for item in items)
    modules = [[path for path in paths if (INTEGRATION in path.parents) is waits] for waits in (True, False)]
    place = {path: (i + 0.5) / len(some) for some in modules for i, path in enumerate(some)}
    items.sort(key=lambda item: (place[item.path], item.path))
    if not has_gpu():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU on this machine"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Reporting:
    """Turn a skip or an expected failure into a failure under `--no-skips`."""
    report = yield
    if report.skipped and _forbidden(item):
        reason = getattr(report, "wasxfail", None) or _reason(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped or expected to fail, but --no-skips is on: {reason}"
        report.__dict__.pop("wasxfail", None)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Collecting:
    """Turn the skip of a whole module into a failure under `--no-skips`."""
    report = yield
    if report.skipped and _forbidden(collector) and GPU_TESTS not in collector.path.parents:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} was skipped whole, but --no-skips is on: {_reason(report.longrepr)}"
    return report


@pytest.fixture
def clock() -> FakeClock:
    """Stands until a test moves it."""
    return FakeClock()


def _forbidden(node: pytest.Item | pytest.Collector) -> bool:
    return bool(node.config.getoption("--no-skips")) and node.get_closest_marker("gpu") is None


def _reason(longrepr: object) -> str:
    """What pytest says of a skip: (file, line, reason)."""
    return str(longrepr[2] if isinstance(longrepr, tuple) else longrepr)
