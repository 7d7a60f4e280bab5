"""docs/recipes.md: each recipe, applied to a copy of the code, passes its own check."""

import re
import shutil
from pathlib import Path

import pytest
from support.programs import python

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def patch(source: str, hunk: str) -> str:
    """The source with a hunk of a diff without line numbers. Its old lines must occur exactly once."""
    lines = hunk.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] in " -")
    new = "".join(line[1:] for line in lines if line[0] in " +")
    assert source.count(old) == 1, f"{source.count(old)} places instead of one for:\n{old}"
    return source.replace(old, new)


def follow(recipe: str, copy: Path) -> str:
    """Write the recipe's files and changes below `copy`. Returns the check."""
    check = ""
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", recipe, re.MULTILINE | re.DOTALL):
        file = re.match(r"# (\S+\.py)\n", text)
        if language == "diff":
            name, *hunks = re.split(r"^@@\n", text, flags=re.MULTILINE)
            path = copy / name.splitlines()[1].removeprefix("+++ b/")
            for hunk in hunks:
                path.write_text(patch(path.read_text(encoding="utf-8"), hunk), encoding="utf-8")
        elif language == "toml":
            (copy / "added-1.dist-info").mkdir()
            points = text.replace("[project.entry-points.", "[").replace('"', "")
            (copy / "added-1.dist-info" / "entry_points.txt").write_text(points)
        elif file:
            (copy / file[1]).write_text(text, encoding="utf-8")
        else:
            check = text
    return check


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_followed_step_by_step_works(recipe: str, tmp_path: Path) -> None:
    # With the compiled modules, so that they are not compiled anew.
    shutil.copytree(ROOT / "instrumentation", tmp_path / "instrumentation")
    check = follow(RECIPES[recipe], tmp_path)
    done = python("-c", check, cwd=tmp_path, PYTHONPATH=f"{tmp_path / 'instrumentation'}:{tmp_path}")
    assert done.returncode == 0, done.stderr
    assert python("-c", check, cwd=tmp_path).returncode != 0, "the check passes without the recipe"


def test_there_is_a_recipe_for_each_kind_of_extension() -> None:
    assert list(RECIPES) == ["Add a signal", "Add a driver", "Add a view", "Add a rule for a regime"]
