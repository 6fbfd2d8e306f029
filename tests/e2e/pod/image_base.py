"""The smallest Debian, made from its packages: what images start from here, in place of a registry's.

It takes a minute, so that a build tree keeps it as an archive (build/.../debian), for other tests and
for the next run, as long as it is not older than a week.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
LIMIT_S = 600.0
FRESH_S = 7 * 24 * 3600.0


class BaseError(RuntimeError):
    """A step failed; the text has its command and its last words."""


def run(command: list[str], limit_s: float = LIMIT_S) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s)
    if done.returncode != 0:
        raise BaseError(f"{' '.join(command)}: {(done.stderr + done.stdout)[-3000:]}")
    return done.stdout


def missing() -> str:
    """Why no image can start from it here; empty when one can."""
    if os.geteuid() != 0:
        return "making a Debian takes root"
    if shutil.which("debootstrap") is None:
        return "no debootstrap"
    try:
        with urllib.request.urlopen(f"{MIRROR}/dists/{SUITE}/Release", timeout=20):
            return ""
    except OSError as error:
        return f"{MIRROR} does not answer: {error}"


def unpack(build: Path, folder: Path) -> Path:
    """Debian in ``folder``, which must not be there yet; the archive stays in the build tree."""
    kept = build / "debian"
    kept.mkdir(exist_ok=True)
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run at once; one makes it, the others take it
        archive = kept / f"{SUITE}.tar"
        if not archive.exists() or time.time() - archive.stat().st_mtime > FRESH_S:
            _make(archive)
        folder.mkdir(parents=True)
        run(["tar", "--numeric-owner", "-xpf", str(archive), "-C", str(folder)])
    return folder


def _make(archive: Path) -> None:
    making = archive.with_suffix(f".{os.getpid()}")
    try:
        run(["debootstrap", "--variant=minbase", SUITE, str(making), MIRROR])
        run(["chroot", str(making), "apt-get", "clean"])
        partial = archive.with_suffix(".partial")
        run(["tar", "--numeric-owner", "-cpf", str(partial), "-C", str(making), "."])
        partial.rename(archive)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def install(root: Path, *packages: str) -> None:
    """Debian's packages, and .deb files by their path within the root, with all that they need."""
    apt = ["chroot", str(root), "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y",
           "-o", "Acquire::Retries=3"]  # fmt: skip
    updated = root / "var" / "cache" / "apt" / "updated"
    if not updated.exists():
        run([*apt, "update"])
        updated.touch()
    run([*apt, "install", "--no-install-recommends", *packages])
