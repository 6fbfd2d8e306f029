#!/usr/bin/python3
"""Makes a manual page from what a program's --help says and a frame with what it does not say.

usage: make_page.py FRAME PROGRAM PAGE

A frame is a page in mdoc without options and synopses of commands, which come from the program:

- `.\\" OPTIONS` is replaced by the program's own options;
- `.Ss COMMAND` gets the command's synopsis after it, and its arguments and options after its text;
- lines after `.\\" --flag` are added to what is said of that option; `.\\" OPTIONS` ends them.

A frame that leaves a command or a flag out, or has one that is not there, is an error (exit code 1).
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

WIDTH = 78
TEXT_COLUMN = 30  # of help, where it says what an option does
# What a value is called, where the help has its type.
KINDS = {"TEXT": "text", "FLOAT": "number", "UINT": "number", "INT": "number"}


class PageError(Exception):
    pass


@dataclass
class Option:
    """One line of help: an option, or an argument where `flags` is its name."""

    flags: list[str]
    value: str  # "SECONDS:0.01 to 86400=2", or empty
    text: str

    @property
    def takes_value(self) -> bool:
        return self.value != "" or re.search(r"\[(?!true|false).+\]$", self.text) is not None


@dataclass
class Help:
    usage: str
    sections: dict[str, list[Option]]
    commands: list[str]


def parse_help(text: str) -> Help:
    usage = re.search(r"^Usage: \S+ ?(.*)$", text, re.MULTILINE)
    if usage is None:
        raise PageError("the help has no line of usage")
    sections: dict[str, list[Option]] = {}
    section = ""
    all_lines = text.splitlines()
    for line, after in zip(all_lines, [*all_lines[1:], ""], strict=True):
        if match := re.match(r"(\w[\w ]*):$", line):
            section = match.group(1)
        elif not line:
            continue
        elif section in ("", "Example", "Examples") or not line.startswith("  "):
            section = section if line.startswith(" ") else ""
        elif line.startswith(" " * TEXT_COLUMN):  # of the line before, which had no room
            sections[section][-1].text = line.strip()
        else:
            column = len(line) if after.startswith(" " * TEXT_COLUMN) else TEXT_COLUMN
            names, _, value = line[:column].strip().partition(" ")
            sections.setdefault(section, []).append(Option(names.split(","), value, line[column:].strip()))
    commands = [option.flags[0] for option in sections.pop("Subcommands", [])]
    return Help(usage.group(1), sections, commands)


def help_of(program: str, *command: str) -> Help:
    done = subprocess.run([program, *command, "--help"], capture_output=True, check=True, text=True, timeout=60)
    return parse_help(done.stdout)


def commands_of(program: str, *path: str) -> dict[str, Help]:
    """Every command that can be run by its words, without the program itself."""
    found: dict[str, Help] = {}
    said = help_of(program, *path)
    if path and not said.commands:
        found[" ".join(path)] = said
    for command in said.commands:
        found.update(commands_of(program, *path, command))
    return found


def roff(text: str) -> list[str]:
    """Lines of a paragraph: a new sentence on a new line, nothing that troff takes for a request."""
    lines = []
    for sentence in re.split(r"(?<=[.:!?]) (?=[A-Z])", text):
        wrapped = textwrap.wrap(sentence, WIDTH, break_on_hyphens=False, break_long_words=False)
        lines += [re.sub(r"^(?=[.'])", r"\\&", line.replace("\\", r"\e")) for line in wrapped]
    return lines


def sentence(text: str) -> str:
    """Help begins small and ends without a stop."""
    first = text.split(" ", 1)[0]
    if first.rstrip(",;:").isalpha() and first.islower():
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "...")) else text + "."


def remarks_of(value: str) -> list[str]:
    """What the type of a value says, in sentences: "FLOAT:0.01 to 600=1" and the like."""
    said = []
    bounds = []
    kind, *conditions = re.split(r" (?=Needs:|Excludes:|REQUIRED|\.\.\.|\(Env:)", value)
    kind, _, default = kind.partition("=")
    allowed = kind.partition(":")[2]
    if allowed.startswith("{"):
        bounds.append("One of " + allowed.strip("{}").replace(",", ", "))
    elif allowed == "POSITIVE":
        bounds.append("Above 0")
    elif allowed:
        bounds.append(allowed)
    if default:
        bounds.append(f"{default} unless given")
    said += ["; ".join(bounds)] if bounds else []
    for condition in conditions:
        name, _, other = condition.partition(" ")
        if name == "Needs:":
            said.append(f"Only with {other}")
        elif name == "Excludes:":
            said.append(f"Not with {other}")
        elif name == "...":
            said.append("May be repeated")
    return [each + "." for each in said]


def name_of_value(option: Option) -> str:
    kind = re.split(r"[:= ]", option.value)[0]
    return KINDS.get(kind, kind.lower()) or "value"


def item(option: Option, more: list[str]) -> list[str]:
    if option.flags[0].startswith("-"):
        head = ".It " + " , ".join(f"Fl {flag.removeprefix('-')}" for flag in option.flags)
        head += f" Ar {name_of_value(option)}" if option.takes_value else ""
    else:
        head = f".It Ar {option.flags[0].lower()}"
    said = [sentence(option.text), *remarks_of(option.value)]
    return [head, *(line for each in said for line in roff(each)), *more]


def options_of(said: Help, remarks: dict[str, list[str]], *, of_program: bool) -> list[str]:
    lines = []
    for options in said.sections.values():
        for option in options:
            if "--help" in option.flags and not of_program:
                continue
            more = [line for flag in option.flags for line in remarks.pop(flag, [])]
            lines += item(option, more)
    return [".Bl -tag -width Ds", *lines, ".El"] if lines else []


def synopsis(command: str, usage: str) -> list[str]:
    words = usage.split()[len(command.split()) :]
    line = ".D1 Nm Cm " + command
    for word in words:
        if word == "[OPTIONS]":
            line += " Oo Ar option ... Oc"
            continue
        name = word.strip("[].").lower() + (" ..." if "..." in word else "")
        line += f" Oo Ar {name} Oc" if word.startswith("[") else f" Ar {name}"
    return [line, ".Pp"]


def make_page(frame: str, program: str) -> str:
    commands = commands_of(program)
    lines: list[str] = []
    remarks: dict[str, list[str]] = {}
    command = flag = ""

    def end_command() -> None:
        nonlocal command
        if command:
            lines.extend(options_of(commands.pop(command), remarks, of_program=False))
        command = ""

    for line in frame.splitlines():
        if line.startswith((".Ss ", ".Sh ")):
            end_command()
        if line.startswith('.\\" --'):
            flag = line.split()[1]
            remarks[flag] = []
        elif line == '.\\" OPTIONS':
            flag = ""
            lines += options_of(help_of(program), remarks, of_program=True)
        elif flag:
            remarks[flag].append(line)
        elif line.startswith(".Ss "):
            command = line[4:]
            if command not in commands:
                raise PageError(f"{program} has no command {command}")
            lines += [line, *synopsis(command, commands[command].usage)]
        else:
            lines.append(line)
    end_command()
    if commands:
        raise PageError(f"the frame lacks commands of {program}: {', '.join(sorted(commands))}")
    if remarks:
        raise PageError(f"{program} has no {', '.join(sorted(remarks))}")
    return "\n".join(lines) + "\n"


def main() -> int:
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    frame, program, page = sys.argv[1:]
    try:
        made = make_page(Path(frame).read_text(encoding="utf-8"), program)
    except (PageError, OSError, subprocess.SubprocessError) as error:
        print(f"make_page.py: {frame}: {error}", file=sys.stderr)
        return 1
    Path(page).write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
