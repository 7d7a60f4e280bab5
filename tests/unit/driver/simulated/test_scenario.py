from pathlib import Path

import pytest

from gpu_profile.clock import SYSTEM_CLOCK
from gpu_profile.driver.simulated.node import Node, create, epoch
from gpu_profile.driver.simulated.scenario import DEFAULT, load, parse
from gpu_profile.errors import ScenarioError
from gpu_profile.testing import FakeClock

A10G = '[[device]]\nmodel = "A10G"\n'
PHASE = A10G + "[[device.phase]]\nduration_s = 1\n"
H100 = '[[device]]\nmodel = "H100 SXM"\n'


def test_built_in_node_has_gpm_no_gpm_and_two_instances() -> None:
    units = parse(DEFAULT).units
    assert [unit.model.key for unit in units] == [
        "H200 SXM",
        "A10G",
        "H100 SXM",
        "H100 SXM 3g.40gb",
        "H100 SXM 3g.40gb",
    ]
    assert [unit.model.gpm for unit in units[:3]] == [True, False, True]
    assert [unit.parent for unit in units] == [None, None, None, 2, 2]


def test_uuids_depend_on_seed_and_index_only() -> None:
    first, again = parse(A10G * 2), parse(A10G * 2)
    other = parse("seed = 1\n" + A10G * 2)
    assert [unit.uuid for unit in first.units] == [unit.uuid for unit in again.units]
    assert len({unit.uuid for unit in (*first.units, *other.units)}) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.toml: [device]: a node needs at least one"),
        ("x = [", "f.toml: [file]: "),
        ("devices = 1\n" + A10G, "f.toml: [devices]: unknown key; did you mean 'device'?"),
        ('[[device]]\nmodel = "H300"\n', "f.toml: [device 0.model]: unknown 'H300'; did you mean 'H"),
        ("[[device]]\n", "f.toml: [device 0.model]: missing"),
        ("[[device]]\nmodel = 3\n", "f.toml: [device 0.model]: expected a text, got 3"),
        ("device = 3\n", "f.toml: [device]: expected [[device]] tables"),
        (A10G + 'memory_used_mib = "x"\n', "f.toml: [device 0.memory_used_mib]: expected a number, got 'x'"),
        (A10G + "memory_used_mib = 1.5\n", "f.toml: [device 0.memory_used_mib]: expected a whole number, got 1.5"),
        (A10G + "memory_used_mib = 99999\n", "f.toml: [device 0.memory_used_mib]: must be at most 22537, got 99999"),
        (A10G + "loop = 1\n", "f.toml: [device 0.loop]: expected true or false, got 1"),
        (A10G + "unsupported = [1]\n", "f.toml: [device 0.unsupported]: expected a list of texts"),
        (A10G + 'uuid = "GPU-a"\n' + A10G + 'uuid = "GPU-a"\n', "f.toml: [device]: two devices have the uuid GPU-a"),
        (PHASE + "flops = -1\n", "f.toml: [device 0.phase 0.flops]: must be at least 0, got -1"),
        (PHASE + "flops = nan\n", "f.toml: [device 0.phase 0.flops]: expected a number, got nan"),
        (PHASE + "flop = 1\n", "f.toml: [device 0.phase 0.flop]: unknown key; did you mean 'flops'?"),
        (PHASE + 'flops = 1\nprecision = "fp8"\n', "f.toml: [device 0.phase 0]: A10G has no fp8 pipe"),
        (PHASE + "nvlink_bytes = 1\n", "f.toml: [device 0.phase 0]: A10G has no NVLink"),
        (PHASE + "duty = 0.5\n", "f.toml: [device 0.phase 0]: a square wave needs both duty and period_s"),
        (PHASE + "duty = 0.5\nperiod_s = 1\nflops = 1\n", "f.toml: [device 0.phase 0]: a square wave states"),
        (A10G + '[[device.mig]]\nprofile = "1g.10gb"\n', "f.toml: [device 0.mig 0]: A10G cannot be cut"),
        (H100 + '[[device.mig]]\nprofile = "5g"\n', "f.toml: [device 0.mig 0.profile]: unknown '5g'"),
        (H100 + '[[device.mig]]\nprofile = "4g.40gb"\n' * 2, "f.toml: [device 0.mig]: the instances take 8 compute"),
        (H100 + '[[device.mig]]\nprofile = "3g.40gb"\n' * 3, "f.toml: [device 0.mig]: the instances take 9 compute"),
        (A10G + '[[fault]]\nkind = "xid"\nfrom_s = 1\n', "f.toml: [fault 0.xid]: missing"),
        (A10G + '[[fault]]\nkind = "gpu_lost"\nfrom_s = 2\nto_s = 1\n', "f.toml: [fault 0.to_s]: must be at least 2"),
        (
            A10G + '[[fault]]\nkind = "gpu_lost"\nfrom_s = 2\ndevice = 1\n',
            "f.toml: [fault 0.device]: must be at most 0",
        ),
        (A10G + '[[fault]]\nkind = "gpu_lost"\nfrom_s = 2\nxid = 1\n', "f.toml: [fault 0.xid]: unknown key"),
    ],
)
def test_error_names_file_place_and_reason_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        parse(text, "f.toml")
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_gpu_that_is_cut_cannot_run_a_script_itself() -> None:
    text = H100 + '[[device.mig]]\nprofile = "3g.40gb"\n[[device.phase]]\nduration_s = 1\n'
    with pytest.raises(ScenarioError, match="a GPU with MIG instances runs nothing itself"):
        parse(text)


def test_directory_without_scenario_is_the_built_in_node(tmp_path: Path) -> None:
    assert load(tmp_path) == parse(DEFAULT)


def test_unreadable_scenario_is_a_scenario_error(tmp_path: Path) -> None:
    (tmp_path / "scenario.toml").write_bytes(b"\xff")
    with pytest.raises(ScenarioError, match="cannot be read"):
        load(tmp_path)


def test_first_user_fixes_the_epoch_for_all(tmp_path: Path) -> None:
    early, late = FakeClock(1_000), FakeClock(2_000)
    assert epoch(tmp_path, load(tmp_path), early) == epoch(tmp_path, load(tmp_path), late) == 1_000
    assert [path.name for path in tmp_path.iterdir()] == ["epoch"]


def test_scenario_can_fix_the_epoch(tmp_path: Path) -> None:
    create(tmp_path, "start_ns = 42\n" + A10G, SYSTEM_CLOCK)
    assert Node(tmp_path, SYSTEM_CLOCK).epoch_ns == 42


def test_broken_epoch_is_a_scenario_error(tmp_path: Path) -> None:
    (tmp_path / "epoch").write_text("soon")
    with pytest.raises(ScenarioError, match=r"epoch: \[line 1\]: expected nanoseconds"):
        Node(tmp_path, SYSTEM_CLOCK)


def test_node_needs_its_directory(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="no such directory; make it"):
        Node(tmp_path / "none", SYSTEM_CLOCK)


def test_create_never_overwrites_a_scenario(tmp_path: Path) -> None:
    create(tmp_path, A10G, SYSTEM_CLOCK)
    with pytest.raises(FileExistsError):
        create(tmp_path, H100, SYSTEM_CLOCK)


def test_create_leaves_nothing_behind_for_a_text_that_is_not_valid(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError):
        create(tmp_path / "node", "x = 1", SYSTEM_CLOCK)
    assert not (tmp_path / "node").exists()
