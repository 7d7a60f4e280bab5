"""Energy by holder: nothing is lost, nothing is given to the wrong one."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from support.exporter import DEVICES, GIB, GPU0, GPU1, IN_POD, MIG0, MIG1, Host

from gpu_profile.catalogue.allocation import HELD_ENERGY, HELD_TIME, UNHELD_ENERGY
from gpu_profile.catalogue.samples import ProcessUse, Sample
from gpu_profile.catalogue.signals import ENERGY, POWER_AVERAGE
from gpu_profile.units import NS_PER_S
from gpu_profile_exporter.attribution.allocation import DeviceHolder
from gpu_profile_exporter.attribution.instance_windows import EnergyParts
from gpu_profile_exporter.attribution.ledger import KEPT_NS, MOST_HOLDERS, HolderLedger, MeteredDevice, Unheld
from gpu_profile_exporter.attribution.sources import HolderSource, Reason

ANSWERS = {HolderSource.KUBELET: None, HolderSource.CONTAINERS: None}
SILENT = {HolderSource.KUBELET: Reason.TIMEOUT}
LONGEST_NS = 25 * NS_PER_S
JOULES = (HELD_ENERGY, UNHELD_ENERGY)
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


def take(
    ledger: HolderLedger,
    now_ns: int,
    devices: list[MeteredDevice],
    rows: Sequence[DeviceHolder],
    status: Mapping[HolderSource, Reason | None],
    *,
    read_ns: int | None = None,
) -> None:
    """A refresh. The energies were read at the same time, or at `read_ns`."""
    until_ns = now_ns if read_ns is None else read_ns
    ledger.take(now_ns, [each._replace(until_ns=until_ns) for each in devices], rows, status)


def sums(ledger: HolderLedger, uuid: str = GPU0) -> dict[str, float]:
    """The energies of a device above 0 J, and a pod's also if it is 0, by pod or reason."""
    return {name: joules for name, joules in all_sums(ledger, uuid).items() if joules or name not in list(Unheld)}


def all_sums(ledger: HolderLedger, uuid: str = GPU0) -> dict[str, float]:
    """The energies of a device in J, by pod or reason."""
    rows = [row for row in ledger.readings() if row.metric in JOULES]
    here = [row for row in rows if row.attributes["hw.id"] == uuid]
    return {row.attributes.get("k8s.pod.name") or row.attributes["reason"]: row.value for row in here}


def held_s(ledger: HolderLedger) -> dict[str, float]:
    """The time for which each pod held a device."""
    return {row.attributes["k8s.pod.name"]: row.value for row in ledger.readings() if row.metric is HELD_TIME}


def test_a_device_s_only_holder_has_its_energy_and_two_have_none() -> None:
    ledger, ns = HolderLedger(LONGEST_NS), 0
    turns: list[tuple[int, list[DeviceHolder]]] = [
        (0, []),
        (100_000_000, []),  # 100 J of nobody's
        (300_000_000, [pod("a")]),  # 200 J while `a` came
        (600_000_000, [pod("a"), pod("a", container="sidecar")]),  # 300 J: containers of one pod are one holder
        (1_000_000_000, [pod("a"), pod("b")]),
        (1_500_000_000, [pod("a"), pod("b")]),  # 500 J of two
    ]
    for energy_uj, rows in turns:
        take(ledger, ns, metered(gpu0=energy_uj), rows, ANSWERS)
        ns += 10 * NS_PER_S
    # `b` was never the only one: it has no energy, rather than 0.
    assert sums(ledger) == {"a": 300, "not_held": 100, "changed": 600, "shared": 500}
    assert held_s(ledger) == {"a": 30, "b": 10}


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.sets(st.sampled_from("abc"), max_size=2), st.booleans()), max_size=12)
)
def test_the_sums_are_the_growth_of_the_counter(turns: list[tuple[int, set[str], bool]]) -> None:
    ledger, total_uj, known = HolderLedger(LONGEST_NS), 5, False
    for number, (grown_uj, pods, answers) in enumerate(turns):
        total_uj += grown_uj if number else 0
        rows = [pod(name) for name in pods] if answers else []
        take(ledger, number * NS_PER_S, metered(gpu0=total_uj), rows, ANSWERS if answers else SILENT)
        known |= answers
    expected = total_uj - 5 if known else 0
    assert sum(round(joules * 1e6) for joules in sums(ledger).values()) == expected


PARTS = st.lists(st.floats(0, 1), min_size=4, max_size=4)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.sampled_from(["ab", "ab", "a", "a,b", ""]), PARTS), max_size=12))
def test_the_sums_are_the_growth_of_the_counter_however_instances_share_it(
    turns: list[tuple[int, str, list[float]]],
) -> None:
    """Of two instances, each turn has the pods by instance, or both pods on both."""
    parts: list[float] = []

    def divide(gpu: str, since_ns: int, until_ns: int, groups: Mapping[str, Hashable]) -> EnergyParts:
        assert (gpu, set(groups)) == (GPU1, {MIG0, MIG1})
        assert since_ns < until_ns
        idle, *rest = parts
        whole = max(1.0, idle + sum(rest)) * (1.0 if rest[-1] > 0.5 else (idle + sum(rest)) or 1.0)
        shares = {group: share / whole for group, share in zip(dict.fromkeys(groups.values()), rest, strict=False)}
        return EnergyParts(idle / whole if idle > 0.1 else None, shares, shares)

    ledger, total_uj = HolderLedger(LONGEST_NS, divide), 5
    devices = [MeteredDevice(BY_UUID[uuid], None) for uuid in (MIG0, MIG1)]
    for number, (grown_uj, pods, parts) in enumerate(turns):  # noqa: B007 - `divide` reads it
        total_uj += grown_uj if number else 0
        by_instance = [(MIG0, name) for name in pods[:1]] + [(MIG1, name) for name in pods[1:2]]
        if "," in pods:
            by_instance = [(uuid, name) for uuid in (MIG0, MIG1) for name in "ab"]
        rows = [pod(name, uuid) for uuid, name in by_instance]
        gpu = MeteredDevice(BY_UUID[GPU1], total_uj, ENERGY)
        take(ledger, number * NS_PER_S, [gpu, *devices], rows, ANSWERS)
    joules = all_sums(ledger, GPU1).values()
    assert all(each >= 0 for each in joules)
    assert sum(round(each * 1e6) for each in joules) == (total_uj - 5 if turns else 0)


def test_instances_have_their_parts_and_holders_that_swap_them_have_none() -> None:
    def divide(_gpu: str, _since: int, _until: int, groups: Mapping[str, Hashable]) -> EnergyParts:
        shares = {groups[MIG0]: 0.5}
        shares[groups[MIG1]] = shares.get(groups[MIG1], 0.0) + 0.3
        return EnergyParts(0.2, shares, shares)

    ledger, instances = HolderLedger(LONGEST_NS, divide), [MeteredDevice(BY_UUID[uuid], None) for uuid in (MIG0, MIG1)]
    turns = ["ab", "ab", "ab", "ab", "ba", "ba"]
    for number, pods in enumerate(turns):
        gpu = MeteredDevice(BY_UUID[GPU1], number * 10**7, ENERGY)
        rows = [pod(pods[0], MIG0), pod(pods[1], MIG1)]
        take(ledger, number * NS_PER_S, [gpu, *instances], rows, ANSWERS)
    # Of the five growths of 10 J, the first part of each pod begins its sum, and the swap is nobody's.
    assert sums(ledger, GPU1) == {"a": 13, "b": 11, "idle": 10, "shared": 8, "changed": 8}


def test_a_pod_with_the_whole_gpu_beside_its_instances_prevents_shares() -> None:
    ledger = HolderLedger(LONGEST_NS, lambda *_: EnergyParts(1.0, {}, {}))
    instances = [MeteredDevice(BY_UUID[uuid], None) for uuid in (MIG0, MIG1)]
    for number in range(2):
        gpu = MeteredDevice(BY_UUID[GPU1], number * 10**6, ENERGY)
        take(ledger, number * NS_PER_S, [gpu, *instances], [pod("a", GPU1), pod("b", MIG0)], ANSWERS)
    assert sums(ledger, GPU1) == {"shared": 1}


def test_without_a_source_nothing_is_published_and_its_silence_is_a_reason() -> None:
    ledger = HolderLedger(LONGEST_NS)
    for number in range(3):
        take(ledger, number * NS_PER_S, metered(gpu0=number * 10**6), [], SILENT)
    assert not ledger.readings()
    take(ledger, 3 * NS_PER_S, metered(gpu0=4 * 10**6), [], ANSWERS)
    take(ledger, 4 * NS_PER_S, metered(gpu0=5 * 10**6), [], ANSWERS)
    assert sums(ledger) == {"holder_not_known": 4, "not_held": 1}


def test_an_unknown_holder_is_not_the_known_one() -> None:
    ledger = HolderLedger(LONGEST_NS)
    rows = [pod("a"), DeviceHolder(GPU0, HolderSource.KUBELET, ())]
    for number in range(2):
        take(ledger, number * NS_PER_S, metered(gpu0=number * 10**6), rows, ANSWERS)
    take(ledger, 2 * NS_PER_S, metered(gpu0=2 * 10**6), [], ANSWERS)
    assert sums(ledger) == {"holder_not_known": 2}


def test_the_kubelet_comes_before_the_processes() -> None:
    ledger = HolderLedger(LONGEST_NS)
    inside = DeviceHolder.of(GPU0, HolderSource.CONTAINERS, {"container.id": "c0", "k8s.pod.uid": "u"})
    for number in range(2):
        take(ledger, number * NS_PER_S, metered(gpu0=number * 10**6), [pod("a"), inside], ANSWERS)
    assert sums(ledger) == {"a": 1}


def test_a_gpu_s_energy_is_also_that_of_its_instances() -> None:
    (parent,) = {device.parent for device in DEVICES if device.uuid == MIG0}
    gpu = "gpu0" if parent == GPU0 else "gpu1"
    for others, expected in (([], {"a": 1}), ([pod("b", GPU0 if gpu == "gpu0" else GPU1)], {"shared": 1})):
        ledger = HolderLedger(LONGEST_NS)
        for number in range(2):
            devices = metered(**{gpu: number * 10**6, "mig0": 0})
            take(ledger, number * NS_PER_S, devices, [pod("a", MIG0), *others], ANSWERS)
        energies = {name: joules for name, joules in sums(ledger, parent or "").items() if joules}
        assert energies == expected
        # The instance has no counter of its own, and so no energy of 0.
        assert not sums(ledger, MIG0)
        times = {row.attributes["hw.id"]: row.value for row in ledger.readings() if row.metric is HELD_TIME}
        # It holds a part of the GPU, and so no time of the whole.
        assert times.pop(MIG0) == 1
        assert (parent in times) == bool(others)


def test_a_holder_that_left_stays_for_a_while_and_their_number_is_bounded() -> None:
    ledger = HolderLedger(LONGEST_NS)
    take(ledger, 0, metered(gpu0=0), [pod("a")], ANSWERS)
    take(ledger, NS_PER_S, metered(gpu0=10**6), [pod("a")], ANSWERS)
    take(ledger, 2 * NS_PER_S, metered(gpu0=10**6), [], ANSWERS)
    assert sums(ledger)["a"] == 1
    take(ledger, 2 * NS_PER_S + KEPT_NS, metered(gpu0=10**6), [], ANSWERS)
    assert not sums(ledger)
    many = [pod(f"p{i}", GPU1) for i in range(MOST_HOLDERS)]
    for number in range(3):
        take(ledger, NS_PER_S * 10**4 * (1 + number), metered(gpu0=number * 10**6, gpu1=0), [*many, pod("z")], ANSWERS)
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
    energies = {row.attributes["hw.id"]: row.value for row in found if row.metric in JOULES and row.value}
    assert energies == {GPU0: 1000.0, GPU1: 160.0}
    assert all(set(row.attributes) <= set(row.metric.labels) for row in found)


def test_a_source_that_falls_silent_leaves_the_holder_unknown() -> None:
    """Neither nobody's, nor the container's that the kubelet would have named as a pod's."""
    inside = DeviceHolder.of(GPU0, HolderSource.CONTAINERS, {"container.id": "c0"})
    for others in ([], [inside]):
        ledger, alternating = HolderLedger(LONGEST_NS), [True, True, False, False, True, True]
        for number, answers in enumerate(alternating):
            status = {HolderSource.KUBELET: None if answers else Reason.TIMEOUT, HolderSource.CONTAINERS: None}
            rows = [pod("a")] if answers else []
            take(ledger, number * NS_PER_S, metered(gpu0=number * 10**6), [*rows, *others], status)
        assert sums(ledger) == {"a": 2, "holder_not_known": 3}


def test_an_energy_counter_s_reasons_begin_at_0() -> None:
    ledger = HolderLedger(LONGEST_NS)
    take(ledger, 0, metered(gpu0=5, mig0=0), [], ANSWERS)
    assert all_sums(ledger) == dict.fromkeys(Unheld, 0)
    assert not all_sums(ledger, MIG0)


def test_over_a_pause_others_could_have_held_the_device() -> None:
    ledger, minute = HolderLedger(LONGEST_NS), 60 * NS_PER_S
    take(ledger, 0, metered(gpu0=0), [pod("a")], ANSWERS)
    # The readings of the pause arrive by and by.
    take(ledger, 5 * minute, metered(gpu0=0), [pod("a")], ANSWERS, read_ns=0)
    take(ledger, 5 * minute + NS_PER_S, metered(gpu0=2 * 10**6), [pod("a")], ANSWERS, read_ns=2 * minute)
    take(ledger, 5 * minute + 2 * NS_PER_S, metered(gpu0=5 * 10**6), [pod("a")], ANSWERS)
    take(ledger, 5 * minute + 3 * NS_PER_S, metered(gpu0=6 * 10**6), [pod("a")], ANSWERS)
    assert sums(ledger) == {"a": 1, "holder_not_known": 5}
    assert held_s(ledger) == {"a": 3}


def test_a_device_that_was_away_has_no_certain_holder_in_between() -> None:
    ledger = HolderLedger(LONGEST_NS)
    for second in (0, 10, 20, 30, 40, 50):
        away = 10 <= second <= 40
        rows = [pod("a"), pod("b", GPU1)]
        take(ledger, second * NS_PER_S, metered(gpu1=0) if away else metered(gpu0=second, gpu1=0), rows, ANSWERS)
    assert sums(ledger) == {"a": 0, "holder_not_known": 50e-6}
    assert held_s(ledger) == {"a": 0, "b": 50}


def test_readings_that_are_rarer_than_refreshes_are_nobody_s_if_holders_changed_in_between() -> None:
    ledger, turns = HolderLedger(LONGEST_NS), ["b", "b", "b", "a", "a", "a", "a", "a", "a"]
    for number, holder in enumerate(turns):
        read = number // 3 * 3
        take(ledger, number * 10 * NS_PER_S, metered(gpu0=read * 10**6), [pod(holder)], ANSWERS, read_ns=read * 10**10)
    assert sums(ledger) == {"b": 0, "changed": 3, "a": 3}


def test_a_counter_of_a_device_that_is_made_anew_never_falls() -> None:
    ledger = HolderLedger(LONGEST_NS)
    for number, energy_uj in enumerate((50, 90, 10, 30)):
        take(ledger, number * NS_PER_S, metered(gpu0=energy_uj), [pod("a")], ANSWERS)
    assert sums(ledger) == {"a": 60e-6}


def test_devices_that_have_gone_are_forgotten() -> None:
    ledger = HolderLedger(LONGEST_NS)
    for number in range(1000):
        device = replace(BY_UUID[GPU0], uuid=f"GPU-{number}")
        take(ledger, number * 60 * NS_PER_S, [MeteredDevice(device, 5, ENERGY)], [pod("a", device.uuid)], ANSWERS)
    assert len({row.attributes["hw.id"] for row in ledger.readings()}) == KEPT_NS // (60 * NS_PER_S) + 1


def test_clock_steps_add_no_time(tmp_path: Path) -> None:
    host = Host(tmp_path, job_mapping_dir=tmp_path / "jobs")
    (host.jobs / GPU0).write_text("7\n")
    host.refreshed()
    for step_s in (3600, -7200):
        host.clock.set_forward(step_s)
        host.clock.advance(10)
        found = host.refreshed()
    (held,) = (row.value for row in found if row.metric is HELD_TIME)
    assert held == 20


def test_a_device_without_a_list_of_processes_has_no_known_holder(tmp_path: Path) -> None:
    """Though the lists of other devices are there."""
    host = Host(tmp_path, containers=True)
    host.runs(gpu1=[])
    host.states[GPU0].processes_ns = None
    for number in range(3):
        at = host.clock.now_ns() + number * NS_PER_S
        for uuid in (GPU0, GPU1):
            host.states[uuid].timeline.append([Sample(ENERGY, at, at, 1000 + 500_000 * number)], at)
        found = host.refreshed()
    energies = {row.attributes["hw.id"]: row.value for row in found if row.metric is UNHELD_ENERGY and row.value}
    assert energies == {GPU1: 1000}


def test_containers_of_a_pod_are_one_holder_without_the_kubelet_too() -> None:
    ledger = HolderLedger(LONGEST_NS)
    places = [{"container.id": each, "container.runtime.name": "containerd", "k8s.pod.uid": "u"} for each in "cd"]
    rows = [DeviceHolder.of(GPU0, HolderSource.CONTAINERS, place) for place in places]
    for number in range(2):
        take(ledger, number * NS_PER_S, metered(gpu0=number * 10**6), rows, ANSWERS)
    (held,) = (row for row in ledger.readings() if row.metric is HELD_ENERGY)
    assert (held.attributes, held.value) == ({"hw.id": GPU0, "k8s.pod.uid": "u"}, 1)
