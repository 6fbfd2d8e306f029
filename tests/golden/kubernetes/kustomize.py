"""As much of kustomize as our overlays use: resources, patches by merging and by JSON patch, images.

For machines without kubectl. What it makes is held against the files that kubectl has rendered.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]


def render(folder: Path) -> list[Document]:
    """All documents of a folder with a kustomization, as they would be applied."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    unknown = kustomization.keys() - {"apiVersion", "kind", "resources", "patches", "images"}
    assert not unknown, f"{folder}: this test does not know {unknown}"
    documents: list[Document] = []
    for resource in kustomization["resources"]:
        path = folder / resource
        documents += render(path.resolve()) if path.is_dir() else _load(path.read_text())
    for patch in kustomization.get("patches", []):
        documents = _patched(documents, patch, folder)
    for image in kustomization.get("images", []):
        _rename(documents, image["name"], image["newName"])
    return documents


def merged(ours: Any, patch: Any) -> Any:
    """A strategic merge: lists of things with names are merged by name, others are replaced."""
    if isinstance(ours, dict) and isinstance(patch, dict):
        return {
            key: merged(ours[key], patch[key]) if key in ours and key in patch else {**ours, **patch}[key]
            for key in {**ours, **patch}
        }
    if not (_named(ours) and _named(patch)):
        return copy.deepcopy(patch)
    changes = {each["name"]: each for each in patch}
    kept = [merged(each, changes.pop(each["name"], {})) for each in ours]
    return kept + list(changes.values())


def unordered(value: Any) -> Any:
    """A form in which lists of things with names are equal in any order, as they are to Kubernetes."""
    if isinstance(value, dict):
        return {key: unordered(each) for key, each in value.items()}
    if isinstance(value, list):
        values = [unordered(each) for each in value]
        return sorted(values, key=lambda each: each["name"]) if _named(value) else values
    return value


def _load(text: str) -> list[Document]:
    # An anchor's uses are one object; patches are not to change all of them at once.
    return [copy.deepcopy(each) for each in yaml.safe_load_all(text) if each]


def _named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) and "name" in each for each in value)


def _patched(documents: list[Document], patch: Document, folder: Path) -> list[Document]:
    if "path" in patch:
        change = yaml.safe_load((folder / patch["path"]).read_text())
        target = {"kind": change["kind"], "name": change["metadata"]["name"]}
    else:
        change, target = yaml.safe_load(patch["patch"]), patch["target"]
    is_hit = [d["kind"] == target["kind"] and d["metadata"]["name"] == target["name"] for d in documents]
    assert any(is_hit), f"{folder}: a patch changes nothing"
    apply = _json_patched if isinstance(change, list) else merged
    return [apply(d, change) if hit else d for d, hit in zip(documents, is_hit, strict=True)]


def _json_patched(document: Document, changes: list[Document]) -> Document:
    document = copy.deepcopy(document)
    for change in changes:
        *way, last = change["path"].strip("/").split("/")
        place: Any = document
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place[step]
        assert change["op"] in ("add", "replace"), change
        if isinstance(place, dict):
            place[last] = change["value"]
        elif last == "-":
            place.append(change["value"])
        elif change["op"] == "replace":
            place[int(last)] = change["value"]
        else:
            place.insert(int(last), change["value"])
    return document


def _rename(value: Any, name: str, new_name: str) -> None:
    if isinstance(value, list):
        for each in value:
            _rename(each, name, new_name)
    elif isinstance(value, dict):
        if value.get("image") == name:
            value["image"] = new_name
        for each in value.values():
            _rename(each, name, new_name)
