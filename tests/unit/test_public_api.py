import os
import re
from difflib import unified_diff
from pathlib import Path

import pytest
from support.programs import printed
from support.public_api import GOLDEN, public_api

import gpu_profile

ROOT = Path(__file__).parents[2]
HEAVY = ("pynvml", "numpy", "opentelemetry.sdk", "prometheus_client", "grpc", "torch", "click", "rich", "textual")
LISTED = GOLDEN.read_text(encoding="utf-8").splitlines()
NAMES = [match[1] for line in LISTED if (match := re.fullmatch(r"gpu_profile\.(\w+)(\(.*\))?", line))]


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    library = str(ROOT / "instrumentation")
    return printed("-W", "error", "-c", f"import sys\n{code}", cwd=Path("/"), PYTHONPATH=library)


def loaded(code: str) -> set[str]:
    """The heavy modules that a program has loaded at its end."""
    return set(python(f"{code}\nprint(*({HEAVY!r} & sys.modules.keys()))").split())


def test_public_names_and_their_parameters_are_the_listed_ones() -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(public_api(), encoding="utf-8")
    changed = "\n".join(unified_diff(LISTED, public_api().splitlines(), "listed", "in the code", lineterm="", n=0))
    assert not changed, f"the public API changed: if on purpose, set UPDATE_GOLDEN=1\n{changed}"
    assert gpu_profile.__all__ == NAMES


def test_the_list_is_that_of_the_pages() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"## {name}\n" not in page and f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_there_documented_and_found_once(name: str) -> None:
    found = getattr(gpu_profile, name)
    assert found is getattr(gpu_profile, name)
    assert found.__doc__
    assert name in dir(gpu_profile)


def test_the_module_of_the_process_keeps_its_name() -> None:
    code = "from gpu_profile import configure, process, stop\nconfigure(backend='none')\nprint(process.stop is stop)"
    assert python(code) == "True\n"


def test_star_import_gives_the_public_names() -> None:
    given = python("from gpu_profile import *\nprint(*sorted(n for n in globals() if not n.startswith('_')))").split()
    assert given == sorted([*NAMES, "sys"])


def test_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'gpu_profile' has no attribute 'regoin'"):
        gpu_profile.regoin  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'regoin'"):
        from gpu_profile import regoin  # noqa: F401


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded("import gpu_profile") == set()
    assert loaded("import gpu_profile; dir(gpu_profile); gpu_profile.__version__; gpu_profile.GpuBackendError") == set()


def test_using_regions_loads_neither_the_sdk_nor_a_driver_library_that_is_not_asked_for() -> None:
    code = "from gpu_profile import configure, region\nconfigure(backend='none')\nwith region('x'): pass"
    assert loaded(code) <= {"numpy"}


def test_region_explains_itself() -> None:
    assert gpu_profile.region.__name__ == "region"  # type: ignore[attr-defined]
    assert "context manager or a decorator" in (gpu_profile.region.__doc__ or "")
