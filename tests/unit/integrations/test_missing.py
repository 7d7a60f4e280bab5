"""An integration whose framework is not installed says so in one line, and what to install."""

import subprocess
import sys

import pytest
from support.programs import environment, python


@pytest.mark.parametrize(
    ("module", "missing", "message"),
    [
        ("torch", "torch", "gpu_profile.integrations.torch needs PyTorch: pip install 'gpu-profile[torch]' ("),
        ("lightning", "torch", "gpu_profile.integrations.torch needs PyTorch: "),
        ("transformers", "torch", "gpu_profile.integrations.torch needs PyTorch: "),
    ],
)
def test_without_torch(module: str, missing: str, message: str) -> None:
    assert message in last_line(module, missing)


@pytest.mark.parametrize(
    ("module", "missing", "message"),
    [
        ("lightning", "lightning", "gpu_profile.integrations.lightning needs Lightning: pip install lightning ("),
        ("transformers", "transformers", "gpu_profile.integrations.transformers needs Transformers: pip install"),
    ],
)
def test_without_the_framework(module: str, missing: str, message: str) -> None:
    pytest.importorskip("torch")
    assert message in last_line(module, missing)


def last_line(module: str, missing: str) -> str:
    script = f"import sys; sys.modules[{missing!r}] = None; import gpu_profile.integrations.{module}"
    done = python("-c", script)
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]


def test_frameworks_are_looked_for_without_loading_any() -> None:
    script = """
import sys
from gpu_profile.regions.frameworks import current_device, find_stream, find_sync
assert (find_stream(), find_sync(), current_device()) == (None, None, None)
assert not {"torch", "cupy", "numba", "jax", "numpy", "pynvml"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], env=environment(), check=True, timeout=60)
