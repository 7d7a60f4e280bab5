"""Counters of one run joined with the kernels of another: two recorded runs of one program, on two cuDNN versions."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.traces import flop, flop_of, nobodys, twin

from benchmarks.rows import Row
from gpu_profile.kernels.counters.sums import Counters
from gpu_profile.kernels.records import RangeCounters
from gpu_profile.kernels.trace import Trace

_COUNTERS: Final = Path(__file__).parents[1] / "data" / "traces" / "hta" / "alexnet_a100_cupti_counters.json.gz"
#: As counted with other code.
_FLOP: Final = 80_231_038_456


def twin_rows() -> Iterator[Row]:
    """Pairs, the operations that they bring to regions, and what is left, beside a join by order."""
    known = twin()
    counters = Counters(record for record in Trace(_COUNTERS) if isinstance(record, RangeCounters))
    matched = counters.matched(known.whole)
    names = Counter(record.name for record in known.records)
    kernels = Counter({name: kernel.count for name, kernel in known.whole.items()})
    # What is left on both sides under one name is a pair that was missed; a pair too many is one of two names.
    wrong = matched.pairs - (names & kernels).total()
    left = sum(matched.records.values()), sum(matched.kernels.values())
    yield Row(
        f"counters: {names.total()} records and {kernels.total()} kernels, pairs",
        f"{matched.pairs}, {wrong} of two names; {left[0]} records and {left[1]} kernels are nobody's",
        f"by order {min(names.total(), kernels.total())}, {known.wrong} of two names",
        reach="no pair of two names, all else counted",
        ok=not wrong and left == ((names - kernels).total(), (kernels - names).total()),
    )
    regions = {name: counters.of(known.whole, part, name) for name, part in known.regions.items()}
    found = {name: each for name, each in regions.items() if each is not None}
    shares = {name: flop(each) for name, each in found.items()}
    total = round(sum(shares.values()) + flop_of(nobodys(known.records, matched)))
    yield Row(
        "counters: floating-point operations of all regions, and of what is nobody's",
        f"{total:,}",
        reach=f"{_FLOP:,}",
        ok=total == _FLOP,
    )
    ours, theirs = (
        max(abs(shown.get(name, 0) / true - 1) for name, true in known.truth.items()) for shown in (shares, known.order)
    )
    inside = all(
        flop_of({metric: one.exact + one.low for metric, one in each.sums.items()})
        <= known.truth[name]
        <= flop_of({metric: one.exact + one.high for metric, one in each.sums.items()})
        for name, each in found.items()
    )
    yield Row(
        "counters: operations of a region's known kernels, largest error",
        f"{ours:.2%}, {'within' if inside else 'outside'} its bounds",
        f"by order {theirs:.0%}",
        reach="<=1 %, within its bounds",
        ok=ours <= 0.01 and inside,
    )


if __name__ == "__main__":
    for row in twin_rows():
        print(row)
