"""`make bench [ONLY=…]`: measure, and print one line each: `name | figure | baseline | ratio | reach | ok`.

Baselines run in the same process or the same minute as what they are compared with; ratios are what counts, absolute
figures move with the machine. A row that falls short makes the exit code 1.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import exporter, heart, kernels, library, roofline
from benchmarks.rows import HEADER, Row

GROUPS: Final[Mapping[str, Callable[[], Iterator[Row]]]] = {
    "heart": heart.rows,
    "library": library.rows,
    "exporter": exporter.rows,
    "roofline": roofline.rows,
    "kernels": kernels.rows,
}


def main(arguments: list[str]) -> int:
    """Run the groups that are asked for, all by default."""
    unknown = [name for name in arguments if name not in GROUPS]
    if unknown:
        sys.stderr.write(f"no benchmarks called {', '.join(unknown)}: one of {', '.join(GROUPS)}\n")
        return 2
    short = 0
    sys.stdout.write(f"{HEADER}\n")
    for name in arguments or GROUPS:
        for row in GROUPS[name]():
            short += not row.ok
            sys.stdout.write(f"{row}\n")
            sys.stdout.flush()
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
