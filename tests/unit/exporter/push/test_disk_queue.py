"""The queue on disk: what a killed process left is found, in order; what was done is not."""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.programs import printed
from support.push import killed

from gpu_profile.errors import UsageError
from gpu_profile.units import MIB
from gpu_profile_exporter.push.disk_queue import MAGIC, DiskQueue, QueuedItem


def appended(queue: DiskQueue, content: bytes, items: int = 1) -> QueuedItem:
    record = queue.append(content, items, plain=True)
    assert record is not None
    return record


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.queue"))


def test_what_waits_is_found_by_the_next_process_in_order_and_what_is_done_is_not(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path / "new" / "queue", MIB)
    records = [queue.append(bytes([n]) * n, n, plain=bool(n % 2)) for n in range(6)]
    for n in (1, 4):
        done = records[n]
        assert done is not None
        queue.done(done)
    killed(queue)
    after = DiskQueue(tmp_path / "new" / "queue", MIB)
    assert [(each.items, each.size, each.plain) for each in after.left] == [(n, n, bool(n % 2)) for n in (0, 2, 3, 5)]
    assert [after.read(each) for each in after.left] == [bytes([n]) * n for n in (0, 2, 3, 5)]
    after.close()


def test_it_is_for_its_owner_alone(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path / "queue", MIB)
    appended(queue, b"secret")
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "queue", *(tmp_path / "queue").iterdir())]
    assert modes == [0o700, *[0o600] * (len(modes) - 1)]
    queue.close()


def test_a_directory_that_another_process_has_is_refused(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, MIB)
    with pytest.raises(UsageError, match="another process keeps its queue there"):
        DiskQueue(tmp_path, MIB)
    script = "from pathlib import Path\nfrom gpu_profile_exporter.push.disk_queue import DiskQueue\n"
    script += f"try:\n DiskQueue(Path({str(tmp_path)!r}), 1 << 20)\nexcept Exception as e:\n print(type(e).__name__)"
    assert printed("-c", script).strip() == "UsageError"
    queue.close()
    DiskQueue(tmp_path, MIB).close()


def test_a_path_that_is_no_directory_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="no queue can be kept there: File exists"):
        DiskQueue(tmp_path / "file", MIB)
    with pytest.raises(UsageError, match="no queue can be kept there: Not a directory"):
        DiskQueue(tmp_path / "file" / "below", MIB)


def test_files_are_removed_once_all_their_records_are_done(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, MIB)
    records = [appended(queue, bytes(50_000)) for _ in range(15)]
    assert len(files(tmp_path)) > 3
    before = queue.size
    for record in reversed(records):
        queue.done(record)
    assert len(files(tmp_path)) <= 1
    assert queue.size < before / 3
    queue.close()
    assert files(tmp_path) == []


def test_what_is_taken_in_and_done_for_long_needs_no_more_room(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, MIB)
    before = len(list(Path("/proc/self/fd").iterdir()))
    waiting: list[QueuedItem] = []
    for n in range(2_000):
        waiting.append(appended(queue, bytes(1_000)))
        if len(waiting) > 3:
            queue.done(waiting.pop(n % 2))
        assert sum(path.stat().st_size for path in tmp_path.glob("*.queue")) < MIB / 2
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 20
    queue.close()


def test_it_takes_no_more_than_it_may(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, MIB)
    taken = []
    while queue.has_room(100_000):
        taken.append(appended(queue, bytes(100_000)))
    assert len(taken) == 10
    assert queue.append(bytes(100_000), 1, plain=True) is None
    assert queue.has_room(10_000)
    for record in taken:
        queue.done(record)
    assert queue.has_room(900_000)
    queue.close()


def test_small_records_are_limited_too_as_each_is_remembered(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, MIB)
    n = 0
    while queue.append(b"x", 1, plain=True) is not None:
        n += 1
    assert n == 256
    queue.close()


def test_a_disk_that_is_full_refuses_and_takes_again(tmp_path: Path) -> None:
    # A limit of the size of files has the same answer as a full disk has: not all is written.
    script = f"""
import resource, signal
from pathlib import Path
from gpu_profile_exporter.push.disk_queue import DiskQueue
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
queue = DiskQueue(Path({str(tmp_path)!r}), 1 << 20)
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))
first = queue.append(bytes(20_000), 1, plain=True)
print(first is not None, queue.append(bytes(20_000), 1, plain=True))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(queue.append(b"again", 2, plain=True) is not None)
"""
    assert printed("-c", script).split() == ["True", "None", "True"]
    after = DiskQueue(tmp_path, MIB)
    assert [after.read(record) for record in after.left] == [bytes(20_000), b"again"]
    after.close()


def test_a_file_that_cannot_be_begun_leaves_nothing_open_and_nothing_behind(tmp_path: Path) -> None:
    script = f"""
import os, resource, signal
from pathlib import Path
from gpu_profile_exporter.push.disk_queue import DiskQueue
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
queue = DiskQueue(Path({str(tmp_path)!r}), 1 << 20)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
opened = len(os.listdir("/proc/self/fd"))
print(*{{queue.append(b"refused", 1, plain=True) for _ in range(50)}}, len(os.listdir("/proc/self/fd")) - opened)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(queue.append(b"taken", 2, plain=True) is not None)
"""
    assert printed("-c", script).split() == ["None", "0", "True"]
    assert len(files(tmp_path)) == 1
    (tmp_path / "000000000000.queue").write_bytes(b"")  # of a version that left such
    after = DiskQueue(tmp_path, MIB)
    assert [after.read(record) for record in after.left] == [b"taken"]
    assert len(files(tmp_path)) == 1
    after.close()


def test_a_file_whose_end_cannot_be_read_is_kept_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    queue = DiskQueue(tmp_path, MIB)
    for content in (b"first", b"second", b"third"):
        appended(queue, content)
    killed(queue)
    path = tmp_path / files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[len(MAGIC) + 16 + len(b"first") + 9] ^= 1
    path.write_bytes(data)
    for _ in range(2):  # what is sound in it outlives a process that is killed once more
        after = DiskQueue(tmp_path, MIB)
        assert [after.read(record) for record in after.left] == [b"first"]
        assert f"{path} is damaged at byte 29" in caplog.text
        killed(after)
    after = DiskQueue(tmp_path, MIB)
    after.done(after.left[0])
    after.close()
    assert (tmp_path / f"{path.stem}.damaged").read_bytes()[29:] == bytes(data)[29:]


def damage_content(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(MAGIC) + 16] ^= 1
    path.write_bytes(data)


def damage_header(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(MAGIC) + 9] ^= 1
    path.write_bytes(data)


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize(
    ("harm", "found"),
    [
        (damage_content, [None, b"second"]),
        (damage_header, []),
        (cut_off, [b"first"]),
        (lambda path: os.truncate(path, 3), []),
        (lambda path: path.write_bytes(b"something else"), []),
        (Path.unlink, []),
    ],
)
def test_damage_costs_what_is_damaged_and_no_more(
    tmp_path: Path, harm: Callable[[Path], None], found: list[bytes | None]
) -> None:
    queue = DiskQueue(tmp_path, MIB)
    for content in (b"first", b"second"):
        appended(queue, content)
    killed(queue)
    harm(tmp_path / files(tmp_path)[0])
    (tmp_path / "of somebody else").write_text("stays")
    after = DiskQueue(tmp_path, MIB)
    assert [after.read(record) for record in after.left] == found
    for record in after.left:
        after.done(record)
    assert after.read(appended(after, b"third")) == b"third"
    after.close()
    assert (tmp_path / "of somebody else").read_text() == "stays"


def test_files_of_another_version_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "000000000007.queue").write_bytes(b"gpqueue9 in another way")
    queue = DiskQueue(tmp_path, MIB)
    assert queue.left == []
    appended(queue, b"mine")
    assert files(tmp_path) == ["000000000007.queue", "000000000008.queue"]
    queue.close()
    assert (tmp_path / "000000000007.queue").read_bytes() == b"gpqueue9 in another way"


@pytest.mark.parametrize("how", ["removed", "replaced", "cut off", "moved with a link left"])
def test_a_file_that_is_taken_away_takes_no_more_and_what_it_held_is_told_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    directory = tmp_path / "queue"
    queue = DiskQueue(directory, MIB)
    first = appended(queue, b"in memory alone")
    path = directory / files(directory)[0]
    if how == "moved with a link left":
        (tmp_path / "backup").hardlink_to(path)
    if how == "cut off":
        os.truncate(path, 0)
    elif how == "replaced":
        path.rename(tmp_path / "away")
        path.write_bytes(b"another's")
    else:
        path.unlink()
    appended(queue, b"in a new file")
    if how != "cut off":
        assert queue.read(first) == b"in memory alone"
    queue.close()
    (told,) = caplog.messages
    assert "1 waiting records are lost, because their files were removed" in told
    if how == "replaced":
        assert path.read_bytes() == b"another's"
        path.unlink()
    after = DiskQueue(directory, MIB)
    assert [after.read(each) for each in after.left] == [b"in a new file"]
    after.close()


def test_without_its_directory_nothing_is_taken_even_where_there_is_a_new_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = DiskQueue(tmp_path / "queue", MIB)
    appended(queue, b"in memory alone")
    shutil.rmtree(tmp_path / "queue")
    assert queue.append(b"nowhere", 1, plain=True) is None
    other = DiskQueue(tmp_path / "queue", MIB)
    appended(other, b"another's")
    assert queue.append(b"nowhere", 1, plain=True) is None
    queue.close()
    assert [text.partition(": ")[2] for text in caplog.messages] == [
        "nothing can be written to the queue: its files were removed",
        "1 waiting records are lost, because their files were removed",
    ]
    other.close()
    after = DiskQueue(tmp_path / "queue", MIB)
    assert [after.read(each) for each in after.left] == [b"another's"]
    after.close()


def test_once_it_is_closed_nothing_is_taken_and_what_ends_then_is_found_once_more(tmp_path: Path) -> None:
    queue = DiskQueue(tmp_path, MIB)
    record = appended(queue, b"on its way")
    queue.close()
    assert queue.append(b"late", 1, plain=True) is None
    queue.done(record)
    after = DiskQueue(tmp_path, MIB)
    assert [after.read(each) for each in after.left] == [b"on its way"]
    after.close()


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 20_000)),
        st.tuples(st.just("done"), st.integers(0, 1_000)),
        st.tuples(st.sampled_from(["kill", "close"]), st.just(0)),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=60)
@given(OPERATIONS)
def test_whatever_happens_what_waits_is_what_was_taken_and_is_not_done(operations: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as name:
        directory = Path(name)
        queue = DiskQueue(directory, MIB // 4)
        waiting: list[tuple[QueuedItem, bytes]] = []
        for n, (what, size) in enumerate([*operations, ("kill", 0)]):
            if what == "append":
                content = n.to_bytes(4, "little") * (size // 4)
                record = queue.append(content, n, plain=bool(n % 2))
                assert (record is not None) == (record is not None and record.items == n)
                if record is not None:
                    waiting.append((record, content))
            elif what == "done" and waiting:
                queue.done(waiting.pop(size % len(waiting))[0])
            elif what in ("kill", "close"):
                killed(queue) if what == "kill" else queue.close()
                queue = DiskQueue(directory, MIB // 4)
                assert [queue.read(record) for record in queue.left] == [content for _, content in waiting]
                assert [record[1:] for record in queue.left] == [record[1:] for record, _ in waiting]
                waiting = list(zip(queue.left, (content for _, content in waiting), strict=True))
            assert queue.size <= MIB // 4
        for record, _ in waiting:
            queue.done(record)
        queue.close()
        assert files(directory) == []
