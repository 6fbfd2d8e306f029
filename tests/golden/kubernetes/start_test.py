"""headraced starts with what the manifests give it: each of its containers' arguments, environment and
mounted files go through `headraced --check-config`, with the certificates that the README makes.

usage: start_test.py; HEADRACE_BUILD is where the programs are.
"""

from __future__ import annotations

import copy
import os
import re
import shutil
import subprocess
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(HERE))

from kustomize import Document, render, unordered

from tests.support.cluster.requirements import require_namespaces
from tests.support.directory import OwnDirectory
from tests.support.service import build_directory
from tests.support.unittests import run_tests

MANIFESTS = ROOT / "containers" / "kubernetes"
IMAGES = ("headrace", "headrace-cuda")
# What Kubernetes would know of a pod, besides its name. No loopback: others are to reach it.
FIELDS = {"spec.nodeName": "gpu-17", "status.podIP": "10.244.1.9", "status.hostIP": "10.0.0.17"}
SECRET = "headrace-tls"
TRAIN_JOB = "training"  # the TrainJob of the manifests
PEERS = ("headrace-peers", "peers")  # name and key of the config map that may be there
JOB_NAME = "metadata.labels['batch.kubernetes.io/job-name']"
JOB_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
# What asks for GPUs finds those of the driver's double.
GPUS = {"HEADRACE_CUDA_LIBRARY": os.path.join(build_directory(), "tests/support/cuda_double/libcuda.so.1")}
# What tests/run says of a sanitizer, with which headraced may have been built.
SANITIZER = {name: value for name, value in os.environ.items() if name in ("ASAN_OPTIONS", "LSAN_OPTIONS")}
# A network of its own in which the pod's and the host's addresses are, since headraced tries its own.
IN_A_POD = ("unshare", "--net", "sh", "-ec",
            "ip link set lo up; for each in " + " ".join((FIELDS["status.podIP"], FIELDS["status.hostIP"]))
            + '; do ip address add $each dev lo; done; exec "$@"', "sh")  # fmt: skip


def folders() -> list[Path]:
    return sorted(path.parent for path in MANIFESTS.rglob("kustomization.yaml"))


def pods(document: Document) -> Iterator[tuple[str, Document]]:
    """Names of pods and their specs, as Kubernetes and the training operator make them."""
    name, spec = document["metadata"]["name"], document["spec"]
    if document["kind"] == "Pod":
        yield name, spec
    elif document["kind"] == "DaemonSet":
        yield f"{name}-x7k2p", spec["template"]["spec"]
    elif document["kind"] == "ClusterTrainingRuntime":
        for replicated in spec["template"]["spec"]["replicatedJobs"]:
            for index in range(spec["mlPolicy"]["numNodes"]):
                job = f"{TRAIN_JOB}-{replicated['name']}-0"
                yield f"{job}-{index}-x7k2p", replicated["template"]["spec"]["template"]["spec"]
    for role, replica in spec.get("pytorchReplicaSpecs", {}).items():
        for index in range(replica["replicas"]):
            yield f"{name}-{role.lower()}-{index}", replica["template"]["spec"]


class Machine:
    """A folder that stands for the files of pods."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.peers: str | None = None  # of the config map; none: it is not there

    def secret(self, names: list[str]) -> Path:
        """What `kubectl create secret generic --from-file=nodes` would put into the secret."""
        folder = self.directory / "nodes"
        if not folder.exists():
            self._ctl("certs", "authority", "--out", str(self.directory / "authority"))
        for name in names:
            if not (folder / f"{name}.crt").exists():
                authority = str(self.directory / "authority")
                self._ctl("certs", "node", name, "--authority", authority, "--out", str(folder))
        return folder

    def _ctl(self, *arguments: str) -> None:
        program = os.path.join(build_directory(), "headracectl")
        subprocess.run([program, *arguments], check=True, stdout=subprocess.DEVNULL, timeout=60)

    def mount(self, pod: str, volume: Document, names: list[str]) -> Path:
        """A volume's files."""
        place = self.directory / pod / volume["name"]
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        if "secret" not in volume:
            assert volume.keys() & {"emptyDir", "hostPath"}, volume
            return place
        secret = volume["secret"]
        assert secret["secretName"] == SECRET, secret
        files = {path.name: path for path in self.secret(names).iterdir()}
        items = secret.get("items", [{"key": name, "path": name} for name in files])
        for item in items:
            shutil.copy(files[item["key"]], place / item["path"])
            (place / item["path"]).chmod(secret.get("defaultMode", 0o644))
        return place

    def check(self, pod: str, spec: Document, container: Document, names: list[str]) -> str:
        """What headraced has against the container; empty: it would start."""
        environment = environment_of(container, pod, self.peers)
        arguments = [expand(each, environment) for each in container["args"]]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for mounted in container["volumeMounts"]:
            place = self.mount(pod, volumes[mounted["name"]], names)
            arguments = [each.replace(f"={mounted['mountPath']}/", f"={place}/") for each in arguments]
        done = subprocess.run(
            [*IN_A_POD, os.path.join(build_directory(), "headraced"), "--check-config", *arguments],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **SANITIZER, **GPUS, **environment},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        if done.returncode == 0:
            assert "fine" in done.stdout, done.stdout
            return ""
        return done.stderr.strip() or f"exit {done.returncode}"


def fields_of(pod: str) -> dict[str, str]:
    """What Kubernetes would know of that pod."""
    fields = {"metadata.name": pod}
    if (indexed := re.fullmatch(r"(.+)-(\d+)-x7k2p", pod)) is not None:
        fields |= {JOB_NAME: indexed.group(1), JOB_INDEX: indexed.group(2)}
    return fields


def environment_of(container: Document, pod: str, peers: str | None = None) -> dict[str, str]:
    """The container's variables, as kubelet would know their values; ``peers``: of the config map, if
    it is there."""
    environment = {}
    for variable in container.get("env", []):
        value = variable.get("value")
        source = variable.get("valueFrom", {})
        if "configMapKeyRef" in source:
            wanted = source["configMapKeyRef"]
            assert (wanted["name"], wanted["key"]) == PEERS and wanted["optional"], wanted
            value = peers
        elif value is None:
            value = {**FIELDS, **fields_of(pod)}[source["fieldRef"]["fieldPath"]]
        if value is not None:
            environment[variable["name"]] = value
    return environment


def expand(text: str, environment: dict[str, str]) -> str:
    """$(NAME) as kubelet replaces it; what it does not know stays, and headraced refuses it."""
    return re.sub(r"\$\((\w+)\)", lambda found: environment.get(found.group(1), found.group(0)), text)


def node_names(documents: list[Document]) -> list[str]:
    """For whom somebody who follows the README has made certificates."""
    names = [FIELDS["spec.nodeName"]]
    return names + [
        pod.removesuffix("-x7k2p") for document in documents if "spec" in document for pod, _ in pods(document)
    ]


class Manifests(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        require_namespaces()

    def setUp(self) -> None:
        own = OwnDirectory("headrace-manifests-")
        self.addCleanup(own.close)
        self.machine = Machine(Path(own.path))

    def complaints(self, documents: list[Document]) -> dict[str, str]:
        """What headraced has against each of its containers."""
        names = node_names(documents)
        said: dict[str, str] = {}
        for document in documents:
            for pod, spec in pods(document):
                for container in spec.get("initContainers", []) + spec["containers"]:
                    if container["image"] in IMAGES and "command" not in container:
                        said[pod] = self.machine.check(pod, spec, container, names)
        return said

    def test_this_rendering_is_kubectls(self) -> None:
        for folder in folders():
            kept = HERE / ("-".join(folder.relative_to(MANIFESTS).parts) + ".yaml")
            golden = [each for each in yaml.safe_load_all(kept.read_text()) if each]
            ours = render(folder)

            def by_kind(documents: list[Any]) -> list[Any]:
                return sorted((unordered(d) for d in documents), key=lambda d: d["kind"])

            self.assertEqual(by_kind(ours), by_kind(golden), folder)

    def test_every_container_of_ours_would_start(self) -> None:
        checked = 0
        for folder in folders():
            said = self.complaints(render(folder))
            self.assertEqual({pod: text for pod, text in said.items() if text}, {}, folder)
            checked += len(said)
        self.assertGreaterEqual(checked, 8)

    def documents(self, name: str) -> list[Document]:
        return copy.deepcopy(render(MANIFESTS / name))

    def test_a_daemon_set_without_certificates_would_not_start(self) -> None:
        documents = self.documents("daemonset")
        daemon_set = next(d for d in documents if d["kind"] == "DaemonSet")
        container = daemon_set["spec"]["template"]["spec"]["containers"][0]
        container["args"] = [each for each in container["args"] if not each.startswith("--tls")]
        (said,) = self.complaints(documents).values()
        self.assertIn("plain_text", said)

    def test_a_daemon_set_takes_its_peers_from_a_config_map(self) -> None:
        documents = self.documents("daemonset")
        self.machine.peers = "gpu-16=10.0.0.16:7733,gpu-17=10.0.0.17:7733"
        self.assertEqual(list(self.complaints(documents).values()), [""])
        self.machine.peers = "gpu-16"
        (said,) = self.complaints(documents).values()
        self.assertIn('"gpu-16" is not a peer', said)

    def test_the_runtime_is_the_one_that_the_train_job_names(self) -> None:
        documents = self.documents("trainjob")
        by_kind = {each["kind"]: each for each in documents}
        job, runtime = by_kind["TrainJob"], by_kind["ClusterTrainingRuntime"]
        self.assertEqual(job["metadata"]["name"], TRAIN_JOB)
        self.assertEqual(job["spec"]["runtimeRef"]["name"], runtime["metadata"]["name"])
        # Trainer gives torchrun's environment to this container of this job, and only where `trainer` is.
        (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
        labels = replicated["template"]["metadata"]["labels"]
        self.assertEqual(labels["trainer.kubeflow.org/trainjob-ancestor-step"], "trainer")
        (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
        self.assertEqual((replicated["name"], container["name"]), ("node", "node"))
        self.assertEqual(job["spec"]["trainer"]["numNodes"], runtime["spec"]["mlPolicy"]["numNodes"])

    def test_pods_that_share_a_certificate_of_one_name_would_not_start(self) -> None:
        documents = self.documents("pytorchjob")
        job = next(d for d in documents if d["kind"] == "PyTorchJob")
        for replica in job["spec"]["pytorchReplicaSpecs"].values():
            container = replica["template"]["spec"]["initContainers"][0]
            container["args"] = [
                re.sub(r"/\$\(POD_NAME\)\.", "/training-master-0.", each) for each in container["args"]
            ]
        said = self.complaints(documents)
        self.assertEqual(said["training-master-0"], "")
        self.assertIn("training-worker-0", said["training-worker-0"])


if __name__ == "__main__":
    run_tests()
