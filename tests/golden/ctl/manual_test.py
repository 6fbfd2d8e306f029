"""The manual says what --help says, both ways, and the examples in --help work."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
from support.service import ROOT, Service, build_directory  # noqa: E402
from support.ranks import Ranks  # noqa: E402
from support.unittests import run_tests  # noqa: E402

PAGES = pathlib.Path(ROOT) / "client" / "cli" / "man"
# Change nothing and end by themselves; the job of the examples is vision.
READ_ONLY = ("status", "jobs", "plan", "lanes", "users", "queue", "flight", "doctor", "completion")
OF_HELP = {"-h", "--help"}


def run(*command: str) -> str:
    program = os.path.join(build_directory(), command[0])
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout


def flags_of_help(text: str) -> set[str]:
    """Every -x and --xyz that begins a line of options."""
    flags: set[str] = set()
    for line in text.splitlines():
        if match := re.match(r" +(-[-\w]+(?:,-[-\w]+)*)", line):
            flags.update(match.group(1).split(","))
    return flags


def commands_of_help(text: str) -> list[str]:
    _, _, tail = text.partition("Subcommands:\n")
    return re.findall(r"^  (\S+) ", tail.split("\n\n")[0], re.MULTILINE)


def tree_of_help(program: str, path: tuple[str, ...] = ()) -> dict[str, set[str]]:
    """Path of each command that can be run -> its flags."""
    text = run(program, *path, "--help")
    commands = commands_of_help(text)
    tree = {} if path and commands else {" ".join(path): flags_of_help(text)}
    for command in commands:
        tree.update(tree_of_help(program, (*path, command)))
    return tree


def tree_of_page(path: pathlib.Path) -> dict[str, set[str]]:
    """The same from the page: options stand in lists, commands are subsections."""
    tree: dict[str, set[str]] = {"": set()}
    command = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith(".Ss "):
            command = line[4:]
            tree[command] = set()
        elif line.startswith(".Sh "):
            command = ""
        elif line.startswith(".It Fl "):
            tree[command].update("-" + flag for flag in re.findall(r"Fl (\S+)", line))
    return tree


class Manual(unittest.TestCase):
    def compare(self, program: str, page: str) -> None:
        shown = tree_of_help(program)
        written = tree_of_page(PAGES / page)
        self.assertEqual(set(shown), set(written))
        for command, flags in shown.items():
            # Every command has help and the program's own options; they are told once.
            general = OF_HELP if command else set()
            self.assertEqual(flags - general, written[command], f"{program} {command}")

    def test_headracectl(self) -> None:
        self.compare("headracectl", "headracectl.1")

    def test_headraced(self) -> None:
        self.compare("headraced", "headraced.8")

    def test_headrace_plan(self) -> None:
        self.compare("headrace-plan", "headrace-plan.1")

    def test_limits_of_numbers_are_told_as_people_write_them(self) -> None:
        for program in ("headracectl", "headrace-plan"):
            for command in tree_of_help(program):
                text = run(program, *command.split(), "--help")
                found = re.findall(r".*(?:\bin \[|e\+\d\d|\d{8}).*", text)
                self.assertEqual(found, [], f"{program} {command}")
        for certificate in ("authority", "node"):
            text = run("headracectl", "certs", certificate, "--help")
            self.assertRegex(text, r"--days INT:1 to 36500=\d+")

    @unittest.skipUnless(shutil.which("mandoc"), "needs mandoc")
    def test_pages_are_well_formed(self) -> None:
        for page in sorted(PAGES.iterdir()):
            lint = subprocess.run(
                ["mandoc", "-T", "lint", "-W", "style", page], capture_output=True, text=True
            )
            # Our own pages are not where man looks before they are installed.
            faults = [line for line in lint.stdout.splitlines() if "Xr headrace" not in line]
            self.assertEqual(faults, [], page.name)

    def test_pages_and_completions_are_installed(self) -> None:
        rules = os.path.join(build_directory(), "client/cli/ctl/cmake_install.cmake")
        with tempfile.TemporaryDirectory(prefix="headrace-manual-") as folder:
            subprocess.run(
                ["cmake", f"-DCMAKE_INSTALL_PREFIX={folder}", "-P", rules],
                check=True, capture_output=True, timeout=60,
            )  # fmt: skip
            share = pathlib.Path(folder) / "share"
            for name in (
                "man/man1/headracectl.1",
                "man/man1/headrace-plan.1",
                "man/man8/headraced.8",
                "bash-completion/completions/headracectl",
                "zsh/site-functions/_headracectl",
                "fish/vendor_completions.d/headracectl.fish",
            ):
                self.assertGreater((share / name).stat().st_size, 1000, name)


class Examples(unittest.TestCase):
    """What stands at the end of each command's help can be typed."""

    def examples(self) -> dict[str, list[str]]:
        found = {}
        for command in tree_of_help("headracectl"):
            if command:
                help_text = run("headracectl", *command.split(), "--help")
                found[command] = re.findall(r"^ +headracectl (.+)$", help_text, re.MULTILINE)
        return found

    def test_every_command_has_an_example_of_its_own(self) -> None:
        for command, examples in self.examples().items():
            self.assertTrue(examples, command)
            for example in examples:
                self.assertTrue(example.startswith(command), example)

    def test_those_that_only_read_run(self) -> None:
        examples = self.examples()
        with Service() as service, Ranks(service, 1, job="vision") as ranks:
            ranks.each("tensor", name="w", count=64)
            for command in READ_ONLY:
                for example in examples[command]:
                    words = shlex.split(re.sub(r"\bbert\b", "vision", example))
                    if "--watch" in words:
                        after = words.index("--watch") + 1
                        words[after : after + 1] = ["0.01"]  # or there is none: every 2 s
                        words += [] if "--count" in words else ["--count", "1"]
                    code, text = service.ctl(*words)
                    # --previous asks for a service before this one, --peer for another node: there is none.
                    self.assertEqual(code, int(bool({"--previous", "--peer"} & set(words))), f"{words}: {text}")


if __name__ == "__main__":
    run_tests()
