"""Faults of the driver under a real exporter: every one in `benchmarks.fault_scripts.FAULTS`, and what came of it.

`python tests/benchmarks/exporter_faults.py --write docs/faults.md` runs them all and writes the page.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.nvml_stub.build import CannotBuildError, build

from benchmarks.fault_runs import SCRAPE_S, Outcome, judge, run
from benchmarks.fault_scripts import FAULTS, GAP_S, GPUS, RECOVERY_S, TOLD_S, Fault
from benchmarks.rows import HEADER, Row

#: Exporters at a time: each has a process and readers, and they must not be judged by each other's load.
AT_ONCE: Final = 3


def outcomes(faults: Iterable[Fault] = FAULTS) -> list[Outcome]:
    """What each fault comes to, in the order given. CannotBuildError without a C compiler."""
    wanted = list(faults)
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        directory = Path(name)
        library = build(directory / "library")

        def meet(place: int) -> Outcome:
            return judge(wanted[place], run(wanted[place], library, directory / str(place)))

        # The longest first, so that none is waited for alone.
        order = sorted(range(len(wanted)), key=lambda place: -wanted[place].seconds)
        with ThreadPoolExecutor(AT_ONCE) as lanes:
            met = dict(zip(order, lanes.map(meet, order), strict=True))
    return [met[place] for place in range(len(wanted))]


def rows(every: int = 1) -> Iterator[Row]:
    """A summary, and each fault that was not survived as promised, of one in so many."""
    try:
        found = outcomes(FAULTS[::every])
    except CannotBuildError as error:
        yield Row("faults survived", f"not measured: {error}")
        return
    well = [outcome for outcome in found if not outcome.problems]
    least, text = (30, ">=30, all") if every == 1 else (1, "all")
    yield Row("faults survived", f"{len(well)} of {len(found)}", reach=text, ok=len(well) == len(found) >= least)
    for outcome in found:
        if outcome.problems:
            yield Row(f"fault: {outcome.fault.name}", "; ".join(outcome.problems), ok=False)
    yield Row(
        "worst pause of another GPU", _seconds(_worst(one.gap_s for one in found)), reach=f"<={GAP_S:.0f} s but as told"
    )
    yield Row("longest until a loss is told", _seconds(_worst(one.told_s for one in found)))
    yield Row("longest recovery", _seconds(_worst(one.recovery_s for one in found)), reach=f"<={RECOVERY_S:.0f} s")
    usual, slowest = max(one.usual_s for one in found), max(one.scrape_s for one in found)
    yield Row(
        "scrape during a fault",
        f"p90 <={usual * 1e3:.0f} ms, slowest {slowest * 1e3:.0f} ms",
        reach=f"p90 <={SCRAPE_S * 1e3:.0f} ms",
        ok=usual <= SCRAPE_S,
    )


def _worst(values: Iterable[float | None]) -> float:
    return max((value for value in values if value is not None), default=0.0)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


# ---------------------------------------------------------------------- the page


def page(found: Sequence[Outcome]) -> str:
    """`docs/faults.md`."""
    well = sum(not outcome.problems for outcome in found)
    lines = [_HEAD, f"Survived: **{well} of {len(found)}**.", "", *_COLUMNS]
    for outcome in found:
        cells = (
            outcome.fault.name,
            f"{outcome.fault.seconds:g} s",
            _seconds(outcome.gap_s),
            _seconds(outcome.told_s),
            _seconds(outcome.recovery_s),
            f"{outcome.usual_s * 1e3:.0f} ms",
            "yes" if not outcome.problems else "; ".join(outcome.problems),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _NOTES])


_COLUMNS: Final = (
    "| fault | duration | others' longest pause | reported after | recovered after | scrapes (p90) | passed |",
    "|---|---|---|---|---|---|---|",
)
_HEAD: Final = f"""\
# Faults

<!-- Written by tests/benchmarks/exporter_faults.py. -->

This page shows the exporter's reactions to failures of the driver, measured. Each row is a run of the real exporter
over a stub of NVML in C with {GPUS} GPUs, scraped every 0.2 s. Three ran at a time on one small machine. Times
end with the first scrape that shows the change.

In every row the following must hold:

- The exporter lives, and ends normally on request.
- Nine of ten scrapes take no longer than {SCRAPE_S * 1e3:.0f} ms.
- GPUs without the fault are read with no pause above {GAP_S:.0f} s.
- No counter goes back, and no GPU gets another's values.
- The loss of a GPU is reported (`gpu_profile_device_up` is 0, `hw_status` is `failed`) and its values are gone,
  usually within {TOLD_S} s.
- After the fault all values are back within {RECOVERY_S:.0f} s, without a restart of the exporter.
"""
_NOTES: Final = """\
A dash means that there are no other GPUs, that no GPU is lost, or that the fault is too short to be reported. Where a
driver fails with all its GPUs, they are reported as down at the latest after 5 s of silence.

## Method

Separate processes, the readers, call the driver; the exporter itself never calls it. A reader publishes in shared
memory the GPU of the call in progress and the start of the call:

- After a tenth of a second in a call that waits, or a quarter if the reader waits for a CPU or computes, the reader
  keeps that GPU alone, and another reader reads the others at once. Calls are checked when samples are overdue.
- After half a second the GPU is reported as down.
- After 4 s the reader is killed, and another one tries the GPU again, for as long as it takes.

A GPU that always answers slowly gets its own reader too. So does a GPU during a call to which a reader crashed. After
10 s of prompt answers it is read with the others again. A separate process receives XID errors, and is restarted if
the wait for events hangs; the GPUs are read meanwhile. One process, the launcher, forks all others, which continue if
it is killed.

A process cannot exchange a loaded library. If its version differs from the kernel driver's, the reader is replaced
every 3 s until the versions agree.

## Limits

- GPUs that hang at the same moment are detected one after another: the others' pause is up to 0.5 s with
  one, 0.7 s with two, and 0.2 s longer with each more. At most half of the GPUs are read apart because they are slow.
- If a call to `nvmlInit` never returns, its process is killed after 30 s, as the initialisation of a node's GPUs may
  take that long. In these runs it returns when the fault ends.
- A signal that is *not permitted* or *not supported* from the start is not requested again until the GPU is opened
  anew. That happens after a loss, a change of its MIG instances, or a restart of its reader, such as
  `gpu-profile-exporter release --for 1s`. A signal that had answered before is requested again after 5 s, and then at
  growing intervals, at least every five minutes.
- A counter that the driver itself sets back (energy, throttling, NVLink) is published unchanged; `rate()` and
  `increase()` handle resets. Busy time and PCIe bytes are summed up by the exporter and continue.
- A reader that a signal has stopped is replaced after 0.4 s, before the readings of its GPUs expire; so is a stopped
  launcher. Where `/proc` does not show that, they are replaced after 5 s and 10 s; meanwhile nothing is read.
- A library of another version costs 3 to 5 s, as its installation may still be in progress.
- A process that hangs in the kernel cannot be killed, and its GPU is not read before the process is gone. If every
  caller hangs in the kernel, nothing can be read; the exporter then reports that the driver does not answer.
"""


def main(arguments: Sequence[str]) -> int:
    """Print the rows, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="write the page there instead of printing rows")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    if options.write is None:
        sys.stdout.write(f"{HEADER}\n")
        short = 0
        for row in rows():
            short += not row.ok
            sys.stdout.write(f"{row}\n")
    else:
        found = outcomes()
        options.write.write_text(page(found), encoding="utf-8")
        short = sum(bool(outcome.problems) for outcome in found)
    sys.stdout.write(f"took {time.monotonic() - started:.0f} s\n")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
