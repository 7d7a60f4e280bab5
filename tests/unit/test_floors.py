import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import grimp

ROOT = Path(__file__).parents[2]
#: Packages below the regions that read clocks, devices and files, or run threads.
IMPURE = {"sampling", "driver", "recording", "clock", "user_cache"}


def contract(name: str) -> Any:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (found,) = (row for row in pyproject["tool"]["importlinter"]["contracts"] if row["id"] == name)
    return found


def floors() -> list[list[str]]:
    """The modules of each floor, top first."""
    return [re.findall(r"\w+", layer) for layer in contract("floors")["layers"]]


def test_every_package_below_the_regions_is_held_to_be_pure() -> None:
    order = floors()
    top = next(index for index, names in enumerate(order) if "join" in names)
    below = {name for names in order[top:] for name in names}
    assert below >= IMPURE
    assert {f"gpu_profile.{name}" for name in below - IMPURE} <= set(contract("pure")["source_modules"])


def test_no_modules_import_each_other_in_a_circle_lazily_or_for_types_neither() -> None:
    graph = grimp.build_graph("gpu_profile", "gpu_profile_exporter", cache_dir=None)
    circles = [
        f"{module} imports {imported}, and the other way round"
        for module in sorted(graph.modules)
        for imported in sorted(graph.find_modules_directly_imported_by(module))
        if graph.chain_exists(importer=imported, imported=module)
    ]
    assert circles == []


def test_every_package_says_in_10_to_25_lines_what_each_of_its_modules_is_for() -> None:
    missing = []
    for code in sorted([*ROOT.glob("instrumentation/**/__init__.py"), *ROOT.glob("exporter/**/__init__.py")]):
        package = ast.get_docstring(ast.parse(code.read_text())) or ""
        words = set(re.findall(r"\w+", package))
        rooms = {each.stem for each in code.parent.iterdir() if each.suffix == ".py" or (each / "__init__.py").exists()}
        missing += [f"{code}: {name}" for name in sorted(rooms - words - {"__init__", "__main__"})]
        if not 10 <= len(package.splitlines()) <= 25:
            missing.append(f"{code}: {len(package.splitlines())} lines")
    assert missing == []


#: Class names that several modules share: one concept each.
SHARED = {
    "BaseInstrumentor": "OpenTelemetry's, and a replacement where it is not installed",
    "GpuProfileCallback": "the callback of Lightning and the one of Transformers",
    "Kind": "public: of a signal in the catalogue, of an operation in `kernels`",
    "Recording": "public: of samples and spans, of kernels",
    "Work": "public: of a simulated kernel, of an operation in `roofline`",
}


def test_a_class_name_is_unique_unless_it_is_the_same_concept() -> None:
    modules = defaultdict[str, list[str]](list)
    for code in sorted([*ROOT.glob("instrumentation/**/*.py"), *ROOT.glob("exporter/**/*.py")]):
        for node in ast.walk(ast.parse(code.read_text())):
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(str(code.relative_to(ROOT)))
    assert {name: places for name, places in modules.items() if len(places) > 1}.keys() == SHARED.keys()
    assert len(SHARED) <= 12


def test_no_module_is_longer_than_400_lines() -> None:
    lengths = {
        code: len(code.read_text().splitlines())
        for root in ("instrumentation", "exporter")
        for code in ROOT.glob(f"{root}/**/*.py")
    }
    assert {str(code.relative_to(ROOT)): n for code, n in lengths.items() if n > 400} == {}
