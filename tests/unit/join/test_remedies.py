"""Whether every reason for a missing rate is explained in the documentation, and has a next step."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from gpu_profile import join
from gpu_profile.join.remedies import remedy
from gpu_profile.join.unmixing.windows.probes import ProbeGroup

_PAGE: Final = Path(__file__).parents[3] / "docs" / "troubleshooting.md"
#: The begins of reasons in the code.
_BEGINS: Final = (
    "not identifiable",
    "too few",
    "no samples",
    "pooled numbers",
    "the device reports no",
    "its first execution",
)


def _texts(tree: ast.AST) -> Iterator[str]:
    """The strings of a module; fields of an f-string become 1."""
    parts = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "1" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def _reasons() -> list[str]:
    """The reasons that the join gives."""
    files = [*Path(join.__file__).parent.rglob("unmixing/**/*.py"), Path(join.__file__).parent / "summary.py"]
    texts = {text for file in files for text in _texts(ast.parse(file.read_text()))}
    found = {text for text in texts if text.startswith(_BEGINS) and "\n" not in text and not text.endswith(".")}
    groups = {f"not identifiable: {group}" for group in ProbeGroup}
    return sorted(found - {"not identifiable: 1", "not identifiable"} | groups)


def _rows(heading: str) -> Iterator[str]:
    """The reasons in the table below a heading, as regular expressions."""
    section = _PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    for line in section.splitlines():
        first = line.split("|")[1] if line.startswith("| `") else ""
        for reason in re.findall(r"`([^`]+)`", first):
            yield re.sub(r"…|(?<=\()n(?=\\\))|\bn\\ %", ".*", re.escape(reason))


@pytest.mark.parametrize("reason", _reasons())
def test_every_reason_is_explained_and_has_a_next_step(reason: str) -> None:
    rows = [*_rows("The regime is UNKNOWN"), *_rows("Not identifiable")]
    assert any(re.search(row, reason) for row in rows)
    # No run of the program changes the signals that a device has.
    assert remedy(reason) or reason.startswith("the device reports no")


def test_every_reason_that_is_explained_is_given() -> None:
    reasons = _reasons()
    assert [row for row in _rows("Not identifiable") if not any(re.search(row, each) for each in reasons)] == []
