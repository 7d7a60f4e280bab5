import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.catalogue.attributes import ATTRIBUTES
from gpu_profile.regimes import classify
from gpu_profile.regimes.evidence import Evidence
from gpu_profile.regimes.kernel_work import KernelWork, KernelWorks

KEYS = ("busy", "work", "communication", "transfer", "host_wait", "launch", "other_wait")
OWN = [row.name for row in ATTRIBUTES if row.name.startswith("gpu_profile.kernels.")]
counts = st.integers(0, 2**40)
times = st.integers(0, 10**15)
evidence = st.builds(
    Evidence,
    basis=st.just("kernels"),
    values=st.dictionaries(st.sampled_from((*KEYS, "kernel_s")), st.floats(0, 1)),
    n=st.integers(0, 10**6),
    coverage=st.floats(0, 1),
    reason=st.text(max_size=9),
)
works = st.builds(
    KernelWork,
    evidence=evidence,
    **dict.fromkeys(("kernels", "copies", "backward"), counts),
    **{name: st.none() | counts for name in ("copy_bytes", "allocated_bytes", "freed_bytes", "peak_bytes")},
    **dict.fromkeys(("kernel_ns", "span_ns", "busy_ns", "others_ns", "copy_ns", "overlap_ns"), times),
    **{name: st.none() | times for name in ("host_wait_ns", "launch_ns", "other_wait_ns")},
    communication_ns=times,
    occupancy=st.none() | st.floats(0, 1),
    top=st.lists(st.tuples(st.text(max_size=9), counts, times), max_size=5).map(tuple),
)


@given(works)
def test_kernels_come_back_from_their_attributes_and_from_their_json(work: KernelWork) -> None:
    attributes = work.attributes()
    assert None not in attributes.values()
    for found in (attributes, json.loads(json.dumps(attributes))):
        assert KernelWork.of_attributes(found) == work


@given(
    st.dictionaries(
        st.sampled_from(OWN),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers(), max_size=2),
    )
)
def test_any_attributes_are_kernels_or_none_and_they_can_be_judged_and_summed(found: dict[str, Any]) -> None:
    work = KernelWork.of_attributes(found)
    if work is not None:
        sums = KernelWorks()
        sums.add(work)
        assert 0 <= classify(sums.evidence()).confidence <= 1
        assert work.attributes().keys() <= {*OWN}


@given(st.lists(works, min_size=1, max_size=8))
def test_totals_are_exact_and_means_lie_between_the_least_and_the_most(told: list[KernelWork]) -> None:
    sums = KernelWorks()
    for work in told:
        sums.add(work)
    assert sums.executions == len(told)
    for name in ("kernels", "kernel_ns", "span_ns", "host_wait_ns", "copy_bytes", "allocated_bytes"):
        known = [value for work in told if (value := getattr(work, name)) is not None]
        assert getattr(sums, name) == (sum(known) if known else None)
    found = sums.evidence()
    assert 0 <= found.coverage <= 1 + 1e-9
    for key, mean in found.values.items():
        values = [work.evidence.values[key] for work in told if key in work.evidence.values]
        assert min(values) == pytest.approx(mean, abs=1e-9) or min(values) < mean
        assert max(values) == pytest.approx(mean, abs=1e-9) or max(values) > mean
    assert 0 <= classify(found).confidence <= 1
