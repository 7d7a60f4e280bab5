"""Assembles CHANGELOG.md for a release from the files in changelog.d/: `python docs/changelog.py VERSION`.

Each file has the entry of one change, as items of a Markdown list. The release appends them to the section of its
version and removes the files. `--check` changes nothing: it prints the section of a version, and fails if the version
is not that of pyproject.toml, the section has no date, or entries are left.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


def entries(root: Path) -> list[Path]:
    """The files of changes, by name."""
    return sorted(path for path in (root / "changelog.d").glob("*.md") if path.name != "README.md")


def assembled(text: str, version: str, date: str, changes: list[str]) -> str:
    """The changelog with the changes at the end of the version's section. A section that is missing becomes the first.

    ValueError for a version that has a date already.
    """
    heading = f"## {version}, {date}"
    draft = f"## {version}, not released\n"
    added = "".join(f"{change.strip()}\n" for change in changes)
    if draft in text:
        before, _, rest = text.partition(draft)
        section, mark, older = rest.partition("\n## ")
        return f"{before}{heading}\n{section.rstrip()}\n{added}{mark and f'{mark}{older}'}"
    if re.search(rf"^## {re.escape(version)},", text, re.MULTILINE):
        raise ValueError(f"{version} is released already: choose the next version")
    intro, mark, older = text.partition("\n## ")
    return f"{intro.rstrip()}\n\n{heading}\n\n{added}{mark and f'{mark}{older}'}"


def checked(root: Path, version: str) -> str:
    """The section of a released version. ValueError with the reason if it cannot be released."""
    declared = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    if declared != version:
        raise ValueError(f"pyproject.toml has version {declared}, not {version}: change it, or the tag")
    if left := entries(root):
        raise ValueError(f"{len(left)} entries are left in changelog.d: run docs/changelog.py {version} and commit")
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(
        rf"^## {re.escape(version)}, \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )
    if section is None:
        raise ValueError(f"CHANGELOG.md has no dated section for {version}: run docs/changelog.py {version} and commit")
    return section[1].strip()


def main(arguments: list[str] | None = None, root: Path = ROOT) -> None:
    """Assemble, or check. Ends the program with one line on a mistake."""
    parser = argparse.ArgumentParser(description="Assemble CHANGELOG.md from changelog.d.")
    parser.add_argument("version")
    parser.add_argument("--check", action="store_true", help="print the section of a version that is ready")
    options = parser.parse_args(arguments)
    try:
        if options.check:
            print(checked(root, options.version))  # noqa: T201 - the notes of the release
            return
        page, files = root / "CHANGELOG.md", entries(root)
        changes = [path.read_text(encoding="utf-8") for path in files]
        date = datetime.now(UTC).date().isoformat()
        page.write_text(assembled(page.read_text(encoding="utf-8"), options.version, date, changes), encoding="utf-8")
    except ValueError as error:
        sys.exit(f"changelog: {error}")
    for path in files:
        path.unlink()


if __name__ == "__main__":
    main()
