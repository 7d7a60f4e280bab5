import json

import pytest
from benchmarks import accepted
from benchmarks.fleet_needs import Measured, cells, columns, needs, table_rows

MEASURED = Measured(series=595.0, scrape=13.0, memory=4.0, processor=3.0, disk=2.0, log=6.0, span=100.0, row=50.0)


def test_needs_follow_from_one_sample_one_series_and_one_span() -> None:
    found = needs(1_000, MEASURED)
    assert (found.nodes, found.series, found.samples_per_s) == (125, 75_000, 5_000)
    assert found.scrapes_bytes_per_s == 65_000
    assert found.memory_bytes == pytest.approx(300e6)
    assert found.cores == pytest.approx(0.015)
    assert found.disk_bytes == 5_000 * (2 * 30 * 86_400 + 6 * 3 * 3_600)
    assert (found.spans_per_s, found.spans_bytes_per_s) == (10_000, 1e6)
    assert found.rows_bytes == 10_000 * 50 * 7 * 86_400


def test_a_part_of_a_node_is_a_node() -> None:
    assert [needs(gpus, MEASURED).nodes for gpus in (1, 8, 9, 10)] == [1, 1, 2, 2]


def test_each_row_of_the_table_has_a_cell_for_each_fleet() -> None:
    assert columns() == ("quantity", "10 GPUs", "1,000 GPUs", "10,000 GPUs")
    assert {len(row) for row in table_rows(MEASURED)} == {4}
    assert ("Prometheus: memory of the series", "4.8 MB", "300 MB", "3.0 GB") in table_rows(MEASURED)


def test_a_figure_that_was_not_measured_is_an_error() -> None:
    with pytest.raises(KeyError, match="Prometheus: memory"):
        Measured.of({"series of a node": 595.0, "a scrape": 13.0})


def test_the_accepted_rows_give_a_table() -> None:
    rows = json.loads(accepted.PATH.read_text(encoding="utf-8"))["fleet-size"]
    head, body = cells(rows)
    assert (len(head), len(body)) == (4, 10)
