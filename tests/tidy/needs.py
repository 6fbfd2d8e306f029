"""What a machine must have for the tree to work is named in tests/support/packages, and nowhere else.

A fresh machine has Debian's essential packages and what the list names. So every foreign module that a
Python file imports, and every program that a script calls, stands here with the Debian package that has
it, and that package stands in the list. belongs() asks dpkg whether the package is the right one.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import shell
from tree import Findings, Tree

LIST = "tests/support/packages"

MODULES = {
    "numpy": "python3-numpy",
    "sklearn": "python3-sklearn",
    "torch": "python3-torch",
    "torchvision": "python3-torchvision",
    "yaml": "python3-yaml",
}
PROGRAMS = {
    "apt-get": "apt",
    "awk": "mawk",
    "buildah": "buildah",
    "base64": "coreutils",
    "basename": "coreutils",
    "cat": "coreutils",
    "cc": "gcc",
    "chmod": "coreutils",
    "chown": "coreutils",
    "chromium": "chromium",
    "chroot": "coreutils",
    "clang++": "clang",
    "clang-format": "clang-format",
    "clang-tidy": "clang-tidy",
    "cmake": "cmake",
    "cp": "coreutils",
    "ctest": "cmake",
    "debootstrap": "debootstrap",
    "dirname": "coreutils",
    "dpkg": "dpkg",
    "dpkg-query": "dpkg",
    "file": "file",
    "fish": "fish",
    "git": "git",
    "grep": "grep",
    "ip": "iproute2",
    "iperf3": "iperf3",
    "ldd": "libc-bin",
    "ls": "coreutils",
    "mandoc": "mandoc",
    "mkdir": "coreutils",
    "mktemp": "coreutils",
    "mount": "mount",
    "mpirun": "openmpi-bin",
    "nsenter": "util-linux",
    "objdump": "binutils",
    "openssl": "openssl",
    "pkg-config": "pkgconf",
    "promtool": "prometheus",
    "ps": "procps",
    "python3": "python3",
    "readelf": "binutils",
    "realpath": "coreutils",
    "rm": "coreutils",
    "runc": "runc",
    "sed": "sed",
    "setarch": "util-linux",
    "setpriv": "util-linux",
    "sh": "dash",
    "sleep": "coreutils",
    "sort": "coreutils",
    "strace": "strace",
    "tail": "coreutils",
    "tar": "tar",
    "taskset": "util-linux",
    "ss": "iproute2",
    "tc": "iproute2",
    "tmux": "tmux",
    "true": "coreutils",
    "ucx_info": "ucx-utils",
    "ucx_perftest": "ucx-utils",
    "unshare": "util-linux",
    "zsh": "zsh",
}
# On every Debian system, as debootstrap makes it: Essential, and what priority "required" adds.
ALWAYS_THERE = {
    "apt",
    "bash",
    "coreutils",
    "dash",
    "dpkg",
    "findutils",
    "grep",
    "libc-bin",
    "mawk",
    "mount",
    "sed",
    "tar",
}
# Used where they are there, never asked for: name -> why no package is.
OPTIONAL = {
    "accelerate": "Debian has none; tests/gpu/stack_frameworks.py names it as missing",
    "commux": "Debian has none; tests/bench/torch names it as missing",
    "compute-sanitizer": "comes with CUDA's toolkit; tests/gpu/run installs nothing",
    "kubectl": "Debian's renders otherwise; the tests that compare skip with that reason",
    "parameterized": "torchft's tests need it; tests/unit/client/torchft_suite_test.py is skipped without",
    "ray": "Debian has none; the example and its test say so",
    "ruff": "Debian 12 has none; the test lint.python skips with that reason",
    "systemctl": "scripts of our own Debian packages call it only where systemd runs",
    "systemd-sysusers": "likewise",
    "torchft": "Debian has none; tests/unit/client/torchft_suite_test.py is skipped without",
    "transformers": "Debian has none; the example and tests/gpu/stack_frameworks.py name it as missing",
    "torchrun": "comes with torch, and not with Debian's",
    "valgrind": "tests/bench/watching leaves one figure out without it",
}

# Where packages put files; what lies elsewhere is no package's.
DEBIANS = ("/usr/bin/", "/usr/sbin/", "/bin/", "/sbin/", "/usr/lib/")
# Calls whose first argument is a command.
RUNNERS = {"Popen", "Program", "_run", "call", "check_call", "check_output", "run", "start"}
# A command somewhere else: a program's name, and options behind it.
OPTION = re.compile(r"^--?[A-Za-z][\w-]*$")


def _is_python(path: str, text: str) -> bool:
    return path.endswith(".py") or re.match(r"#!.*\bpython3?\b", text) is not None


def _is_shell(path: str, text: str) -> bool:
    return path.endswith(".sh") or re.match(r"#!.*/(ba|da)?sh\b", text) is not None


def _texts(node: ast.expr | None) -> list[str]:
    """The constant texts of a list, in order; what is not constant is an empty text."""
    if not isinstance(node, (ast.List, ast.Tuple)):
        return []
    return [
        e.value if isinstance(e, ast.Constant) and isinstance(e.value, str) else "" for e in node.elts
    ]


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def _walk_what_runs(node: ast.AST) -> Iterator[ast.AST]:
    """Without what only type checkers read."""
    if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _walk_what_runs(child)


def modules_of(text: str) -> Iterator[str]:
    """Top-level names of modules that a file imports, by statement or by importlib."""
    for node in _walk_what_runs(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            names = _texts(ast.List(elts=node.args[:1]))
        yield from (name.split(".")[0] for name in names if name)


def programs_of(text: str) -> Iterator[str]:
    """Names of programs that a Python file calls or looks for."""
    nodes = list(ast.walk(ast.parse(text)))
    # What is handed to any other function need not be a command.
    handed = {id(a) for n in nodes if isinstance(n, ast.Call) for a in n.args}
    for node in nodes:
        words: list[str] = []
        if isinstance(node, ast.Call) and _called(node) == "which":
            words = _texts(ast.List(elts=node.args[:1]))
        elif isinstance(node, ast.Call) and _called(node) in RUNNERS and node.args:
            words = _texts(node.args[0])
        elif isinstance(node, (ast.List, ast.Tuple)) and id(node) not in handed:
            words = _texts(node)
            if len(words) < 2 or not OPTION.match(words[1]):
                continue
        if words and (name := shell.program(words[0])):
            yield name
            if name in ("sh", "bash") and len(words) > 2 and words[1] == "-c":
                yield from shell.programs(words[2])


def _own_modules(tree: Tree, path: str) -> set[str]:
    """What a file may import of the tree's own: packages, and scripts, whose folder it puts on its path.

    Files in a package are imported by the package's name. A script that has a foreign module's name is meant
    only beside it.
    """
    packages = {other.rsplit("/", 1)[0] for other in tree if other.endswith("/__init__.py")}
    outermost = {folder for folder in packages if folder.rsplit("/", 1)[0] not in packages}
    own = {folder.rsplit("/", 1)[-1] for folder in outermost} | {"tests", "support"}
    for other in tree:
        home, _, name = other.rpartition("/")
        if not name.endswith(".py") or home in packages:
            continue
        name = name.removesuffix(".py")
        if home == path.rpartition("/")[0] or name not in MODULES.keys() | OPTIONAL.keys():
            own.add(name)
    return own


def _listed(tree: Tree) -> set[str]:
    lines = tree.get(LIST, "").splitlines()
    return {line.split()[1] for line in lines if line.strip() and not line.startswith("#")}


def every_need_has_its_package(tree: Tree) -> Findings:
    """Modules and programs that the tree uses are in packages that the list names."""
    listed = _listed(tree) | ALWAYS_THERE
    sourced = {name for path, text in tree.items() if _is_shell(path, text) for name in shell.functions(text)}
    findings = []

    def check(path: str, what: str, name: str, table: dict[str, str]) -> None:
        package = table.get(name)
        if name in OPTIONAL or package in listed:
            return
        if package is None:
            findings.append(f"{path}: uses the {what} {name}: name its package in tests/tidy/needs.py")
        else:
            findings.append(f"{path}: uses the {what} {name} of {package}, which {LIST} does not name")

    for path, text in tree.items():
        if _is_python(path, text):
            for name in sorted(set(modules_of(text)) - _own_modules(tree, path) - set(sys.stdlib_module_names)):
                check(path, "module", name, MODULES)
            for name in sorted(set(programs_of(text))):
                check(path, "program", name, PROGRAMS)
        elif _is_shell(path, text):
            for name in sorted(shell.programs(text) - sourced):
                check(path, "program", name, PROGRAMS)
    return findings


def _names_of(path: str) -> list[str]:
    """The file, and those that it is a link to: cc -> gcc -> gcc-12. /bin is a link to /usr/bin, and
    dpkg knows some files by the one name and some by the other."""
    names: list[str] = []
    for _ in range(8):
        names += [path, path.removeprefix("/usr")]
        if not os.path.islink(path):
            break
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
    return names


def _owners(paths: set[str]) -> dict[str, set[str]]:
    """Packages that have these files, by file; asked for all at once, since dpkg reads all it knows."""
    asked = subprocess.run(["dpkg", "-S", *sorted(paths)], capture_output=True, text=True, check=False)
    owners: dict[str, set[str]] = {}
    for line in asked.stdout.splitlines():
        if ": " in line and not line.startswith("diversion "):
            packages, path = line.rsplit(": ", 1)
            owners.setdefault(path, set()).update(o.strip().split(":")[0] for o in packages.split(","))
    return owners


def _file_of_module(name: str) -> str:
    """Debian's, and not one that pip has put before it."""
    found = importlib.util.find_spec(name)
    places = [found.origin] if found and found.origin else []
    return next((place for place in places if place.startswith("/usr/lib/python3/")), "")


def misplaced(table: dict[str, str], file_of: Callable[[str], str | None]) -> Findings:
    """Entries whose package does not have what is found here. What is not found is not looked at,
    unless its package is installed; neither is what somebody put beside Debian's."""
    paths = {name: file_of(name) or "" for name in table}
    names = {name: _names_of(path) for name, path in paths.items() if path.startswith(DEBIANS)}
    owners = _owners({each for of_one in names.values() for each in of_one})
    lacking = {package for name, package in table.items() if not paths[name]}
    findings = [f"{package} is installed and has nothing that is asked of it" for package in _installed(lacking)]
    for name, of_it in names.items():
        found = {owner for each in of_it for owner in owners.get(each, ())}
        if table[name] not in found:
            whose = ", ".join(sorted(found)) or "nobody"
            findings.append(f"{name} is {paths[name]} of {whose}, not of {table[name]}")
    return findings


def _installed(packages: set[str]) -> list[str]:
    if not packages:
        return []
    asked = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package}\n", *sorted(packages)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return [line.split()[1] for line in asked.stdout.splitlines() if line.startswith("ii")]


def always_there_is_so() -> Findings:
    """The names in ALWAYS_THERE that dpkg knows as neither essential nor required."""
    asked = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${Essential} ${Priority}\n", *sorted(ALWAYS_THERE)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    known = [line.split() for line in asked.stdout.splitlines()]
    return [
        f"{package} is neither essential nor required: {priority}"
        for package, essential, priority in known
        # debootstrap adds apt, which is "important" by its own word, to every system.
        if essential != "yes" and priority != "required" and package != "apt"
    ]


def belongs() -> Findings:
    """What dpkg says of the tables, after it was seen to find what is wrong."""
    if not misplaced({"git": "python3", "sh": "bash"}, shutil.which):
        return ["dpkg finds nothing wrong with programs of the wrong packages"]
    if not misplaced({"ast": "python3-numpy"}, lambda _: "/usr/bin/git"):
        return ["dpkg finds nothing wrong with a module of the wrong package"]
    return misplaced(PROGRAMS, shutil.which) + misplaced(MODULES, _file_of_module) + always_there_is_so()


_PACKAGES = "# Why.\nbuild  cmake\ntrain  python3\ntrain  python3-numpy\n"

RULES = {
    every_need_has_its_package: (
        {
            LIST: _PACKAGES,
            "client/headrace/__init__.py": "",
            "tests/own.py": "import numpy.linalg\nimport json\nimport own\nfrom headrace import arena\n"
            "if TYPE_CHECKING:\n    import scipy\n",
            "tests/a.py": "import subprocess\nsubprocess.run(['cmake', '--version'])\n",
            "tests/b.sh": "f() { rm -f \"$1\"; }\nx=$(dirname a) # kubectl\nf sort; case $x in a) cat b ;; esac\n",
            "tests/c": "#!/bin/bash\ncat <<END\nfrobnicate this\nEND\na=(frob nicate)\n[[ frob ]] || exit 1\n",
        },
        [
            {LIST: _PACKAGES, "a.py": "import scipy\n"},
            {LIST: _PACKAGES, "a.py": "import torch\n"},
            {LIST: _PACKAGES, "a.py": "def f():\n    from torch import nn\n"},
            {LIST: _PACKAGES, "a.py": "try:\n    import torch\nexcept ImportError:\n    torch = None\n"},
            {LIST: _PACKAGES, "a.py": "m = importlib.import_module('torchvision.models')\n"},
            {LIST: _PACKAGES, "a.py": "subprocess.run(['buildah', 'from', x])\n"},
            {LIST: _PACKAGES, "a.py": "base = ['/usr/bin/strace', '-c']\n"},
            {LIST: _PACKAGES, "a.py": "if shutil.which('frobnicate'):\n    pass\n"},
            {LIST: _PACKAGES, "a.py": "start(['sh', '-c', 'sleep 1; frobnicate'])\n"},
            {LIST: _PACKAGES, "a.sh": "if ! frobnicate --now; then exit 1; fi\n"},
            {LIST: _PACKAGES, "a.sh": "x=\"$(git status)\"\n"},
            {LIST: _PACKAGES, "a.sh": "A=1 exec env B=2 strace true\n"},
            {LIST: _PACKAGES, "a.sh": "case $x in\n  a | b) true ;;\n  c) frobnicate ;;\nesac\n"},
            {LIST: _PACKAGES, "a.sh": "while read -r x; do true; done < <(frobnicate)\n"},
            {LIST: _PACKAGES, "tests/run": "#!/bin/bash\ntrue && tmux kill-server\n"},
        ],
    ),
}  # fmt: skip
