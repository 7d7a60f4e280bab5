from benchmarks.busy_time import Setting, cases


def test_a_world_of_the_benchmark_measures_a_region_on_a_driver_that_lacks_all_but_utilisation() -> None:
    (case,) = cases(Setting(), "busy", [2.0])
    assert case.off < 0.1
    assert case.low <= case.truth <= case.high
