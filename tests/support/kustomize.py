"""Builds the overlays of `docker/` as kustomize does, as far as they use it: bases, JSON patches and config maps."""

import copy
import hashlib
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]


def made(folder: Path) -> list[Document]:
    """The documents of an overlay by this module. The hash in the name of a config map is not kustomize's."""
    settings = yaml.safe_load((folder / "kustomization.yaml").read_text())
    unknown = settings.keys() - {"apiVersion", "kind", "resources", "patches", "configMapGenerator"}
    assert not unknown, f"{folder}: {unknown}"
    documents: list[Document] = []
    for name in settings["resources"]:
        path = (folder / name).resolve()
        documents += made(path) if path.is_dir() else yaml.safe_load_all(path.read_text())
    for patch in settings.get("patches", ()):
        target = patch["target"]
        (place,) = (
            place
            for place, each in enumerate(documents)
            if (each["kind"], each["metadata"]["name"]) == (target["kind"], target["name"])
        )
        documents[place] = patched(documents[place], yaml.safe_load(patch["patch"]))
    for generator in settings.get("configMapGenerator", ()):
        data = {name: (folder / name).read_text() for name in generator["files"]}
        name = f"{generator['name']}-{hashlib.sha256(repr(data).encode()).hexdigest()[:10]}"
        metadata = {"name": name, "namespace": generator["namespace"]}
        documents.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
        for document in documents:
            _rename(document, generator["name"], name)
    return documents


def _rename(value: Any, before: str, after: str) -> None:
    """Use the new name of a config map in the volumes of a document."""
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(each, dict) and isinstance(volume := each.get("configMap"), dict) and volume["name"] == before:
            volume["name"] = after
        _rename(each, before, after)


def patched(document: Any, operations: list[dict[str, Any]]) -> Any:
    """`document` after a JSON patch (RFC 6902), as far as the overlays use it. Each operation must apply."""
    document = copy.deepcopy(document)
    for operation in operations:
        *way, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
        place = document
        for part in way:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if isinstance(place, list):
            assert (operation["op"], last) == ("add", "-")
            place.append(operation["value"])
        elif operation["op"] == "remove":
            del place[last]
        else:
            assert operation["op"] in ("add", "replace")
            assert (last in place) is (operation["op"] == "replace"), operation["path"]
            place[last] = operation["value"]
    return document
