import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile_exporter.attribution.cgroups import Place, place

ID, INNER = "a1" * 32, "b2" * 32
UID = "12345678-90ab-cdef-1234-567890abcdef"
UID_ = UID.replace("-", "_")
SLICE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice"
FS = f"/kubepods/burstable/pod{UID}"
STATIC = "0123456789abcdef0123456789abcdef"

CASES = {
    "docker, systemd, v2": (f"0::/system.slice/docker-{ID}.scope", Place(ID, "docker")),
    "docker, cgroupfs, v2": (f"0::/docker/{ID}", Place(ID, "docker")),
    "docker, cgroupfs, v1": (f"9:devices:/docker/{ID}\n1:name=systemd:/docker/{ID}", Place(ID, "docker")),
    "docker in docker": (f"0::/docker/{ID}/docker/{INNER}", Place(INNER, "docker")),
    "podman, systemd": (f"0::/machine.slice/libpod-{ID}.scope", Place(ID, "podman")),
    "podman, in its scope": (f"0::/machine.slice/libpod-{ID}.scope/container", Place(ID, "podman")),
    "podman, cgroupfs": (f"0::/libpod_parent/libpod-{ID}", Place(ID, "podman")),
    "podman, rootless": (
        f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container",
        Place(ID, "podman", unit="user@1000.service"),
    ),
    "podman, in a service": (
        f"0::/system.slice/train.service/libpod-payload-{ID}",
        Place(ID, "podman", unit="train.service"),
    ),
    "podman's monitor": (f"0::/machine.slice/libpod-conmon-{ID}.scope", Place()),
    "containerd, systemd": (f"0::{SLICE}/cri-containerd-{ID}.scope", Place(ID, "containerd", UID)),
    "containerd, cgroupfs": (f"0::{FS}/{ID}", Place(ID, pod_uid=UID)),
    "containerd, told of the wrong driver": (
        f"0::/system.slice/containerd.service/kubepods-besteffort-pod{UID_}.slice:cri-containerd:{ID}",
        Place(ID, "containerd", UID, unit="containerd.service"),
    ),
    "containerd, guaranteed": (
        f"0::/kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-{ID}.scope",
        Place(ID, "containerd", UID),
    ),
    "containerd, v1": (
        f"12:devices:{SLICE}/cri-containerd-{ID}.scope\n1:name=systemd:{SLICE}/cri-containerd-{ID}.scope",
        Place(ID, "containerd", UID),
    ),
    "nerdctl": (f"0::/system.slice/nerdctl-{ID}.scope", Place(ID, "containerd")),
    "cri-o": (f"0::{SLICE}/crio-{ID}.scope", Place(ID, "cri-o", UID)),
    "cri-o, in its scope": (f"0::{SLICE}/crio-{ID}.scope/container", Place(ID, "cri-o", UID)),
    "cri-o, cgroupfs": (f"0::{FS}/crio-{ID}", Place(ID, "cri-o", UID)),
    "cri-o's monitor": (f"0::{SLICE}/crio-conmon-{ID}.scope", Place(pod_uid=UID)),
    "a static pod": (f"0::/kubepods/besteffort/pod{STATIC}/{ID}", Place(ID, pod_uid=STATIC)),
    "kubernetes in docker": (
        f"0::/docker/{ID}/kubelet.slice/kubelet-kubepods-pod{UID_}.slice/cri-containerd-{INNER}.scope",
        Place(INNER, "containerd", UID),
    ),
    "seen from another cgroup namespace": (
        f"0::/../../../kubepods-besteffort.slice/kubepods-besteffort-pod{UID_}.slice/cri-containerd-{ID}.scope",
        Place(ID, "containerd", UID),
    ),
    "ECS": (f"4:memory:/ecs/0123456789abcdef/{ID}", Place(ID)),
    "slurm, v1": (
        "11:freezer:/slurm/uid_1000/job_123/step_0/task_1\n1:name=systemd:/system.slice/slurmd.service",
        Place(job="123", step="0", unit="slurmd.service"),
    ),
    "slurm, v1, many nodes on a host": ("5:memory:/slurm_node-a/uid_5/job_7/step_batch", Place(job="7", step="batch")),
    "slurm, v2": ("0::/system.slice/slurmstepd.scope/job_42/step_extern/user/task_0", Place(job="42", step="extern")),
    "slurm, v2, many nodes on a host": (
        "0::/system.slice/node3_slurmstepd.scope/job_42/step_interactive/user",
        Place(job="42", step="interactive"),
    ),
    "slurm, seen from a pod": (
        "0::/../../../../system.slice/slurmstepd.scope/job_9/step_1/user/task_0",
        Place(job="9", step="1"),
    ),
    "slurm, no step yet": ("0::/system.slice/slurmstepd.scope/job_42", Place(job="42")),
    "a container in a job": (
        f"0::/system.slice/slurmstepd.scope/job_42/step_0/user/libpod-{ID}.scope",
        Place(ID, "podman", job="42", step="0"),
    ),
    "a service": ("0::/system.slice/triton.service", Place(unit="triton.service")),
    "a service with an instance": (
        r"0::/system.slice/system-llm.slice/llm@big\x2dmodel.service",
        Place(unit=r"llm@big\x2dmodel.service"),
    ),
    "a login": ("0::/user.slice/user-1000.slice/session-3.scope", Place(unit="session-3.scope")),
    "both versions, with nothing in the second": (
        f"5:devices:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/",
        Place(ID, "docker"),
    ),
    "a cgroup that was removed": (f"0::/system.slice/docker-{ID}.scope (deleted)", Place(ID, "docker")),
    "the root": ("0::/", Place()),
    "nothing": ("", Place()),
    "a job of nobody's": ("0::/user.slice/job_5/step_0", Place()),
    "an id that is too short": (f"0::/docker/{ID[:-1]}", Place()),
    "an id that is no number": (f"0::/docker/{'g' * 64}", Place()),
    "an unknown runtime": (f"0::/system.slice/other-{ID}.scope", Place()),
    "a pod outside kubernetes": (f"0::/user.slice/pod{UID}", Place()),
}


@pytest.mark.parametrize("name", CASES)
def test_where_a_process_runs_is_read_from_its_cgroup(name: str) -> None:
    text, expected = CASES[name]
    assert place(text) == expected
    assert place(text + "\n") == expected


def test_only_what_is_known_becomes_an_attribute() -> None:
    assert Place(job="7").attributes() == {"slurm.job.id": "7"}
    assert list(Place(*"abcdef").attributes().values()) == list("abcdef")


parts = st.sampled_from(
    [
        "docker",
        ID,
        f"docker-{ID}.scope",
        "kubepods",
        f"pod{UID}",
        "slurm",
        "job_1",
        "step_0",
        "a.service",
        "..",
        "",
        "\0",
    ]
)
paths = st.lists(parts | st.text(max_size=12), max_size=6).map("/".join)
lines = st.tuples(st.sampled_from(["0", "1", "x", ""]), st.sampled_from(["", "name=systemd", "cpu"]), paths)


@given(st.lists(lines.map(":".join), max_size=4).map("\n".join) | st.text())
def test_whatever_a_cgroup_file_holds_the_answer_is_sound_or_empty(text: str) -> None:
    found = place(text)
    assert re.fullmatch(r"([0-9a-f]{64})?", found.container_id)
    assert found.runtime in ("", "docker", "containerd", "cri-o", "podman")
    assert found.container_id or not found.runtime
    assert re.fullmatch(r"[0-9a-f-]{0,36}", found.pod_uid)
    assert re.fullmatch(r"[0-9]{0,20}", found.job)
    assert found.job or not found.step
    for value in found.attributes().values():
        assert value.isascii()
        assert value.isprintable()
        assert value in text or value.replace("-", "_") in text


def test_no_more_of_a_cgroup_file_is_read_than_one_can_hold() -> None:
    assert place("x" * (1 << 20) + f"\n0::/docker/{ID}") == Place()
