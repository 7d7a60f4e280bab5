"""The costs of exporters, from windows of the same seconds."""

import pytest
from benchmarks.exporter_cost import Cost, mean_cost


def test_the_cost_of_windows_is_the_mean_of_each_part_and_of_each_function() -> None:
    cost = mean_cost([Cost(0.01, 0.02, {"nvmlInit": 1.0, "nvmlShutdown": 2.0}), Cost(0.03, 0.04, {"nvmlInit": 2.0})])
    assert (cost.own, cost.children, cost.cpu) == pytest.approx((0.02, 0.03, 0.05))
    assert cost.calls == {"nvmlInit": 1.5, "nvmlShutdown": 1.0}
