"""The files around the code: workflows, hooks, forms, and the changelog's assembly."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def changelog() -> ModuleType:
    spec = importlib.util.spec_from_file_location("changelog", ROOT / "docs" / "changelog.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------------- workflows, hooks, forms


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_major_version_and_jobs_have_no_more_rights_than_they_name(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        for used in [job, *job.get("steps", ())]:
            assert re.fullmatch(r"[\w-]+/[\w-]+@(release/)?v\d+|\./\.github/workflows/ci\.yml|", used.get("uses", ""))


def test_a_release_waits_for_all_checks_and_signs_what_it_builds() -> None:
    jobs = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert jobs["checks"]["uses"] == "./.github/workflows/ci.yml"
    for name in ("package", "image", "notes"):
        assert "checks" in jobs[name]["needs"]
    used = {
        name: {step.get("uses", "").partition("@")[0]: step.get("with", {}) for step in job.get("steps", ())}
        for name, job in jobs.items()
    }
    assert used["build"]["actions/attest-build-provenance"] == {"subject-path": "dist/*"}
    image = used["image"]["docker/build-push-action"]
    assert (image["sbom"], image["provenance"]) == (True, "mode=max")
    assert (ROOT / image["file"]).is_file()
    pushed = used["image"]["actions/attest-build-provenance"]
    assert (pushed["subject-digest"], pushed["push-to-registry"]) == ("${{ steps.push.outputs.digest }}", True)


def test_a_release_has_the_components_of_the_image_that_make_lists() -> None:
    jobs = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    steps = jobs["build"]["steps"]
    (signed,) = (step["with"] for step in steps if step.get("uses", "").startswith("actions/attest-sbom@"))
    assert "make sbom" in [step.get("run") for step in steps]
    assert f"--output-file {signed['sbom-path']}" in (ROOT / "Makefile").read_text()
    assert jobs["notes"]["steps"][-1]["run"].strip().endswith(signed["sbom-path"])


def test_ci_runs_the_checks_of_this_repository() -> None:
    steps = read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["checks"]["steps"]
    assert steps[-1] == {"run": ".ci/run"}
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_hooks_are_local_programs_that_make_installs() -> None:
    repositories = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [each["repo"] for each in repositories] == ["local"]
    for hook in repositories[0]["hooks"]:
        assert hook["language"] == "system"
        program = hook["entry"].split()[0]
        assert program.replace(".venv", "$(VENV)").replace("$(VENV)/bin", "$(BIN)") in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_every_form_has_fields_with_labels(path: Path) -> None:
    form = read(path)
    assert form["name"]
    assert form["description"]
    for part in form["body"]:
        assert part["type"] in ("input", "textarea", "dropdown")
        assert part["attributes"]["label"]


# ---------------------------------------------------------------------- the changelog


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# C\n\nIntro.\n", "# C\n\nIntro.\n\n## 0.2.0, 2030-01-02\n\n- a\n- b\n"),
        (
            "# C\n\n## 0.1.0, 2029-01-01\n\n- old\n",
            "# C\n\n## 0.2.0, 2030-01-02\n\n- a\n- b\n\n## 0.1.0, 2029-01-01\n\n- old\n",
        ),
        (
            "# C\n\n## 0.2.0, not released\n\n- x\n\n## 0.1.0, 2029-01-01\n\n- old\n",
            "# C\n\n## 0.2.0, 2030-01-02\n\n- x\n- a\n- b\n\n## 0.1.0, 2029-01-01\n\n- old\n",
        ),
    ],
)
def test_entries_become_the_section_of_the_version(changelog: ModuleType, before: str, after: str) -> None:
    assert changelog.assembled(before, "0.2.0", "2030-01-02", ["- a\n", "- b"]) == after


def test_a_release_is_assembled_once_and_then_ready(
    changelog: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# C\n")
    (tmp_path / "changelog.d").mkdir()
    for name, text in (("README.md", "# how"), ("b.md", "- b\n"), ("a.md", "- a\n")):
        (tmp_path / "changelog.d" / name).write_text(text)
    for arguments, why in ((["--check", "0.2.0"], "2 entries are left"), (["--check", "0.3.0"], "not 0.3.0")):
        with pytest.raises(SystemExit, match=why):
            changelog.main(arguments, tmp_path)
    changelog.main(["0.2.0"], tmp_path)
    assert [path.name for path in (tmp_path / "changelog.d").iterdir()] == ["README.md"]
    changelog.main(["--check", "0.2.0"], tmp_path)
    assert capsys.readouterr().out == "- a\n- b\n"
    with pytest.raises(SystemExit, match=r"0\.2\.0 is released already"):
        changelog.main(["0.2.0"], tmp_path)


def test_every_entry_is_a_list_that_the_changelog_takes() -> None:
    for path in (ROOT / "changelog.d").glob("[!R]*.md"):
        assert re.fullmatch(r"(- .+\n(  .+\n)*)+", path.read_text(encoding="utf-8")), path.name
