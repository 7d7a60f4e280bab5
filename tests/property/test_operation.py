import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.catalogue.attributes import ATTRIBUTES
from gpu_profile.regimes import classify
from gpu_profile.regimes.operation import RegionOperation, RegionOperations

counts = st.none() | st.integers(0, 2**63 - 1)
shares = st.none() | st.floats(0, 1.2)
operations = st.builds(
    RegionOperation,
    flops=counts,
    bytes=counts,
    precision=st.sampled_from(["", "fp64", "fp32", "tf32", "bf16"]),
    compute=shares,
    memory=shares,
    overhead=st.none() | st.floats(0, 1),
    growth=st.none() | st.floats(0, 1e3),
    n=st.integers(1, 10_000),
    reason=st.text(max_size=20),
)


@given(operations)
def test_an_operation_comes_back_from_its_attributes_and_from_their_json(operation: RegionOperation) -> None:
    attributes = operation.attributes()
    assert None not in attributes.values()
    for found in (attributes, json.loads(json.dumps(attributes))):
        assert RegionOperation.of_attributes(found) == operation


@given(
    st.dictionaries(
        st.sampled_from([row.name for row in ATTRIBUTES if ".operation." in row.name]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers(), max_size=2),
    )
)
def test_any_attributes_are_an_operation_or_none_and_it_can_be_judged(found: dict[str, Any]) -> None:
    operation = RegionOperation.of_attributes(found)
    if operation is not None:
        assert 0 <= classify(operation.evidence()).confidence <= 1
        assert operation.attributes().keys() <= {row.name for row in ATTRIBUTES}


@given(st.lists(st.tuples(operations, st.integers(0, 10**12)), min_size=1, max_size=8), st.integers(0, 10**13))
def test_totals_are_exact_and_means_lie_between_the_least_and_the_most(
    told: list[tuple[RegionOperation, int]], whole_ns: int
) -> None:
    totals = RegionOperations()
    for operation, ns in told:
        totals.add(operation, ns)
    totals.whole_ns = whole_ns
    for name, total in (("flops", totals.flops), ("bytes", totals.bytes)):
        known = [value for operation, _ in told if (value := getattr(operation, name)) is not None]
        assert total == (sum(known) if known else None)
    evidence = totals.evidence()
    assert 0 <= evidence.coverage <= 1
    for name, mean in evidence.values.items():
        known = [v for o, _ in told if o.overhead is not None and (v := o.evidence().get(name)) is not None]
        assert min(known) - 1e-9 <= mean <= max(known) * (1 + 1e-9)
    assert 0 <= classify(evidence).confidence <= 1
