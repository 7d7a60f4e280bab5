"""Some of the faults in `benchmarks.fault_scripts` under the real exporter; `exporter_faults.py` runs them all."""

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.fault_runs import judge, run
from benchmarks.fault_scripts import FAULTS, Fault
from support.nvml_stub.build import CannotBuildError, build

CHOSEN = (
    "a GPU is lost, and comes back",
    "a GPU hangs in its field values",
    "an XID comes while its GPU hangs",
    "a call outlasts what made it hang",
    "the driver is replaced by another version",
    "the first GPU is taken out: indices shift",
    "two GPUs are taken out for good while the reader dies",
    "a GPU is put back that only a new start of NVML lists",
    "a GPU's call crashes the reader",
    "garbage in the reader's pipe",
    "the GPUs are released twice",
)
#: Told of how a fault went, and judged by the benchmark alone: a loaded machine takes its time.
TIMES = ("took", "had no samples for", "was told after", "was told as down")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build(tmp_path_factory.mktemp("stub"))
    except CannotBuildError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.name in CHOSEN], ids=lambda fault: fault.name)
def test_an_exporter_outlives_its_driver_s_fault_and_recovers(fault: Fault, library: Path, tmp_path: Path) -> None:
    short = replace(fault, seconds=min(fault.seconds, 3.0))
    outcome = judge(short, run(short, library, tmp_path / "node"))
    assert [problem for problem in outcome.problems if not any(words in problem for words in TIMES)] == []


def test_the_faults_chosen_are_in_the_table_and_the_table_has_each_once() -> None:
    names = [fault.name for fault in FAULTS]
    assert set(CHOSEN) <= set(names)
    assert len(names) == len(set(names)) >= 30
