"""Simulated GPUs: a stand-in for the shared library under nvidia-ml-py, for tests and demonstrations without a GPU.

Simulated is simulated: the numbers follow from a small model, not from any hardware. It is process-wide, because
nvidia-ml-py is: a process sees either simulated or real GPUs, and so does every other user of pynvml in it.

Read in this order:

- `scenario` and `models`: what a node has, from a TOML file. `physics`, `script`: from work to time and signals.
- `worklog` and `queue`: what programs launch. `activity`: exact totals of it. `sensors`: what sensors show of them.
- `node`: all of that for one process. `nvml` answers NVML's functions from it, with those of a device in
  `nvml_device`, `nvml_board`, `nvml_fields`, `nvml_gpm`, `nvml_events` and `nvml_processes`; `nvml_call` is shared.
- `truth`: what really happened, for tests and the demonstration. `temporary`: folders for nodes that nobody keeps.

Imports the catalogue, the clock and `own_process`, never the driver that reads it. A new GPU is a row of
`models.MODELS`; a new reading is a function in the `nvml_*` of its kind.
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

#: What was there before the first install: (the library, its reference count).
_before: list[tuple[Any, int]] = []


def create(directory: Path | str, scenario_text: str | None = None, *, clock: Clock = SYSTEM_CLOCK) -> Path:
    """Make the directory of a simulated node that starts now; without a text it is the built-in node.

    Raises ScenarioError if the text is not a valid scenario, FileExistsError if the directory already has one.
    """
    path = Path(directory)
    _create(path, scenario_text, clock)
    return path


def install(directory: Path | str, *, clock: Clock = SYSTEM_CLOCK) -> SimulatedNvml:
    """Put the simulated node of `directory` beneath pynvml in this process, in place of what is there.

    Call `pynvml.nvmlInit()` afterwards, as with the real library. Raises ScenarioError for a directory that is not
    valid.
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
    """Put back what was beneath pynvml before the first `install`. Without an install, do nothing."""
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
        # pynvml remembers functions by name, whichever library they came from.
        pynvml._nvmlGetFunctionPointer_cache.clear()


@contextmanager
def installed(directory: Path | str, *, clock: Clock = SYSTEM_CLOCK) -> Iterator[SimulatedNvml]:
    """`install` for the length of a `with` block."""
    library = install(directory, clock=clock)
    try:
        yield library
    finally:
        remove()
