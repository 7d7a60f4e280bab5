"""Simulated GPUs: replaces the shared library under nvidia-ml-py, for tests and demonstrations without a GPU.

All numbers follow from a small model, not from any hardware. The simulation is process-wide, because nvidia-ml-py is:
all users of pynvml in a process see either simulated or real GPUs.

Read in this order:

- `scenario` and `models`: the devices of a node, from a TOML file. `physics`, `script`: from work to time and signals.
- `worklog` and `queue`: the launches of programs. `activity`: their exact totals. `sensors`: readings of the totals.
- `node`: all of that for one process. `nvml`: NVML's functions over the node. The functions of a device are in
  `nvml_device`, `nvml_board`, `nvml_fields`, `nvml_gpm`, `nvml_events` and `nvml_processes`; `nvml_call` is shared.
- `truth`: the exact results, for tests and the demonstration. `temporary`: directories of nodes that are not kept.

Imports the catalogue, the clock and `own_process`, never the driver that reads it. A new GPU is a row of
`models.MODELS`. A new reading is a function in the `nvml_*` module of its kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver.simulated.node import create as _create
from gpu_profile.driver.simulated.physics import Work
from gpu_profile.driver.simulated.queue import Mark, SimulatedQueue
from gpu_profile.driver.simulated.truth import Truth

if TYPE_CHECKING:
    from gpu_profile.driver.simulated.nvml import SimulatedNvml

__all__ = ["Mark", "SimulatedQueue", "Truth", "Work", "create", "install", "installed", "remove"]

#: pynvml's state before the first install: (library, its reference count).
_before: list[tuple[Any, int]] = []


def create(directory: Path | str, scenario_text: str | None = None, *, clock: Clock = SYSTEM_CLOCK) -> Path:
    """Create the directory of a simulated node that starts now. Without a text, it is the built-in node.

    Raises ScenarioError if the text is not a valid scenario, FileExistsError if the directory already has one.
    """
    path = Path(directory)
    _create(path, scenario_text, clock)
    return path


def install(directory: Path | str, *, clock: Clock = SYSTEM_CLOCK) -> SimulatedNvml:
    """Make pynvml use the simulated node of `directory` in this process.

    Call `pynvml.nvmlInit()` afterwards, as with the real library. Raises ScenarioError for an invalid directory.
    """
    import pynvml

    from gpu_profile.driver.simulated.nvml import SimulatedNvml

    library = SimulatedNvml(directory, clock)
    if not _before:
        _before.append((pynvml.nvmlLib, pynvml._nvmlLib_refcount))
    elif isinstance(pynvml.nvmlLib, SimulatedNvml):
        pynvml.nvmlLib.node.close()
    _put(library, 0)
    return library


def remove() -> None:
    """Restore pynvml's library from before the first `install`. Without an install, do nothing."""
    if _before:
        import pynvml

        from gpu_profile.driver.simulated.nvml import SimulatedNvml

        if isinstance(pynvml.nvmlLib, SimulatedNvml):
            pynvml.nvmlLib.node.close()
        _put(*_before.pop())


def _put(library: Any, references: int) -> None:
    import pynvml

    with pynvml.libLoadLock:
        pynvml.nvmlLib = library
        pynvml._nvmlLib_refcount = references
        # pynvml caches functions by name, across libraries.
        pynvml._nvmlGetFunctionPointer_cache.clear()


@contextmanager
def installed(directory: Path | str, *, clock: Clock = SYSTEM_CLOCK) -> Iterator[SimulatedNvml]:
    """`install` for the length of a `with` block."""
    library = install(directory, clock=clock)
    try:
        yield library
    finally:
        remove()
