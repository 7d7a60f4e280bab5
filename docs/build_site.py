"""Builds the documentation's site into site/VERSION, and lists all versions that are in site/.

    python docs/build_site.py                   with MkDocs and its theme Material
    python docs/build_site.py --with zensical   with their successor

Both read mkdocs.yml. A warning ends the build with its exit code. A web server of static files can serve site/.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
COMMANDS: Final = {
    "mkdocs": ("mkdocs", "build", "--strict", "--quiet"),
    "zensical": ("zensical", "build", "--strict", "--clean"),
}
#: Leads from the folder of all versions to the newest.
INDEX: Final = '<!doctype html><title>gpu-profile</title><meta http-equiv="refresh" content="0; url={}/">\n'


def versions(site: Path) -> list[str]:
    """The versions that were built into `site`, newest first: the folders that begin with a digit."""
    folders = (path.name for path in site.iterdir() if path.is_dir() and path.name[0].isdigit())
    return sorted(folders, key=lambda name: [int(number) for number in re.findall(r"\d+", name)], reverse=True)


def list_versions(site: Path) -> None:
    """Write the list that the theme's menu of versions reads, and the page that leads to the newest."""
    names = versions(site)
    rows = [{"version": name, "title": name, "aliases": ["latest"] * (name == names[0])} for name in names]
    (site / "versions.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (site / "index.html").write_text(INDEX.format(names[0]), encoding="utf-8")


def main() -> int:
    """Build one version; the tool's exit code."""
    parser = argparse.ArgumentParser(description="Build the site of the documentation into site/VERSION.")
    parser.add_argument("--with", dest="tool", choices=COMMANDS, default="mkdocs", help="the tool that builds it")
    parser.add_argument("--version", help="the folder's name; by default the version in pyproject.toml")
    options = parser.parse_args()
    version = options.version or tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    folder = Path("site") / version
    # Material announces its end of life in each build; Zensical, which succeeds it, is one of the two tools.
    environment = os.environ | {"GPU_PROFILE_SITE": os.fspath(folder), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([sys.executable, "-m", *COMMANDS[options.tool]], cwd=ROOT, env=environment, check=False)
    if done.returncode == 0:
        list_versions(ROOT / "site")
        sys.stdout.write(f"The documentation of version {version} is in {folder}; begin at site/index.html.\n")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
