"""The C functions, structures and constants of NVML in the project's sources.

Run as a program with the path of an `nvml.h`, it writes the header's declarations of them to
`tests/data/nvml/header.json`. It needs a C compiler.
"""

from __future__ import annotations

import ast
import ctypes
import inspect
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pynvml

_ROOT: Final = Path(__file__).resolve().parents[2]
FACTS: Final = _ROOT / "tests/data/nvml/header.json"
#: Structures in the project's calls of the C interface, by the binding's name.
STRUCTURES: Final = {
    "c_nvmlBAR1Memory_t": "nvmlBAR1Memory_t",
    "c_nvmlDeviceAttributes": "nvmlDeviceAttributes_t",
    "c_nvmlEccSramErrorStatus_v1_t": "nvmlEccSramErrorStatus_v1_t",
    "c_nvmlEventData_t": "nvmlEventData_t",
    "c_nvmlFieldValue_t": "nvmlFieldValue_t",
    "c_nvmlGpmMetricsGet_t": "nvmlGpmMetricsGet_t",
    "c_nvmlGpmSupport_t": "nvmlGpmSupport_t",
    "c_nvmlConfComputeSystemState_t": "nvmlConfComputeSystemState_t",
    "c_nvmlDeviceAddressingMode_t": "nvmlDeviceAddressingMode_t",
    "c_nvmlGpuFabricInfo_v2_t": "nvmlGpuFabricInfo_v2_t",
    "c_nvmlGpuFabricInfo_v3_t": "nvmlGpuFabricInfo_v3_t",
    "c_nvmlRepairStatus_t": "nvmlRepairStatus_t",
    "c_nvmlRowRemapperHistogramValues": "nvmlRowRemapperHistogramValues_t",
    "c_nvmlGpuInstanceInfo_t": "nvmlGpuInstanceInfo_t",
    "c_nvmlMarginTemperature_v1_t": "nvmlMarginTemperature_v1_t",
    "c_nvmlMemory_t": "nvmlMemory_t",
    "c_nvmlMemory_v2_t": "nvmlMemory_v2_t",
    "c_nvmlProcessInfo_v3_t": "nvmlProcessInfo_t",
    "c_nvmlProcessUtilizationSample_t": "nvmlProcessUtilizationSample_t",
    "c_nvmlSample_t": "nvmlSample_t",
    "c_nvmlUtilization_t": "nvmlUtilization_t",
    "nvmlPciInfo_t": "nvmlPciInfo_t",
}
#: Names of the binding alone.
_OWN: Final = frozenset({"NVML_VALUE_NOT_AVAILABLE_ulonglong", "NVML_VALUE_NOT_AVAILABLE_uint"})
#: Suffix of constants that grow with each release.
_GROWS: Final = "_MAX"


def _words() -> set[str]:
    """Names and strings of the sources with NVML's prefixes."""
    words: set[str] = set()
    for path in [*(_ROOT / "instrumentation").rglob("*.py"), *(_ROOT / "exporter").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            word = getattr(node, "attr", None) or getattr(node, "id", None) or getattr(node, "value", None)
            if isinstance(word, str) and re.fullmatch(r"nvml[A-Z]\w+|NVML_\w+", word):
                words.add(word)
    return words


def functions() -> set[str]:
    """The C functions that the project calls through the binding or looks up itself."""
    return {name for word in _words() if word.startswith("nvml") for name in _behind(word)}


def _behind(word: str) -> Iterator[str]:
    function = getattr(pynvml, word, None)
    if not inspect.isfunction(function):
        return
    source = inspect.getsource(function)
    looked_up = re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', source)
    yield from looked_up
    if not looked_up:
        for inner in set(re.findall(r"\b(nvml[A-Z]\w+)\(", source)) - {word}:
            yield from _behind(inner)


def constants() -> dict[str, int]:
    """The binding's constants that the project names, by name, if the installed release has them."""
    words = tuple(word for word in _words() if word.startswith("NVML_") and word not in _OWN)
    # A word that ends with an underscore begins the names of a family.
    families = tuple(word for word in words if word.endswith("_"))
    return {
        name: value
        for name, value in sorted(vars(pynvml).items())
        if isinstance(value, int)
        and (name in words or name.startswith(families))
        and name not in _OWN
        and not name.endswith(_GROWS)
    }


def layout(structure: Any) -> dict[str, int]:
    """Offsets of a structure's members, in the order of the C declaration, and its size ("")."""
    return {name: getattr(structure, name).offset for name, *_ in structure._fields_} | {"": ctypes.sizeof(structure)}


def _facts(header: Path) -> dict[str, Any]:
    text = header.read_text()
    declared = set(re.findall(r"\bDECLDIR\b[^;(]*\b(nvml\w+)\(", text))
    defined = [name for name in constants() if re.search(rf"\b{name}\b", text)]
    versions = re.search(r"NVML VERSION: ([\d.]+)", text)
    lines = [f'printf("%s %lld\\n", "{name}", (long long)({name}));' for name in defined]
    for own, theirs in STRUCTURES.items():
        members = layout(getattr(pynvml, own))
        lines += [f'printf("{own}. %zu\\n", sizeof({theirs}));']
        lines += [f'printf("{own}.{member} %zu\\n", offsetof({theirs}, {member}));' for member in members if member]
    with tempfile.TemporaryDirectory() as directory:
        source, program = Path(directory) / "facts.c", Path(directory) / "facts"
        source.write_text(
            f'#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\nint main(void) {{\n'
            + "\n".join(lines)
            + "\n}"
        )
        subprocess.run(["cc", "-w", "-o", str(program), str(source)], check=True)
        said = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    values = {name: int(value) for name, value in (line.split() for line in said.splitlines())}
    return {
        "version": versions[1] if versions else "",
        "functions": sorted(functions() & declared),
        "constants": {name: values[name] for name in defined},
        "structures": {
            own: {member: values[f"{own}.{member}"] for member in layout(getattr(pynvml, own))} for own in STRUCTURES
        },
    }


if __name__ == "__main__":
    FACTS.parent.mkdir(exist_ok=True)
    FACTS.write_text(json.dumps(_facts(Path(sys.argv[1]).resolve()), indent=1, sort_keys=True) + "\n")
