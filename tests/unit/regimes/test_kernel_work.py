from dataclasses import replace
from typing import Any

import pytest
from support.regions import ALL_REDUCE, GEMM, HUNGRY, NOTHING, RELU, TALKING

from gpu_profile.catalogue import metrics as rows
from gpu_profile.catalogue.attributes import ATTRIBUTES, KERNEL_ATTRIBUTES
from gpu_profile.regimes import Regime, classify
from gpu_profile.regimes.evidence import Evidence
from gpu_profile.regimes.kernel_work import MOST_TOP, KernelWork, KernelWorks
from gpu_profile.regions.execution import Execution

OWN = "gpu_profile.kernels."
KINDS = {"int": int, "double": float, "string": str}


def told(*works: KernelWork) -> KernelWorks:
    found = KernelWorks()
    for work in works:
        found.add(work)
    return found


def is_of(value: Any, kind: str) -> bool:
    if kind.endswith("[]"):
        return isinstance(value, tuple) and all(is_of(each, kind[:-2]) for each in value)
    return type(value) is KINDS[kind]


# ---------------------------------------------------------------------- one execution


def test_attributes_have_the_catalogues_names_and_types() -> None:
    kinds = {row.name: row.type for row in ATTRIBUTES}
    full = replace(HUNGRY, evidence=replace(HUNGRY.evidence, reason="why")).attributes()
    assert full.keys() == {row.name for row in ATTRIBUTES if row.name.startswith(OWN)}
    assert [name for name, value in full.items() if not is_of(value, kinds[name])] == []


def test_times_are_seconds_and_shares_are_of_the_span_without_others_time() -> None:
    found = HUNGRY.attributes()
    assert (found[OWN + "span"], found[OWN + "others.time"], found[OWN + "host_wait.time"]) == (0.012, 0.002, 0.006)
    assert HUNGRY.host_wait_ns is not None
    assert found[OWN + "host_wait.ratio"] == 0.6 == HUNGRY.host_wait_ns / HUNGRY.whole_ns
    assert (found[OWN + "mean"], found[OWN + "copied"], found[OWN + "coverage"]) == (0.001, 4_000_000, 1.0)
    assert found[OWN + "top.names"] == (GEMM, RELU)
    assert found[OWN + "top.times"] == (0.0029, 0.0001)


def test_what_the_records_do_not_tell_is_absent_and_what_did_not_happen_is_0() -> None:
    found = TALKING.attributes()
    absent = {"copied", "memory.allocated", "memory.freed", "reason"}
    assert not {OWN + key for key in absent} & found.keys()
    assert (found[OWN + "copies"], found[OWN + "copy.time"], found[OWN + "transfer.ratio"]) == (0, 0.0, 0.0)
    nothing = NOTHING.attributes()
    assert (nothing[OWN + "n"], nothing[OWN + "count"]) == (0, 0)
    assert nothing[OWN + "reason"] == "nothing was launched in it"
    assert not [name for name in nothing if name.endswith((".ratio", ".mean")) or ".top." in name]
    assert OWN + "host_wait.time" not in nothing


def test_a_number_that_no_attribute_can_hold_is_left_out() -> None:
    assert OWN + "copied" in replace(HUNGRY, copy_bytes=2**63 - 1).attributes()
    assert OWN + "copied" not in replace(HUNGRY, copy_bytes=2**63).attributes()


def test_there_is_an_event_for_each_of_the_longest_kernels() -> None:
    first, second = HUNGRY.events()
    assert first == {"gpu_profile.kernel.name": GEMM, "gpu_profile.kernel.count": 2, "gpu_profile.kernel.time": 0.0029}
    assert second["gpu_profile.kernel.name"] == RELU
    kinds = {row.name: row.type for row in KERNEL_ATTRIBUTES}
    assert [name for name, value in first.items() if not is_of(value, kinds[name])] == []
    assert NOTHING.events() == []


def test_names_of_any_length_and_lists_of_any_length_stay_short() -> None:
    many = replace(HUNGRY, top=tuple((f"{i}" * 3_000, 1, 9 - i) for i in range(8)))
    names = many.attributes()[OWN + "top.names"]
    assert isinstance(names, tuple)
    assert [len(name) for name in names] == [500] * MOST_TOP
    assert [event["gpu_profile.kernel.name"] for event in many.events()] == list(names)


@pytest.mark.parametrize("work", [HUNGRY, TALKING, NOTHING], ids=["hungry", "talking", "nothing"])
def test_kernels_come_back_from_their_attributes(work: KernelWork) -> None:
    assert KernelWork.of_attributes({"gpu_profile.items": 3, **work.attributes(), "http.route": object()}) == work


@pytest.mark.parametrize(
    "change",
    [
        {"n": "4"},
        {"n": -1},
        {"count": None},
        {"count": 1.5},
        {"count": True},
        {"copied": [1]},
        {"span": None},
        {"span": "long"},
        {"span": -1.0},
        {"span": float("inf")},
        {"host_wait.time": float("nan")},
        {"busy.time": 1e300},
        {"busy.ratio": "half"},
        {"occupancy.ratio": {}},
        {"coverage": 10**400},
        {"reason": 0},
        {"top.names": "gemm"},
        {"top.names": ["gemm"]},
        {"top.names": [1, 2]},
        {"top.counts": [1, -2]},
        {"top.times": [1.0, None]},
    ],
)
def test_attributes_of_the_wrong_type_are_no_kernels(change: dict[str, Any]) -> None:
    found = {**HUNGRY.attributes(), **{OWN + key: value for key, value in change.items()}}
    assert KernelWork.of_attributes(found) is None


def test_other_attributes_are_no_kernels() -> None:
    assert KernelWork.of_attributes({}) is None
    assert KernelWork.of_attributes({OWN + "count": 3, OWN + "span": 1.0}) is None


def test_executions_have_no_kernels_of_their_own_until_some_are_set() -> None:
    first, second = Execution("a"), Execution("b")
    first.kernels, first.awaits_kernels = HUNGRY, True
    assert (second.kernels, second.awaits_kernels, Execution.kernels, Execution.awaits_kernels) == (
        None,
        False,
        None,
        False,
    )
    assert vars(second) == {}
    assert first.profiled() == HUNGRY.attributes()
    assert second.profiled() == {}


# ---------------------------------------------------------------------- those of a region


def test_sums_are_exact_and_what_only_some_tell_is_summed_over_these() -> None:
    found = told(HUNGRY, TALKING, HUNGRY, NOTHING)
    assert (found.executions, found.kernels, found.kernel_ns, found.span_ns) == (4, 15, 33_000_000, 54_000_000)
    assert (found.host_wait_ns, found.copies, found.copy_bytes) == (13_500_000, 2, 8_000_000)
    assert (found.allocated_bytes, found.freed_bytes, found.peak_bytes) == (2_000, 800, 9_000)
    assert (found.others_ns, found.whole_ns, found.mean_kernel_ns) == (4_000_000, 50_000_000, 2_200_000)
    assert found.overlap_ratio == 0.04
    assert found.occupancy == pytest.approx((0.5 * 6 + 0.25 * 27) / 33)
    assert found.top == ((ALL_REDUCE, 1, 25_000_000), (GEMM, 4, 5_800_000), (RELU, 10, 2_200_000))


def test_shares_are_means_over_own_time_and_the_mean_kernel_is_over_kernels() -> None:
    evidence = told(HUNGRY, TALKING).evidence()
    assert (evidence.basis, evidence.n) == ("kernels", 13)
    assert evidence.coverage == pytest.approx((1.0 * 1 + 0.9 * 3) / 4)
    assert evidence.values["host_wait"] == pytest.approx((0.6 * 1 + 0.05 * 3) / 4)
    assert evidence.values["kernel_s"] == pytest.approx((0.001 * 3 + 0.003 * 9) / 12)
    assert classify(told(HUNGRY, HUNGRY).evidence()).regime is Regime.HOST_BOUND
    assert classify(evidence).regime is Regime.COMMUNICATION_BOUND


def test_executions_that_launched_nothing_change_no_share() -> None:
    assert told(NOTHING, HUNGRY, NOTHING).evidence().values == pytest.approx(HUNGRY.evidence.values)
    assert told(NOTHING, HUNGRY).evidence().coverage == 1.0


def test_time_that_no_evidence_explains_lowers_the_coverage() -> None:
    blind = replace(NOTHING, span_ns=30_000_000, evidence=Evidence("kernels", {}, 5, 1.0, reason="no calls"))
    assert told(HUNGRY, blind).evidence().coverage == 0.25


def test_a_region_of_which_nothing_is_known_is_unknown_for_the_newest_reason() -> None:
    found = told(NOTHING, replace(NOTHING, evidence=replace(NOTHING.evidence, reason="records were lost")))
    assert (found.mean_kernel_ns, found.overlap_ratio, found.occupancy, found.host_wait_ns) == (None,) * 4
    assert found.top == ()
    verdict = classify(found.evidence())
    assert (verdict.regime, verdict.rule) == (Regime.UNKNOWN, "records were lost")


def test_executions_without_a_length_count() -> None:
    assert classify(told(*[replace(HUNGRY, span_ns=0, others_ns=0)] * 2).evidence()).regime is Regime.HOST_BOUND


def test_names_are_bounded_and_the_longest_stay() -> None:
    found = KernelWorks()
    for i in range(1_000):
        found.add(replace(HUNGRY, top=((GEMM, 2, 1_000_000), (f"jit {i}", 1, i))))
    assert len(found._times) <= 200
    assert found._times.keys() == found._counts.keys()
    assert found.top[0] == (GEMM, 2_000, 1_000_000_000)


def test_counters_are_those_of_the_catalogue_and_what_is_not_known_is_absent() -> None:
    found = told(HUNGRY, TALKING).counters()
    assert {*found} == {*rows.REGION_KERNEL_METRICS}
    assert found[rows.REGION_PROFILED] == 2
    assert found[rows.REGION_KERNEL_TIME] == 0.03
    assert found[rows.REGION_PROFILED_TIME] == 0.04
    assert found[rows.REGION_HOST_WAIT] == pytest.approx(0.0075)
    nothing = told(NOTHING).counters()
    assert {*rows.REGION_KERNEL_METRICS} - {*nothing} == {rows.REGION_COPIED, rows.REGION_HOST_WAIT}
    assert nothing[rows.REGION_KERNELS] == 0
