"""Print what `make gpu` needs beside PyTorch or CuPy, one requirement a line: this project's own, and a
collector to compare with."""

import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
with PROJECT.open("rb") as file:
    project = tomllib.load(file)["project"]
print("\n".join([*project["dependencies"], *project["optional-dependencies"]["cupti"], "nvitop-exporter"]))
