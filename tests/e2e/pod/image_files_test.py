"""What images hold: all that their programs and UCX's modules need, and its licences; and that the stages
of the CUDA image which need no CUDA build, on a Debian in place of NVIDIA's image.

usage: image_files_test.py; HEADRACE_BUILD names the build tree. Exits with 77, and the reason, where
images cannot be made.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import unittest
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]
sys.dont_write_bytecode = True

import images
from container import Container, Spec
from pod import SERVICE_USER, Pod
from support.directory import OwnDirectory
from support.service import build_directory

LIMIT_S = 60.0
LOADER = "/lib64/ld-linux-x86-64.so.2"


def carried(root: Path) -> Path:
    """The folder of carried libraries, in the image."""
    return next(root.glob("usr/lib/**/headrace/libucp.so.0")).parent


class ImageFilesTest(unittest.TestCase):
    """Images are built once."""

    service: Path
    cuda: Path
    folder: Path
    built: images.Images

    @classmethod
    def setUpClass(cls) -> None:
        own = OwnDirectory("headrace-files-")
        cls.addClassCleanup(own.close)
        cls.folder = Path(own.path)
        cls.built = images.Images(cls.folder / "storage")
        cls.addClassCleanup(cls.built.close)
        build = Path(build_directory())
        cls.service = cls.built.mount(cls.built.build_service(build))
        cls.built.build_cuda(build, cls.built.build_base(build))
        cls.cuda = cls.built.mount("headrace-cuda")

    @contextlib.contextmanager
    def run_in(self, root: Path, *command: str, **environment: str) -> Iterator[Container]:
        """A program in a container of that image, with a loop device of its own."""
        with Pod(root, root, shares_pids=False) as pod:
            spec = Spec(
                name="image", root=root, user=SERVICE_USER, command=command,
                environment={"PATH": "/usr/bin", **environment}, volumes={"/run/headrace": pod.volume},
                joins={"network": f"/proc/{pod.holder}/ns/net"},
            )  # fmt: skip
            container = Container(spec, f"headrace-{os.getpid()}-image", pod.folder)
            try:
                yield container
            finally:
                container.close()

    def test_everything_in_the_image_finds_what_it_needs_there(self) -> None:
        folder = carried(self.service)
        inside = f"/{folder.relative_to(self.service)}"
        files = [path for path in folder.rglob("*.so*") if not path.is_symlink()]
        self.assertGreater(len(files), 20)
        for path in [*files, *(self.service / "usr/bin").iterdir()]:
            name = f"/{path.relative_to(self.service)}"
            listed = subprocess.run(
                ["chroot", self.service, LOADER, "--library-path", f"{inside}:{inside}/ucx", "--list", name],
                capture_output=True, text=True,
            )  # fmt: skip
            self.assertEqual(listed.returncode, 0, f"{name}: {listed.stderr}")
            self.assertNotIn("not found", listed.stdout, name)

    def test_a_service_between_nodes_loads_the_modules_for_rdma(self) -> None:
        flags = ("--node-address=127.0.0.1:7733", "--node-name=image")
        with self.run_in(self.service, "/usr/bin/headraced", *flags, LD_DEBUG="libs") as service:
            deadline = time.monotonic() + LIMIT_S
            while "listening on" not in service.text():
                self.assertIsNone(service.ended(), service.text()[-3000:])
                self.assertLess(time.monotonic(), deadline, service.text()[-3000:])
                time.sleep(0.1)
            for name in ("ucx/libuct_ib.so.0", "libibverbs.so.1", "ucx/libuct_rdmacm.so.0", "librdmacm.so.1"):
                self.assertRegex(service.text(), rf"calling init: /usr/\S*headrace/{name}\b")

    def test_the_image_says_which_drivers_rdma_devices_have(self) -> None:
        named = [path.read_text().split()[1] for path in (self.service / "etc/libibverbs.d").glob("*.driver")]
        self.assertIn("mlx5", named)
        drivers = {path.name.split("-rdmav")[0] for path in carried(self.service).glob("*-rdmav*.so")}
        self.assertEqual({f"lib{name}" for name in named} - drivers, set())

    def test_every_file_of_another_s_has_its_licence(self) -> None:
        licences = self.service / "usr/share/doc/headrace/licences"
        lines = (licences / "libraries.txt").read_text().splitlines()
        owners = dict(line.split("\t") for line in lines)
        for path in carried(self.service).rglob("*.so*"):
            if path.name in owners:
                self.assertTrue((licences / owners[path.name] / "copyright").exists(), path)
        self.assertTrue((licences / "libc6" / "copyright").exists())

    def test_the_cuda_image_runs_its_programs_as_nobody(self) -> None:
        with self.run_in(self.cuda, "/usr/bin/headraced", "--print-config") as program:
            self.assertEqual(program.wait(LIMIT_S), 0, program.text())
            self.assertIn("gpu = ", program.text())
        self.assertEqual((self.cuda / "run/headrace").stat().st_uid, 64321)
        told_of = self.built.described("headrace-cuda")
        self.assertEqual(told_of["User"], "64321:64321")
        self.assertEqual(told_of["Entrypoint"], ["/usr/bin/headraced"])
        self.assertEqual(told_of["StopSignal"], "SIGTERM")


if __name__ == "__main__":
    if reason := images.missing():
        print(f"skipped: {reason}")
        sys.exit(77)
    os.umask(0o022)
    unittest.main(verbosity=2)
