"""`gpu-profile doctor`: the parts that work on this machine, the parts that do not, and the remedies."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

import click

from gpu_profile.cli.finding import Check, Finding, FindingState
from gpu_profile.cli.options import backend_option
from gpu_profile.report.table import folded, terminal_width

#: A check that takes longer has failed.
LIMIT_S: Final = 10.0
#: Longer names (a MIG instance's UUID) do not widen the column.
_WIDEST: Final = 20
_GPUS: Final = "GPUs"
#: The longest line of a remedy without a terminal.
_COLUMNS: Final = 118


@click.command()
@backend_option("--backend", "--driver", about="The driver to look at")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def doctor(*, backend: str, as_json: bool) -> int:
    """Check the drivers and packages of this machine.

    It prints the working parts, and the reasons for the others.

    Ends with 0 if a GPU can be read, else with 1. No framework is imported, and nothing is changed.
    """
    from gpu_profile.cli import gpus, machine
    from gpu_profile.driver.grammar import check_spec, open_driver

    check_spec(backend)
    named: list[tuple[str, Check]] = [
        ("Python", machine.python),
        ("settings", machine.settings),
        ("container", machine.container),
        ("kernel driver", machine.kernel_driver),
        ("NVML library", machine.library),
        ("nvidia-smi", machine.smi),
        (_GPUS, lambda: gpus.driver(backend, open_driver)),
        ("frameworks", machine.frameworks),
        ("clock", machine.clock),
        ("exporter", machine.exporter),
    ]
    findings = look(named)
    # A device that hangs blocks the checks of the devices after it. They may still be readable.
    listed = sum(
        each.data.get("devices", 0) for each in findings if each.subject == _GPUS and each.state is FindingState.OK
    )
    lost = sum(
        "uuid" in each.data and "read_ms" not in each.data and each.state is FindingState.FAILS for each in findings
    )
    readable = listed > lost
    if as_json:
        click.echo(
            json.dumps({"ok": readable, "driver": backend, "findings": [_object(each) for each in findings]}, indent=2)
        )
    else:
        click.echo(render(findings, columns=terminal_width(sys.stdout)))
        click.echo(f"\n{'GPUs can be read.' if readable else 'No GPU can be read.'}")
    return 0 if readable else 1


def look(named: Sequence[tuple[str, Check]], limit_s: float = LIMIT_S) -> list[Finding]:
    """All findings in the order of the checks. The checks run in parallel, none for longer than `limit_s`.

    A check that does not end in time keeps its findings so far. Its thread is abandoned.
    """
    findings: list[list[Finding]] = [[] for _ in named]
    takes = [(own, name, check) for own, (name, check) in zip(findings, named, strict=True)]
    threads = [threading.Thread(target=_take, args=take, daemon=True) for take in takes]
    for thread in threads:
        thread.start()
    end = time.monotonic() + limit_s
    everything: list[Finding] = []
    for thread, own, (name, _) in zip(threads, findings, named, strict=True):
        thread.join(max(0.0, end - time.monotonic()))
        late = thread.is_alive()
        everything += list(own)
        if late:
            to_do = "the driver or the system hangs: see the kernel's log"
            everything.append(Finding(name, FindingState.FAILS, f"did not answer within {limit_s:g} s", to_do))
    return everything


def _take(own: list[Finding], name: str, check: Check) -> None:
    try:
        own.extend(check())
    except Exception as error:  # noqa: BLE001 - one check that cannot be made must not hide the others
        own.append(Finding(name, FindingState.FAILS, f"could not be looked at: {type(error).__name__}: {error}"))


def render(findings: Sequence[Finding], *, columns: int | None = None) -> str:
    """Each finding with its remedy below, in lines of at most `columns` characters."""
    width = max((len(each.subject) for each in findings if len(each.subject) <= _WIDEST), default=0)
    lines = []
    for each in findings:
        head = f"{each.state:<8}{each.subject:<{width}}  "
        indent = " " * (8 + width + 2)
        lines.append(folded(f"{head}{each.text}".rstrip(), columns, indent))
        if each.to_do and each.state is not FindingState.OK:
            lines.append(folded(f"{indent}→ {each.to_do}", columns or _COLUMNS, indent + "  "))
    return "\n".join(lines)


def _object(each: Finding) -> dict[str, object]:
    state = "info" if each.state is FindingState.INFO else str(each.state)
    return {
        "subject": each.subject.strip(),
        "state": state,
        "found": each.text,
        "to_do": each.to_do or None,
        "data": dict(each.data),
    }
