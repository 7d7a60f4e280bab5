"""`gpu-profile top`: a live full-screen view of the GPUs, their users, and regions."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sys
from typing import TYPE_CHECKING, Final

import click

from gpu_profile.cli.devices import chooser
from gpu_profile.cli.options import backend_option, device_option, interval_option
from gpu_profile.errors import GpuProfileError, UsageError

if TYPE_CHECKING:
    from gpu_profile.monitor.top.source import TopSource

#: The width of a frame that is printed, where there is no terminal.
_WIDTH: Final = 80


@click.command(short_help="Show the GPUs, their processes and regions, live.")
@backend_option("--driver", "--backend", "driver_spec")
@interval_option(0.1)
@device_option
@click.option(
    "--url", metavar="URL", help="Also show the regions of this Prometheus endpoint (http://HOST:PORT/metrics)."
)
@click.option("--once", is_flag=True, help="Print one frame as plain text and end.")
def top(*, driver_spec: str, interval: float, devices: tuple[str, ...], url: str | None, once: bool) -> int:
    """Show the GPUs, their processes and holders, and regions, live on the whole terminal.

    The driver `auto` prefers the node's timeline, if an exporter keeps one, and calls NVML otherwise. Press h for the
    keys. It ends no process.
    """
    from gpu_profile.driver.grammar import check_spec
    from gpu_profile.monitor.top.endpoint import check_url
    from gpu_profile.monitor.top.source import TopSource

    check_spec(driver_spec)
    url = None if url is None else check_url(url)
    if not once:
        _require_terminal()
    elif sys.stdout is None:
        raise UsageError(
            "top: standard output is closed, so the frame cannot be printed; redirect it to a file or a pipe"
        )
    logging.getLogger("gpu_profile").addHandler(logging.NullHandler())  # a message would damage the screen
    source = TopSource(driver_spec, interval_s=interval, choose=chooser(devices, visible=False), url=url)
    return _print(source) if once else _live(source)


def _require_terminal() -> None:
    """Raise UsageError without a terminal. Textual draws on standard error."""
    for stream, name in ((sys.stdout, "output"), (sys.stdin, "input"), (sys.stderr, "error")):
        if stream is None or not stream.isatty():
            raise UsageError(f"top: standard {name} is no terminal; --once prints one frame as text")
    if os.environ.get("TERM", "dumb") == "dumb":
        raise UsageError("top: TERM is unset or dumb, so the screen cannot be drawn; --once prints one frame as text")


def _print(source: TopSource) -> int:
    from gpu_profile.monitor.top.frame import ViewState, draw

    source.start()
    try:
        source.wait()
        width = shutil.get_terminal_size((_WIDTH, 24)).columns if sys.stdout.isatty() else _WIDTH
        text = draw(source.snapshot(), ViewState(table=""), width).text
    finally:
        source.stop()
    try:
        click.echo(text, nl=False)
    except OSError as error:
        if error.errno == errno.EPIPE:  # its reader has ended, which click handles
            raise
        raise GpuProfileError(f"top: standard output cannot be written: {error.strerror or error}") from error
    return 0


def _live(source: TopSource) -> int:
    try:
        from gpu_profile.monitor.top.app import TopApp
    except ImportError as error:
        raise UsageError(
            f"the live view needs Textual, which cannot be loaded ({error}): pip install 'gpu-profile[top]'; "
            "--once prints one frame without it"
        ) from error

    app = TopApp(source.checked_snapshot)
    source.start()
    try:
        app.run()
    finally:
        source.stop()
    if app.error is not None:
        raise app.error
    return app.return_code or 0
