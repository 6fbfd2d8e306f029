"""Cases of one step, of which one that fails hides no other."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping

from steps import SKIPPED

TAIL_LINES = 12  # of what each failed case said, repeated at the end


class Skip(Exception):
    """Why a case cannot run here."""


def run_each(cases: Mapping[str, Callable[[], None]]) -> int:
    """Runs all of them; the exit status, SKIPPED where all were skipped. What a failed one said is printed at
    once, since a step may be ended before its last case, and its end once more behind all cases."""
    failed: dict[str, str] = {}
    skipped = 0
    for title, case in cases.items():
        try:
            case()
        except Skip as why:
            print(f"skipped\t{title}: {why}")
            skipped += 1
        except SystemExit as error:
            failed[title] = str(error)
        except Exception:  # noqa: BLE001 - whatever it is, the other cases must be heard
            failed[title] = traceback.format_exc()
        if title in failed:
            print(f"== FAILED: {title}\n{failed[title]}")
        sys.stdout.flush()
    for title, why in failed.items():
        print(f"== {title} failed:", *why.splitlines()[-TAIL_LINES:], sep="\n")
    if failed:
        print(f"{len(failed)} of {len(cases)} failed: {', '.join(failed)}")
        return 1
    return SKIPPED if skipped == len(cases) else 0
