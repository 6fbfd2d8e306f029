"""Checks C++ by clang-tidy with the rules of .clang-tidy, after it has checked that they find something.

usage: lint_cpp.py ROOT BUILD [FOLDER...]     exit status 0: nothing found, 1: findings, 77: skipped

BUILD has the compile commands. Without a folder, those below: where messages between processes, plans, queues and
transfers are computed. `ninja lint_cpp` checks all of them, which takes long: kj's headers alone are seconds a source.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CONFIGURATION = ".clang-tidy"
VERSION = "14"  # others have other rules under the same names
SKIPPED = 77
LONG = "service/plan/tool"  # CLI11's header takes seconds
FOLDERS = ("ipc", "service/plan", "service/schedule", "transport/exchange", "transport/probe", "transport/shm")
SAMPLE = "typedef int Number;\n"  # modernize-use-using
FINDING = re.compile(r"^(/\S+?):(\d+):\d+: (?:warning|error): (.*)$")


def find_clang_tidy() -> tuple[str, str]:
    """The program, or why there is none."""
    for name in (f"clang-tidy-{VERSION}", "clang-tidy"):
        program = shutil.which(name)
        if program is None:
            continue
        told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
        found = re.search(r"LLVM version (\d+)", told)
        if found and found.group(1) == VERSION:
            return program, ""
    return "", f"there is no clang-tidy {VERSION} in PATH"


def units(root: Path, build: Path, folders: tuple[str, ...]) -> dict[str, list[str]]:
    """What is compiled of the folders' sources, and the sources in it: the build compiles several as one unit, so
    that their headers, where nearly all the time goes, are read once."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        unit = os.path.normpath(os.path.join(entry["directory"], entry["file"]))
        sources = [unit]
        if os.path.basename(unit).startswith("unity_"):
            sources = re.findall(r'^#include "(/.*)"$', Path(unit).read_text(), re.MULTILINE)
        wanted = tuple(f"{root / folder}/" for folder in folders)
        if any(source.startswith(wanted) and source.endswith(".cc") for source in sources):
            found[unit] = sources
    return found


def check(program: str, build: Path, unit: str) -> tuple[set[str], str]:
    """What is found, in the unit's sources and the headers of ours that they include; and why it was not read."""
    done = subprocess.run(
        [program, "-p", str(build), "--quiet", "--warnings-as-errors=*", "--checks=-bugprone-suspicious-include",
         "--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Wno-unused-command-line-argument", unit],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    findings = {":".join(match.groups()) for line in done.stdout.splitlines() if (match := FINDING.match(line))}
    failed = done.returncode != 0 and not findings
    return findings, f"{unit}: {done.stdout}{done.stderr}" if failed else ""


def finds_something(program: str, root: Path) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        # The rules look at files of these folders only.
        source = Path(folder) / "ipc" / "sample.cc"
        source.parent.mkdir()
        source.write_text(SAMPLE)
        shutil.copy(root / CONFIGURATION, folder)
        command = {"directory": folder, "file": str(source), "command": f"c++ -c {source}"}
        (Path(folder) / "compile_commands.json").write_text(json.dumps([command]))
        findings, _ = check(program, Path(folder), str(source))
        return any("modernize-use-using" in finding for finding in findings)


def main() -> int:
    root, build = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    program, reason = find_clang_tidy()
    if not program:
        print(f"skipped: {reason}")
        return SKIPPED
    if not finds_something(program, root):
        print("clang-tidy finds nothing in a file that breaks a rule")
        return 1
    found = units(root, build, tuple(sys.argv[3:]) or FOLDERS)
    if not sys.argv[3:]:
        found = {unit: sources for unit, sources in found.items() if not sources[0].startswith(f"{root / LONG}/")}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda unit: check(program, build, unit), found))
    findings = sorted(set().union(*(each for each, _ in results)))
    failures = [failure for _, failure in results if failure]
    read = sum(len(sources) for sources in found.values())
    print("\n".join([*findings, *failures, f"{read} sources, {len(findings)} findings"]))
    return 1 if findings or failures or not found else 0


if __name__ == "__main__":
    sys.exit(main())
