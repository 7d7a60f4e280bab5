"""Which region has launched what, and whose the backward pass is."""

from support.traces import MAIN, WORKER, launch, report

from gpu_profile.kernels.records import Call, Kind, Launched, Operation, Operator, Range

#: A forward operator and its backward pass on a thread of its own, and what that launches.
PASSES = Range("forward", MAIN, 0, 50), Range("backward", MAIN, 60, 200)
MM = Operator("aten::mm", MAIN, 10, 20, sequence=5)
MM_BACKWARD = Operator("MmBackward0", WORKER, 100, 150, sequence=5, backward=True)
LAUNCH = launch(2, 110, 120, 160, thread=WORKER)


def test_an_operation_belongs_to_the_region_that_launched_it_wherever_it_runs() -> None:
    found = report(
        Range("early", MAIN, 0, 100), Range("late", MAIN, 100, 400), launch(1, 50, 150, 300), launch(2, 120, 300, 310)
    )
    early, late = found.regions
    assert (early.name, early.operations, early.busy_ns) == ("early", 1, 150)
    assert (late.name, late.operations, late.busy_ns) == ("late", 1, 10)
    # By time instead of by launch it looks the other way round.
    assert (early.beside_ns, late.beside_ns) == (0, 160)
    assert found.outside is None


def test_a_region_has_what_regions_inside_it_launched_and_tells_its_own_apart() -> None:
    found = report(
        Range("step", MAIN, 0, 100), Range("forward", MAIN, 10, 50), launch(1, 20, 30, 40), launch(2, 60, 70, 90)
    )
    step, forward = found.regions
    assert (step.operations, step.own, step.busy_ns) == (2, 1, 30)
    assert (forward.operations, forward.own, forward.busy_ns) == (1, 1, 10)


def test_other_threads_regions_have_nothing_to_do_with_a_launch() -> None:
    found = report(Range("mine", MAIN, 0, 100), Range("theirs", WORKER, 0, 100), launch(1, 20, 30, 40))
    assert [(r.name, r.operations) for r in found.regions] == [("mine", 1), ("theirs", 0)]


def test_what_was_launched_in_no_region_is_told_apart() -> None:
    found = report(Range("a", MAIN, 0, 10), launch(1, 20, 30, 40), launch(2, 5, 50, 60))
    assert found.outside is not None
    assert (found.outside.name, found.outside.operations, found.outside.busy_ns) == ("", 1, 10)
    assert found.region("a").operations == 1


def test_executions_of_one_name_are_one_region_and_those_inside_themselves_count_once() -> None:
    found = report(
        Range("walk", MAIN, 0, 100),
        Range("walk", MAIN, 10, 90),
        Range("walk", MAIN, 200, 250),
        launch(1, 20, 30, 40),
        launch(2, 210, 220, 225),
    )
    (walk,) = found.regions
    assert (walk.executions, walk.host_ns, walk.operations, walk.busy_ns) == (3, 150, 2, 15)


def test_an_external_correlation_is_nearer_than_the_thread_and_the_moment() -> None:
    found = report(
        Range("task a", MAIN, 0, 100, id=1), Range("task b", MAIN, 10, 90, id=2), launch(7, 50, 60, 70), Launched(7, 1)
    )
    assert [(r.name, r.own) for r in found.regions] == [("task a", 1), ("task b", 0)]


def test_of_external_correlations_inside_one_another_the_innermost_counts() -> None:
    found = report(
        Range("outer", MAIN, 0, 100, id=1),
        Range("inner", MAIN, 10, 90, id=2, parent=1),
        launch(7, 50, 60, 70),
        Launched(7, 2),
        Launched(7, 1),
    )
    assert [(r.name, r.own, r.operations) for r in found.regions] == [("outer", 0, 1), ("inner", 1, 1)]


def test_a_told_parent_on_another_thread_has_what_its_child_launched() -> None:
    found = report(
        Range("request", MAIN, 0, 100, id=1),
        Range("job", WORKER, 20, 60, id=2, parent=1),
        launch(1, 30, 40, 50, thread=WORKER),
    )
    assert [(r.name, r.operations) for r in found.regions] == [("request", 1), ("job", 1)]


def test_parents_that_go_round_in_circles_do_no_harm() -> None:
    found = report(
        Range("a", MAIN, 0, 100, id=1, parent=2), Range("b", WORKER, 5, 90, id=2, parent=1), launch(1, 10, 20, 30)
    )
    assert [(r.name, r.operations) for r in found.regions] == [("a", 1), ("b", 0)]


def test_a_told_parent_may_begin_at_the_same_moment_and_be_recorded_after_its_child() -> None:
    found = report(
        Range("job", WORKER, 0, 60, id=2, parent=1),
        Range("request", MAIN, 0, 100, id=1),
        launch(1, 30, 40, 50, thread=WORKER),
    )
    assert {r.name: (r.operations, r.own) for r in found.regions} == {"job": (1, 1), "request": (1, 0)}


def test_no_circle_comes_of_a_told_parent_that_is_inside_its_child() -> None:
    found = report(
        Range("inner", MAIN, 0, 50, id=1), Range("outer", MAIN, 0, 100, id=2, parent=1), launch(1, 10, 20, 30)
    )
    assert {r.name: (r.operations, r.own) for r in found.regions} == {"inner": (1, 1), "outer": (1, 0)}


def test_regions_that_cross_on_a_thread_are_counted_and_the_last_begun_is_taken() -> None:
    found = report(Range("a", MAIN, 0, 50), Range("b", MAIN, 20, 100), launch(1, 30, 40, 45), launch(2, 60, 70, 75))
    assert found.region("b").own == 2
    assert dict(found.notes) == {"regions that end after one that they began in, on the same thread": 1}


def test_of_regions_that_cross_as_coroutines_do_neither_has_what_the_other_launched() -> None:
    us = 1_000
    found = report(
        Range("step", MAIN, 0, 900 * us),
        Range("a", MAIN, 10 * us, 50 * us),
        Range("b", MAIN, 20 * us, 100 * us),
        *(launch(n, at * us, at * us + 5, at * us + 9) for n, at in enumerate((15, 30, 60, 70), start=1)),
    )
    assert {r.name: (r.operations, r.own) for r in found.regions} == {"step": (4, 0), "a": (1, 1), "b": (3, 3)}


def test_a_region_that_ends_later_than_what_is_around_it_by_rounding_alone_is_inside() -> None:
    us = 1_000
    found = report(
        Range("outer", MAIN, 0, 50 * us), Range("inner", MAIN, 20 * us, 51 * us), launch(1, 30 * us, 40 * us, 45 * us)
    )
    assert found.region("outer").operations == 1


def test_operations_without_a_call_or_with_an_unclear_one_are_counted_and_belong_to_nobody() -> None:
    found = report(
        Range("a", MAIN, 0, 100),
        Operation(Kind.KERNEL, 0, 7, 10, 20, "k", None),
        launch(3, 5, 30, 40),
        Call(3, 60, 65, WORKER, "cudaLaunchKernel"),
    )
    assert found.region("a").operations == 0
    assert found.outside is not None
    assert found.outside.operations == 2
    assert dict(found.notes) == {
        "operations whose launching call is not recorded": 1,
        "operations whose correlation id several calls have": 1,
    }


def test_all_operations_of_a_graph_belong_to_the_region_that_launched_the_graph() -> None:
    found = report(
        Range("replay", MAIN, 0, 100),
        Call(9, 10, 12, MAIN, "cudaGraphLaunch"),
        Operation(Kind.KERNEL, 0, 7, 20, 30, "a", 9),
        Operation(Kind.KERNEL, 0, 8, 25, 45, "b", 9),
        launch(10, 50, 60, 70),
    )
    replay = found.region("replay")
    assert (replay.operations, replay.graph, replay.busy_ns) == (3, 2, 35)


def test_the_backward_pass_belongs_to_the_region_of_its_forward_and_is_inside_the_one_that_waits_for_it() -> None:
    found = report(*PASSES, MM, MM_BACKWARD, launch(1, 12, 20, 30), LAUNCH)
    forward, backward = found.region("forward"), found.region("backward")
    assert (forward.operations, forward.own, forward.backward, forward.backward_ns) == (2, 2, 1, 40)
    assert (backward.operations, backward.own, backward.backward) == (1, 0, 1)


def test_on_one_thread_the_backward_pass_belongs_to_the_forward_s_region_too() -> None:
    found = report(
        *PASSES, MM, Operator("MmBackward0", MAIN, 100, 150, sequence=5, backward=True), launch(2, 110, 120, 160)
    )
    assert [(r.name, r.operations, r.own) for r in found.regions] == [("forward", 1, 1), ("backward", 1, 0)]


def test_a_region_that_a_hook_opens_within_the_backward_pass_has_what_it_launches() -> None:
    found = report(*PASSES, Range("all_reduce", WORKER, 105, 130), MM, MM_BACKWARD, LAUNCH)
    assert [(r.name, r.operations) for r in found.regions] == [("forward", 0), ("backward", 1), ("all_reduce", 1)]


def test_a_backward_pass_whose_forward_was_in_no_region_belongs_to_the_one_that_waits_for_it() -> None:
    found = report(Range("backward", MAIN, 60, 200), MM, MM_BACKWARD, LAUNCH)
    assert [(r.name, r.operations, r.own) for r in found.regions] == [("backward", 1, 1)]


def test_what_accumulates_gradients_belongs_to_the_region_that_waits_for_the_backward_pass() -> None:
    found = report(*PASSES, MM, MM_BACKWARD, LAUNCH, launch(3, 170, 180, 190, thread=WORKER))
    assert [(r.name, r.operations, r.own, r.backward) for r in found.regions] == [
        ("forward", 1, 1, 1),
        ("backward", 2, 1, 2),
    ]


def test_which_of_several_threads_waits_for_a_worker_s_launch_stays_open() -> None:
    found = report(
        Range("one", MAIN, 0, 500),
        Range("two", 300, 0, 500),
        MM,
        Operator("aten::mm", 300, 10, 20, sequence=6),
        MM_BACKWARD,
        Operator("MmBackward0", WORKER, 200, 250, sequence=6, backward=True),
        LAUNCH,
        launch(3, 210, 220, 230, thread=WORKER),
        launch(4, 270, 280, 290, thread=WORKER),
    )
    assert [(r.name, r.operations) for r in found.regions] == [("one", 1), ("two", 1)]
    assert found.outside is not None
    assert found.outside.operations == 1


def test_forwards_of_one_number_on_several_threads_leave_it_open_whose_backward_it_is() -> None:
    found = report(
        Range("one", MAIN, 0, 50),
        Range("two", 300, 0, 50),
        MM,
        Operator("aten::mm", 300, 10, 20, sequence=5),
        MM_BACKWARD,
        LAUNCH,
    )
    assert [(r.name, r.operations) for r in found.regions] == [("one", 0), ("two", 0)]
    assert dict(found.notes) == {"operations of a backward pass whose forward could be on several threads": 1}
