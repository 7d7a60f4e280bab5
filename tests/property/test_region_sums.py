"""A region's sums, held against counting every nanosecond of small recordings."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_profile.kernels.records import Call, Kind, Operation, Range, Record
from gpu_profile.kernels.views import report_of

#: Kinds, threads, devices, calls and lengths of a few operations, and a few regions on two threads.
operations = st.lists(
    st.tuples(
        st.sampled_from(Kind),
        st.integers(0, 1),
        st.integers(0, 1),
        st.integers(0, 40),
        st.integers(0, 15),
        st.integers(0, 12),
    ),
    min_size=1,
    max_size=8,
)
ranges = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.integers(0, 40), st.integers(0, 20)), max_size=6
)
Ops = list[tuple[Kind, int, int, int, int, int]]
Ranges = list[tuple[str, int, int, int]]


def recorded(found: Ops, regions: Ranges) -> list[Record]:
    records: list[Record] = [Range(name, thread, start, start + length) for name, thread, start, length in regions]
    for number, (kind, thread, device, called, wait, length) in enumerate(found, 1):
        records.append(Call(number, called, called + 1, thread, "cudaLaunchKernel"))
        records.append(Operation(kind, device, 7, called + wait, called + wait + length, "name", number))
    return records


def innermost(regions: Ranges, thread: int, moment: int) -> int:
    opened = [i for i, (_, t, a, n) in enumerate(regions) if t == thread and a <= moment < a + n]
    return max(opened, key=lambda i: (regions[i][2], -regions[i][3], i), default=-1)


def around(regions: Ranges, number: int) -> list[int]:
    """A range and those that it began in."""
    found = []
    while number >= 0:
        found.append(number)
        _, thread, start, length = regions[number]
        before = [
            i
            for i, (_, t, a, n) in enumerate(regions)
            if t == thread and a <= start < a + n and (a, -n, i) < (start, -length, number)
        ]
        number = max(before, key=lambda i: (regions[i][2], -regions[i][3], i), default=-1)
    return found


@settings(max_examples=300)
@given(operations, ranges)
def test_sums_of_regions_are_what_counting_every_moment_gives(found: Ops, regions: Ranges) -> None:
    report = report_of(recorded(found, regions))
    chains = [around(regions, innermost(regions, thread, called)) for _, thread, _, called, _, _ in found]
    times = [range(called + wait, called + wait + length) for _, _, _, called, wait, length in found]
    assert {region.name for region in report.regions} == {name for name, _, _, _ in regions}
    for region in report.regions:
        mine = [i for i, chain in enumerate(chains) if any(regions[r][0] == region.name for r in chain)]
        outer = [
            number
            for number, (name, *_) in enumerate(regions)
            if name == region.name and all(regions[r][0] != name for r in around(regions, number)[1:])
        ]
        span = busy = others = overlap = communication = exposed = 0
        devices = {found[i][2] for i in mine}
        for device in devices:
            here = [i for i in range(len(found)) if found[i][2] == device]
            window: set[int] = set()
            for number in outer:
                _, _, start, length = regions[number]
                inside = [i for i in mine if found[i][2] == device and number in chains[i]]
                later = [i for i in inside if found[i][3] >= start + length]
                prompt = [i for i in inside if i not in later]
                first = min([start, *(times[i].start for i in prompt)])
                last = max([start + length, *(times[i].stop for i in prompt)])
                window |= set(range(first, last))
                if later:
                    window |= set(range(min(times[i].start for i in later), max(times[i].stop for i in later)))
            everything = {t for i in here for t in times[i]}
            own = {t for i in here if i in mine for t in times[i]}
            kernels = {t for i in here if found[i][0] is Kind.KERNEL for t in times[i]}
            no_transfer = {t for i in here if found[i][0] is not Kind.TRANSFER for t in times[i]}
            collectives = {t for i in here if i in mine and found[i][0] is Kind.COMMUNICATION for t in times[i]}
            transfers = {t for i in here if i in mine and found[i][0] is Kind.TRANSFER for t in times[i]}
            span += len(window)
            busy += len(own)
            others += len((everything & window) - own)
            communication += len(collectives)
            overlap += len(collectives & kernels)
            exposed += len(transfers - no_transfer)
        assert region.operations == len(mine)
        assert region.own == sum(bool(chains[i]) and regions[chains[i][0]][0] == region.name for i in mine)
        assert region.executions == sum(name == region.name for name, *_ in regions)
        assert (region.span_ns, region.busy_ns, region.others_ns) == (span, busy, others)
        assert (region.communication_ns, region.overlap_ns, region.exposed_transfer_ns) == (
            communication,
            overlap,
            exposed,
        )
        assert region.busy_ns + region.others_ns + region.idle.total_ns == region.span_ns
        assert region.idle.unknown_ns == 0
        assert region.kernel_count + sum(c.count for c in region.copies.values()) <= region.operations


@given(operations, ranges)
def test_every_operation_is_some_region_s_own_or_outside(found: Ops, regions: Ranges) -> None:
    report = report_of(recorded(found, regions))
    outside = report.outside.operations if report.outside else 0
    assert sum(region.own for region in report.regions) + outside == len(found)


@given(operations, ranges, st.randoms())
def test_the_order_of_the_records_changes_no_sum(found: Ops, regions: Ranges, random: object) -> None:
    regions = sorted(set(regions))  # of two that begin and end together, the order says which is inside
    records = recorded(found, regions)
    shuffled = sorted(records, key=lambda _: random.random())  # type: ignore[attr-defined]
    unlike = len({(t, a, n) for _, t, a, n in regions}) == len(regions)
    one, two = report_of(records), report_of(shuffled)
    if unlike:
        assert {r.name: r for r in one.regions} == {r.name: r for r in two.regions}
    assert one.activity == two.activity
