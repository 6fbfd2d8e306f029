"""The manual says what --help says, the examples in --help work, and the commands that documents
name are there with their options."""

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
from support.ranks import Ranks
from support.service import ROOT, Service, build_directory
from support.unittests import run_tests

FRAMES = pathlib.Path(ROOT) / "client" / "cli" / "man"
PAGES = pathlib.Path(build_directory()) / "client" / "cli" / "ctl" / "man"
# Change nothing and end by themselves; the job of the examples is vision.
READ_ONLY = ("status", "jobs", "plan", "lanes", "users", "queue", "flight", "doctor", "completion")
OF_HELP = {"-h", "--help"}
# Whose code blocks a person types.
DOCUMENTS = (
    "README.md", "CONTRIBUTING.md", "client/README.md", "client/WILL_IT_HELP.md", "client/cli/ctl/README.md",
    "service/plan/tool/README.md", "containers/README.md", "tests/README.md", "tests/bench/README.md",
)  # fmt: skip
PROGRAMS = ("headraced", "headracectl", "headrace-plan")


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


def commands_of_document(text: str) -> list[list[str]]:
    """The command lines in code blocks, without prompt, comment and environment."""
    commands = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not line.startswith("    "):
            continue
        for part in re.split(r" && |; |\| |\(", line.removeprefix("    ").removeprefix("$ ")):
            words = re.sub(r"(^|\s)#.*", "", part).replace("[", " ").replace("]", " ").split()
            while words and re.match(r"\w+=|nice$|exec$|podman$|-", words[0]):
                words.pop(0)
            if words:
                commands.append(words)
    return commands


def fault_of_command(words: list[str], trees: dict[str, dict[str, set[str]]]) -> str:
    """What is wrong with a command line of a document; empty: nothing that can be seen."""
    if "/" in words[0] and not words[0].startswith("build/"):
        ours = words[0].split("/")[0] in ("tests", "client", "containers")
        return f"{words[0]} is not there" if ours and not os.path.exists(os.path.join(ROOT, words[0])) else ""
    name = os.path.basename(words[0])
    if name not in PROGRAMS:
        return ""
    tree = trees[name]
    plain = [word.split("|")[0] for word in words[1:] if not word.startswith("-")]
    names = [path for path in tree if path and plain[: len(path.split())] == path.split()]
    if len(tree) > 1 and plain and re.match(r"[a-z]+$", plain[0]) and not names:
        return f"{name} has no command {plain[0]}"
    known = tree.get("", set()) | OF_HELP | (tree[max(names, key=len)] if names else set())
    unknown = [word.split("=")[0] for word in words[1:] if re.match(r"--?[a-z]", word)]
    return ", ".join(f"{name} has no {flag}" for flag in unknown if flag.rstrip(",.") not in known)


class Documents(unittest.TestCase):
    trees: dict[str, dict[str, set[str]]]

    @classmethod
    def setUpClass(cls) -> None:
        cls.trees = {program: tree_of_help(program) for program in PROGRAMS}
        cls.trees["headracectl"][""] = flags_of_help(run("headracectl", "--help"))

    def test_commands_in_code_blocks_exist_with_their_options(self) -> None:
        seen = 0
        for name in DOCUMENTS:
            for words in commands_of_document((pathlib.Path(ROOT) / name).read_text(encoding="utf-8")):
                seen += os.path.basename(words[0]) in PROGRAMS
                self.assertEqual(fault_of_command(words, self.trees), "", f"{name}: {' '.join(words)}")
        self.assertGreater(seen, 40)

    def test_what_is_not_there_is_found(self) -> None:
        for line in ("headracectl quue", "headracectl queue --sorted", "headraced --plain", "tests/bench/walk"):
            self.assertNotEqual(fault_of_command(line.split(), self.trees), "", line)


class Manual(unittest.TestCase):
    def test_pages_have_every_command_and_option(self) -> None:
        for page in ("headracectl.1", "headrace-plan.1", "headraced.8"):
            program = page.rpartition(".")[0]
            written = tree_of_page(PAGES / page)
            shown = tree_of_help(program)
            shown[""] = flags_of_help(run(program, "--help"))
            self.assertEqual(set(shown), set(written))
            for command, flags in shown.items():
                # Every command has help; it is told once.
                general = OF_HELP if command else set()
                self.assertEqual(flags - general, written[command], f"{program} {command}")

    def make(self, frame: str) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory(prefix="headrace-manual-") as folder:
            changed = pathlib.Path(folder) / "frame"
            changed.write_text(frame, encoding="utf-8")
            program = os.path.join(build_directory(), "headracectl")
            return subprocess.run(
                [sys.executable, FRAMES / "make_page.py", changed, program, changed.with_suffix(".1")],
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip

    def test_frames_that_lack_a_command_or_have_one_too_many_are_refused(self) -> None:
        frame = (FRAMES / "headracectl.1.in").read_text(encoding="utf-8")
        self.assertEqual(self.make(frame).returncode, 0)
        for changed, fault in (
            (frame.replace(".Ss queue\n", ""), "lacks commands of .*: queue"),
            (frame.replace(".Ss queue\n", ".Ss quue\n"), "has no command quue"),
            (frame.replace('.\\" OPTIONS', '.\\" --jason\nMore.\n.\\" OPTIONS'), "has no --jason"),
        ):
            made = self.make(changed)
            self.assertEqual(made.returncode, 1)
            self.assertRegex(made.stderr, fault)

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
