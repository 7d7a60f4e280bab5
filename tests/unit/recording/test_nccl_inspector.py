"""Files of NCCL Inspector, in the formats of its releases."""

import json
import os
from pathlib import Path
from unittest import mock

import pytest
from support.clocks import ClockJob

from gpu_profile.errors import UsageError
from gpu_profile.recording import nccl_inspector
from gpu_profile.recording.nccl_inspector import Collective, read_inspector

JOB = ClockJob([0], steps=12)
#: The verbose example of the plugin's README, in v4.3, with a marker before it.
MARKER = {
    "header": {"id": "0x7f8c496ae9f661", "rank": 2, "n_ranks": 8, "nnodes": 1},
    "metadata": {
        "inspector_output_format_version": "v4.3", "git_rev": "", "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": 1748030377748202, "hostname": "example-hostname", "pid": 1639453,
    },
    "dump_stats": {"coll_records": 1, "coll_dropped_total": 4096, "coll_dropped_since_last_dump": 512},
}  # fmt: skip
TIMES = {
    "coll_start_ts": 1752867229235059,
    "coll_stop_ts": 1752867229235064,
    "kernel_events": [
        {"channel_id": 0, "kernel_start_ts": 1752867229235181, "kernel_stop_ts": 1752867229275811},
        {"channel_id": 1, "kernel_start_ts": 1752867229235180, "kernel_stop_ts": 1752867229275810},
        {"channel_id": 2, "kernel_start_ts": 0, "kernel_stop_ts": 0},
    ],
}
PERF = {
    "coll": "ReduceScatter", "coll_algo": "RING", "coll_proto": "SIMPLE", "coll_sn": 1231,
    "coll_msg_size_bytes": 2147483648, "coll_exec_time_us": 41057, "coll_timing_source": "kernel_gpu",
    "coll_algobw_gbs": 418.439467, "coll_busbw_gbs": 366.134533, "event_trace_ts": TIMES,
}  # fmt: skip


def written(path: Path, *records: object) -> Path:
    path.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in records))
    return path


def test_the_example_of_the_plugin_is_one_collective(tmp_path: Path) -> None:
    files = read_inspector(written(tmp_path / "a.log", MARKER, {"coll_perf": PERF}, {"proxy_trace": {}}))
    assert files.collectives == (
        Collective(
            "example-hostname", 1639453, "0x7f8c496ae9f661", "ReduceScatter", 1231, 8, 2147483648,
            1752867229235059000, 1752867229235180000, 1752867229275811000,
        ),
    )  # fmt: skip
    assert files.problems == (
        "a.log: NCCL Inspector dropped 512 collectives: raise NCCL_INSPECTOR_DUMP_COLL_RING_SIZE",
    )


@pytest.mark.parametrize("version", ["v4.0", "v4.2", "v4.3"])
def test_all_formats_have_the_same_content(version: str, tmp_path: Path) -> None:
    files = read_inspector(JOB.inspector(tmp_path, version))
    assert files.problems == ()
    assert [(each.pid, each.number) for each in files.collectives] == [(p, n) for p in (100, 101) for n in range(12)]


def test_files_without_time_stamps_name_the_setting(tmp_path: Path) -> None:
    brief = {key: value for key, value in PERF.items() if key != "event_trace_ts"}
    with pytest.raises(UsageError, match="set NCCL_INSPECTOR_DUMP_VERBOSE=1"):
        read_inspector(written(tmp_path / "a.log", MARKER, {"coll_perf": brief}))


def test_damaged_records_are_counted_by_reason_and_the_rest_is_read(tmp_path: Path) -> None:
    before = {"coll_perf": PERF}
    path = written(
        tmp_path / "a.log",
        before,
        MARKER,
        {"coll_perf": PERF},
        {"coll_perf": PERF | {"event_trace_ts": TIMES | {"coll_start_ts": -1}}},
        {"coll_perf": PERF | {"coll_sn": True}},
        {"coll_perf": PERF | {"coll": 7}},
        {"coll_perf": [PERF]},
        {"coll_perf": PERF | {"event_trace_ts": TIMES | {"kernel_events": [0]}}},
        "[" * 5000,
        "7",
        json.dumps({"coll_perf": PERF})[:90],
    )
    files = read_inspector(path)
    assert len(files.collectives) == 1
    assert {each.partition(": ")[2] for each in files.problems} == {
        "1 records left out: no process and communicator before them",
        "1 records left out: impossible time stamps",
        "1 records left out: no coll_sn",
        "1 records left out: no coll",
        "1 records left out: coll_perf is no object",
        "1 records left out: no list of kernel events",
        "2 records left out: no JSON: cut off or damaged",
        "1 records left out: no object",
        "NCCL Inspector dropped 512 collectives: raise NCCL_INSPECTOR_DUMP_COLL_RING_SIZE",
    }


def test_size_is_limited(tmp_path: Path) -> None:
    path = written(tmp_path / "a.log", MARKER, "x" * (3 << 20), *[{"coll_perf": PERF}] * 5)
    with mock.patch.object(nccl_inspector, "MOST_COLLECTIVES", 3):
        files = read_inspector(path)
    assert len(files.collectives) == 3
    assert any("1 records left out: longer than 1 MiB" in each for each in files.problems)
    assert any("only the first 3 collectives" in each for each in files.problems)


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    ClockJob([0], steps=2).inspector(tmp_path)
    (tmp_path / "old.log").mkdir()
    os.mkfifo(tmp_path / "pipe.log")
    assert len(read_inspector(tmp_path).collectives) == 4


def test_a_folder_without_files_and_a_missing_path_are_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no collectives of NCCL Inspector: no file with records that ends in \.log"):
        read_inspector(tmp_path)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_inspector(tmp_path / "none")
