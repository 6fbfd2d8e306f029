"""A page as a headless Chromium sees it, after its scripts have run for a while."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import subprocess

from .directory import OwnDirectory
from .places import HERE

LIMIT_S = 120


class NoBrowser(Exception):
    """There is none, or it does not start here; the text says why."""


@dataclasses.dataclass
class Seen:
    """What the browser made of a page."""

    dom: str
    console: list[str]  # what the page or its scripts complained of


def see(url: str, for_ms: int = 3000, picture: str | None = None, size: str = "1280,1400") -> Seen:
    """Opens the page and lets its clock run for that long. ``picture``: a file to paint it to."""
    program = shutil.which("chromium")
    if program is None:
        raise NoBrowser("chromium is not installed")
    home = OwnDirectory("headrace-browser-")
    command = [
        program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
        "--enable-logging=stderr", f"--user-data-dir={home.path}", f"--window-size={size}",
        f"--virtual-time-budget={for_ms}",
        f"--screenshot={picture}" if picture else "--dump-dom", url,
    ]  # fmt: skip
    try:
        with HERE.start(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, "HOME": home.path}, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                dom, log = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired as error:
                raise NoBrowser(f"chromium said nothing within {LIMIT_S} s") from error
            finally:
                _end_group(process.pid)
                process.end()
    finally:
        home.close()
    if process.returncode != 0 or (picture is None and "<html" not in dom):
        raise NoBrowser(f"chromium ended with {process.returncode}: {log[-600:]}")
    return Seen(dom, re.findall(r"CONSOLE.*?\] (.*)", log))


def _end_group(group: int) -> None:
    """Its helpers outlive it where it was ended: all are in a group of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, 9)
