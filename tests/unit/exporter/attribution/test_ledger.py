"""Energy by holder: nothing is lost, nothing is given to the wrong one."""

from collections.abc import Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from support.exporter import DEVICES, GIB, GPU0, GPU1, IN_POD, MIG0, Host

from gpu_profile.catalogue.allocation import HELD_ENERGY, HELD_TIME, UNHELD_ENERGY
from gpu_profile.catalogue.samples import ProcessUse, Sample
from gpu_profile.catalogue.signals import ENERGY, POWER_AVERAGE
from gpu_profile.units import NS_PER_S
from gpu_profile_exporter.attribution.allocation import DeviceHolder
from gpu_profile_exporter.attribution.ledger import KEPT_NS, MOST_HOLDERS, HolderLedger, MeteredDevice
from gpu_profile_exporter.attribution.sources import HolderSource, Reason

ANSWERS = {HolderSource.KUBELET: None, HolderSource.CONTAINERS: None}
SILENT = {HolderSource.KUBELET: Reason.TIMEOUT}
BY_UUID = {device.uuid: device for device in DEVICES}


def pod(name: str, uuid: str = GPU0, container: str = "main") -> DeviceHolder:
    """An allocation of the kubelet."""
    attributes = {"k8s.namespace.name": "ml", "k8s.pod.name": name, "k8s.container.name": container}
    return DeviceHolder.of(uuid, HolderSource.KUBELET, attributes)


def metered(**uj: int) -> list[MeteredDevice]:
    """Devices with their energy so far."""
    names = {"gpu0": GPU0, "gpu1": GPU1, "mig0": MIG0}
    devices = [MeteredDevice(BY_UUID[names[name]], total, ENERGY) for name, total in uj.items() if name != "mig0"]
    return [*devices, *(MeteredDevice(BY_UUID[MIG0], None) for name in uj if name == "mig0")]


def sums(ledger: HolderLedger, uuid: str = GPU0) -> dict[str, float]:
    """The energies of a device in J, by pod or reason."""
    rows = [row for row in ledger.readings() if row.metric in (HELD_ENERGY, UNHELD_ENERGY)]
    here = [row for row in rows if row.attributes["hw.id"] == uuid]
    return {row.attributes.get("k8s.pod.name") or row.attributes["reason"]: row.value for row in here}


def held_s(ledger: HolderLedger) -> dict[str, float]:
    """The time for which each pod held a device."""
    return {row.attributes["k8s.pod.name"]: row.value for row in ledger.readings() if row.metric is HELD_TIME}


def test_a_device_s_only_holder_has_its_energy_and_two_have_none() -> None:
    ledger, ns = HolderLedger(), 0
    turns: list[tuple[int, list[DeviceHolder]]] = [
        (0, []),
        (100_000_000, []),  # 100 J of nobody's
        (300_000_000, [pod("a")]),  # 200 J while `a` came
        (600_000_000, [pod("a"), pod("a", container="sidecar")]),  # 300 J: containers of one pod are one holder
        (1_000_000_000, [pod("a"), pod("b")]),
        (1_500_000_000, [pod("a"), pod("b")]),  # 500 J of two
    ]
    for energy_uj, rows in turns:
        ledger.take(ns, metered(gpu0=energy_uj), rows, ANSWERS)
        ns += 10 * NS_PER_S
    # `b` was never the only one: it has no energy, rather than 0.
    assert sums(ledger) == {"a": 300, "not_held": 100, "changed": 600, "shared": 500}
    assert held_s(ledger) == {"a": 30, "b": 10}


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.sets(st.sampled_from("abc"), max_size=2), st.booleans()), max_size=12)
)
def test_the_sums_are_the_growth_of_the_counter(turns: list[tuple[int, set[str], bool]]) -> None:
    ledger, total_uj, known = HolderLedger(), 5, False
    for number, (grown_uj, pods, answers) in enumerate(turns):
        total_uj += grown_uj if number else 0
        rows = [pod(name) for name in pods] if answers else []
        ledger.take(number * NS_PER_S, metered(gpu0=total_uj), rows, ANSWERS if answers else SILENT)
        known |= answers
    expected = total_uj - 5 if known else 0
    assert sum(round(joules * 1e6) for joules in sums(ledger).values()) == expected


def test_without_a_source_nothing_is_published_and_its_silence_is_a_reason() -> None:
    ledger = HolderLedger()
    for number in range(3):
        ledger.take(number * NS_PER_S, metered(gpu0=number * 10**6), [], SILENT)
    assert not ledger.readings()
    ledger.take(3 * NS_PER_S, metered(gpu0=4 * 10**6), [], ANSWERS)
    ledger.take(4 * NS_PER_S, metered(gpu0=5 * 10**6), [], ANSWERS)
    assert sums(ledger) == {"holder_not_known": 2, "changed": 2, "not_held": 1}


def test_an_unknown_holder_is_not_the_known_one() -> None:
    ledger = HolderLedger()
    rows = [pod("a"), DeviceHolder(GPU0, HolderSource.KUBELET, ())]
    for number in range(2):
        ledger.take(number * NS_PER_S, metered(gpu0=number * 10**6), rows, ANSWERS)
    ledger.take(2 * NS_PER_S, metered(gpu0=2 * 10**6), [], ANSWERS)
    assert sums(ledger) == {"holder_not_known": 1, "changed": 1}


def test_the_kubelet_comes_before_the_processes() -> None:
    ledger = HolderLedger()
    inside = DeviceHolder.of(GPU0, HolderSource.CONTAINERS, {"container.id": "c0", "k8s.pod.uid": "u"})
    for number in range(2):
        ledger.take(number * NS_PER_S, metered(gpu0=number * 10**6), [pod("a"), inside], ANSWERS)
    assert sums(ledger) == {"a": 1}


def test_a_gpu_s_energy_is_also_that_of_its_instances() -> None:
    (parent,) = {device.parent for device in DEVICES if device.uuid == MIG0}
    gpu = "gpu0" if parent == GPU0 else "gpu1"
    for others, expected in (([], {"a": 1}), ([pod("b", GPU0 if gpu == "gpu0" else GPU1)], {"shared": 1})):
        ledger = HolderLedger()
        for number in range(2):
            devices = metered(**{gpu: number * 10**6, "mig0": 0})
            ledger.take(number * NS_PER_S, devices, [pod("a", MIG0), *others], ANSWERS)
        energies = {name: joules for name, joules in sums(ledger, parent or "").items() if joules}
        assert energies == expected
        # The instance has no counter of its own, and so no energy of 0.
        assert not sums(ledger, MIG0)
        times = {row.attributes["hw.id"]: row.value for row in ledger.readings() if row.metric is HELD_TIME}
        # It holds a part of the GPU, and so no time of the whole.
        assert times.pop(MIG0) == 1
        assert (parent in times) == bool(others)


def test_a_holder_that_left_stays_for_a_while_and_their_number_is_bounded() -> None:
    ledger = HolderLedger()
    ledger.take(0, metered(gpu0=0), [pod("a")], ANSWERS)
    ledger.take(NS_PER_S, metered(gpu0=10**6), [pod("a")], ANSWERS)
    ledger.take(2 * NS_PER_S, metered(gpu0=10**6), [], ANSWERS)
    assert sums(ledger)["a"] == 1
    ledger.take(2 * NS_PER_S + KEPT_NS, metered(gpu0=10**6), [], ANSWERS)
    assert not sums(ledger)
    many = [pod(f"p{i}", GPU1) for i in range(MOST_HOLDERS)]
    for number in range(3):
        ledger.take(NS_PER_S * 10**4 * (1 + number), metered(gpu0=number * 10**6, gpu1=0), [*many, pod("z")], ANSWERS)
    assert sum(row.metric is HELD_TIME for row in ledger.readings()) == MOST_HOLDERS


def test_attribution_reads_the_energy_of_devices_with_and_without_a_counter(tmp_path: Path) -> None:
    host = Host(tmp_path, containers=True)
    host.proc.add(7, cgroup=IN_POD)
    host.runs(gpu0=[ProcessUse(7, GIB)], gpu1=[])
    first = host.states

    def tell(uuid: str, samples: Sequence[Sample]) -> None:
        timeline = first[uuid].timeline
        timeline.add({each.signal for each in samples})
        timeline.append(samples, host.clock.now_ns())

    now = host.clock.now_ns()
    for number in range(3):
        at = now + number * NS_PER_S
        tell(GPU0, [Sample(ENERGY, at, at, 1000 + 500_000 * number)])
        tell(GPU1, [Sample(POWER_AVERAGE, at - NS_PER_S, at, 80_000)])
        found = host.refreshed()
    energies = {row.attributes["hw.id"]: row.value for row in found if row.metric in (HELD_ENERGY, UNHELD_ENERGY)}
    assert energies == {GPU0: 1000.0, GPU1: 160.0}
    assert all(set(row.attributes) <= set(row.metric.labels) for row in found)
