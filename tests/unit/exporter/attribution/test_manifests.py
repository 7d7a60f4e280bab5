from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml
from support.kustomize import patched

from gpu_profile_exporter.cli import exporter
from gpu_profile_exporter.config.model import KUBELET_SOCKET

KUBERNETES = Path(__file__).parents[4] / "docker" / "kubernetes"
OVERLAY = KUBERNETES.parent / "kubernetes-attribution"
CHANGED = {"securityContext", "containers", "hostPID", "volumes"}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def manifest(name: str) -> Any:
    """A manifest of the base as the overlay leaves it."""
    document = load(KUBERNETES / f"{name}.yaml")
    for row in load(OVERLAY / "kustomization.yaml")["patches"]:
        target = row["target"]
        if (target["kind"], target["name"]) == (document["kind"], document["metadata"]["name"]):
            document = patched(document, yaml.safe_load(row["patch"]))
    return document


def pod(document: Any) -> Any:
    return document["spec"]["template"]["spec"]


def policy(namespace: Any) -> Any:
    return namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]


@pytest.mark.parametrize("name", ["namespace", "daemonset", "service"])
def test_each_manifest_of_the_overlay_is_valid_kubernetes(name: str) -> None:
    kubernetes_validate.validate(manifest(name), kubernetes_validate.latest_version(), strict=True)


def test_the_overlay_stands_on_the_base_and_each_of_its_patches_has_a_target() -> None:
    overlay = load(OVERLAY / "kustomization.yaml")
    (base,) = overlay["resources"]
    assert (OVERLAY / base).resolve() == KUBERNETES
    documents = [load(path) for path in KUBERNETES.glob("*.yaml") if path.name != "kustomization.yaml"]
    targets = {(row["target"]["kind"], row["target"]["name"]) for row in overlay["patches"]}
    assert targets <= {(document["kind"], document["metadata"]["name"]) for document in documents}


def test_the_overlay_lies_beside_the_base_as_kustomize_takes_no_base_that_holds_its_overlay() -> None:
    assert KUBERNETES not in OVERLAY.parents


def test_the_base_asks_for_no_right_that_the_overlay_adds() -> None:
    base = pod(load(KUBERNETES / "daemonset.yaml"))
    assert "hostPID" not in base
    assert not any("hostPath" in volume for volume in base["volumes"])
    assert base["securityContext"]["runAsNonRoot"] is True
    assert (
        load(KUBERNETES / "namespace.yaml")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    )


def test_the_overlay_asks_for_host_pids_root_and_the_kubelets_directory_and_for_nothing_else() -> None:
    base, spec = pod(load(KUBERNETES / "daemonset.yaml")), pod(manifest("daemonset"))
    assert {key for key in spec if spec[key] != base.get(key)} == CHANGED
    assert spec["hostPID"] is True
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsNonRoot"]) == (0, False)
    (container,), (before,) = spec["containers"], base["containers"]
    assert container["securityContext"] == before["securityContext"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert {key for key in container if container[key] != before.get(key)} == {"args", "volumeMounts"}


def test_the_directory_of_the_socket_is_mounted_read_only_where_the_exporter_looks_for_it() -> None:
    base, spec = pod(load(KUBERNETES / "daemonset.yaml")), pod(manifest("daemonset"))
    (volume,) = (row for row in spec["volumes"] if row not in base["volumes"])
    (mount,) = (
        row for row in spec["containers"][0]["volumeMounts"] if row not in base["containers"][0]["volumeMounts"]
    )
    assert volume["name"] == mount["name"]
    assert volume["hostPath"] == {"path": str(KUBELET_SOCKET.parent), "type": "Directory"}
    assert (mount["mountPath"], mount["readOnly"]) == (str(KUBELET_SOCKET.parent), True)


def test_the_namespace_allows_what_the_overlay_asks_for() -> None:
    assert policy(manifest("namespace")) == "privileged"


def test_every_option_of_the_overlay_is_one_of_the_exporter() -> None:
    known = {
        option for parameter in exporter.params if isinstance(parameter, click.Option) for option in parameter.opts
    }
    args = pod(manifest("daemonset"))["containers"][0]["args"]
    assert {arg.partition("=")[0] for arg in args if arg.startswith("--")} <= known
