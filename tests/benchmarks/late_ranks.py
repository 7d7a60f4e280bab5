"""Whether the cause of a late rank is found in jobs of 64 ranks, and the clocks and the last rank across nodes."""

import time
from collections import Counter
from collections.abc import Iterator
from statistics import median

import numpy as np
from support.clocks import MS, ClockJob
from support.ranks import LATE, late_job

from benchmarks.rows import Row
from gpu_profile.analysis import analyse


def rows(ranks: int = 64, steps: int = 40, jobs: int = 24) -> Iterator[Row]:
    """One job for each cause and one without a late rank; then synchronous jobs on nodes with wrong clocks."""
    yield causes(ranks, steps)
    yield from across_nodes(jobs)


def across_nodes(jobs: int) -> Iterator[Row]:
    """Jobs of eight nodes with offsets from 0.1 ms to hours, drifts, jitter, and one late rank in all but a third."""
    drawn, started = np.random.default_rng(1), time.process_time()
    within = compared = named = 0
    halves: list[float] = []
    for number in range(jobs):
        offsets = [0.0, *(float(each) for each in drawn.normal(0, 10 ** drawn.uniform(-1, 7), 7))]
        drifts = [float(each) for each in drawn.uniform(-50, 50, 8)]
        straggler = None if number % 3 == 0 else int(drawn.integers(32))
        job = ClockJob(
            offsets,
            per_node=4,
            steps=150,
            drifts_ppm=drifts,
            jitter_ms=float(drawn.choice([1, 6])),
            collective_ms=float(drawn.choice([0.5, 4, 20])),
            straggler=straggler,
            seed=number,
        )
        analysis = analyse(job.recording(("compute", "all-reduce")))
        for node, clock in enumerate(analysis.clocks.nodes, start=1):
            if (offset := clock.offset) is None:
                continue
            truth_ns = job.ahead_ms(node, offset.at_ns - job.base_ns) * MS
            compared += 1
            within += offset.low_ns <= truth_ns <= offset.high_ns
            halves.append(offset.half_width_ns / MS / job.collective_ms)
        (met,) = (each.arrivals for each in analysis.ranks if each.region == "all-reduce")
        last = met.rank if met is not None and met.late else None
        named += last == straggler
    yield Row(
        f"the clocks of 8 nodes from collectives, {jobs} jobs of 32 ranks",
        f"{within} of {7 * jobs} offsets within their intervals, of {compared} that are compared; "
        f"the median half-width is {median(halves):.2g} times the collective, "
        f"{time.process_time() - started:.0f} s of CPU",
        reach="all",
        ok=within == 7 * jobs,
        cost=7 * jobs - within,
    )
    yield Row(
        f"the rank for which the others wait, across nodes, {jobs} jobs",
        f"{named} of {jobs} right",
        reach="all",
        ok=named == jobs,
        cost=jobs - named,
    )


def causes(ranks: int, steps: int) -> Row:
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
    return Row(
        f"the cause of a late rank among {ranks}, one job per cause and one without",
        f"{found['right']} of {found.total()} right{f' ({wrong})' if wrong else ''}, "
        f"{time.process_time() - started:.0f} s of CPU",
        reach="all",
        ok=found["right"] == found.total(),
        cost=found.total() - found["right"],
    )
