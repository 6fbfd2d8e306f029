"""Lets clang read all C++ and C, tests included, for its warnings; nothing is compiled to code or linked.

usage: clang_syntax.py ROOT BUILD [--jobs N] [--headers] [--alone] [REGEX]

Configures ROOT by the preset clang in the folder BUILD and reads what is compiled there, several sources at once. The
exit status is 0: nothing found, 1: findings, 77: skipped. With --headers, each header of a library is read alone too;
with --alone, each source, which shows a missing include. REGEX chooses among the paths of what is read. `ninja
clang_syntax` reads all.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SKIPPED = 77
UNITY_SIZE = 16  # more take clang more memory and little less time
HEADERS = "_verify_interface_header_sets/"  # where cmake puts a source for each header of a file set
MADE = re.compile(r"^([^/\s]\S*\.(?:h|cc|c\+\+)): CUSTOM_COMMAND$", re.MULTILINE)
SAMPLE = "int Wide(long value) { return value; }\n"  # -Wconversion


def run(*command: str) -> str:
    """What the command prints; ends the program with all of it when the command fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)}:\n{done.stdout}{done.stderr}")
    return done.stdout


def configure(root: Path, build: Path, alone: bool) -> None:
    """Configures, and makes the files that others include."""
    run(
        "cmake", "-S", str(root), "-B", str(build), "--preset", "clang", "-DHEADRACE_TESTS=ON", "-DHEADRACE_PARTS=",
        f"-DCMAKE_UNITY_BUILD={'OFF' if alone else 'ON'}", f"-DCMAKE_UNITY_BUILD_BATCH_SIZE={UNITY_SIZE}",
    )  # fmt: skip
    made = MADE.findall(run("ninja", "-C", str(build), "-t", "targets", "all"))
    if not made:
        sys.exit(f"{build} makes no source: its list of targets is not as expected")
    # Only these: as targets they would wait for libraries.
    for command in run("ninja", "-C", str(build), "-t", "commands", "-s", *sorted(set(made))).splitlines():
        run("sh", "-c", command)


def reading(command: str) -> list[str]:
    """The compiler's command without what makes an object of it, nor a cache before it."""
    words = shlex.split(command)
    while words and not os.path.basename(words[0]).startswith("clang"):
        words.pop(0)
    at = words.index("-o")
    del words[at : at + 2]
    words.remove("-c")
    return [*words, "-fsyntax-only", "-fno-color-diagnostics", "-ferror-limit=0"]


def check(entry: dict[str, str]) -> str:
    """What clang says of a unit; empty when it says nothing."""
    done = subprocess.run(
        reading(entry["command"]), cwd=entry["directory"], capture_output=True, text=True, check=False
    )
    return done.stderr or ("" if done.returncode == 0 else f"{entry['file']}: clang ended with {done.returncode}\n")


def finds_something(entry: dict[str, str], build: Path) -> bool:
    """Whether a unit's command refuses a source that clang warns of."""
    sample = build / "sample.cc"
    sample.write_text(SAMPLE)
    command = entry["command"].replace(entry["file"], str(sample))
    return "-Werror,-Wshorten-64-to-32" in check({**entry, "command": command, "file": str(sample)})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("build", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--headers", action="store_true")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("regex", nargs="?", default="")
    arguments = parser.parse_intermixed_args()
    if shutil.which("clang++") is None:
        print("skipped: there is no clang++ in PATH")
        return SKIPPED
    build = arguments.build.resolve()
    configure(arguments.root.resolve(), build, arguments.alone)
    commands = json.loads((build / "compile_commands.json").read_text())
    units = [
        entry
        for entry in commands
        if (arguments.headers or HEADERS not in entry["file"]) and re.search(arguments.regex, entry["file"])
    ]
    if not units:
        sys.exit(f"nothing that is compiled matches {arguments.regex}")
    if not finds_something(next(each for each in commands if "-std=c++20" in each["command"]), build):
        print("clang finds nothing in a source that it warns of")
        return 1
    findings = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for number, (entry, said) in enumerate(zip(units, pool.map(check, units), strict=True), start=1):
            print(f"[{number}/{len(units)}] {os.path.relpath(entry['file'], build)}", flush=True)
            if said:
                findings += 1
                print(said, flush=True)
    print(f"{len(units)} units, {findings} with findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
