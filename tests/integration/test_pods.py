"""Attribution against a kubelet: gRPC over a real unix socket, with everything that can go wrong behind it."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from support.exporter import (
    CONTAINER,
    GIB,
    GPU0,
    GPU1,
    IN_POD,
    MIG0,
    MIG1,
    Answer,
    FakeProc,
    allocations,
    attribution_of,
    claim,
    devices,
    kubelet,
    left_out,
    pod,
    rows,
    states_of,
    status,
)
from support.programs import python

from gpu_profile.catalogue.allocation import HELD_ENERGY, HELD_TIME, UNHELD_ENERGY
from gpu_profile.catalogue.samples import ProcessUse
from gpu_profile.clock import SYSTEM_CLOCK
from gpu_profile_exporter.attribution import Attribution
from gpu_profile_exporter.attribution import kubelet as client
from gpu_profile_exporter.reader.intake import DeviceReports
from gpu_profile_exporter.readings.readings import MetricReading

GPU = "nvidia.com/gpu"
BOTH_DOWN = ("kubelet", "dra")


def attribution(path: Path, **settings: object) -> Attribution:
    states = states_of(SYSTEM_CLOCK.now_ns())
    chosen = {"pods": "on", "containers": False, **settings}
    return attribution_of(lambda: states, kubelet_socket=path, **chosen)


def asked(path: Path, **settings: object) -> list[MetricReading]:
    return refreshed(attribution(path, **settings))


def told(directory: Path, answer: bytes | Answer, **settings: object) -> list[MetricReading]:
    """What is read of a kubelet that answers so."""
    with kubelet(directory / "k.sock", answer if callable(answer) else lambda _: answer):
        return asked(directory / "k.sock", **settings)


def refreshed(running: Attribution) -> list[MetricReading]:
    running.refresh()
    return list(running.readings(SYSTEM_CLOCK.now_ns()))


def held_by(found: list[MetricReading]) -> dict[str, list[str]]:
    """The pods that hold each device."""
    out: dict[str, list[str]] = {}
    for row in allocations(found):
        out.setdefault(row["hw.id"], []).append(row["k8s.pod.name"])
    return out


def test_the_kubelet_says_which_container_of_which_pod_holds_a_device(tmp_path: Path) -> None:
    answer = pod("ml", "train-0", main=devices(GPU, GPU0), sidecar=b"") + pod("kube-system", "proxy", proxy=b"")
    found = told(tmp_path, answer)
    assert allocations(found) == [
        {
            "hw.id": GPU0,
            "source": "kubelet",
            "k8s.namespace.name": "ml",
            "k8s.pod.name": "train-0",
            "k8s.container.name": "main",
        }
    ]
    assert status(found) == {"kubelet": "", "dra": ""}
    assert left_out(found) == {}


def test_a_claim_says_which_pods_share_a_device(tmp_path: Path) -> None:
    shared = claim("one-gpu", ("gpu.nvidia.com", "gpu-0", "k8s.gpu.nvidia.com/claim=0f1e2d3c4b5a-gpu-0"))
    nic = claim("fast-net", ("nic.example.com", "nic-0", "example.com/nic=0"))
    answer = pod("ml", "a", main=shared) + pod("ml", "b", main=shared) + pod("ml", "c", main=nic)
    with kubelet(tmp_path / "k.sock", lambda _: answer):
        found = asked(tmp_path / "k.sock")
        without = asked(tmp_path / "k.sock", dra=False)
    assert [(a["k8s.pod.name"], a["claim"], a["source"]) for a in allocations(found)] == [
        ("a", "one-gpu", "dra"),
        ("b", "one-gpu", "dra"),
    ]
    assert left_out(found) == {}
    assert (allocations(without), status(without)) == ([], {"kubelet": ""})


def test_the_replicas_of_a_shared_gpu_are_its_pods_and_none_is_named_on_its_series(tmp_path: Path) -> None:
    answer = pod("ml", "a", main=devices("nvidia.com/gpu.shared", f"{GPU0}::0")) + pod(
        "ml", "b", main=devices("nvidia.com/gpu.shared", f"{GPU0}::1", f"{GPU0}::2")
    )
    with kubelet(tmp_path / "k.sock", lambda _: answer):
        running = attribution(tmp_path / "k.sock", labels=["pod", "namespace"])
        assert held_by(refreshed(running)) == {GPU0: ["a", "b"]}
    assert running.labels_for(GPU0) == {"k8s.namespace.name": "ml"}


def test_gke_names_mig_and_virtual_parts_lead_to_their_devices(tmp_path: Path) -> None:
    answer = (
        pod("ml", "a", main=devices(GPU, "nvidia0/vgpu0"))
        + pod("ml", "b", main=devices(GPU, "nvidia1/gi3"))
        + pod("ml", "c", main=devices("nvidia.com/mig-1g.20gb", MIG1))
    )
    assert held_by(told(tmp_path, answer)) == {GPU0: ["a"], MIG0: ["b"], MIG1: ["c"]}


def test_a_pod_that_ended_and_its_successor_are_a_conflict_and_neither_is_named(tmp_path: Path) -> None:
    answer = pod("ml", "ended", main=devices(GPU, GPU0)) + pod("ml", "runs", main=devices(GPU, GPU0, GPU1))
    with kubelet(tmp_path / "k.sock", lambda _: answer):
        running = attribution(tmp_path / "k.sock", labels=["pod"])
        found = refreshed(running)
    assert held_by(found) == {GPU1: ["runs"]}
    assert left_out(found) == {("kubelet", "conflict"): 1}
    assert running.labels_for(GPU0) == {}


def test_a_replica_whose_holder_is_not_known_takes_the_others_pod_off_the_devices_series(tmp_path: Path) -> None:
    answer = b"".join(
        pod("ml", name, main=devices(GPU, f"{GPU0}::{replica}")) for name, replica in (("a", 0), ("b", 1), ("c", 1))
    )
    with kubelet(tmp_path / "k.sock", lambda _: answer):
        running = attribution(tmp_path / "k.sock", labels=["pod"])
        assert held_by(refreshed(running)) == {GPU0: ["a"]}
    assert running.labels_for(GPU0) == {}


def test_pods_are_never_dealt_out_by_their_order(tmp_path: Path) -> None:
    asks = [pod("ml", f"p{n}", main=devices(GPU, "0")) + pod("ml", f"q{n}", main=b"") for n in range(3)]
    found = told(tmp_path, b"".join(asks))
    assert allocations(found) == []
    assert left_out(found) == {("kubelet", "unknown_device"): 3}


def test_a_new_pod_takes_the_old_ones_place_and_no_more_series_than_that(tmp_path: Path) -> None:
    names = iter(["first", "second", "third"])
    with kubelet(tmp_path / "k.sock", lambda _: pod("ml", next(names), main=devices(GPU, GPU0))):
        running = attribution(tmp_path / "k.sock")
        seen = [refreshed(running) for _ in range(3)]
    assert [held_by(found) for found in seen] == [{GPU0: ["first"]}, {GPU0: ["second"]}, {GPU0: ["third"]}]
    # The sums of a pod that has gone stay for a while.
    kept = (HELD_ENERGY, UNHELD_ENERGY, HELD_TIME)
    assert len({sum(reading.metric not in kept for reading in found) for found in seen}) == 1


def test_names_that_kubernetes_would_not_take_are_left_out_and_counted(tmp_path: Path) -> None:
    answer = b"".join(pod("ml", name, main=devices(GPU, GPU0)) for name in ("", "a\nb", "x" * 300))
    found = told(tmp_path, answer)
    assert allocations(found) == []
    assert left_out(found) == {("kubelet", "garbage"): 3}


def test_fifty_thousand_pods_are_read_and_bounded(tmp_path: Path) -> None:
    many = b"".join(pod("ml", f"p{n}", main=devices(GPU, f"{GPU0}::{n}")) for n in range(50_000))
    with kubelet(tmp_path / "k.sock", lambda _: many):
        # The promise here is the bound, not the speed of this machine.
        answer = client.list_pods(tmp_path / "k.sock", deadline_s=60)
        assert answer == many
        running = attribution(tmp_path / "k.sock", period_s=3600)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "list_pods", lambda _: answer)
            found = refreshed(running)
    assert len(allocations(found)) == 128
    assert left_out(found) == {("kubelet", "budget"): 50_000 - 128}


def test_an_answer_beyond_all_bounds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_OPTIONS", (("grpc.max_receive_message_length", 1000),))
    assert set(status(told(tmp_path, b"x" * 2000)).values()) == {"too_large"}


# ---------------------------------------------------------------------- a kubelet that is in trouble


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "denied"),
        (grpc.StatusCode.UNAUTHENTICATED, "denied"),
        (grpc.StatusCode.UNIMPLEMENTED, "unsupported"),
        (grpc.StatusCode.INTERNAL, "failed"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "failed"),
    ],
)
def test_a_kubelet_that_refuses_says_why(tmp_path: Path, code: grpc.StatusCode, reason: str) -> None:
    def refuse(context: grpc.ServicerContext) -> bytes:
        context.abort(code, "no")
        return b""

    found = told(tmp_path, refuse)
    assert status(found) == dict.fromkeys(BOTH_DOWN, reason)
    assert allocations(found) == []


def test_a_kubelet_that_talks_garbage_is_garbage(tmp_path: Path) -> None:
    assert status(told(tmp_path, b"\xff" * 100)) == dict.fromkeys(BOTH_DOWN, "garbage")


def test_a_kubelet_that_hangs_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    assert client.DEADLINE_S == 1.0
    let_go = threading.Event()
    left_s: list[float] = []

    def hang(context: grpc.ServicerContext) -> bytes:
        left_s.append(context.time_remaining())
        let_go.wait(30)
        return b""

    with kubelet(tmp_path / "k.sock", hang):
        found = asked(tmp_path / "k.sock")
        let_go.set()
    assert status(found) == dict.fromkeys(BOTH_DOWN, "timeout")
    # gRPC sends the deadline rounded up.
    assert [0 < seconds < 1.5 * client.DEADLINE_S for seconds in left_s] == [True]


@contextmanager
def listener(path: Path, words: bytes) -> Iterator[None]:
    """A server that is no gRPC server: it says `words` to whoever connects, or nothing, and listens to nobody."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(8)

        def serve() -> None:
            kept = []
            while True:
                try:
                    kept.append(server.accept()[0])
                    kept[-1].sendall(words)
                except BrokenPipeError:
                    continue
                except OSError:
                    break
            for connection in kept:
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)


@pytest.mark.parametrize("words", [b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(range(256)) * 4, b""])
def test_a_socket_that_is_no_kubelets_ends_at_the_deadline_with_a_reason(tmp_path: Path, words: bytes) -> None:
    with listener(tmp_path / "k.sock", words):
        found = status(asked(tmp_path / "k.sock"))
    assert set(found) == set(BOTH_DOWN)
    assert set(found.values()) <= {"unreachable", "timeout", "failed"}


def test_a_socket_that_nobody_listens_at_is_unreachable(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "k.sock"))
    assert status(asked(tmp_path / "k.sock")) == dict.fromkeys(BOTH_DOWN, "unreachable")


def test_a_path_that_is_too_long_for_a_socket_is_a_reason(tmp_path: Path) -> None:
    assert status(asked(tmp_path / ("k" * 200))) == dict.fromkeys(BOTH_DOWN, "unreachable")


def test_a_kubelet_that_restarts_is_asked_anew_and_what_it_said_before_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    running = attribution(path)
    with kubelet(path, lambda _: pod("ml", "before", main=devices(GPU, GPU0))):
        assert held_by(refreshed(running)) == {GPU0: ["before"]}
    found = refreshed(running)
    assert (held_by(found), set(status(found).values()) <= {"not_found", "unreachable"}) == ({}, True)
    path.unlink(missing_ok=True)
    with kubelet(path, lambda _: pod("ml", "after", main=devices(GPU, GPU0))):
        assert held_by(refreshed(running)) == {GPU0: ["after"]}


def test_a_kubelet_that_comes_after_a_refused_connection_is_asked_at_once(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    running = attribution(path)
    with listener(path, b"HTTP/1.1 400 Bad Request\r\n\r\n"):
        assert "" not in status(refreshed(running)).values()
    path.unlink()
    with kubelet(path, lambda _: pod("ml", "after", main=devices(GPU, GPU0))):
        assert held_by(refreshed(running)) == {GPU0: ["after"]}


def test_a_socket_that_belongs_to_root_is_denied_to_others_and_nothing_crashes(tmp_path: Path) -> None:
    """In a process of its own: permissions do not bind root, who may be running this."""
    program = f"""
import os, sys
from gpu_profile.sampling.sampler import DeviceState
if os.geteuid() == 0:
    import grpc
    from gpu_profile_exporter.attribution import Attribution, podresources
    from gpu_profile_exporter.config import AttributionSettings
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
from pathlib import Path
from gpu_profile_exporter.attribution import Attribution
from gpu_profile_exporter.config import AttributionSettings
from gpu_profile.catalogue.samples import Device
states = dict(g=DeviceState.of(Device("g"), dict(), 1))
path = Path({str(tmp_path / "d" / "k.sock")!r})
running = Attribution(lambda: states, AttributionSettings(pods="on", containers=False, kubelet_socket=path))
running.refresh()
print(*(reading.attributes.get("reason") for reading in running.readings(running._clock.now_ns())
        if reading.metric.otel == "gpu_profile.attribution.up"))
"""
    (tmp_path / "d").mkdir(mode=0o700)
    with kubelet(tmp_path / "d" / "k.sock", lambda _: b""):
        (tmp_path / "d").chmod(0o700 if os.geteuid() == 0 else 0)
        try:
            done = python("-c", program)
        finally:
            (tmp_path / "d").chmod(0o700)
    lines = [f"attribution from {source}: denied" for source in BOTH_DOWN]
    assert (done.stdout, done.stderr.splitlines(), done.returncode) == ("denied denied\n", lines, 0)


# ---------------------------------------------------------------------- the whole of it


def test_pods_jobs_and_processes_of_one_node_in_a_running_thread(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path / "proc")
    proc.add(7, cgroup=IN_POD)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "1").write_text("42\n")
    asked_twice = threading.Event()

    def states() -> dict[str, DeviceReports]:
        return states_of(SYSTEM_CLOCK.now_ns(), {GPU0: [ProcessUse(7, 3 * GIB, 0.5)]})

    def answer(_: grpc.ServicerContext) -> bytes:
        if len(calls) > 1:
            asked_twice.set()
        return pod("ml", "train-0", main=devices(GPU, GPU0))

    running = attribution_of(
        states,
        kubelet_socket=tmp_path / "k.sock",
        job_mapping_dir=tmp_path / "jobs",
        containers=True,
        processes=True,
        labels=["pod", "job", "container_id"],
        proc=proc.root,
        period_s=0.01,
    )
    with kubelet(tmp_path / "k.sock", answer) as calls:
        running.start()
        try:
            # By the second call the first refresh is whole.
            assert asked_twice.wait(20)
            found = list(running.readings(SYSTEM_CLOCK.now_ns()))
            labels = running.labels_for(GPU0)
        finally:
            running.stop(timeout_s=10)
    assert set(status(found).values()) == {""}
    assert [(a["hw.id"], a["source"]) for a in allocations(found)] == [
        (GPU0, "containers"),
        (GPU0, "kubelet"),
        (GPU1, "slurm"),
    ]
    assert [value for _, value in rows(found, "gpu_profile.process.memory")] == [3 * GIB]
    assert labels == {"k8s.pod.name": "train-0", "container.id": CONTAINER}


def test_grpc_is_not_loaded_where_no_kubelet_is(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from gpu_profile_exporter.attribution import Attribution
from gpu_profile_exporter.config import AttributionSettings
from gpu_profile.sampling.sampler import DeviceState
from gpu_profile.catalogue.samples import Device
states = dict(g=DeviceState.of(Device("g"), dict(), 1))
settings = AttributionSettings(kubelet_socket=Path({str(tmp_path / "none")!r}))
running = Attribution(lambda: states, settings, processes=True)
running.refresh()
assert not [name for name in sys.modules if name.split(".")[0] in ("grpc", "google")], "loaded"
"""
    done = python("-c", program)
    assert (done.returncode, done.stderr) == (0, "")
