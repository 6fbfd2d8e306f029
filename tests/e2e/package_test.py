"""Debian's packages of headrace, really installed on a machine that systemd runs: they find what they
depend on, the unit starts as its user and stops in order, a hang is ended, an upgrade keeps what runs and
what was configured, and a purge leaves nothing.

usage: package_test.py; HEADRACE_BUILD names the build tree. Exits with 77, and the reason, where such a
machine cannot be.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
import unittest
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
sys.dont_write_bytecode = True

import package_machine
from support.directory import OwnDirectory
from support.frozen_thread import CannotFreeze, FrozenThread
from support.service import build_directory

PACKAGES = ("headrace", "libheadrace", "libheadrace-dev", "python3-headrace")
LIMIT_S = 60.0
# Points, in tenths, of the ten that systemd gives for exposure to whom the service may harm.
EXPOSURE_MAX = 25
AVERAGES = """
import os, sys, headrace, numpy
children = [rank for rank in (1,) if os.fork() == 0]
rank = children[0] if children else 0
with headrace.init(job="package", rank=rank, world_size=2) as session:
    array = numpy.full(4, session.rank, numpy.float32)
    session.all_reduce(array, op="average")
    assert (array == 0.5).all(), array
if rank == 0:
    os.wait()
    print("averaged")
"""
PROGRAM = """
#include <headrace/headrace.h>
#include <stdio.h>
int main(void) { return puts(hr_version()) < 0; }
"""


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {LIMIT_S:.0f} s: {what}")
        time.sleep(0.1)


class PackageTest(unittest.TestCase):
    """Packages are made and installed once; each test leaves them installed, and the service stopped."""

    machine: package_machine.Machine
    packages: dict[str, Path]
    cannot_boot = False

    @classmethod
    def setUpClass(cls) -> None:
        own = OwnDirectory("headrace-packages-")
        cls.addClassCleanup(own.close)
        run("cpack", "-G", "DEB", "-B", own.path, cwd=build_directory())
        made = {path.name.split("_")[0]: path for path in Path(own.path).glob("*.deb")}
        cls.packages = {name: made[name] for name in PACKAGES}
        cls.machine = package_machine.Machine(Path(build_directory()))
        cls.addClassCleanup(cls.machine.close)
        cls.machine.install(list(cls.packages.values()))
        try:
            cls.machine.boot()
        except package_machine.CannotBoot as error:
            cls.cannot_boot = True
            print(f"skipped: {error}")
            raise unittest.SkipTest(str(error)) from error

    def tearDown(self) -> None:
        self.machine.execute("systemctl", "stop", "headraced")
        self.machine.execute("systemctl", "reset-failed", "headraced")

    def succeed(self, *command: str, user: str = "0") -> str:
        done = self.machine.execute(*command, user=user)
        self.assertEqual(done.returncode, 0, f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def shown(self, name: str) -> str:
        """A property of the unit."""
        return self.succeed("systemctl", "show", "--value", "-p", name, "headraced").strip()

    def shipped(self, package: str) -> str:
        """Its file in the machine."""
        return f"/var/cache/packages/{self.packages[package].name}"

    def install(self, *files: str) -> None:
        """As an operator who keeps what was configured."""
        self.succeed("dpkg", "--force-confdef", "--force-confold", "--install", *files)

    def start(self) -> None:
        # Returns when the service has said READY=1: Type=notify.
        self.succeed("systemctl", "start", "headraced")
        self.assertEqual(self.shown("ActiveState"), "active")

    def test_apt_found_all_that_they_depend_on(self) -> None:
        for name in PACKAGES:
            state = self.succeed("dpkg-query", "-W", "-f", "${db:Status-Abbrev}", name)
            self.assertEqual(state.strip(), "ii", name)
        self.assertEqual(self.succeed("dpkg", "--audit"), "")
        for program in ("headraced", "headracectl", "headrace-plan"):
            self.succeed(program, "--help")

    def test_each_package_has_its_copyright_file(self) -> None:
        wanted = (HERE.parent.parent / "containers/packages/copyright").read_text()
        for name, package in self.packages.items():
            own = OwnDirectory("headrace-copyright-")
            self.addCleanup(own.close)
            run("dpkg-deb", "--extract", package, own.path)
            self.assertEqual((Path(own.path) / f"usr/share/doc/{name}/copyright").read_text(), wanted)

    def test_systemd_finds_nothing_wrong_with_the_unit(self) -> None:
        done = self.machine.execute("systemd-analyze", "verify", "--man=no", "headraced.service")
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
        self.succeed(
            "systemd-analyze", "security", "--no-pager", f"--threshold={EXPOSURE_MAX}", "headraced.service"
        )

    def test_the_service_runs_as_its_user_and_sums(self) -> None:
        self.start()
        pid = self.machine.pid_outside("headraced")
        user = int(self.succeed("id", "-u", "headrace"))
        status = Path(f"/proc/{pid}/status").read_text()
        self.assertIn(f"\nUid:\t{user}\t{user}\t{user}\t{user}\n", status)
        self.assertRegex(status, r"\nCapEff:\t0+\n")
        folder = self.succeed("stat", "-c", "%U %G %a", "/run/headrace")
        self.assertEqual(folder.strip(), "headrace headrace 755")
        self.succeed("headracectl", "doctor", "--probe", user="65534")
        self.assertEqual(self.succeed("python3", "-c", AVERAGES, user="65534"), "averaged\n")

    def test_a_stop_drains_and_is_a_success(self) -> None:
        # systemd forgets how a unit ended that nothing wants any more.
        self.succeed("systemctl", "enable", "headraced")
        self.addCleanup(self.succeed, "systemctl", "disable", "headraced")
        self.start()
        self.succeed("systemctl", "stop", "headraced")
        ended = (self.shown("Result"), self.shown("ExecMainCode"), self.shown("ExecMainStatus"))
        self.assertEqual(ended, ("success", "1", "0"))  # 1: it exited, by no signal
        self.assertNotEqual(self.machine.execute("ls", "/run/headrace").returncode, 0)

    def test_systemd_restarts_a_service_that_hangs(self) -> None:
        folder = self.machine.root / "etc" / "systemd" / "system" / "headraced.service.d"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "soon.conf").write_text("[Service]\nWatchdogSec=3\n")
        self.addCleanup(self.succeed, "systemctl", "daemon-reload")
        self.addCleanup((folder / "soon.conf").unlink)
        self.succeed("systemctl", "daemon-reload")
        self.start()
        frozen = FrozenThread(self.machine.pid_outside("headraced"), "hr-data")
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(frozen)
            except CannotFreeze as error:
                self.skipTest(str(error))
            until(frozen.ended, "systemd ends the service that feeds its watchdog no more")
        until(lambda: self.shown("NRestarts") == "1" and self.shown("ActiveState") == "active",
              "systemd starts it again")  # fmt: skip
        self.succeed("headracectl", "doctor", "--probe")

    def test_a_c99_program_finds_the_library_by_pkg_config(self) -> None:
        root = self.machine.root
        found = next(root.glob("usr/lib/**/headrace.pc"))
        environment = {**os.environ, "PKG_CONFIG_PATH": str(found.parent)}
        flags = run("pkg-config", "--cflags", "--libs", "headrace", env=environment).split()
        source = self.machine.folder / "program.c"
        source.write_text(PROGRAM)
        program = root / "usr" / "local" / "bin" / "c99_program"
        run("cc", "-std=c99", "-pedantic", "-Werror", source, *flags, "-o", program)
        self.addCleanup(program.unlink)
        told = self.succeed("/usr/local/bin/c99_program", user="65534")
        self.assertRegex(told, r"^\d+\.\d+\.\d+\n$")

    def newer(self) -> str:
        """The service's package with a version above and another default configuration, by its path."""
        parts = self.machine.folder / "parts"
        run("dpkg-deb", "--raw-extract", self.packages["headrace"], parts)
        control = parts / "DEBIAN" / "control"
        text, count = re.subn(r"(?m)^Version: .*$", "Version: 99.0.0", control.read_text())
        self.assertEqual(count, 1)
        control.write_text(text)
        with (parts / "etc/headrace/headrace.toml").open("a") as configuration:
            configuration.write("# of a newer version\n")
        run("dpkg-deb", "--build", "--root-owner-group", parts, self.machine.root / "var/cache/newer.deb")
        return "/var/cache/newer.deb"

    def test_an_upgrade_keeps_what_runs_and_what_was_configured(self) -> None:
        configuration = self.machine.root / "etc/headrace/headrace.toml"
        shipped = configuration.read_text()
        self.addCleanup(configuration.write_text, shipped)
        configuration.write_text(shipped + 'node_name = "kept"\n')
        self.start()
        before = self.shown("MainPID")
        self.install(self.newer())
        self.addCleanup(self.install, self.shipped("headrace"))
        self.assertEqual(self.succeed("dpkg-query", "-W", "-f", "${Version}", "headrace"), "99.0.0")
        self.assertEqual(self.shown("ActiveState"), "active")
        self.assertNotEqual(self.shown("MainPID"), before)
        self.assertIn('node_name = "kept"', configuration.read_text())
        self.succeed("headracectl", "doctor", "--probe")

    def test_an_upgrade_starts_nothing_that_was_stopped(self) -> None:
        self.install(self.shipped("headrace"))
        self.assertEqual(self.shown("ActiveState"), "inactive")

    def test_a_purge_leaves_nothing_but_the_user(self) -> None:
        self.succeed("systemctl", "enable", "--now", "headraced")
        self.succeed("dpkg", "--purge", *PACKAGES)
        found = self.succeed(
            "find", "/", "-xdev", "(", "-path", "/proc", "-o", "-path", "/var/cache/packages", ")", "-prune",
            "-o", "-name", "*headrace*", "-print",
        )  # fmt: skip
        self.addCleanup(self.install, *(self.shipped(name) for name in PACKAGES))
        self.assertEqual(found, "")
        self.assertEqual(self.machine.execute("ls", "/run/headrace").returncode, 2)
        known = self.machine.execute("systemctl", "cat", "headraced")
        self.assertNotEqual(known.returncode, 0, known.stdout)
        self.assertIn("nologin", self.succeed("getent", "passwd", "headrace"))


if __name__ == "__main__":
    if reason := package_machine.missing():
        print(f"skipped: {reason}")
        sys.exit(77)
    os.umask(0o022)
    ran = unittest.main(verbosity=2, exit=False)
    if PackageTest.cannot_boot:
        sys.exit(77)
    sys.exit(0 if ran.result.wasSuccessful() else 1)
