"""The Helm chart, as Helm rendered it (`tests/golden/helm`), and its settings."""

import importlib.util
import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from unit.exporter.settings import served

from gpu_profile_exporter.config import load
from gpu_profile_exporter.operating.healthcheck import candidates

ROOT = Path(__file__).parents[2]
CHART, GOLDEN = ROOT / "docker" / "helm" / "gpu-profile-exporter", ROOT / "tests" / "golden" / "helm"
_spec = importlib.util.spec_from_file_location("helm_goldens", GOLDEN / "make.py")
assert _spec is not None
assert _spec.loader is not None
goldens = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(goldens)


def documents(case: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((GOLDEN / f"{case}.yaml").read_text()))


def one(case: str, kind: str) -> dict[str, Any]:
    (found,) = (each for each in documents(case) if each["kind"] == kind)
    return found


def pod(case: str) -> dict[str, Any]:
    spec: dict[str, Any] = one(case, "DaemonSet")["spec"]["template"]["spec"]
    return spec


def container(case: str) -> dict[str, Any]:
    (found,) = pod(case)["containers"]
    return dict(found)


def test_the_goldens_are_of_this_chart() -> None:
    told = "the chart has changed: run tests/golden/helm/make.py, which needs helm"
    assert (GOLDEN / "chart.sha256").read_text().strip() == goldens.chart_hash(), told


@pytest.mark.parametrize("case", goldens.CASES)
def test_each_manifest_is_valid_kubernetes_with_no_unknown_field(case: str) -> None:
    for document in documents(case):
        if document["apiVersion"] != "monitoring.coreos.com/v1":
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_the_chart_has_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == project["version"]


def test_by_default_it_is_the_daemonset_of_the_plain_manifests() -> None:
    plain = yaml.safe_load((ROOT / "docker" / "kubernetes" / "daemonset.yaml").read_text())["spec"]["template"]["spec"]
    (before,), now = plain.pop("containers"), pod("defaults")
    made = container("defaults")
    made.pop("imagePullPolicy")
    assert made.pop("args") == ["--listen=:9400"]
    before.pop("args")
    assert made == before
    now.pop("containers")
    assert now == plain | {"volumes": now["volumes"]}
    assert now["volumes"] == [{"name": "settings", "configMap": {"name": "gpu-profile-exporter"}}, plain["volumes"][1]]


def test_rights_are_asked_for_only_where_they_are_needed() -> None:
    asked = {case: pod(case) for case in goldens.CASES}
    assert {case: spec.get("hostPID", False) for case, spec in asked.items()} == {
        "defaults": False,
        "attribution": True,
        "timeline": False,
        "web": False,
        "everything": True,
    }
    paths = {
        case: [each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each]
        for case, spec in asked.items()
    }
    assert paths == {
        "defaults": [],
        "attribution": ["/var/lib/kubelet/pod-resources"],
        "timeline": ["/run/other"],
        "web": [],
        "everything": ["/var/lib/kubelet/pod-resources", "/run/gpu-profile"],
    }
    assert {case for case, spec in asked.items() if spec["securityContext"]["runAsUser"] != 0} == {"defaults", "web"}
    for case in goldens.CASES:
        assert container(case)["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("case", goldens.CASES)
def test_the_exporter_accepts_the_options(case: str) -> None:
    config = served(container(case)["args"])
    assert config.listen.port == 9400
    assert (config.attribution.pods == "on") == (case in ("attribution", "everything"))
    assert (config.receive.http is not None) == (case == "everything")


def test_the_operator_scrapes_what_the_annotations_no_longer_offer() -> None:
    assert one("defaults", "Service")["metadata"]["annotations"]["prometheus.io/scrape"] == "true"
    assert "annotations" not in one("everything", "Service")["metadata"]
    monitor = one("everything", "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    selector, labels = monitor["spec"]["selector"]["matchLabels"], one("everything", "DaemonSet")["spec"]["template"]
    assert selector.items() <= labels["metadata"]["labels"].items()
    names = {port["name"] for port in container("everything")["ports"]}
    assert {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]} <= names
    policy = one("everything", "NetworkPolicy")["spec"]["ingress"]
    assert {port["port"] for rule in policy for port in rule["ports"]} == names


def test_with_tls_or_passwords_the_probes_need_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    made = container("web")
    file = next(each["value"] for each in made["env"] if each["name"] == "GPU_PROFILE_EXPORTER_WEB_CONFIG_FILE")
    (mount,) = (each for each in made["volumeMounts"] if each["name"] == "web")
    assert Path(file).parent == Path(mount["mountPath"])
    assert {"name": "web", "secret": {"secretName": "exporter-web"}} in pod("web")["volumes"]
    assert made["livenessProbe"]["exec"]["command"] == ["gpu-profile-exporter", "healthcheck"]
    assert made["readinessProbe"]["tcpSocket"] == {"port": "metrics"}
    for name in ("GPU_PROFILE_EXPORTER_WEB_CONFIG_FILE", "GPU_PROFILE_EXPORTER_LISTEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GPU_PROFILE_EXPORTER_WEB_CONFIG_FILE", file)
    assert candidates(load().config) == ["https://127.0.0.1:9400", "http://127.0.0.1:9400"]
    endpoint = one("web", "PodMonitor")["spec"]["podMetricsEndpoints"][0]
    assert (endpoint["scheme"], endpoint["basicAuth"]["username"]["name"]) == ("https", "scraper")


def test_it_has_every_dashboard_and_rule_of_the_repository() -> None:
    maps = [each["data"] for each in documents("everything") if "-dashboard-" in each["metadata"]["name"]]
    files = {path: json.loads(path.read_text())["uid"] for path in (CHART / "files" / "dashboards").glob("*.json")}
    assert {uid for data in maps for uid in data.values()} == set(files.values())
    assert len(files) == len(list((ROOT / "grafana" / "dashboards").glob("*.json"))) > 5
    groups = {
        name for each in documents("everything") if each["kind"] == "PrometheusRule" for name in each["spec"]["groups"]
    }
    paths = [*(ROOT / "grafana" / "rules").glob("*.yaml"), *(ROOT / "grafana" / "alerts").glob("*.yaml")]
    assert groups == {group["name"] for path in paths for group in yaml.safe_load(path.read_text())["groups"]}
    names = [each["metadata"]["name"] for each in documents("everything") if each["kind"] == "PrometheusRule"]
    assert len(names) == len(set(names)) == len(paths)


SCHEMA = json.loads((CHART / "values.schema.json").read_text())


@pytest.mark.parametrize("values", [yaml.safe_load((CHART / "values.yaml").read_text()), *goldens.CASES.values()])
def test_values_fit_the_schema(values: dict[str, Any]) -> None:
    jsonschema.validate(values, SCHEMA)


@pytest.mark.parametrize(
    "values",
    [
        {"atribution": {"enabled": True}},
        {"attribution": {"enabled": "yes"}},
        {"spans": {"forward": "collector"}},
        {"spans": {"hostPort": 0}},
        {"args": ["names"]},
        # The probes know one port, and TLS by web.secret.
        {"args": ["--listen=:9500"]},
        {"args": ["--web.config.file=/x"]},
        {"web": {"secret": "x", "tls": "yes"}},
        {"podMonitor": {"endpoint": {"scheme": "https"}}},
        {"timeline": {"directory": "/etc"}},
        {"podMonitor": {"interval": "15"}},
        {"image": {"repository": ""}},
        # Paths outside /run, and text that continues the manifest.
        {"timeline": {"directory": "/run/.."}},
        {"timeline": {"directory": "/run/x, subPath: y"}},
        {"spans": {"forward": "http://collector:4318 #comment"}},
        # Peers that would be everybody.
        {"networkPolicy": {"enabled": True, "from": []}},
        # Labels by which the DaemonSet and the Service select their pods.
        {"podLabels": {"app.kubernetes.io/instance": "other"}},
        {"dashboards": {"labels": {"app.kubernetes.io/name": "other"}}},
        {"podAnnotations": {"checksum/settings": "x"}},
        {"podMonitor": {"interval": "0s"}},
        {"imagePullSecrets": [{}]},
        {"env": [{"name": "A", "value": 1}]},
    ],
)
def test_mistakes_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values, SCHEMA)


def test_the_schema_has_exactly_the_settings_of_the_values() -> None:
    def keys(schema: dict[str, Any]) -> Any:
        return {name: keys(each) for name, each in schema.get("properties", {}).items() if name != "global"} or None

    def names(values: Any, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return None
        return {name: names(each, schema.get(name)) for name, each in values.items()}

    expected = keys(SCHEMA)
    assert names(yaml.safe_load((CHART / "values.yaml").read_text()), expected) == expected


def test_templates_quote_the_names_and_values_that_they_insert() -> None:
    """Releases may be called `true` or `1e3`."""
    lines = [line for path in (CHART / "templates").glob("*.yaml") for line in path.read_text().splitlines()]
    bare = [line for line in lines if "{{ " in line and "| quote" not in line and '"{{' not in line]
    assert ["hostPort" in line for line in bare] == [True]
    assert "instance: {{ .Release.Name | quote }}" in (CHART / "templates" / "_helpers.tpl").read_text()
