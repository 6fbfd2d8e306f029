"""Manifests of pods say nothing that Kubernetes does not know: kubectl reads them into its own types,
without a server, which refuses values of a wrong type and drops fields that it has no place for; what was
dropped is a mistake of ours.

usage: schema_test.py. Exits with 77 and the reason without a kubectl that renders alike.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from manifests_test import folders, lack, render
from trainer_fields import unpublished

MARK = "HEADRACE_CHECK"  # an environment variable: kubectl prints what it read when it has set something


def kubectl(arguments: list[str], text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["kubectl", *arguments], input=text, capture_output=True, text=True)


def documents(rendered: str) -> list[dict[str, Any]]:
    """All of a rendered overlay, of whatever kind."""
    found = []
    for text in rendered.split("\n---\n"):
        done = kubectl(["label", "--local", "-f", "-", "-o", "json", "headrace/check-"], text)
        if done.returncode != 0:
            raise AssertionError(f"{done.stderr}\n{text}")
        found.append(json.loads(done.stdout))
    return found


def pods(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Objects with pods in them that kubectl knows; pods out of those that only an operator knows."""
    if document["kind"] in ("Pod", "DaemonSet"):
        yield document
    if document["kind"] == "ClusterTrainingRuntime":
        for replicated in document["spec"]["template"]["spec"]["replicatedJobs"]:
            job = copy.deepcopy(replicated["template"])
            yield {"apiVersion": "batch/v1", "kind": "Job", **job, "metadata": {**job["metadata"], "name": "replica"}}
    for replica in document["spec"].get("pytorchReplicaSpecs", {}).values():
        pod = copy.deepcopy(replica["template"])
        yield {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {**pod["metadata"], "name": "replica"}}


def dropped(ours: Any, read: Any, path: str = "") -> list[str]:
    """What is in ours and not in what was read."""
    if isinstance(ours, dict) and isinstance(read, dict):
        lost = [f"{path}.{key}" for key in ours.keys() - read.keys()]
        return lost + [line for key in ours.keys() & read.keys()
                       for line in dropped(ours[key], read[key], f"{path}.{key}")]  # fmt: skip
    if isinstance(ours, list) and isinstance(read, list):
        return [line for index, (one, other) in enumerate(zip(ours, read, strict=True))
                for line in dropped(one, other, f"{path}[{index}]")]  # fmt: skip
    return [] if ours == read else [f"{path} is {ours!r}, read as {read!r}"]


def unmarked(document: Any) -> Any:
    """Without the variable that made kubectl print it."""
    if isinstance(document, dict):
        return {key: unmarked(value) for key, value in document.items()}
    if isinstance(document, list):
        return [unmarked(one) for one in document if not (isinstance(one, dict) and one.get("name") == MARK)]
    return document


def mistakes(document: dict[str, Any]) -> list[str]:
    done = kubectl(["set", "env", "--local", "-f", "-", "-o", "json", f"{MARK}=1"], json.dumps(document))
    if done.returncode != 0:
        return [done.stderr.strip()]
    return dropped(document, unmarked(json.loads(done.stdout)))


def finds_mistakes(pod: dict[str, Any]) -> bool:
    """Whether this kubectl sees a misspelt field, and a number where words belong."""
    misspelt, mistyped = copy.deepcopy(pod), copy.deepcopy(pod)
    misspelt["spec"]["initContainers"][0]["startupProb"] = {"periodSeconds": 1}
    mistyped["spec"]["initContainers"][0]["image"] = 7
    return mistakes(misspelt) == [".spec.initContainers[0].startupProb"] and mistakes(mistyped) != []


def finds_unpublished(document: dict[str, Any]) -> bool:
    """Whether a misspelt field of Trainer's own is seen."""
    misspelt = copy.deepcopy(document)
    misspelt["spec"]["mlPolicy"]["numNode"] = misspelt["spec"]["mlPolicy"].pop("numNodes")
    return unpublished(misspelt) == ["ClusterTrainingRuntime.spec.mlPolicy.numNode"]


def main() -> int:
    if reason := lack():
        print(f"skipped: {reason}")
        return 77
    checked, found = [], []
    for folder in folders():
        for document in documents(render(folder)):
            found += [f"{folder.name}: {path}: Kubeflow Trainer has no such field" for path in unpublished(document)]
            if document["kind"] == "ClusterTrainingRuntime":
                assert finds_unpublished(document), "the table of fields checks nothing"
            for pod in pods(document):
                checked.append(pod)
                found += [f"{folder.name}: {line}" for line in mistakes(pod)]
    assert len(checked) >= 8, f"only {len(checked)} pods were found"
    assert finds_mistakes(next(pod for pod in checked if pod["kind"] == "Pod")), "kubectl checks nothing"
    print("\n".join(found) or f"{len(checked)} pods are what Kubernetes knows")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
