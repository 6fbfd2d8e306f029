"""Prints what a ctest run came to: counts, why tests were skipped, which failed, which were slow.

usage: summary.py JUNIT.xml
"""

import collections
import re
import sys
import xml.etree.ElementTree

SLOW_COUNT = 5
LAST_LINES = 40  # of a failed test, again where the reader looks first: at the end
# How the frameworks in use spell the reason of a skip: Python's unittest and our scripts on one line,
# GoogleTest on the line under the source position.
REASONS = (
    re.compile(r"skipped[ :]+['\"]?(.+?)['\"]?$", re.IGNORECASE | re.MULTILINE),
    re.compile(r"^\S+:\d+: Skipped\n(.+)$", re.MULTILINE),
)


def reason_of(case: xml.etree.ElementTree.Element) -> str:
    """The sentence with which a skipped test said why."""
    output = case.findtext("system-out") or ""
    for pattern in reversed(REASONS):
        match = pattern.search(output)
        if match:
            return match.group(1).strip()
    return "no reason given"


# What a test that is a whole program says of itself: GoogleTest in brief, and fuzz/follow.
WHOLE = re.compile(r"^\[=+\] (\d+ tests?) from .* ran", re.MULTILINE)
WHOLE_SKIPPED = re.compile(r"^\[  SKIPPED \] (\d+) tests?\.", re.MULTILINE)
FUZZED = re.compile(r"^(seed \d+, \d+ inputs)$", re.MULTILINE)


def inside_of(case: xml.etree.ElementTree.Element) -> str:
    """What a test of a whole program consists of; empty for other tests."""
    if not (case.get("name") or "").startswith(("address.", "thread.", "whole.")):
        return ""
    output = case.findtext("system-out") or ""
    found = WHOLE.search(output) or FUZZED.search(output)
    skipped = WHOLE_SKIPPED.search(output)
    text = found.group(1) if found else ""
    return f"{text}, {skipped.group(1)} of them skipped" if skipped else text


def main() -> int:
    cases = list(xml.etree.ElementTree.parse(sys.argv[1]).getroot().iter("testcase"))
    by_status = collections.defaultdict(list)
    for case in cases:
        by_status[case.get("status", "unknown")].append(case)
    ran, failed, skipped = by_status["run"], by_status["fail"], by_status["notrun"]
    disabled = by_status["disabled"]

    for case in failed:
        print(f"== FAILED {case.get('name')}")
        for line in (case.findtext("system-out") or "").splitlines()[-LAST_LINES:]:
            print(f"   {line}")
    slowest = sorted(ran + failed, key=lambda case: -float(case.get("time", 0)))[
        :SLOW_COUNT
    ]
    print("== slowest")
    for case in slowest:
        print(f"  {float(case.get('time', 0)):7.2f} s  {case.get('name')}")
    for case in cases:
        if inside := inside_of(case):
            print(f"== inside {case.get('name')}: {inside}")
    for title, group in (("skipped", skipped), ("disabled", disabled)):
        reasons = collections.Counter(reason_of(case) for case in group)
        for reason, count in reasons.most_common():
            print(f"== {title} {count}: {reason}")
    print(
        f"== {len(cases)} tests: {len(ran)} passed, {len(failed)} failed, "
        f"{len(skipped)} skipped, {len(disabled)} disabled"
    )
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
