import os
import socket
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.exporter import DEVICES, GPU0, GPU1, MIG0, MIG1, claim, devices, pod

from gpu_profile.catalogue.samples import Device, DeviceKind
from gpu_profile_exporter.attribution import mapping, podresources
from gpu_profile_exporter.attribution.devices import DeviceNames, Match
from gpu_profile_exporter.attribution.podresources import ClaimedDevice, Holder, PluginDevice
from gpu_profile_exporter.attribution.sources import HolderSource, OmissionCounts, OmissionReason, Reason, Unavailable

NAMES = DeviceNames(DEVICES)
#: Two GPUs whose minor numbers are not in the order of their indices.
CROSSED = DeviceNames([Device("GPU-a", index=0, minor=1), Device("GPU-b", index=1, minor=0)])
UNKNOWN, AMBIGUOUS = OmissionReason.UNKNOWN_DEVICE, OmissionReason.AMBIGUOUS


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (GPU0, GPU0),
        (MIG0, MIG0),
        (f"{GPU0}::0", GPU0),
        (f"{GPU0}::17", GPU0),
        (f"{MIG0}::3", MIG0),
        (f"{GPU0}-replica-2", GPU0),
        ("nvidia0", GPU0),
        ("nvidia1", GPU1),
        ("nvidia0/vgpu3", GPU0),
        ("nvidia1/gi3", MIG0),
        ("nvidia1/gi4/vgpu0", MIG1),
        ("nvidia1/gi9", UNKNOWN),
        ("nvidia7", UNKNOWN),
        ("GPU-99999999-0000-4000-8000-000000000000", UNKNOWN),
        (f"{GPU0}::", UNKNOWN),
        (f"{GPU0}/../x", UNKNOWN),
        ("0", UNKNOWN),
        ("nvidia٠", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_a_device_plugins_name_is_one_device_or_none(name: str, expected: Match) -> None:
    assert NAMES.plugin("nvidia.com/gpu", name) == expected


@pytest.mark.parametrize("name", ["nvidia0", "0000:3b:00.0", "mlx5_0", ""])
def test_another_plugins_device_is_no_gpu(name: str) -> None:
    assert NAMES.plugin("rdma/hca", name) is None


def test_an_instance_of_an_old_driver_is_known_by_the_name_that_the_driver_gives_it() -> None:
    uuid = f"MIG-{GPU0}/7/0"
    names = DeviceNames([Device(uuid, parent=GPU0, kind=DeviceKind.MIG)])
    assert names.plugin("nvidia.com/mig-1g.5gb", uuid) == uuid
    assert names.plugin("nvidia.com/mig-1g.5gb", f"MIG-{GPU0}/8/0") == UNKNOWN


def test_a_resource_by_another_name_is_known_by_its_uuid() -> None:
    assert NAMES.plugin("example.org/big-gpu", f"{GPU0}::1") == GPU0


def test_a_number_in_dev_is_a_minor_number_not_an_index() -> None:
    assert CROSSED.plugin("nvidia.com/gpu", "nvidia0") == "GPU-b"
    assert CROSSED.file("0") == "GPU-a"


def test_a_number_that_may_be_an_index_or_a_minor_is_taken_only_where_both_agree() -> None:
    assert NAMES.dra("gpu.nvidia.com", "gpu-1", ()) == GPU1
    assert CROSSED.dra("gpu.nvidia.com", "gpu-1", ()) == AMBIGUOUS


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpu-1-mig-3g40gb-9-4", "MIG-a"),
        ("gpu-1-mig-3g.40gb-9-4", "MIG-a"),
        ("gpu-1-mig-3g40gb-9-0", "MIG-b"),
        ("gpu-1-mig-1g10gb-me-20-6", "MIG-c"),
        ("gpu-1-mig-3g40gb-9-2", UNKNOWN),
        ("gpu-0-mig-3g40gb-9-4", UNKNOWN),
        ("gpu-1-mig-1g10gb-19-7", AMBIGUOUS),
    ],
)
def test_a_dra_driver_s_mig_instance_is_the_one_at_its_place(name: str, expected: Match) -> None:
    places = {"MIG-a": "9-4", "MIG-b": "9-0", "MIG-c": "20-6", "MIG-d": "19-7", "MIG-e": "19-7", "MIG-f": ""}
    # Indices and minor numbers differ, and names have minor numbers.
    instances = [Device(uuid, kind=DeviceKind.MIG, index=0, minor=1, mig_placement=at) for uuid, at in places.items()]
    names = DeviceNames([Device("GPU-a", index=0, minor=1), Device("GPU-b", index=1, minor=0), *instances])
    assert names.dra("gpu.nvidia.com", name, ()) == expected
    claimed = f"k8s.gpu.nvidia.com/claim=0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0-{name}"
    assert names.dra("", "", (claimed,)) == expected


def test_devices_whose_numbers_are_not_known_are_not_guessed_by_their_order() -> None:
    unnumbered = DeviceNames([Device("GPU-a"), Device("GPU-b")])
    assert unnumbered.plugin("nvidia.com/gpu", "nvidia0") == UNKNOWN
    assert unnumbered.dra("gpu.nvidia.com", "gpu-0", ()) == UNKNOWN
    assert unnumbered.file("0") == UNKNOWN


@pytest.mark.parametrize(
    ("driver", "device", "cdi", "expected"),
    [
        ("gpu.nvidia.com", "gpu-0", (), GPU0),
        ("gpu.nvidia.com", GPU0, (), GPU0),
        ("gpu.nvidia.com", "gpu-9", (), UNKNOWN),
        ("gpu.nvidia.com", "gpu-1-mig-9-4-4", (), UNKNOWN),
        ("gpu.nvidia.com", "gpu-vfio-0", (), UNKNOWN),
        ("", "", ("k8s.gpu.nvidia.com/device=gpu-1",), GPU1),
        ("", "", ("k8s.gpu.nvidia.com/claim=0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0-gpu-1",), GPU1),
        ("", "", (f"nvidia.com/gpu={GPU1}",), GPU1),
        ("", "", (f"nvidia.com/mig={MIG0}",), MIG0),
        ("", "", ("nvidia.com/gpu=all",), UNKNOWN),
        ("nic.example.com", "gpu-0", ("example.com/nic=gpu-0",), None),
        ("nic.example.com", "nic0", (), None),
    ],
)
def test_a_claimed_device_is_one_device_or_none(
    driver: str, device: str, cdi: tuple[str, ...], expected: Match
) -> None:
    assert NAMES.dra(driver, device, cdi) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("0", GPU0),
        ("1", GPU1),
        (GPU1, GPU1),
        (MIG0, MIG0),
        ("1.3", MIG0),
        ("1-4", MIG1),
        ("0.3", UNKNOWN),
        ("8", UNKNOWN),
        ("README", None),
        ("0.tmp", None),
        ("-1", None),
    ],
)
def test_a_mapping_files_name_is_one_device_or_none(name: str, expected: Match) -> None:
    assert NAMES.file(name) == expected


def test_an_instance_that_is_cut_again_has_no_single_device() -> None:
    halves = [Device(f"MIG-{n}", kind=DeviceKind.MIG, index=0, minor=0, mig_instance=2) for n in range(2)]
    assert DeviceNames(halves).file("0.2") == AMBIGUOUS


@given(st.permutations(DEVICES), st.text(max_size=20) | st.sampled_from(["nvidia1", "gpu-1", "1", "1.3", GPU0]))
def test_the_order_of_the_devices_never_matters(order: list[Device], name: str) -> None:
    names = DeviceNames(order)
    assert names.plugin("nvidia.com/gpu", name) == NAMES.plugin("nvidia.com/gpu", name)
    assert names.dra("gpu.nvidia.com", name, (name,)) == NAMES.dra("gpu.nvidia.com", name, (name,))
    assert names.file(name) == NAMES.file(name)


# ---------------------------------------------------------------------- the kubelet's answer


def test_the_kubelets_answer_is_read_by_the_numbers_of_its_fields() -> None:
    answer = pod("ml", "train-0", main=devices("nvidia.com/gpu", GPU0, GPU1), side=b"") + pod(
        "ml", "serve", web=claim("one-gpu", ("gpu.nvidia.com", "gpu-0", "k8s.gpu.nvidia.com/device=gpu-0"))
    )
    main, web = Holder("ml", "train-0", "main"), Holder("ml", "serve", "web")
    assert podresources.read(answer) == [
        PluginDevice(main, "nvidia.com/gpu", GPU0),
        PluginDevice(main, "nvidia.com/gpu", GPU1),
        ClaimedDevice(web, "one-gpu", "gpu.nvidia.com", "gpu-0", ("k8s.gpu.nvidia.com/device=gpu-0",)),
    ]


def test_an_empty_answer_is_a_node_without_pods() -> None:
    assert podresources.read(b"") == []


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda noise: pod("a", "b", c=noise)))
def test_whatever_the_kubelet_answers_is_read_or_garbage(answer: bytes) -> None:
    reason = None
    try:
        rows = podresources.read(answer)
    except Unavailable as refused:
        rows, reason = [], refused.reason
    assert reason in (None, Reason.GARBAGE)
    assert all(isinstance(row, PluginDevice | ClaimedDevice) for row in rows)


# ---------------------------------------------------------------------- mapping files


def jobs(directory: Path) -> tuple[dict[str, tuple[str, ...]], dict[OmissionReason, int]]:
    tally = OmissionCounts()
    found = {row.name: row.jobs for row in mapping.read(directory, tally)}
    return found, {why: count for (source, why), count in tally.items() if source is HolderSource.SLURM}


def test_a_mapping_file_lists_a_job_on_each_line(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("1234\n1235\r\n\n  77_4\n")
    (tmp_path / "1").write_text("4711.server[5]")
    assert jobs(tmp_path) == ({"0": ("1234", "1235", "77_4"), "1": ("4711.server[5]",)}, {})


def test_an_empty_mapping_file_is_an_idle_gpu(tmp_path: Path) -> None:
    (tmp_path / "0").touch()
    assert jobs(tmp_path) == ({"0": ()}, {})


def test_no_link_is_followed_whether_it_leads_out_of_the_directory_or_not(tmp_path: Path) -> None:
    secret, directory = tmp_path / "shadow", tmp_path / "jobs"
    secret.write_text("root:secret\n")
    directory.mkdir()
    (directory / "0").symlink_to(secret)
    (directory / "1").symlink_to("../shadow")
    (directory / "2").symlink_to("3")
    (directory / "3").write_text("5\n")
    (directory / "4").symlink_to("4")
    assert jobs(directory) == ({"3": ("5",)}, {OmissionReason.LINK: 4})


def test_the_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "0").write_text("5")
    (tmp_path / "jobs").symlink_to("real")
    assert jobs(tmp_path / "jobs") == ({"0": ("5",)}, {})


def test_pipes_sockets_and_directories_are_not_read_and_keep_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0")
    (tmp_path / "1").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "2"))
        assert jobs(tmp_path) == ({}, {OmissionReason.GARBAGE: 2})


def test_a_file_that_is_too_large_is_skipped_whole(tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(b"1\n" * mapping.MOST_BYTES)
    (tmp_path / "1").write_text("9")
    assert jobs(tmp_path) == ({"1": ("9",)}, {OmissionReason.TOO_LARGE: 1})


def test_a_directory_with_too_many_files_is_read_in_part_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapping, "MOST_FILES", 3)
    for number in range(5):
        (tmp_path / str(number)).write_text("1")
    found, why = jobs(tmp_path)
    assert (list(found), why) == (["0", "1", "2"], {OmissionReason.BUDGET: 2})


def test_a_directory_that_is_missing_or_none_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "none", tmp_path / "file"):
        with pytest.raises(Unavailable) as refused:
            mapping.read(path, OmissionCounts())
        assert refused.value.reason is Reason.NOT_FOUND


@given(st.lists(st.binary(max_size=200), max_size=3))
def test_whatever_a_mapping_file_holds_its_jobs_are_short_printable_words(contents: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as root:
        for number, content in enumerate(contents):
            (Path(root) / str(number)).write_bytes(content)
        found, why = jobs(Path(root))
        assert len(found) == len(contents)
        assert set(why) <= {OmissionReason.GARBAGE}
        for job in (job for listed in found.values() for job in listed):
            assert 0 < len(job) <= 128
            assert job.isascii()
            assert job.isprintable()
            assert " " not in job
