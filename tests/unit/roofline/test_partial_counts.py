"""Of an operation that could be counted in part only, the part is never given as the whole."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.roofline import CEILINGS

from gpu_profile.regimes import DEFAULT_THRESHOLDS, Regime
from gpu_profile.regimes.operation import RegionOperation, RegionOperations
from gpu_profile.roofline import GPUProfiler, profile_model
from gpu_profile.roofline.machines.machine import Timing
from gpu_profile.roofline.position import place
from gpu_profile.roofline.precision import Precision
from gpu_profile.roofline.work import Work

torch: Any = pytest.importorskip("torch")
N = 64
SQUARE = torch.eye(N) + 0.1
EYE = torch.eye(N).to_sparse()


def ctc() -> Any:
    logits, targets = torch.zeros(20, 1, 5), torch.ones(1, 3, dtype=torch.long)
    return torch.nn.functional.ctc_loss(logits, targets, [20], [3], reduction="sum")


def attention() -> Any:
    with torch.no_grad():
        layer = torch.nn.MultiheadAttention(N, 4, batch_first=True).eval()
        return layer(*[torch.ones(1, 8, N)] * 3)[0].relu()


CASES: dict[str, tuple[Callable[[], object], int]] = {
    "lstsq": (lambda: torch.linalg.lstsq(SQUARE, SQUARE)[0] + 1, N * N),
    "pinv": (lambda: torch.linalg.pinv(SQUARE) + 1, N * N),
    "ctc": (lambda: ctc() + 1, 1),
    "sparse times sparse": (lambda: torch.sparse.mm(EYE, EYE).to_dense() + 1, N * N),
}

#: Each is followed by an operation that is counted anyway: the whole is the sum.
WHOLES: dict[str, tuple[Callable[[], object], int]] = {
    "bilinear": (
        lambda: torch.nn.functional.bilinear(torch.ones(8, N), torch.ones(8, N), torch.ones(32, N, N), torch.ones(32)),
        2 * (8 * 32 * N * N + 8 * 32 * N) + 8 * 32,
    ),
    "inv": (lambda: torch.linalg.inv(SQUARE) + 1, 2 * N**3 + N * N),
    "solve": (lambda: torch.linalg.solve(SQUARE, SQUARE) + 1, round(2 * N**3 / 3) + 2 * N**3 + N * N),
    "svd": (lambda: torch.linalg.svd(SQUARE)[0] + 1, 21 * N**3 + N * N),
    "attention": (attention, 8 * (8 * N * N + 4 * N) + 4 * 8 * 8 * N + 4 * 8 * 8 + 8 * N),
}


@pytest.mark.parametrize("case", WHOLES)
def test_the_whole_of_a_composite_is_the_sum_of_all_its_parts(profiler: GPUProfiler, case: str) -> None:
    function, whole = WHOLES[case]
    found = profiler.profile_operation(function, passes=2)
    assert (found["flops"], found["flops_at_least"]) == (whole, None)
    assert found["counted"]["coverage"] == 1.0


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("case", CASES)
def test_the_part_is_flagged_and_no_verdict_rests_on_it(profiler: GPUProfiler, case: str) -> None:
    function, part = CASES[case]
    found = profiler.profile_operation(function, passes=2)
    assert (found["flops"], found["flops_at_least"]) == (None, part)
    assert found["reasons"]["flops"].startswith("no formula for aten.")
    assert 0 < found["counted"]["coverage"] < 1
    assert all(
        found[key] is None for key in ("achieved_flops", "flops_utilization", "compute_intensity", "attainable_flops")
    )
    assert found["regime"] in ("UNKNOWN", "OVERHEAD_BOUND")
    json.dumps(found)


def test_coverage_is_by_bytes_and_not_by_how_many_operations_there_are(profiler: GPUProfiler) -> None:
    small, large = torch.ones(2), torch.eye(512)

    def mostly_unknown() -> None:
        for _ in range(100):
            small + 1
        torch.linalg.pinv(large)

    found = profiler.profile_operation(mostly_unknown, passes=2)["counted"]
    assert found["operations"] > 100
    assert found["coverage"] < 0.01


def placed(work: Work) -> Any:
    return place(work, [Timing(1.0, 1.0, 0)], CEILINGS)


def test_flops_of_a_part_decide_where_the_rest_can_only_confirm_it() -> None:
    ceiling, bandwidth = CEILINGS.compute[Precision.FP32].value, CEILINGS.levels[-1].bandwidth.value
    for compute, memory, regime in ((0.8, 0.1, Regime.COMPUTE_BOUND), (0.3, 0.25, None), (0.1, 0.8, None)):
        flops = int(compute * ceiling)
        part = Work(None, int(memory * bandwidth), {Precision.FP32: flops}, 2, unknown={"svd": 1}, at_least=flops)
        position = placed(part)
        assert position.compute == (None if regime is None else pytest.approx(compute))
        assert position.verdict(DEFAULT_THRESHOLDS).regime is (regime or Regime.UNKNOWN)
        assert position.flops_per_s is None


def test_spans_and_regions_carry_the_flag() -> None:
    part = RegionOperation(bytes=8, at_least=5, memory=0.1, overhead=0.0, reason="no formula for svd")
    said = part.attributes()
    assert "gpu_profile.operation.flops" not in said
    assert said["gpu_profile.operation.flops.at_least"] == 5
    assert RegionOperation.of_attributes(said) == part
    region = RegionOperations()
    region.add(RegionOperation(flops=7, bytes=8), 1)
    assert (region.flops, region.at_least) == (7, None)
    region.add(part, 1)
    assert (region.flops, region.at_least, region.counted) == (None, 12, 12)


class Head(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return torch.linalg.pinv(x @ x.T + torch.eye(len(x))) + 1


def test_a_model_s_table_and_values_flag_it(profiler: GPUProfiler) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(N, N, bias=False), Head())
    found = profile_model(model, torch.ones(8, N), profiler=profiler, passes=2)
    head = next(row for row in found.rows if row.type == "Head")
    part = 2 * 8 * 8 * N + 8 * 8 + 8 * 8
    assert (head.flops, head.work.at_least) == (None, part)
    assert f"≥ {part / 1e3:.3g} k" in found.text()
    values = found.to_dict()
    assert (values["whole"]["flops"], values["whole"]["flops_at_least"]) == (None, part + 2 * 8 * N * N)
