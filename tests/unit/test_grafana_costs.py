"""Money and carbon of LLM serving, as Prometheus itself computes them from the exporter's series."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RULES = Path(__file__).parents[2] / "grafana" / "rules"
sys.path.append(str(RULES.parent))
import costs  # noqa: E402

MINUTES = 10
ENGINE = 'instance="n:9400", engine="e"'


def counter(name: str, labels: str, per_s: float) -> dict[str, str]:
    """A counter that grows by `per_s`, read every 15 s."""
    return {"series": f"{name}{{{ENGINE}{labels}}}", "values": f"0+{per_s * 15}x{4 * MINUTES}"}


def gpu(uuid: str, name: str, engine: str = "e") -> list[dict[str, str]]:
    """A GPU of an engine."""
    values = f"1x{4 * MINUTES}"
    device = f'gpu_profile_serving_device{{instance="n:9400", engine="{engine}", hw_id="{uuid}"}}'
    info = f'gpu_profile_device_info{{instance="node:9400", hw_id="{uuid}", hw_name="{name}"}}'
    return [{"series": device, "values": values}, {"series": info, "values": values}]


def expected(expr: str, **values: float) -> dict[str, Any]:
    """The answer to a query: a value for each tenant, one without labels for none."""
    samples = []
    for tenant, value in values.items():
        rest = f', tenant="{tenant}", phase="decode"' if tenant != "none" else ""
        samples.append({"labels": f"{{{ENGINE}{rest}}}", "value": value})
    return {"expr": expr, "eval_time": f"{MINUTES}m", "exp_samples": samples}


@pytest.mark.debian
@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_two_gpus_are_paid_for_by_their_tenants_and_the_rest_is_nobodys(tmp_path: Path) -> None:
    """An H200 has 3.5 an hour. Tenant a uses 0.9 GPUs of the two and 360 W, b 0.3 and 36 W; 100 W are idle."""
    a, b = (f', tenant="{tenant}", phase="decode"' for tenant in "ab")
    series = [
        *gpu("GPU-1", "NVIDIA H200"), *gpu("GPU-2", "NVIDIA H200"), *gpu("GPU-3", "No such GPU", "free"),
        counter("gpu_profile_serving_device_time_seconds_total", a, 0.9),
        counter("gpu_profile_serving_device_time_seconds_total", b, 0.3),
        counter("gpu_profile_serving_energy_joules_total", a, 360),
        counter("gpu_profile_serving_energy_joules_total", b, 36),
        counter("gpu_profile_serving_energy_unallocated_joules_total", ', reason="idle"', 100),
        counter("gpu_profile_serving_tokens_total", a, 2_000),
        counter("gpu_profile_serving_tokens_total", b, 0),
    ]  # fmt: skip
    second = 3.5 / 3600
    asked = [
        expected(costs.ENGINE_PRICE, none=second),
        expected(costs.COST, a=0.9 * second, b=0.3 * second),
        expected(costs.UNALLOCATED_COST, none=0.8 * second),
        expected(costs.COST_PER_1000, a=0.9 * second / 2),
        expected(costs.CARBON, a=360 / 3.6e6 * 400, b=36 / 3.6e6 * 400),
        expected(costs.UNALLOCATED_CARBON, none=100 / 3.6e6 * 400),
    ]
    for each in asked:
        # In whole billionths, because sums of floats differ in their last digits.
        each["expr"] = f"round({each['expr']} * 1e9)"
        for sample in each["exp_samples"]:
            sample["value"] = round(sample["value"] * 1e9)
    path = tmp_path / "test.json"
    files = [str(RULES / f"gpu-profile-{name}.yaml") for name in ("prices", "costs")]
    test = {"interval": "15s", "input_series": series, "promql_expr_test": asked}
    path.write_text(json.dumps({"rule_files": files, "evaluation_interval": "15s", "tests": [test]}))
    run = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
