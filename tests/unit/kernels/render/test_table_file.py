import csv
import io

import pytest
from support.kernels import ADD, EVIL, FILL, GEMM, REDUCE, hostile, on_cpu, report

from gpu_profile.errors import UsageError
from gpu_profile.kernels.records import Call, Kind, Operation, Range, Record
from gpu_profile.kernels.region import RegionKernels
from gpu_profile.kernels.render.table_file import kernels_csv
from gpu_profile.regimes import Verdict


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_row_for_each_region_and_kernel_with_whole_names() -> None:
    found = rows(kernels_csv(report()))
    assert [(row["region"], row["kernel"]) for row in found if row["region"] != "step"] == [
        ("forward", REDUCE), ("forward", GEMM), ("forward", FILL), ("forward", ADD), ("", FILL)
    ]  # fmt: skip
    gemm = next(row for row in found if (row["region"], row["kernel"]) == ("forward", GEMM))
    assert [gemm[key] for key in ("count", "total_s", "mean_s", "max_s")] == ["2", "0.016", "0.008", "0.008"]
    assert float(gemm["share_of_region_kernel_s_ratio"]) == pytest.approx(1 / 3)
    assert (gemm["region_span_s"], gemm["regime"], gemm["runs_on"]) == ("0.048", "COMMUNICATION_BOUND", "gpu")


def test_shares_of_a_region_add_up_to_one() -> None:
    found = rows(kernels_csv(report(), region="forward"))
    assert {row["region"] for row in found} == {"forward"}
    assert sum(float(row["share_of_region_kernel_s_ratio"]) for row in found) == pytest.approx(1)


def test_an_unknown_region_is_an_error() -> None:
    with pytest.raises(UsageError, match="no region 'x'"):
        kernels_csv(report(), region="x")


def test_a_cpu_says_that_it_is_one_and_has_no_span_on_a_gpu() -> None:
    found = rows(kernels_csv(report(on_cpu())))
    assert {(row["runs_on"], row["region_span_s"]) for row in found} == {("host", "")}


def test_what_ran_in_no_region_has_no_executions() -> None:
    *_, last = rows(kernels_csv(report()))
    assert [last[key] for key in ("region", "executions", "region_host_s")] == [""] * 3


def test_a_region_is_judged_once_however_many_kernels_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []
    verdict = RegionKernels.verdict

    def counting(region: RegionKernels) -> Verdict:
        judged.append(region.name)
        return verdict(region)

    monkeypatch.setattr(RegionKernels, "verdict", counting)
    kernels_csv(report(), region="forward")
    assert judged == ["forward"]


def test_names_are_no_formulas_and_hold_no_control_characters() -> None:
    records: list[Record] = [Range("=1+1", 1, 0, 100), Call(1, 5, 6, 1)]
    records.append(Operation(Kind.KERNEL, 0, 7, 10, 20, "@SUM(A1)", 1))
    (row,) = rows(kernels_csv(report(records)))
    assert (row["region"], row["kernel"]) == ("'=1+1", "'@SUM(A1)")
    (row,) = rows(kernels_csv(report(hostile())))
    assert row["region"] == EVIL.encode("unicode_escape", "backslashreplace").decode("ascii")
