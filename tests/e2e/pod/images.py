"""Builds the images of containers/images with buildah, without a registry, in a storage of their own.

What the build stage of the service's image would compile is taken from the build tree that is under
test; the trainer's image is made of the packages of a distribution, and the client library of that tree.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import image_base

ROOT = Path(__file__).resolve().parent.parent.parent.parent
IMAGES = ROOT / "containers" / "images"
# One driver that every kernel and file system has; buildah runs build steps in a chroot.
_MODES = {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
# What a training process imports, on top of a distribution's smallest set.
TRAINER_PACKAGES = ("python3", "python3-numpy")
WHOLE_LIMIT_S = 3 * 3600.0


class ImageError(RuntimeError):
    """A step failed; the text has its command and its last words."""


def run(command: list[str], environment: dict[str, str] | None = None, limit_s: float = 900) -> str:
    done = subprocess.run(
        command, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=limit_s,
    )  # fmt: skip
    if done.returncode != 0:
        raise ImageError(f"{' '.join(command)}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def missing() -> str:
    """Why images cannot be built here; empty when they can."""
    if reason := image_base.missing():
        return reason
    absent = [name for name in ("buildah", "runc") if shutil.which(name) is None]
    return f"no {', '.join(absent)}" if absent else ""


class Images:
    """A storage of images in ``folder``; all of it goes with close(), unless it is to be kept."""

    def __init__(self, folder: Path, keeps: bool = False) -> None:
        self.folder = folder
        self._keeps = keeps
        self._mounted: list[str] = []

    def _buildah(self, *arguments: str, limit_s: float = 900) -> str:
        places = ["--root", str(self.folder / "root"), "--runroot", str(self.folder / "runroot")]
        return run(["buildah", *places, *arguments], _MODES, limit_s)

    def _import(self, folder: Path, name: str, *config: str) -> str:
        """An image of the files in ``folder``, which goes."""
        container = self._buildah("from", "scratch").strip()
        self._buildah("copy", "--quiet", container, str(folder), "/")
        self._buildah("config", *config, container)
        self._buildah("commit", "--quiet", "--rm", container, name)
        shutil.rmtree(folder)
        return name

    def build_base(self, build: Path, *packages: str) -> str:
        """The smallest Debian and these packages, for build files' BASE."""
        root = image_base.unpack(build, self.folder / "base")
        if packages:
            image_base.install(root, *packages)
        return self._import(root, "localhost/headrace-base", "--env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin")

    def build_whole(self, name: str, base: str, jobs: int, cache: Path | None) -> str:
        """A build file as it stands, its build stage included."""
        more = ["--build-arg", f"JOBS={jobs}"] if jobs else []
        if cache is not None:
            cache.mkdir(parents=True, exist_ok=True)
            more += ["--volume", f"{cache.resolve()}:/root/.cache/ccache"]
        tag = f"localhost/headrace-whole-{name}"
        self._buildah(
            "bud", "--pull-never", "--build-arg", f"BASE={base}", *more, "--tag", tag,
            "--file", str(IMAGES / f"{name}.containerfile"), str(ROOT), limit_s=WHOLE_LIMIT_S,
        )  # fmt: skip
        return tag

    def build_service(self, build: Path) -> str:
        """The service's image, of the programs in the build tree."""
        stage = self.folder / "stage"
        run(["sh", str(IMAGES / "tree"), str(build), str(stage / "image")])
        self._buildah(
            "bud", "--build-context", f"build={stage}", "--tag", "headrace",
            "--file", str(IMAGES / "service.containerfile"), str(ROOT),
        )  # fmt: skip
        return "headrace"

    def build_cuda(self, build: Path, base: str) -> str:
        """The CUDA image's last stage, on ``base`` in place of NVIDIA's, of the programs in the build tree."""
        stage = self.folder / "cuda"
        for component in ("service", "libraries"):
            run(["cmake", "--install", str(build), "--prefix", "/usr", "--component", component],
                {"DESTDIR": str(stage / "image")})  # fmt: skip
        self._buildah(
            "bud", "--pull-never", "--build-context", f"build={stage}", "--build-arg", f"BASE={base}",
            "--build-arg", f"RUNTIME={base}", "--tag", "headrace-cuda",
            "--file", str(IMAGES / "cuda.containerfile"), str(ROOT),
        )  # fmt: skip
        return "headrace-cuda"

    def described(self, image: str) -> dict:
        """How it runs: user, entry point, signal to stop."""
        return json.loads(self._buildah("inspect", "--type", "image", image))["OCIv1"]["config"]

    def build_trainer(self, build: Path) -> str:
        """A distribution made from its packages, with the client library and the Python package."""
        base = image_base.unpack(build, self.folder / "base")
        image_base.install(base, *TRAINER_PACKAGES)
        run(["cmake", "--install", str(build), "--prefix", "/usr", "--component", "client"],
            {"DESTDIR": str(base)})  # fmt: skip
        return self._import(
            base, "headrace-training", "--env", "PYTHONPATH=/usr/share/headrace/python",
            "--user", "64322",
        )  # fmt: skip

    def mount(self, image: str) -> Path:
        """The image's files, for a container's root."""
        container = self._buildah("from", "--pull-never", image).strip()
        self._mounted.append(container)
        return Path(self._buildah("mount", container).strip())

    def close(self) -> None:
        for container in self._mounted:
            self._buildah("umount", container)
        self._mounted.clear()
        if not self._keeps:
            shutil.rmtree(self.folder, ignore_errors=True)
