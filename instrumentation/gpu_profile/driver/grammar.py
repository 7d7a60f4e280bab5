"""Opens the driver with a given name: a spec of `GRAMMAR`, or a word that another package adds."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

from gpu_profile.catalogue import DEFAULT_GROUPS, Group
from gpu_profile.clock import SYSTEM_CLOCK, Clock
from gpu_profile.driver.null import NullDriver
from gpu_profile.driver.protocol import Driver
from gpu_profile.errors import GpuBackendError, GpuProfileError, StaleLibraryError, UnknownBackendError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from gpu_profile.driver.node.driver import NodeDriver
    from gpu_profile.driver.nvml import NvmlDriver

#: The variable that names the driver if the code or the command line does not.
BACKEND_VARIABLE: Final = "GPU_PROFILE_BACKEND"
GRAMMAR: Final = "auto|nvml|smi|none|node[:DIR]|simulated[:DIR]|replay:DIR"
#: Entry points of this group add words. Each is a callable `(argument: str | None, clock: Clock) -> Driver`.
ENTRY_POINTS: Final = "gpu_profile.drivers"


def check_spec(spec: str) -> None:
    """Raise UnknownBackendError if `spec` does not follow the grammar. Opens nothing.

    The error names the variable GPU_PROFILE_BACKEND if it has this value.
    """
    _parse(spec)


def open_driver(
    spec: str,
    *,
    clock: Clock = SYSTEM_CLOCK,
    groups: Collection[str] | None = None,
    enter: Callable[[int], bool] = lambda _: True,
    events: bool = True,
    counters_s: float = 0.0,
    node_s: float | None = None,
    node_history_s: float = 0.0,
) -> Driver:
    """The driver that `spec` names.

    `auto` opens NVML, else nvidia-smi, and never a simulated GPU. With `node_s`, it prefers the node's timeline if that
    has a sample at least every `node_s` seconds and all GPUs of this process. Otherwise `superseded` of NVML's driver
    checks later whether such a timeline exists. `groups`: the groups of signals to read, `DEFAULT_GROUPS` by default.
    `enter(index)` is called before NVML's first call for a GPU when it lists GPUs; False skips the GPU. `events`:
    whether to read XID errors. `counters_s`: the shortest time between two reads of NVML's slow counters.
    `node_history_s`: the time before its opening from which the node's timeline serves samples too.

    GpuBackendError if `spec` does not follow the grammar or the driver cannot start. RecordingError or ScenarioError if
    DIR is no recording or has no valid scenario.
    """
    word, argument = _parse(spec)
    chosen = DEFAULT_GROUPS if groups is None else frozenset(map(Group, groups))
    settings: _Settings = {"groups": chosen, "enter": enter, "events": events, "counters_s": counters_s}
    nvml = partial(_nvml, settings=settings)
    node = partial(_node, clock=clock, groups=chosen, history_s=node_history_s)
    openers: Mapping[str, Callable[[], Driver]] = {
        "auto": lambda: _auto(clock, nvml) if node_s is None else _node_first(clock, nvml, node, node_s),
        "nvml": lambda: nvml(clock),
        "node": lambda: node(argument),
        "simulated": lambda: _simulated(argument, clock, settings),
        "replay": lambda: _replay(argument or "", clock),
        "smi": lambda: _smi(clock),
        "none": NullDriver,
    }
    if word in openers:
        return openers[word]()
    from importlib.metadata import entry_points

    return _added(next(iter(entry_points(group=ENTRY_POINTS, name=word))), argument, clock)


def _parse(spec: str) -> tuple[str, str | None]:
    try:
        return _word_and_argument(spec)
    except UnknownBackendError as error:
        if os.environ.get(BACKEND_VARIABLE, "").strip() != spec.strip():
            raise
        raise UnknownBackendError(f"{BACKEND_VARIABLE}: {error}") from error


def _word_and_argument(spec: str) -> tuple[str, str | None]:
    word, colon, argument = spec.strip().partition(":")
    if word in _WITH_ARGUMENT:
        if not argument and (colon or word == "replay"):
            raise UnknownBackendError(f"driver {spec!r}: no directory after {word!r}; write {word}:DIR")
    elif word in _WITHOUT_ARGUMENT:
        if colon:
            raise UnknownBackendError(f"driver {spec!r}: {word!r} takes nothing after it; one of {GRAMMAR}")
    else:
        from importlib.metadata import entry_points

        added = entry_points(group=ENTRY_POINTS).names
        if word not in added:
            from difflib import get_close_matches

            close = get_close_matches(word, [*_WITHOUT_ARGUMENT, *_WITH_ARGUMENT, *added], n=1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise UnknownBackendError(f"unknown driver {spec!r}: one of {'|'.join([GRAMMAR, *sorted(added)])}{meant}")
    return word, argument if colon else None


def _auto(clock: Clock, nvml: Callable[[Clock], Driver]) -> Driver:
    failures = []
    openers: Sequence[tuple[str, Callable[[Clock], Driver]]] = (
        ("NVML (libnvidia-ml.so.1)", nvml),
        ("nvidia-smi", _smi),
    )
    for source, opener in openers:
        try:
            return opener(clock)
        except StaleLibraryError:
            raise  # nvidia-smi loads the same library; only a restart of the process helps
        except GpuBackendError as error:
            # The remedy is the same for both, and comes last.
            cause = re.split("[;:] install", str(error))[0].removeprefix("NVML: ")
            cause = re.sub(r"^could not be started \(LIBRARY_NOT_FOUND\): ", "", cause)
            named = source.partition(" ")[0] if "libnvidia-ml" in cause else source
            failures.append(cause if cause.startswith(named) else f"{named} {cause}")
    raise GpuBackendError(
        f"no GPU driver: {'; '.join(failures)}. Install the NVIDIA driver; without a GPU, set "
        "GPU_PROFILE_BACKEND to none, simulated or replay:DIR"
    )


def _node_first(
    clock: Clock, nvml: Callable[[Clock], NvmlDriver], node: Callable[[str | None], NodeDriver], interval_s: float
) -> Driver:
    def covered() -> bool:
        timeline = _covering(node, interval_s)
        if timeline is not None:
            timeline.close()
        return timeline is not None

    def superseded_later(clock: Clock) -> Driver:
        driver = nvml(clock)
        driver.superseded = covered
        return driver

    timeline = _covering(node, interval_s)
    if timeline is None:
        return _auto(clock, superseded_later)
    timeline.superseded = timeline.lacks_fresh_samples
    return timeline


class _Settings(TypedDict):
    """Options of NVML's driver alone."""

    groups: Collection[Group]
    enter: Callable[[int], bool]
    events: bool
    counters_s: float


def _nvml(clock: Clock, *, settings: _Settings) -> NvmlDriver:
    from gpu_profile.driver.nvml import NvmlDriver

    return NvmlDriver(clock=clock, **settings)


def _node(argument: str | None, *, clock: Clock, groups: Collection[Group], history_s: float) -> NodeDriver:
    from gpu_profile.driver.node.driver import NodeDriver
    from gpu_profile.driver.node.table import directory_of

    return NodeDriver(directory_of(argument, os.environ), clock=clock, groups=groups, history_s=history_s)


def _covering(node: Callable[[str | None], NodeDriver], interval_s: float) -> NodeDriver | None:
    """The node's timeline if it can replace NVML: it is live, fine enough, and has every GPU that `/dev` shows."""
    try:
        driver = node(None)
    except GpuBackendError:
        return None
    if driver.interval_s <= interval_s and driver.covers_all_gpus:
        return driver
    driver.close()
    return None


def _smi(clock: Clock) -> Driver:
    from gpu_profile.driver.smi import SmiDriver

    return SmiDriver(clock=clock)


def _replay(argument: str, clock: Clock) -> Driver:
    from gpu_profile.driver.replay import ReplayDriver

    return ReplayDriver(Path(argument), clock=clock)


def _simulated(argument: str | None, clock: Clock, settings: _Settings) -> Driver:
    import pynvml

    from gpu_profile.driver import simulated
    from gpu_profile.driver.nvml import NvmlDriver
    from gpu_profile.driver.simulated.temporary import TemporaryFolder

    class SimulatedDriver(NvmlDriver):
        """The NVML driver over a simulated NVML, which `close` removes."""

        def close(self) -> None:
            super().close()
            clean()

    temporary = None if argument else TemporaryFolder()
    directory = Path(argument or "") if temporary is None else temporary.path
    library = None

    def clean() -> None:
        if pynvml.nvmlLib is library:  # not if another one was installed since
            simulated.remove()
        if temporary is not None:
            temporary.remove()

    try:
        if temporary is not None:
            simulated.create(directory, clock=clock)
        library = simulated.install(directory, clock=clock)
        return SimulatedDriver(clock=clock, name=f"simulated:{directory}", **settings)
    except BaseException:
        clean()
        raise


def _added(point: EntryPoint, argument: str | None, clock: Clock) -> Driver:
    try:
        driver: Driver = point.load()(argument, clock)
    except GpuProfileError:
        raise
    except Exception as error:  # another package's code can fail in any way
        raise GpuBackendError(f"driver {point.name!r} ({point.value}): {type(error).__name__}: {error}") from error
    return driver


_WITHOUT_ARGUMENT: Final = ("auto", "nvml", "smi", "none")
_WITH_ARGUMENT: Final = ("node", "simulated", "replay")
