"""How the rows about spinning count: a kernel that waits is reported on every board, and a copy on none."""

import pytest
from benchmarks import spinning
from benchmarks.regime_kernels import spin
from benchmarks.regime_machines import A100, copy, execute, wait
from benchmarks.spinning import BOARDS, LOADS, Board, Watch

OLD = Board(A100, "coarse")


def test_every_load_of_the_row_is_there_on_every_board() -> None:
    assert len(LOADS) == 15
    assert {board.sensors for board in BOARDS} == {"library", "exporter", "coarse"}
    assert len(BOARDS) == 9


def test_a_waiting_kernel_is_reported_and_a_copy_is_not() -> None:
    waits = execute(A100, spin(A100, 1.0, sms=0.2)).over(60.0)
    watch = Watch(OLD, (wait(A100, 60.0), waits), 1, 120, 1.0)
    begun = float(watch.sensors.edges[1])
    assert 15 <= next(watch.reports()) - begun <= 20
    copies = copy(A100, 1e9, "pcie_rx").over(60.0)
    assert not list(Watch(OLD, (wait(A100, 60.0), copies), 1, 120, 1.0).reports())


def test_an_alarm_is_named_with_its_board(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = execute(A100, spin(A100, 1.0, sms=0.2))
    monkeypatch.setattr(spinning, "BOARDS", (OLD,))
    monkeypatch.setattr(spinning, "_DAY_S", 300)
    monkeypatch.setattr(spinning, "_loads", lambda _: {"waits": (waits,)})
    assert spinning.alarms("waits") == ["A100 (coarse)"]
