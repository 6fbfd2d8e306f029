"""Certificates are replaced under services that run, and jobs that run do not notice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from certified_case import CertifiedCase
from cluster_case import await_true
from support.cluster.services import PORT
from support.ranks import RankError, Ranks
from support.service import build_directory
from support.unittests import run_tests

STRANGER_UID = 65534
LOOK_LIMIT_S = 60.0  # a service looks every ten seconds
RELOADED = "the certificate's files have changed: new connections use the certificate valid until"


class Renewed(CertifiedCase):
    """The nodes change to another authority, one of them being started anew with it."""

    def mount(self, index: int) -> str:
        return os.path.join(self.cluster.directory, f"mount-{self.cluster[index].name}")

    def version(self, index: int, authority: str) -> str:
        """A folder in the mount with that authority's files, as Kubernetes makes one a change."""
        folder = os.path.join(self.mount(index), f"..{authority}")
        os.makedirs(folder)
        for name, path in self.files(index, authority).items():
            shutil.copy(path, os.path.join(folder, name))
            os.chmod(os.path.join(folder, name), 0o600)
        return folder

    def start_mounted(self, index: int) -> None:
        """The service reads links to `..data/NAME`, and `..data` is a link to a version."""
        self.version(index, "ours")
        mount = self.mount(index)
        os.symlink("..ours", os.path.join(mount, "..data"))
        files = {name: os.path.join(mount, name) for name in self.files(index, "ours")}
        for name, path in files.items():
            os.symlink(os.path.join("..data", name), path)
        self.start_with(index, files)

    def switch(self, index: int) -> None:
        """All three files change at once."""
        self.version(index, "theirs")
        mount = self.mount(index)
        os.symlink("..theirs", os.path.join(mount, "..data_tmp"))
        os.rename(os.path.join(mount, "..data_tmp"), os.path.join(mount, "..data"))

    def overwrite(self, index: int) -> None:
        """One file after another changes, each as a whole."""
        new = self.files(index, "theirs")
        for name, path in self.files(index, "ours").items():
            shutil.copy(new[name], path + ".new")
            os.chmod(path + ".new", 0o600)
            os.rename(path + ".new", path)

    def train_until(self, ranks: Ranks, indices: tuple[int, ...]) -> None:
        """Iterates until these nodes' services have read the new files; no sum is wrong."""

        def reloaded() -> bool:
            self.exercise(ranks, "all_reduce", count=100_000)
            logs = [self.cluster[index].service.log() for index in indices]
            return all(RELOADED in log for log in logs)

        self.assertTrue(await_true(reloaded, LOOK_LIMIT_S), "the new files were not read")

    def check_changed(self, old: Ranks) -> None:
        """Nodes 0 and 1 have the new files: node 2 is met with those and with no others."""
        self.start(2, "ours")
        refused = self.ranks(0, 2, job="refused")
        with self.assertRaises(RankError) as caught:
            refused[1].call("post", kind="barrier")
            refused[1].call("wait", timeout=20)
        self.assertIn("certificate", str(caught.exception))
        refused.__exit__()
        self.cluster[2].service.stop()
        self.start(2, "theirs")
        new = self.ranks(0, 1, 2, job="new")
        self.exercise(new, "all_reduce", count=100_000)
        # All the time, and by the connection that was made with the former files.
        self.exercise(old, "all_reduce", count=100_000)
        old.each("leave")
        new.each("leave")
        # Nothing holds a connection any more; this one is made with the new files at both ends.
        self.exercise(self.ranks(0, 1, job="afresh"), "all_reduce", count=100_000)

    def test_by_a_folder_that_is_switched_as_kubernetes_does(self) -> None:
        self.start_mounted(0)
        self.start_mounted(1)
        old = self.ranks(0, 1, job="old")
        self.exercise(old, "all_reduce", count=100_000)
        self.switch(0)
        self.switch(1)
        self.train_until(old, (0, 1))
        self.check_changed(old)

    def test_by_files_that_change_one_after_another(self) -> None:
        self.start(0, "ours")
        self.start(1, "ours")
        old = self.ranks(0, 1, job="old")
        self.exercise(old, "all_reduce", count=100_000)
        self.overwrite(0)
        self.overwrite(1)
        self.train_until(old, (0, 1))
        self.check_changed(old)


class Doctor(CertifiedCase):
    """`doctor --peer` between nodes that have certificates."""

    def last(self, address: str) -> dict[str, str]:
        """What node 0 finds last at that address."""
        return self.cluster[0].service.ctl_json("doctor", "--peer", address)["checks"][-1]

    def test_it_names_what_is_wrong_with_the_other_node(self) -> None:
        here = self.start(0, "ours")
        there = f"{self.cluster[1].address}:{PORT}"
        self.assertEqual(self.last(there)["check"], "peer port")
        for authority, check, result, said in (
            ("theirs", "peer certificates", "problem", "authority"),
            (None, "peer certificates", "problem", "plain text"),
            ("ours", "peer version", "ok", "speak peer protocol"),
        ):
            with self.subTest(authority=authority):
                self.start(1, authority)
                found = self.last(there)
                self.assertEqual((found["check"], found["result"]), (check, result), found)
                self.assertIn(said, found["found"])
                code, text = here.ctl("doctor", "--peer", there)
                self.assertEqual(code, 0 if result == "ok" else 1, text)
                self.cluster[1].service.stop()
        self.assertEqual(self.last("nowhere.invalid")["check"], "peer name")

    def test_only_root_and_the_services_user_may_have_it_connect(self) -> None:
        here = self.start(0, "ours")
        self.start(1, "ours")
        for path in (self.cluster.directory, here.directory):
            os.chmod(path, 0o755)
        address = f"{self.cluster[1].address}:{PORT}"
        program = os.path.join(build_directory(), "headracectl")
        command = [program, "--socket", here.socket, "doctor", "--peer", address]
        done = subprocess.run(
            command,
            user=STRANGER_UID,
            group=STRANGER_UID,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("uid 0", done.stdout)
        self.assertEqual(here.ctl("doctor", "--peer", address)[0], 0)


if __name__ == "__main__":
    run_tests()
