"""What SECURITY.md promises is tested by what it names."""

from __future__ import annotations

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
    findings = [f"{PAGE}: names {name}, which is not there" for name in FILE.findall(page) if f"tests/{name}" not in tree]
    for suite, name in TEST.findall(page):
        if not re.search(rf"TEST(_F|_P)?\(\s*{suite},\s*{name}\)", tests):
            findings.append(f"{PAGE}: names {suite}.{name}, which is no test")
    return findings


RULES = {
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
