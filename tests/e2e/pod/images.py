"""Builds the images of containers/images with buildah, without a registry, in a storage of their own.

What the build stage of the service's image would compile is taken from the build tree that is under
test; the trainer's image is made of the packages of a distribution, and the client library of that tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent.parent
IMAGES = ROOT / "containers" / "images"
# One driver that every kernel and file system has; buildah runs build steps in a chroot.
_MODES = {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
# What a training process imports, on top of a distribution's smallest set.
TRAINER_PACKAGES = "python3,python3-numpy"


class ImageError(RuntimeError):
    """A step failed; the text has its command and its last words."""


def run(command: list[str], environment: dict[str, str] | None = None, limit_s: float = 900) -> str:
    done = subprocess.run(
        command, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=limit_s,
    )  # fmt: skip
    if done.returncode != 0:
        raise ImageError(f"{' '.join(command)}: {(done.stderr or done.stdout)[-3000:]}")
    return done.stdout


def missing() -> str:
    """Why images cannot be built here; empty when they can."""
    if os.geteuid() != 0:
        return "building images takes root"
    absent = [name for name in ("buildah", "runc", "debootstrap") if shutil.which(name) is None]
    return f"no {', '.join(absent)}" if absent else ""


class Images:
    """A storage of images in ``folder``; all of it goes with close()."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mounted: list[str] = []

    def _buildah(self, *arguments: str) -> str:
        places = ["--root", str(self.folder / "root"), "--runroot", str(self.folder / "runroot")]
        return run(["buildah", *places, *arguments], _MODES)

    def build_service(self, build: Path) -> str:
        """The service's image, of the programs in the build tree."""
        stage = self.folder / "stage"
        run(["sh", str(IMAGES / "tree"), str(build), str(stage / "image")])
        self._buildah(
            "bud", "--build-context", f"build={stage}", "--tag", "headrace",
            "--file", str(IMAGES / "service.containerfile"), str(ROOT),
        )  # fmt: skip
        return "headrace"

    def build_trainer(self, build: Path) -> str:
        """A distribution made from its packages, with the client library and the Python package."""
        base = self.folder / "base"
        run(["debootstrap", "--variant=minbase", f"--include={TRAINER_PACKAGES}", "bookworm", str(base)])
        run(["cmake", "--install", str(build), "--prefix", "/usr", "--component", "client"],
            {"DESTDIR": str(base)})  # fmt: skip
        container = self._buildah("from", "scratch").strip()
        self._buildah("copy", "--quiet", container, str(base), "/")
        self._buildah(
            "config", "--env", "PYTHONPATH=/usr/share/headrace/python", "--env",
            "HEADRACE_LIBRARY=/usr/lib/libheadrace.so", "--user", "64322", container,
        )  # fmt: skip
        self._buildah("commit", "--quiet", "--rm", container, "headrace-training")
        shutil.rmtree(base)
        return "headrace-training"

    def mount(self, image: str) -> Path:
        """The image's files, for a container's root."""
        container = self._buildah("from", "--pull-never", image).strip()
        self._mounted.append(container)
        return Path(self._buildah("mount", container).strip())

    def close(self) -> None:
        for container in self._mounted:
            self._buildah("umount", container)
        self._mounted.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
