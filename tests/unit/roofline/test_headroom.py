"""How near a device's memory is to running out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_profile.roofline.headroom import as_profile, headroom, oom_risk
from gpu_profile.roofline.machines.machine import Memory

GIB = 1 << 30


def memory(*, total: float, free: float, allocated: float = 0.0, reserved: float = 0.0) -> Memory:
    sizes = [round(size * GIB) for size in (allocated, reserved, allocated, free, total)]
    return Memory(*sizes)


@pytest.mark.parametrize(
    ("risk", "state"),
    [
        ("LOW", memory(total=80, free=60)),
        ("MEDIUM", memory(total=80, free=20)),
        ("HIGH", memory(total=80, free=5)),
        ("MEDIUM", memory(total=24, free=1.9, allocated=16, reserved=18)),
        ("LOW", memory(total=2, free=1.5)),
        ("HIGH", memory(total=2, free=0.1)),
        ("HIGH", memory(total=80, free=0)),
    ],
)
def test_the_risk_is_by_headroom_and_by_the_share_in_use(risk: str, state: Memory) -> None:
    assert oom_risk(state) == risk


def test_what_the_allocator_keeps_unused_is_headroom() -> None:
    assert headroom(memory(total=80, free=10, allocated=20, reserved=35)) == 25 * GIB


def test_a_profile_has_the_seed_s_keys_in_its_units() -> None:
    found = as_profile(memory(total=80, free=40, allocated=20, reserved=40))
    assert found == {
        "allocated_mb": 20 * 1024,
        "reserved_mb": 40 * 1024,
        "peak_allocated_mb": 20 * 1024,
        "total_available_mb": 80 * 1024,
        "fragmentation_ratio": 0.5,
        "headroom_mb": 60 * 1024,
        "usage_percentage": 25.0,
        "oom_risk": "LOW",
    }


sizes = st.integers(0, 200 * GIB)


@given(sizes, sizes, sizes, sizes)
def test_less_free_memory_is_never_less_risk(total: int, free: int, allocated: int, kept: int) -> None:
    order = ["LOW", "MEDIUM", "HIGH"]
    risks = [oom_risk(Memory(allocated, allocated + kept, allocated, left, total)) for left in (free, free // 2, 0)]
    assert [order.index(risk) for risk in risks] == sorted(order.index(risk) for risk in risks)
