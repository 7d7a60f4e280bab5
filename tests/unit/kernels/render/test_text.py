import pytest
from support.kernels import FILL, INSTRUCTIONS, counted, hostile, on_cpu, report, steps

from gpu_profile.errors import UsageError
from gpu_profile.kernels.records import Call, Range, RangeCounters
from gpu_profile.kernels.render.text import render


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_whole_comes_first_then_a_row_for_each_region_then_kernels() -> None:
    found = lines(render(report()))
    assert found[0] == "a.json: 12 GPU operations on 1 device; 10 kernels, mean 5.00 ms"
    assert "busy 50.0 ms 55.6 % the span" in found
    assert "beside other kernels 4.00 ms 20.0 % communication" in found
    names = [line.split()[0] for line in found if line.startswith(("step ", "load ", "forward ", "in no region "))]
    assert names == ["step", "load", "forward", "in"]
    assert "ncclDevKernel_AllReduce_Sum_f32_RING_LL 2 20.0 ms 40.0 % 10.0 ms 10.0 ms" in found
    assert "regime: HOST_BOUND, confidence 58 %" in found


def test_every_share_of_a_region_stands_beneath_a_word_that_says_what_it_is_of() -> None:
    text = render(report())
    (head,) = [line for line in text.splitlines() if line.startswith("region ")]
    (row,) = [line for line in text.splitlines() if line.startswith("forward ")]
    assert "91.7 %" in row
    end = row.index("91.7 %") + len("91.7 %")
    assert head[:end].endswith("of span")


def test_one_region_in_detail_tells_what_made_up_its_span() -> None:
    found = lines(render(report(counted=counted()), region="forward", top=2))
    assert found[0] == "forward: 2 executions, 40.0 ms on the host; GPU 0"
    assert "communication that no kernel hides 16.0 ms 33.3 % the span" in found
    assert "GPU busy while it ran on the host 36.0 ms 90.0 % time on the host" in found
    assert "and 2 more names" in found
    assert "torch, GPU 0 2 6 MiB 2 2 MiB 4 MiB 3 MiB" in found
    assert f"{INSTRUCTIONS} 2,000 33.3 %" in found
    load = lines(render(report(), region="load"))
    assert "HtoD 2 4.00 ms 41.9 MB 10.5 GB/s" in load
    step = lines(render(report(), region="step"))
    assert "10 GPU operations, 10 of them launched in regions inside it" in step
    assert "2 calls waited for the GPU" in step


def test_an_unknown_region_is_answered_with_the_nearest_names() -> None:
    with pytest.raises(UsageError, match="did you mean 'forward'"):
        render(report(), region="forwrd")


def test_what_no_one_recorded_is_a_dash() -> None:
    bare = report([record for record in steps() if not isinstance(record, Call)])
    assert "waiting for the host – – the span" in lines(render(bare))


def test_dropped_records_and_notes_are_always_told() -> None:
    found = report([record for record in steps() if not isinstance(record, Call)] + [Call(1, 0, 1, 100)], dropped=7)
    for text in (render(found), render(found, region="step")):
        assert "note: the profiler lost 7 records: sums are too low" in text
        assert any(line.startswith("note: 11 operations whose launching call") for line in text.splitlines())


def test_operators_of_a_cpu_are_not_taken_for_kernels() -> None:
    text = render(report(on_cpu()))
    assert "no GPU operation in it" in text
    assert "aten::relu 2 4.00 ms 33.3 % 2.00 ms 3.00 ms" in lines(text)
    assert "in no region – – 2 4.00 ms 2.00 ms" in lines(text)
    assert "kernel" not in text
    assert "no GPU operation in it" in render(report(on_cpu()), region="step")


def test_names_cannot_act_upon_a_terminal() -> None:
    found = report(hostile())
    for text in (render(found), render(found, region=found.regions[0].name)):
        assert all(line.isprintable() for line in text.splitlines())


def test_of_many_regions_those_with_the_longest_busy_time_are_shown() -> None:
    records = [*steps(), *(Range(f"r{i}", 300, i, i + 1) for i in range(200))]
    text = render(report(records))
    assert "and 143 more regions with less busy time; --json has all" in text
    assert "forward " in text


def test_long_names_are_shortened_in_tables() -> None:
    records = [record._replace(name="x" * 300) if isinstance(record, Range) else record for record in steps()]
    text = render(report(records))
    assert max(map(len, text.splitlines())) < 170
    assert FILL not in text


def test_on_a_narrow_terminal_tables_go_without_what_is_missed_least() -> None:
    wide, narrow = render(report()), render(report(), width=80)
    tables = narrow.split("\n\n")[2:-1]  # without the verdict
    assert max(len(line) for table in tables for line in table.splitlines()) <= 80
    (head,) = [line for line in narrow.splitlines() if line.startswith("region ")]
    assert {"busy", "regime,"} <= {*head.split()}
    assert not {"copied", "mean", "host"} & {*head.split()}
    assert render(report(), width=500) == wide


def test_counters_tell_how_many_records_found_a_kernel() -> None:
    found = report(counted=[*counted(), RangeCounters("other", 0, {INSTRUCTIONS: 1.0})])
    says = "note: 2 counter records joined with kernels of the same name, 1 with nothing; 8 kernels without a record"
    for text in (render(found), render(found, region="forward")):
        assert says in text
    assert "counter record" not in render(report())
