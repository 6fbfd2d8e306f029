"""What the tests of certificates share: a cluster whose services are started one by one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

from cluster_case import ClusterCase
from support.cluster import Cluster
from support.cluster.services import PORT
from support.ranks import Ranks
from support.service import Service, build_directory


def ctl(*arguments: str) -> None:
    program = os.path.join(build_directory(), "headracectl")
    subprocess.run([program, *arguments], check=True, stdout=subprocess.DEVNULL, timeout=60)


class CertifiedCase(ClusterCase):
    """Nodes with certificates of two authorities, "ours" and "theirs", and no service yet."""

    nodes = 3
    fresh = True

    def begin(self, cleanup: Callable[..., object]) -> None:  # type: ignore[override]
        """The certificates' folder comes with the cluster."""
        self.cluster = Cluster(nodes=self.nodes)
        cleanup(self.cluster.close)
        for authority in ("ours", "theirs"):
            folder = self.folder(authority)
            ctl("certs", "authority", "--out", folder)
            for node in self.cluster.nodes:
                out = os.path.join(folder, node.name)
                ctl("certs", "node", node.name, "--authority", folder, "--out", out)

    def folder(self, authority: str) -> str:
        return os.path.join(self.cluster.directory, authority)

    def files(self, index: int, authority: str) -> dict[str, str]:
        """Where that node's authority, certificate and key are, by the names that Kubernetes has."""
        name = self.cluster[index].name
        own = os.path.join(self.folder(authority), name)
        return {
            "ca.crt": os.path.join(own, "authority.crt"),
            "tls.crt": os.path.join(own, f"{name}.crt"),
            "tls.key": os.path.join(own, f"{name}.key"),
        }

    def start_with(self, index: int, files: dict[str, str] | None, name: str = "") -> Service:
        """That node's service with these files; None: in plain text."""
        node = self.cluster[index]
        flags = ["--node-name", name or node.name, "--node-address", f"{node.address}:{PORT}"]
        flags += ["--detection-ms", "1000"]
        if files is None:
            flags += ["--plain-text"]
        else:
            flags += ["--tls-authority", files["ca.crt"]]
            flags += ["--tls-certificate", files["tls.crt"], "--tls-key", files["tls.key"]]
        return node.start_service(*flags)

    def start(self, index: int, authority: str | None, name: str = "") -> Service:
        """That node's service with certificates of an authority; None: in plain text."""
        return self.start_with(index, authority and self.files(index, authority), name)

    def ranks(self, *indices: int, job: str) -> Ranks:
        meeting = {"HEADRACE_RENDEZVOUS": f"{self.cluster[0].address}:{PORT}"}
        services = [self.cluster[index].service for index in indices]
        ranks = Ranks(services, len(services), job=job, environment=meeting)
        self.addCleanup(ranks.__exit__)
        return ranks
