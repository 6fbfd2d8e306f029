"""What pages say of the code is there: tests that SECURITY.md names, the path in service/README.md, links."""

from __future__ import annotations

import posixpath
import re

from tree import Findings, Tree

PAGE = "SECURITY.md"
TEST = re.compile(r"`([A-Z]\w+)\.([A-Z]\w+)`")
FILE = re.compile(r"`((?:e2e|fuzz)/[\w/.]+)`")


def security_names_tests_that_exist(tree: Tree) -> Findings:
    """Each `Suite.Test` of the page stands in a test, under that suite or one that is made from it; each
    file is there."""
    page = tree.get(PAGE, "")
    tests = "\n".join(text for path, text in tree.items() if path.startswith("tests/") and path.endswith(".cc"))
    named = FILE.findall(page)
    findings = [f"{PAGE}: names {name}, which is not there" for name in named if f"tests/{name}" not in tree]
    for suite, name in TEST.findall(page):
        if not re.search(rf"TEST(_F|_P)?\(\s*{suite},\s*{name}\)", tests):
            findings.append(f"{PAGE}: names {suite}.{name}, which is no test")
    return findings


PATH_PAGE = "service/README.md"
TRANSPORT_PAGE = "transport/README.md"
PATH_SECTION = re.compile(r"(?ms)^## The path of .*?(?=^## |\Z)")
SOURCE = re.compile(r"(?<![\w.*])(?:\w+/)*\w+\.(?:cc|h|py|txt|md)\b")
FUNCTION = re.compile(r"\b((?:[A-Z]\w*::)*[A-Z]\w*)\(\)")
CONSTANT = re.compile(r"`(k[A-Z]\w*)`")
TYPE = re.compile(r"`([A-Z][a-z]\w*)`|\b([A-Z][a-z]+(?:[A-Z][a-z]+)+)\b(?!\(|::)")
TYPE_DEFINED = re.compile(r"\b(?:struct|class|enum class) (\w+)")


def _named_together(section: str) -> list[str]:
    """The parts of the page in which each function belongs to a file: a drawing's lines, a text's paragraphs
    and items of lists."""
    parts: list[str] = []
    for line in section.splitlines():
        drawn = line.startswith("    ")
        goes_on = parts and line and parts[-1] and not drawn and not parts[-1].startswith("    ")
        if goes_on and not re.match(r"- |\d+\. |#", line):
            parts[-1] += "\n" + line
        else:
            parts.append(line)
    return parts


def _named_and_absent(part: str, folder: str, tree: Tree) -> Findings:
    """Files, functions and constants of one part of the folder's page that are not there."""
    named = {name: name if name in tree else f"{folder}/{name}" for name in SOURCE.findall(part)}
    findings = [f"names {name}, which is no file" for name, path in named.items() if path not in tree]
    files = [path for path in named.values() if path in tree]
    for name in FUNCTION.findall(part) + CONSTANT.findall(part):
        if not files:
            findings.append(f"names {name} without the file that has it")
        elif not any(re.search(rf"(?<!\w){name}\b[(\[]", tree[path]) for path in files):
            findings.append(f"names {name}, which is not in {' or '.join(files)}")
    return findings


def _path_findings(page: str, tree: Tree) -> Findings:
    """The path that the page draws: each file is there, each function and constant is in the file that stands
    beside it, each message and type is defined in the page's folder; every question has an answer."""
    folder = posixpath.dirname(page)
    section = PATH_SECTION.search(tree.get(page, ""))
    if section is None:
        return [f"{page}: has no section with the path"]
    findings = [finding for part in _named_together(section[0]) for finding in _named_and_absent(part, folder, tree)]
    for question in re.split(r"(?m)^### ", section[0])[1:]:
        if not FUNCTION.search(question):
            findings.append(f'names no function for "{question.splitlines()[0]}"')
    headers = [text for path, text in tree.items() if path.startswith(f"{folder}/") and path.endswith(".h")]
    types = {name for text in headers for name in TYPE_DEFINED.findall(text)}
    for match in TYPE.finditer(re.sub(r"\w+::[\w:]+|\w+\(\)", "", section[0])):
        name = match[1] or match[2]
        if name not in types:
            findings.append(f"names {name}, which {folder} does not define")
    return [f"{page}: {finding}" for finding in dict.fromkeys(findings)]


def service_readme_names_what_exists(tree: Tree) -> Findings:
    """The path of an operation in service/README.md."""
    return _path_findings(PATH_PAGE, tree)


def transport_readme_names_what_exists(tree: Tree) -> Findings:
    """The path of a block's stage in transport/README.md."""
    return _path_findings(TRANSPORT_PAGE, tree)


LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def links_lead_to_what_exists(tree: Tree) -> Findings:
    """A link from one page to a file or folder of the tree."""
    folders = {path.rsplit("/", depth)[0] for path in tree for depth in range(1, path.count("/") + 1)}
    findings = []
    for page, text in tree.items():
        if not page.endswith(".md"):
            continue
        for link in LINK.findall(text):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
            if not re.match(r"\w+:", link) and target not in tree and target not in folders:
                findings.append(f"{page}: links to {link}, which is not there")
    return findings


NAMED_SOURCE = re.compile(r"`([\w./-]+\.(?:h|cc|py))`")
FOREIGN_SOURCES = frozenset({"cuda.h", "nccl.h"})


def pages_name_sources_that_exist(tree: Tree) -> Findings:
    """A source that a page names is below the page's folder or, if a folder is named too, anywhere."""
    findings = []
    for page, text in tree.items():
        if not page.endswith(".md"):
            continue
        folder = posixpath.dirname(page)
        below = f"{folder}/" if folder else ""
        for name in dict.fromkeys(NAMED_SOURCE.findall(text)):
            ends = f"/{name}"
            found = posixpath.normpath(posixpath.join(folder, name)) in tree or any(
                f"/{path}".endswith(ends) for path in tree if path.startswith(below) or "/" in name
            )
            if not found and name not in FOREIGN_SOURCES:
                findings.append(f"{page}: names {name}, which is not there")
    return findings


_PATH = """## The path of an operation
    read  Flow::Post()  dispatch/blocks/flow.cc

### Where?
`Check()` in
`ipc/check.h`, by `FlowPart` and `kMax` of `ipc/check.h`.
## Threads
"""
_SOURCES = {
    "service/dispatch/blocks/flow.cc": "void Flow::Post(int a) {",
    "service/dispatch/blocks/flow.h": "class FlowPart {",
    "ipc/check.h": "int Check(int a); int kMax[2];",
}

_WIRE_PATH = """## The path of a block's stage
    sent  Wire::Send()  ucx/wire.cc
    MessageHeader (ucx/wire.h), from Lane::Post()  service/lane.cc
## reduce
"""
_WIRE = {
    "transport/ucx/wire.cc": "void Wire::Send() {",
    "transport/ucx/wire.h": "struct MessageHeader {",
    "service/lane.cc": "void Lane::Post() {",
}

RULES = {
    transport_readme_names_what_exists: (
        {TRANSPORT_PAGE: _WIRE_PATH, **_WIRE},
        [
            {TRANSPORT_PAGE: "## reduce\n", **_WIRE},
            {TRANSPORT_PAGE: _WIRE_PATH, **_WIRE, "transport/ucx/wire.cc": "void Wire::Sent() {"},
            {TRANSPORT_PAGE: _WIRE_PATH, **_WIRE, "transport/ucx/wire.h": "struct Header {"},
            {TRANSPORT_PAGE: _WIRE_PATH.replace("ucx/", "tcp/"), **_WIRE},
            {TRANSPORT_PAGE: _WIRE_PATH, **_WIRE, "service/lane.cc": "void Lane::PostHeld() {"},
        ],
    ),
    service_readme_names_what_exists: (
        {PATH_PAGE: _PATH, **_SOURCES},
        [
            {PATH_PAGE: "## Threads\n", **_SOURCES},
            {PATH_PAGE: _PATH, **_SOURCES, "service/dispatch/blocks/flow.cc": "void Flow::Posted(int a) {"},
            {PATH_PAGE: _PATH, **_SOURCES, "service/dispatch/blocks/flow.h": "class Flow {"},
            {PATH_PAGE: _PATH, **_SOURCES, "ipc/check.h": "int Check(int a); int kMost[2];"},
            {PATH_PAGE: _PATH.replace("flow.cc", "post.cc"), **_SOURCES},
            {PATH_PAGE: _PATH.replace("  dispatch/blocks/flow.cc", ""), **_SOURCES},
            {PATH_PAGE: _PATH.replace("## Threads", "### Why?\nNobody knows.\n## Threads"), **_SOURCES},
        ],
    ),
    pages_name_sources_that_exist: (
        {
            "ipc/README.md": "`a.h`, `../client/b.py`, `deep/c.cc`",
            "ipc/base/a.h": "",
            "client/b.py": "",
            "x/deep/c.cc": "",
        },
        [
            {"ipc/README.md": "`a.h`", "service/a.h": ""},
            {"ipc/README.md": "`../a.h`", "ipc/a.h": ""},
            {"README.md": "`deep/c.cc`", "other/c.cc": ""},
        ],
    ),
    links_lead_to_what_exists: (
        {"README.md": "[a](ipc) [b](ipc/a.md#c) [c](https://example.org)", "ipc/a.md": "[d](../README.md)"},
        [{"README.md": "[a](ipc/b.md)", "ipc/a.md": ""}],
    ),
    security_names_tests_that_exist: (
        {
            PAGE: "`Ring.Holds` and `Pair.Meets`, `e2e/a_test.py`\n",
            "tests/unit/a.cc": "TEST(Ring, Holds) {}\nTEST_F(Pair,\n       Meets) {}\n",
            "tests/e2e/a_test.py": "",
        },
        [
            {PAGE: "`Ring.Holds`\n", "tests/unit/a.cc": "TEST(Ring, HoldsNot) {}\n"},
            {PAGE: "`fuzz/a_fuzz.cc`\n"},
        ],
    ),
}  # fmt: skip
