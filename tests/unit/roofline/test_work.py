"""Works added up."""

from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.roofline.precision import Precision
from gpu_profile.roofline.work import NOTHING, Work, added, unknown_work

COUNTS = st.integers(0, 10**15)
PRECISIONS = st.sampled_from([Precision.FP32, Precision.BF16])


@st.composite
def works(draw: st.DrawFn) -> Work:
    parts = draw(st.dictionaries(PRECISIONS, st.integers(1, 10**12)))
    return Work(
        flops=sum(parts.values()),
        bytes=draw(COUNTS),
        by_precision=parts,
        operations=draw(st.integers(1, 100)),
        unknown=draw(st.dictionaries(st.sampled_from("ab"), st.integers(1, 5))),
        largest=draw(COUNTS),
    )


@given(works(), works())
def test_a_sum_has_all_of_its_parts(one: Work, other: Work) -> None:
    total = added([(one, 1), (other, 1)])
    assert (total.flops, total.bytes) == ((one.flops or 0) + (other.flops or 0), (one.bytes or 0) + (other.bytes or 0))
    assert total.operations == one.operations + other.operations
    assert sum(total.by_precision.values()) == total.flops


@given(works(), st.integers(1, 1000))
def test_so_many_times_the_same_work_is_so_many_times_its_flops_and_bytes(work: Work, times: int) -> None:
    total = added([(work, times)])
    assert (total.flops, total.bytes) == ((work.flops or 0) * times, (work.bytes or 0) * times)
    assert total.largest == work.largest


def test_a_single_work_is_its_own_sum_and_keeps_its_working_set() -> None:
    work = Work(flops=1, bytes=2, working_set=3)
    assert added([(work, 1), (NOTHING, 0)]) is work


def test_several_works_touch_memory_that_is_not_known_together() -> None:
    assert added([(Work(flops=1, bytes=2, working_set=3), 2)]).working_set is None


def test_a_sum_with_an_unknown_part_is_unknown_with_its_reason() -> None:
    total = added([(Work(flops=1, bytes=2, by_precision={Precision.FP32: 1}), 1), (unknown_work("it is compiled"), 1)])
    assert (total.flops, total.bytes, total.precision) == (None, None, None)
    assert total.reasons == {"flops": "it is compiled", "bytes": "it is compiled"}
