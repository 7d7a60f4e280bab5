import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def run(site: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The interpreter with nothing of this checkout on its path, away from it."""
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment, cwd=site, capture_output=True, text=True, check=False)


def test_the_wheel_has_two_import_roots_and_nothing_else(unpacked: Path) -> None:
    roots = {path.name for path in unpacked.iterdir() if not path.name.endswith(".dist-info")}
    assert roots == {"gpu_profile", "gpu_profile_exporter"}


def test_the_wheel_is_typed_and_licensed_and_carries_the_page(unpacked: Path) -> None:
    assert (unpacked / "gpu_profile" / "py.typed").is_file()
    assert (unpacked / "gpu_profile_exporter" / "py.typed").is_file()
    assert (unpacked / "gpu_profile" / "report" / "live" / "live.js").is_file()
    assert (unpacked / "gpu_profile" / "analysis" / "fleet" / "sql" / "services.sql").is_file()
    metadata = next(unpacked.glob("*.dist-info")) / "METADATA"
    assert "License-Expression: Apache-2.0" in metadata.read_text()
    assert list(unpacked.glob("*.dist-info/licenses/LICENSE"))


def test_the_wheel_offers_both_commands_and_an_empty_nvml_extra(unpacked: Path) -> None:
    info = next(unpacked.glob("*.dist-info"))
    scripts = (info / "entry_points.txt").read_text()
    assert "gpu-profile = gpu_profile.cli:main" in scripts
    assert "gpu-profile-exporter = gpu_profile_exporter.__main__:main" in scripts
    metadata = (info / "METADATA").read_text()
    assert "Provides-Extra: nvml" in metadata
    assert "extra == 'nvml'" not in metadata


@pytest.mark.parametrize("module", ["gpu_profile.cli", "gpu_profile_exporter"])
def test_both_commands_run_from_the_wheel(unpacked: Path, module: str) -> None:
    done = run(
        unpacked, f"import runpy, sys; sys.argv = ['x', '--version']; runpy.run_module({module!r}, run_name='__main__')"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("0.1.0")


def test_importing_the_package_loads_none_of_the_heavy_modules(unpacked: Path) -> None:
    heavy = ("pynvml", "numpy", "opentelemetry.sdk", "prometheus_client", "grpc", "torch")
    done = run(
        unpacked, f"import gpu_profile, sys; print([m for m in {heavy!r} if m in sys.modules], gpu_profile.__file__)"
    )
    assert done.stdout.startswith("[] "), done
    assert str(unpacked) in done.stdout


def test_a_region_from_the_wheel_runs_without_a_gpu(unpacked: Path) -> None:
    code = "from gpu_profile import configure, region\nconfigure(backend='none')\nwith region('x'):\n    print('ran')"
    done = run(unpacked, code)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
