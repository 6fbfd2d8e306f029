"""The fields of Kubeflow Trainer's objects, as far as kubectl does not know them, as their API publishes them.

trainer.kubeflow.org/v1alpha1 (Trainer v2.2) and, within a runtime's template, jobset.x-k8s.io/v1alpha2.
"""

from __future__ import annotations

from typing import Any

ANY = None  # not looked into: Kubernetes' own, which kubectl checks, or a map of the user's
_METADATA = {"name": ANY, "namespace": ANY, "labels": ANY, "annotations": ANY}
_TORCH = {"numProcPerNode": ANY, "elasticPolicy": ANY}
_REPLICATED_JOB = {"name": ANY, "groupName": ANY, "template": ANY, "replicas": ANY, "dependsOn": ANY}
_JOB_SET = {
    "replicatedJobs": [_REPLICATED_JOB], "network": ANY, "successPolicy": ANY, "failurePolicy": ANY,
    "startupPolicy": ANY, "suspend": ANY, "coordinator": ANY, "managedBy": ANY, "ttlSecondsAfterFinished": ANY,
}  # fmt: skip
_RUNTIME = {
    "apiVersion": ANY, "kind": ANY, "metadata": _METADATA,
    "spec": {
        "mlPolicy": {"numNodes": ANY, "torch": _TORCH, "flux": ANY, "mpi": ANY},
        "podGroupPolicy": ANY,
        "template": {"metadata": _METADATA, "spec": _JOB_SET},
    },
}  # fmt: skip
_TRAIN_JOB = {
    "apiVersion": ANY, "kind": ANY, "metadata": _METADATA,
    "spec": {
        "runtimeRef": {"name": ANY, "apiGroup": ANY, "kind": ANY},
        "initializer": ANY, "suspend": ANY, "managedBy": ANY, "runtimePatches": ANY, "activeDeadlineSeconds": ANY,
        "trainer": {
            "image": ANY, "command": ANY, "args": ANY, "env": ANY, "numNodes": ANY, "resourcesPerNode": ANY,
            "numProcPerNode": ANY,
        },
    },
}  # fmt: skip
FIELDS = {"ClusterTrainingRuntime": _RUNTIME, "TrainingRuntime": _RUNTIME, "TrainJob": _TRAIN_JOB}


def unpublished(document: dict[str, Any]) -> list[str]:
    """The paths of what Trainer does not know in an object of its own."""
    kind = document["kind"]
    return _beyond(document, FIELDS[kind], kind) if kind in FIELDS else []


def _beyond(value: Any, known: Any, path: str) -> list[str]:
    if known is ANY:
        return []
    if isinstance(known, list):
        if not isinstance(value, list):
            return [path]
        return [line for index, one in enumerate(value) for line in _beyond(one, known[0], f"{path}[{index}]")]
    if not isinstance(value, dict):
        return [path]
    lost = [f"{path}.{key}" for key in value if key not in known]
    return lost + [line for key in value if key in known for line in _beyond(value[key], known[key], f"{path}.{key}")]
