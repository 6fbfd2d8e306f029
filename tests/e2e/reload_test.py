"""What a configuration is checked for, what SIGHUP changes, and how the service ends."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from support.service import ROOT, Service, build_directory, service_directory

LIMIT_S = 30.0


class Directory(unittest.TestCase):
    def setUp(self) -> None:
        own = tempfile.TemporaryDirectory(prefix="headrace-reload-")
        self.addCleanup(own.cleanup)
        self.directory = own.name

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def certificates(self, *names: str, authority: str = "authority") -> None:
        ctl = os.path.join(build_directory(), "headracectl")
        signer, nodes = self.path(authority), self.path("nodes")
        commands = [f"authority --out {signer}"]
        for name in names:
            commands.append(f"node {name} --authority {signer} --out {nodes} --force")
        for command in commands:
            whole = [ctl, "certs", *command.split()]
            subprocess.run(whole, check=True, stdout=subprocess.DEVNULL)

    def tls(self, authority: str, certificate: str, key: str) -> tuple[str, ...]:
        return (
            *("--tls-authority", self.path(f"{authority}/authority.crt")),
            *("--tls-certificate", self.path(f"nodes/{certificate}.crt")),
            *("--tls-key", self.path(f"nodes/{key}.key")),
        )


class CheckConfig(Directory):
    """--check-config refuses what a start refuses, with the same words."""

    def run_service(self, *flags: str) -> subprocess.CompletedProcess[str]:
        program = os.path.join(service_directory(), "headraced")
        places = () if "--socket" in flags else ("--socket", self.path("socket"))
        return subprocess.run(
            [program, *places, "--log-level", "error", *flags], capture_output=True, text=True, timeout=LIMIT_S
        )

    def require_refused(self, *flags: str, words: tuple[str, ...]) -> None:
        checked = self.run_service("--check-config", *flags)
        self.assertEqual(checked.returncode, 2, checked.stdout + checked.stderr)
        started = self.run_service(*flags)
        self.assertIn(started.returncode, (1, 2), started.stderr)
        for word in words:
            self.assertIn(word, checked.stderr)
            self.assertIn(word, started.stderr)

    def test_addresses(self) -> None:
        self.require_refused("--http-address", "9564", words=("9564",))
        self.require_refused(
            "--http-address", "192.0.2.1:9564", words=("http_address", "no such address")
        )
        self.require_refused(
            *("--node-address", "192.0.2.1:7733", "--plain-text"),
            words=("node_address", "no such address"),
        )
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            self.require_refused(
                "--http-address", f"127.0.0.1:{port}", words=("another program listens there",)
            )

    def test_certificates(self) -> None:
        self.certificates("a", "b")
        self.certificates(authority="other")
        node = ("--node-name", "a", "--node-address", "127.0.0.1:0", "--rails", "lo")
        self.require_refused(*node, *self.tls("authority", "a", "b"), words=("does not belong",))
        self.require_refused(*node, *self.tls("other", "a", "a"), words=("authority",))
        good = self.run_service("--check-config", *node, *self.tls("authority", "a", "a"))
        self.assertEqual(good.returncode, 0, good.stderr)

    def test_rails_and_places(self) -> None:
        self.require_refused(
            *("--node-address", "127.0.0.1:0", "--rails", "nothere0"), words=("nothere0",)
        )
        os.mkdir(self.path("folder"))
        self.require_refused("--socket", self.path("folder"), words=("is not a socket",))
        self.require_refused(
            "--socket", self.path("a/b/socket"), words=("No such file or directory",)
        )
        self.require_refused(
            *("--gpu", "on", "--cuda-library", "/nowhere/libcuda.so"), words=("/nowhere/libcuda.so",)
        )

    def test_a_service_that_runs_is_no_reason(self) -> None:
        with Service("--node-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0") as service:
            before = sorted(os.listdir(service.directory))
            with socket.create_server(("127.0.0.1", 0)) as taken:
                flags = ("--http-address", f"127.0.0.1:{taken.getsockname()[1]}")
                command = [*service.command()[:3], *flags, "--check-config"]
                done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(sorted(os.listdir(service.directory)), before, "something was left")
            self.assertEqual(service.ctl("status")[0], 0)


class ShippedFile(Directory):
    """containers/packages/headrace.toml with every line uncommented, and the certificates it speaks of."""

    def test_every_line_of_it_is_a_configuration(self) -> None:
        with open(os.path.join(ROOT, "containers/packages/headrace.toml"), encoding="utf-8") as file:
            text = file.read()
        (command,) = re.findall(r"^#   headracectl (certs node .*)$", text, re.MULTILINE)
        command = command.replace("/etc/headrace", self.directory).replace(
            "--authority authority", f"--authority {self.path('authority')}"
        )
        self.certificates()
        words = command.split()
        place = words.index("--owner")
        self.assertEqual(words[place + 1], "headrace")
        words[place + 1] = pwd.getpwuid(os.getuid()).pw_name  # who is sure to exist here
        ctl = os.path.join(build_directory(), "headracectl")
        subprocess.run([ctl, *words], check=True, stdout=subprocess.DEVNULL)
        lines = re.findall(r"^# (\w+ = .*)$", text, re.MULTILINE)
        self.assertGreaterEqual(len(lines), 7)
        keys = [line.split()[0] for line in lines]
        with open(self.path("headrace.toml"), "w", encoding="utf-8") as file:
            for line in lines:
                for machines, ours in (
                    ("/etc/headrace", self.directory),
                    ("/run/headrace", self.directory),
                    ("10.0.0.1:7733", "127.0.0.1:0"),
                    ("127.0.0.1:9564", "127.0.0.1:0"),
                ):
                    line = line.replace(machines, ours)
                file.write(line + "\n")
        program = os.path.join(service_directory(), "headraced")
        done = subprocess.run(
            [program, "--config", self.path("headrace.toml"), "--check-config"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        for key in ("tls_authority", "tls_certificate", "tls_key", "node_name", "http_address"):
            self.assertIn(key, keys)

    def test_a_key_goes_to_the_user_who_reads_it(self) -> None:
        if os.getuid() != 0:
            self.skipTest("giving files away takes root")
        self.certificates()
        ctl = os.path.join(build_directory(), "headracectl")
        node = ("certs", "node", "a", "--authority", self.path("authority"))
        made = (*node, "--out", self.path("nodes"), "--owner", "nobody")
        subprocess.run([ctl, *made], check=True, stdout=subprocess.DEVNULL)
        key = os.stat(self.path("nodes/a.key"))
        self.assertEqual(key.st_uid, pwd.getpwnam("nobody").pw_uid)
        self.assertEqual(key.st_mode & 0o777, 0o600)
        unknown = (*node, "--out", self.path("others"), "--owner", "no-such-user")
        done = subprocess.run([ctl, *unknown], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no-such-user", done.stderr)
        self.assertFalse(os.path.exists(self.path("others/a.key")), "a key without its owner")


class OnePort(unittest.TestCase):
    """Metrics have one port, and files of certificates one layout, wherever one is named."""

    def test_documents_and_manifests_agree(self) -> None:
        named = re.compile(r"http[-_]address[= \"]+[^\s\"':]*:(\d+)")
        for folder, ends in (("containers", None), ("client/cli/man", None), (".", "README.md")):
            for place, folders, files in os.walk(os.path.join(ROOT, folder)):
                if folder == ".":
                    folders.clear()
                for name in files:
                    if ends is not None and name != ends:
                        continue
                    with open(os.path.join(place, name), encoding="utf-8") as file:
                        text = file.read()
                    self.assertEqual(set(named.findall(text)) - {"9564", "0"}, set(), name)
                    self.assertNotIn("/etc/headrace/certs", text, name)


class Reload(Directory):
    def await_log(self, service: Service, words: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while words not in service.log():
            self.assertLess(time.monotonic(), deadline, service.log())
            time.sleep(0.02)

    def write(self, *lines: str) -> None:
        with open(self.path("headrace.toml"), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    def test_sighup_reads_the_level_and_the_certificate_and_names_the_rest(self) -> None:
        self.certificates("a")
        self.write('log_level = "info"')
        with Service(
            *("--config", self.path("headrace.toml"), "--node-name", "a"),
            *("--node-address", "127.0.0.1:0", "--rails", "lo", *self.tls("authority", "a", "a")),
        ) as service:
            pid = service.pid
            self.await_log(service, "believing")
            for kind in ("crt", "key"):
                shutil.move(self.path(f"nodes/a.{kind}"), self.path(f"old.{kind}"))
            self.certificates("a", authority="authority2")
            shutil.copy(self.path("authority2/authority.crt"), self.path("authority/authority.crt"))
            self.write('log_level = "debug"', "late_ms = 700", "spin_us = 1")
            os.kill(service.pid, signal.SIGHUP)
            self.await_log(service, "the certificate's files have changed: new connections use")
            self.await_log(service, "log_level is now debug")
            self.await_log(service, "a restart is needed for spin_us, late_ms")
            self.write('log_levle = "info"')
            os.kill(service.pid, signal.SIGHUP)
            self.await_log(service, 'did you mean "log_level"')
            self.assertEqual(service.pid, pid)
            self.assertEqual(service.ctl("status")[0], 0)
            self.assertEqual(service.stop(), 0)

    def test_the_last_line_says_stopped_and_ucx_says_nothing(self) -> None:
        with Service("--node-address", "127.0.0.1:0", "--rails", "lo") as service:
            self.assertEqual(service.stop(), 0)
            lines = service.log().splitlines()
        self.assertTrue(lines[-1].endswith(" info stopped"), lines[-1])
        self.assertEqual([line for line in lines if "UCX" in line and "WARN" in line], [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
