"""Options of several commands, and the environment variables behind them."""

from __future__ import annotations

import os
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any, Final

import click

#: Variables in the environment of a command's processes. The first two are settings of any process.
BACKEND_VARIABLE: Final = "GPU_PROFILE_BACKEND"
RECORD_VARIABLE: Final = "GPU_PROFILE_RECORD"
#: The driver that a parent process already records.
SAMPLED_VARIABLE: Final = "GPU_PROFILE_SAMPLED"

Option = Callable[[Callable[..., Any]], Callable[..., Any]]


class Finite(click.FloatRange):
    """A finite number of at least `min`; click's own range accepts NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or click's own error."""
        number = float(super().convert(value, param, ctx))
        if not isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def usual_backend() -> str:
    """The driver in the environment, else auto."""
    return os.environ.get(BACKEND_VARIABLE) or "auto"


def backend_option(
    *names: str,
    about: str = "auto, nvml, smi, none, node[:DIR], simulated[:DIR] or replay:DIR",
    default: Callable[[], str] | None = usual_backend,
) -> Option:
    """The option for the driver, with the command's `names`."""
    return click.option(*names, metavar="SPEC", default=default, help=f"{about}; else {BACKEND_VARIABLE}, else auto.")


def interval_option(default: float) -> Option:
    """The option for the sampling interval."""
    kind, about = Finite(min=0.001), "How often counters are read."
    return click.option("--interval", type=kind, default=default, show_default=True, metavar="SECONDS", help=about)


def record_option(about: str) -> Option:
    """The option for the recording's directory."""
    kind = click.Path(file_okay=False, path_type=Path)
    return click.option("--record", type=kind, metavar="DIR", help=f"{about}, for analyze and compare.")


def _well_formed(_: click.Context, __: click.Parameter, specs: tuple[str, ...]) -> tuple[str, ...]:
    """The devices as given. UsageError before anything runs if one has no form of a device's name."""
    if specs:
        from gpu_profile.driver.visible import check_form

        for spec in specs:
            check_form(spec)
    return specs


def _named_devices(about: str) -> Option:
    return click.option(
        "--device",
        "devices",
        multiple=True,
        callback=_well_formed,
        metavar="SPEC",
        help=f"A number of CUDA's, {about}.",
    )


device_option: Final = _named_devices("'nvml:N', or a UUID or its beginning; repeatable")
one_device_option: Final = _named_devices("'nvml:N', or a UUID or its beginning; needed if there are several GPUs")
