"""Shells complete headracectl's words, each for real and with the script the program writes."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
from support.ranks import Ranks
from support.service import Service, build_directory
from support.unittests import run_tests

PATIENCE_S = 30.0


def program() -> str:
    return os.path.join(build_directory(), "headracectl")


def script(shell: str) -> str:
    return subprocess.check_output([program(), "completion", shell], text=True)


class Completion(unittest.TestCase):
    """What each shell completes, of a service with one job and two lanes' worth of names."""

    service: Service
    ranks: Ranks

    @classmethod
    def setUpClass(cls) -> None:
        cls.service = Service()
        cls.addClassCleanup(cls.service.close)
        cls.service.start()
        cls.ranks = Ranks(cls.service, 1, job="vision")
        cls.addClassCleanup(cls.ranks.__exit__)
        cls.folder = tempfile.TemporaryDirectory(prefix="headrace-completion-")
        cls.addClassCleanup(cls.folder.cleanup)
        for shell in ("bash", "zsh", "fish"):
            with open(os.path.join(cls.folder.name, shell), "w", encoding="utf-8") as file:
                file.write(script(shell))

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{build_directory()}:{os.environ['PATH']}",
            "HOME": self.folder.name,
            "TERM": "dumb",
            "HEADRACE_BOARD": self.service.board,
            "HEADRACE_SOCKET": self.service.socket,
        }

    def run_shell(self, *command: str) -> list[str]:
        output = subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, timeout=PATIENCE_S
        )
        self.assertEqual(output.stderr, "")
        return output.stdout.split()

    def bash(self, *words: str) -> list[str]:
        """The candidates for the last word."""
        quoted = " ".join(f"'{word}'" for word in words)
        return self.run_shell(
            "bash", "--norc", "-c",
            f"source {self.folder.name}/bash; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
            "_headracectl; printf '%s\\n' \"${COMPREPLY[@]}\"",
        )  # fmt: skip

    def fish(self, line: str) -> list[str]:
        lines = subprocess.run(
            ["fish", "--no-config", "-c", f"source {self.folder.name}/fish; complete -C '{line}'"],
            env=self.environment(), capture_output=True, text=True, timeout=PATIENCE_S,
        ).stdout.splitlines()  # fmt: skip
        return [text.split("\t")[0] for text in lines]

    def test_bash_takes_the_script(self) -> None:
        self.assertEqual(self.run_shell("bash", "-n", os.path.join(self.folder.name, "bash")), [])

    def test_bash_completes_commands_options_and_choices(self) -> None:
        self.assertEqual(self.bash("headracectl", "qu"), ["queue"])
        self.assertIn("doctor", self.bash("headracectl", ""))
        self.assertEqual(self.bash("headracectl", "queue", "--sor"), ["--sort"])
        self.assertIn("--json", self.bash("headracectl", "queue", "--"))
        self.assertEqual(
            self.bash("headracectl", "queue", "--state", ""), ["gathering", "waiting", "moving"]
        )
        self.assertEqual(self.bash("headracectl", "--json", "queue", "--state", "mo"), ["moving"])
        self.assertEqual(self.bash("headracectl", "policy", "vision", "ex"), ["exact"])
        self.assertEqual(self.bash("headracectl", "certs", "no"), ["node"])
        self.assertEqual(self.bash("headracectl", "certs", "node", "--auth"), ["--authority"])
        self.assertEqual(self.bash("headracectl", "completion", ""), ["bash", "zsh", "fish"])

    def test_bash_completes_names_that_are_on_the_board(self) -> None:
        self.assertEqual(self.bash("headracectl", "pause", ""), ["vision"])
        self.assertEqual(self.bash("headracectl", "queue", "--job", "vi"), ["vision"])
        self.assertEqual(self.bash("headracectl", "weight", "vision", ""), [])
        self.assertIn("shm0", self.bash("headracectl", "lanes", ""))
        self.assertEqual(
            self.bash("headracectl", "--board", "/none", "pause", ""), [], "another board"
        )

    def test_bash_completes_files(self) -> None:
        self.assertIn(
            f"{self.folder.name}/bash",
            self.bash("headracectl", "certs", "show", f"{self.folder.name}/b"),
        )

    @unittest.skipUnless(shutil.which("fish"), "needs fish")
    def test_fish_completes_commands_options_choices_and_names(self) -> None:
        self.assertEqual(self.fish("headracectl qu"), ["queue"])
        self.assertEqual(self.fish("headracectl queue --sor"), ["--sort"])
        self.assertEqual(
            sorted(self.fish("headracectl queue --state ")), ["gathering", "moving", "waiting"]
        )
        self.assertEqual(self.fish("headracectl pause "), ["vision"])
        self.assertEqual(self.fish("headracectl policy vision ex"), ["exact"])
        self.assertEqual(self.fish("headracectl certs no"), ["node"])

    @unittest.skipUnless(shutil.which("zsh"), "needs zsh")
    def test_zsh_completes_commands_choices_and_names(self) -> None:
        """Through a terminal: zsh completes nowhere else."""
        master, slave = pty.openpty()
        shell = subprocess.Popen(
            ["zsh", "-f", "-i"], stdin=slave, stdout=slave, stderr=slave,
            env={**self.environment(), "PS1": "> "}, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.addCleanup(os.close, master)
        self.addCleanup(shell.wait)
        self.addCleanup(shell.kill)
        for line in (
            "unsetopt zle_bracketed_paste; autoload -U compinit && compinit -u -D",
            f"source {self.folder.name}/zsh; echo re''ady",
        ):
            os.write(master, f"{line}\n".encode())
        self.read_until(master, "ready")
        for typed, wanted in (
            ("headracectl qu\t", "queue"),
            ("headracectl queue --state mo\t", "moving"),
            ("headracectl pause \t", "vision"),
            ("headracectl policy vision ex\t", "exact"),
        ):
            os.write(master, typed.encode())
            self.read_until(master, wanted)
            os.write(master, b"\x15")  # empties the line

    def read_until(self, master: int, wanted: str) -> None:
        seen = ""
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(wanted, seen):
            left = deadline - time.monotonic()
            ready = select.select([master], [], [], max(left, 0))[0]
            self.assertTrue(ready, f"{wanted} does not come: {seen!r}")
            seen += os.read(master, 4096).decode(errors="replace")


if __name__ == "__main__":
    run_tests()
