import os

import pytest
from support.programs import ROOT, environment


@pytest.mark.parametrize(
    ("path", "behind"),
    [
        (os.pathsep.join(["/opt/packages", "", "/opt/more"]), ["/opt/packages", "/opt/more"]),
        (str(ROOT / "exporter"), []),
        ("", []),
    ],
)
def test_programs_keep_the_machines_packages_behind_those_of_the_project(
    path: str, behind: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", path)
    own = [str(ROOT / "instrumentation"), str(ROOT / "exporter")]
    assert environment()["PYTHONPATH"].split(os.pathsep) == [*own, *behind]
