"""`gpu-profile record DIR`: record the node's GPUs."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gpu_profile.cli.devices import chooser
from gpu_profile.cli.ending import end_signals
from gpu_profile.cli.options import Finite, backend_option, device_option, interval_option
from gpu_profile.cli.progress import Progress
from gpu_profile.cli.watch import DeviceWatch
from gpu_profile.errors import RecordingError, UsageError, few
from gpu_profile.units import si

if TYPE_CHECKING:
    from gpu_profile.regions.session.recorder import Recorder

#: The interval at which the command checks for its end, in s.
_LOOK_S: Final = 0.1
_ANSWER_LOOK_S: Final = 0.01
#: A line is printed if the driver takes longer than this to answer, in s.
_SLOW_S: Final = 2.0


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@backend_option("--driver", "--backend", "driver_spec")
@interval_option(0.1)
@click.option("--seconds", type=Finite(min=0.1), metavar="SECONDS", help="End after this long; without it, on Ctrl-C.")
@device_option
@click.option(
    "--collect",
    multiple=True,
    metavar="GROUP",
    help="Read another group of signals too, such as gpm, or all; repeatable. An unknown name lists them.",
)
def record(
    directory: Path,
    *,
    driver_spec: str,
    interval: float,
    seconds: float | None,
    devices: tuple[str, ...],
    collect: tuple[str, ...],
) -> int:
    """Record every GPU of this node into DIRECTORY.

    A process with regions that runs with GPU_PROFILE_RECORD=DIRECTORY records itself, its own GPUs included.
    """
    watch = DeviceWatch(
        driver_spec,
        interval_s=interval,
        choose=chooser(devices, visible=False),
        directory=directory,
        strict=True,
        retention_s=10.0,
        groups=_groups(collect),
    )
    asked = time.monotonic()
    slow = False
    with end_signals() as ended:
        watch.start()
        try:
            # All waiting is in this loop, so that a driver that hangs cannot keep the command from ending.
            while not (watch.answered or ended):
                if not slow and time.monotonic() - asked > _SLOW_S:
                    slow = True
                    click.echo(f"waiting for the driver {driver_spec!r}", err=True)
                time.sleep(_ANSWER_LOOK_S)
            if watch.error is not None:
                raise watch.error
            recorder = watch.recorder
            if recorder is None:
                click.echo(f"gpu-profile: nothing was recorded: {watch.problem}", err=True)
                return 128 + ended[0]
            click.echo(f"recording {len(watch.devices)} devices through {watch.driver_name} into {directory}", err=True)
            _record(watch, recorder, directory, seconds, ended)
            return 0
        finally:
            watch.stop()


def _groups(words: Sequence[str]) -> Collection[str]:
    """The library's groups and the ones in `words`."""
    from gpu_profile.catalogue import ALL_GROUPS, LIBRARY_GROUPS, Group

    names = [*map(str, Group), "all"]
    for word in words:
        if word not in names:
            raise UsageError(f"--collect: unknown group {word!r}; one of {few(names, 80)}")
    return ALL_GROUPS if "all" in words else LIBRARY_GROUPS | set(map(Group, set(words)))


def _record(watch: DeviceWatch, recorder: Recorder, directory: Path, seconds: float | None, ended: list[int]) -> None:
    started = time.monotonic()
    end = float("inf") if seconds is None else started + seconds

    def share() -> float | None:
        return None if seconds is None else (time.monotonic() - started) / seconds

    with Progress("recording" if seconds is not None else "recording until Ctrl-C", share):
        while not (ended or recorder.problem) and (left := end - time.monotonic()) > 0:
            time.sleep(min(_LOOK_S, left))
    length = time.monotonic() - started
    if recorder.problem:
        watch.stop()
        raise RecordingError(recorder.problem)
    watch.finish()
    size = sum(path.stat().st_size for path in directory.iterdir() if path.is_file())
    click.echo(f"{recorder.samples:,} samples in {length:.1f} s; {directory} holds {si(size, 'B')}", err=True)
