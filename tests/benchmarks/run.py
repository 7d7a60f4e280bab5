"""`make bench [ONLY=…] [ACCEPT=1]`: measure, and print a line for each row, with what was accepted last beside it.

Baselines run in the same process or the same minute as what they are compared with; ratios are what counts, absolute
figures move with the machine. A row that falls short or is worse than accepted makes the exit code 1, but of `quick`.
ACCEPT=1 takes the rows into `accepted.json`, from which `make dashboards` writes the docs' tables. All groups together
take a sample of the worlds and workloads of some, which is accepted by itself; a group that is named takes all of them.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import (
    accepted,
    exporter,
    fleet,
    fleet_size,
    heart,
    kernels,
    late_ranks,
    library,
    quick,
    regime_verdicts,
    roofline,
    serving,
    sidecar,
    truth,
)
from benchmarks.rows import HEADER, Row

GROUPS: Final[Mapping[str, Callable[[], Iterator[Row]]]] = {
    "heart": heart.rows,
    "regimes": regime_verdicts.rows,
    "library": library.rows,
    "exporter": exporter.rows,
    "sidecar": sidecar.rows,
    "roofline": roofline.rows,
    "kernels": kernels.rows,
    "truth": truth.rows,
    "serving": serving.rows,
    "ranks": late_ranks.rows,
    "fleet": fleet.rows,
    "fleet-size": fleet_size.rows,
}
#: Measured instead of the whole group when all groups run: whole, these take too long beside the others.
SAMPLES: Final[Mapping[str, Callable[[], Iterator[Row]]]] = {
    "heart": heart.sample,
    "library": library.sample,
    "exporter": exporter.sample,
    "sidecar": sidecar.sample,
    "roofline": roofline.sample,
    "truth": truth.sample,
    "serving": serving.sample,
    "fleet": fleet.sample,
}


def main(arguments: list[str]) -> int:
    """Run the groups that are asked for, all by default."""
    if unknown := [name for name in arguments if name not in {*GROUPS, "quick"}]:
        sys.stderr.write(f"no benchmarks called {', '.join(unknown)}: one of {', '.join(GROUPS)}, quick\n")
        return 2
    table = accepted.load()
    sys.stdout.write(f"{HEADER}\n")
    if arguments == ["quick"]:
        known = {name: row for rows in table.values() for name, row in rows.items()}
        _measure(quick.rows, known)
        return 0
    wrong = 0
    for name in arguments or GROUPS:
        sampled = not arguments and name in SAMPLES
        group, measure = (f"{name} sample", SAMPLES[name]) if sampled else (name, GROUPS[name])
        known = table.get(group, {})
        started = time.monotonic()
        rows = _measure(measure, known)
        sys.stderr.write(f"{group}: {time.monotonic() - started:.0f} s\n")
        missing = set(known) - {row.name for row in rows}
        sys.stdout.writelines(f"{gone} | WORSE: not measured\n" for gone in sorted(missing))
        wrong += len(missing) + sum(not row.ok or (row.name in known and known[row.name].worse(row)) for row in rows)
        if os.environ.get("ACCEPT"):
            accepted.accept(table, group, rows)
            accepted.save(table)
    return 1 if wrong else 0


def _measure(measure: Callable[[], Iterator[Row]], known: Mapping[str, accepted.Accepted]) -> list[Row]:
    rows = []
    for row in measure():
        rows.append(row)
        sys.stdout.write(f"{row} | {accepted.beside(row, known.get(row.name))}\n")
        sys.stdout.flush()
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
