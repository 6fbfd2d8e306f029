#!/usr/bin/env python3
"""Builds images of containers/images as a whole, their build stages included, and starts the service's.

usage: image_builds.py [--jobs N] [--cache FOLDER] [--keep FOLDER] BUILD [service|training]...

Takes as long as compiling everything does, so that it is no test of ctest's: those take what the build
stage compiles from a build tree. Needs root, buildah, runc, debootstrap and Debian's mirror, and no registry:
BASE is made by debootstrap, and kept in the folder BUILD. --jobs caps the compilers at once; --cache is
a folder of ccache's that outlives the build; --keep is where the images' storage stays for a look.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]
sys.dont_write_bytecode = True

import images
from pod import Pod
from support.directory import OwnDirectory

AVERAGES = """
import headrace, numpy
with headrace.init(job="image", rank=0, world_size=1) as session:
    array = numpy.full(4, 3, numpy.float32)
    session.all_reduce(array, op="average")
    assert (array == 3).all(), array
    print("averaged")
"""


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("build", type=Path)
    parser.add_argument("images", nargs="*", default=["service", "training"], metavar="image")
    told = parser.parse_args()
    if unknown := set(told.images) - {"service", "training"}:
        parser.error(f"no image {', '.join(sorted(unknown))} can be built without a registry")
    return told


def try_out(built: images.Images, made: dict[str, str]) -> None:
    """Starts what was built: the service, and the trainer in the same pod."""
    service = built.mount(made["service"])
    trainer = built.mount(made["training"]) if "training" in made else service
    with Pod(service, trainer, shares_pids=False) as pod:
        running = pod.start_service()
        print(running.execute("/usr/bin/headracectl", "doctor").stdout, flush=True)
        if "training" in made:
            client = pod.start_trainer("/usr/bin/python3", "-c", AVERAGES)
            if client.wait(60.0) != 0 or "averaged" not in client.text():
                raise images.ImageError(f"the training image: {client.text()}")
            print("the training image averaged through the service's")


def main() -> int:
    told = asked()
    if reason := images.missing():
        print(f"image_builds: {reason}", file=sys.stderr)
        return 1
    told.build.mkdir(parents=True, exist_ok=True)
    own = OwnDirectory("headrace-images-")
    built = images.Images(told.keep or Path(own.path) / "storage", keeps=told.keep is not None)
    made = {}
    try:
        base = built.build_base(told.build.resolve(), *(["ccache"] if told.cache else []))
        for name in told.images:
            start = time.monotonic()
            made[name] = built.build_whole(name, base, told.jobs, told.cache)
            print(f"{name}: built in {time.monotonic() - start:.0f} s", flush=True)
        if "service" in made:
            try_out(built, made)
    finally:
        built.close()
        own.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
