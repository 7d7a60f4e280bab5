import pytest

from gpu_profile.join.unmixing.pools.schedule import SearchSchedule


def due(schedule: SearchSchedule, *, kept: int = 10_000, columns: int = 3, final: bool = False) -> bool:
    return schedule.due(kept, columns, final=final)


def test_the_first_search_needs_eight_windows_a_column_or_three_at_the_end() -> None:
    schedule = SearchSchedule()
    schedule.add(8)
    assert not due(schedule, final=True)
    schedule.add(1)
    assert due(schedule, final=True)
    assert not due(schedule)
    schedule.add(15)
    assert due(schedule)
    assert not due(schedule, kept=23)
    assert not due(schedule, columns=1)


def test_it_is_repeated_when_the_windows_are_four_times_as_many_or_a_quarter_more_at_the_end() -> None:
    schedule = SearchSchedule()
    schedule.add(40)
    schedule.searched()
    schedule.add(10)
    assert due(schedule, final=True)
    assert not due(schedule)
    schedule.add(109)
    assert not due(schedule)
    schedule.add(1)
    assert due(schedule)


def test_a_thousand_windows_are_searched_whatever_was_searched_before() -> None:
    schedule = SearchSchedule()
    schedule.add(999)
    schedule.searched()
    assert not due(schedule)
    schedule.add(1)
    assert due(schedule)
    schedule.restart()
    assert not due(schedule)


@pytest.mark.parametrize(("windows", "unsure", "sure"), [(299, False, False), (300, False, True), (1000, True, True)])
def test_a_sure_timing_is_kept_after_300_windows_and_another_one_after_1000(
    windows: int, unsure: bool, sure: bool
) -> None:
    schedule = SearchSchedule()
    schedule.add(windows)
    assert (schedule.locks(sure=False), schedule.locks(sure=True)) == (unsure, sure)
