from pathlib import Path

import pytest
from benchmarks import accepted, run
from benchmarks.accepted import Accepted, Table, accept, beside, load, save
from benchmarks.rows import Row


def known(*costs: float, ok: bool = True) -> Accepted:
    return Accepted(Row("join", "1 ms", ok=ok), costs)


@pytest.mark.parametrize(
    ("before", "cost", "moved"),
    [
        (known(1.0), 1.14, 0),
        (known(1.0), 1.16, 1),
        (known(1.0), 0.84, -1),
        (known(0.9, 1.0, 1.3), 1.35, 0),  # the turns differ by more than 15 %
        (known(0.9, 1.0, 1.3), 1.45, 1),
        (known(0.0), 1.0, 1),
        (known(), 5.0, 0),
        (known(1.0), None, 0),
    ],
)
def test_a_cost_moves_beyond_15_percent_and_beyond_the_spread_of_its_turns(
    before: Accepted, cost: float | None, moved: int
) -> None:
    row = Row("join", "2 ms", cost=cost)
    assert before.moved(cost) == moved
    assert before.worse(row) == (moved > 0)
    assert beside(row, before).startswith({1: "WORSE: ", 0: "", -1: "better: "}[moved])


def test_a_row_that_falls_short_is_worse_only_if_it_did_not_before() -> None:
    assert known().worse(Row("join", "2 ms", ok=False))
    assert not known(ok=False).worse(Row("join", "2 ms", ok=False))
    assert beside(Row("join", "2 ms"), None) == "new"


def test_accepting_adds_turns_until_a_row_moves(tmp_path: Path) -> None:
    table: Table = {}
    for cost in (9.0, 1.0, 1.1, 1.0, 1.05, 0.95, 1.02):
        accept(table, "heart", [Row("join", f"{cost} ms", reach="<=2 ms", cost=cost), Row("equal", "yes")])
    save(table, tmp_path / "accepted.json")
    assert load(tmp_path / "accepted.json") == table
    assert table["heart"]["join"].costs == (1.1, 1.0, 1.05, 0.95, 1.02)
    assert table["heart"]["join"].row.figure == "1.02 ms"
    accept(table, "heart", [Row("join", "0.5 ms", cost=0.5)])
    assert {name: row.costs for name, row in table["heart"].items()} == {"join": (0.5,)}


def test_a_run_fails_for_rows_that_are_worse_or_gone_and_accepts_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, costs = tmp_path / "accepted.json", {"join": 1.0, "seal": 1.0}
    monkeypatch.setattr(accepted, "load", lambda: load(path))
    monkeypatch.setattr(accepted, "save", lambda table: save(table, path))
    monkeypatch.setattr(run, "GROUPS", {"heart": lambda: (Row(name, "-", cost=cost) for name, cost in costs.items())})
    monkeypatch.setattr(run, "SAMPLES", {})
    monkeypatch.setenv("ACCEPT", "1")
    assert run.main([]) == 0
    monkeypatch.delenv("ACCEPT")
    costs["join"] = 2.0
    del costs["seal"]
    capsys.readouterr()
    assert run.main(["heart"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[1:] == ["join | - | - | - | - | ok | WORSE: 2, accepted 1", "seal | WORSE: not measured"]
    assert run.main(["hart"]) == 2


def test_all_groups_take_samples_which_are_accepted_apart_from_whole_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "accepted.json"
    monkeypatch.setattr(accepted, "load", lambda: load(path))
    monkeypatch.setattr(accepted, "save", lambda table: save(table, path))
    monkeypatch.setattr(run, "GROUPS", {"heart": lambda: iter([Row("join", "all", cost=1.0)])})
    monkeypatch.setattr(run, "SAMPLES", {"heart": lambda: iter([Row("join", "some", cost=9.0)])})
    monkeypatch.setenv("ACCEPT", "1")
    assert run.main(["heart"]) == run.main([]) == 0
    assert "WORSE" not in capsys.readouterr().out
    table = load(path)
    assert {group: rows["join"].row.figure for group, rows in table.items()} == {"heart": "all", "heart sample": "some"}
