"""Reading NCCL Inspector's files: any content gives collectives, counts what it leaves out, or says why it cannot."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clocks import ClockJob

from gpu_profile.analysis.clocks.alignment import node_clocks
from gpu_profile.analysis.ranks.costs import RankCollectives
from gpu_profile.errors import UsageError
from gpu_profile.recording.nccl_inspector import InspectorFiles, read_inspector

JOB = ClockJob([0, 5], per_node=1, steps=12)
RECORDING = JOB.recording(("step",))
FIELDS = ["coll_perf", "header", "metadata", "event_trace_ts", "kernel_events", "kernel_start_ts", "coll_start_ts"]
loose = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = JOB.inspector(tmp_path_factory.mktemp("inspector"))
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "a.log"


def readable(path: Path) -> InspectorFiles:
    try:
        files = read_inspector(path)
    except UsageError as error:
        assert len(str(error)) <= 200  # noqa: PT017 - the rest of the file is looked at as well
        return InspectorFiles(())
    assert all(0 < each.start_ns <= each.end_ns < 1 << 62 for each in files.collectives)
    RankCollectives(files.collectives, RECORDING.processes)
    node_clocks(RECORDING, files.collectives)
    return files


def test_a_file_cut_anywhere_gives_the_collectives_before(good: bytes, target: Path) -> None:
    counts = []
    for length in range(0, len(good), 397):
        target.write_bytes(good[:length])
        counts.append(len(readable(target).collectives))
    assert counts == sorted(counts)
    assert counts[-1] >= 23


@settings(max_examples=25)
@given(flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bytes_give_collectives_or_a_reason(flips: list[tuple[float, int]], good: bytes, target: Path) -> None:
    data = bytearray(good)
    for place, bits in flips:
        data[int(place * len(data))] ^= bits
    target.write_bytes(data)
    readable(target)


@settings(max_examples=25)
@given(field=st.sampled_from(FIELDS), value=loose, place=st.integers(0, 20))
def test_any_value_in_any_field_gives_a_collective_or_is_left_out(
    field: str, value: object, place: int, good: bytes, target: Path
) -> None:
    lines = good.splitlines()
    record = json.loads(lines[place])

    def changed(part: object) -> object:
        if isinstance(part, dict):
            return {key: value if key == field else changed(each) for key, each in part.items()}
        return [changed(each) for each in part] if isinstance(part, list) else part

    lines[place] = json.dumps(changed(record)).encode()
    target.write_bytes(b"\n".join(lines))
    readable(target)


@given(data=st.binary(max_size=100))
def test_any_bytes_give_collectives_or_a_reason(data: bytes, target: Path) -> None:
    target.write_bytes(data)
    assert readable(target).collectives == ()
