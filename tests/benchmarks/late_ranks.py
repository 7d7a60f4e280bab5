"""Whether the cause of a late rank is found in jobs of 64 ranks."""

import time
from collections import Counter
from collections.abc import Iterator

from support.ranks import LATE, late_job

from benchmarks.rows import Row
from gpu_profile.analysis import analyse


def rows(ranks: int = 64, steps: int = 40) -> Iterator[Row]:
    """One job for each cause, and one without a late rank."""
    found, started = Counter[str](), time.process_time()
    for number, cause in enumerate(LATE):
        (region,) = analyse(late_job(cause, ranks=ranks, late=7 + number, steps=steps, seed=number)).ranks
        named = region.late is not None and region.slowest.rank == 7 + number
        told = str(region.late.cause) if named and region.late is not None else "no rank"
        found["right" if told == cause else f"{cause} as {told}"] += 1
    (alike,) = analyse(late_job(next(iter(LATE)), ranks=ranks, steps=steps, from_step=steps)).ranks
    found["right" if alike.late is None else "late though alike"] += 1
    wrong = ", ".join(each for each in found if each != "right")
    yield Row(
        f"the cause of a late rank among {ranks}, one job per cause and one without",
        f"{found['right']} of {found.total()} right{f' ({wrong})' if wrong else ''}, "
        f"{time.process_time() - started:.0f} s of CPU",
        reach="all",
        ok=found["right"] == found.total(),
        cost=found.total() - found["right"],
    )
