"""Builds the package's wheel from a CMake build tree (PEP 517): the package, libheadrace.so, the programs, and the
libraries that these need.

Programs and libraries stand in the package's folder as in an install tree, so that they find each other by their
relative run paths: its folders `bin` and `lib`.

The build tree is the setting `build-dir`, or $HEADRACE_BUILD, or build/release of this checkout. The wheel
needs glibc of at least the version that its libraries ask for, which its name says, and a Python as
pyproject.toml says: it has no extension module.
"""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import re
import subprocess
import tempfile
import zipfile
from pathlib import Path

import tomllib

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
GLIBC_MIN = (2, 35)  # what is promised; an older need promises no more
# Every system of that glibc has these, at least as new as we need them; two of them in one process,
# ours and PyTorch's, would be one too many.
OF_THE_SYSTEM = ("libstdc++.so", "libgcc_s.so")
# UCX's modules for RDMA. A wheel has no links, and RDMA's drivers go by two names each, which as two files would
# be two drivers; so a service from a wheel speaks TCP between nodes, as on a machine without such devices.
OF_RDMA = ("libuct_ib", "libuct_rdmacm")
# Components of an install tree; `libraries` is what the programs need.
COMPONENTS = ("client", "service", "planner", "libraries")
PROGRAMS = ("headraced", "headracectl", "headrace-plan")


def version() -> str:
    text = (ROOT / "CMakeLists.txt").read_text()
    found = re.search(r"project\(headrace VERSION ([0-9.]+)", text)
    assert found is not None, "CMakeLists.txt names no version"
    return found.group(1)


def install(build: Path, folder: Path) -> None:
    for component in COMPONENTS:
        command = ["cmake", "--install", str(build), "--prefix", str(folder), "--strip", "--component", component]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")


def glibc_of(libraries: list[Path]) -> tuple[int, int]:
    """The newest version of glibc's interface that any of them uses."""
    newest = (2, 0)
    for library in libraries:
        told = subprocess.run(["objdump", "-T", str(library)], capture_output=True, text=True, check=True)
        for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", told.stdout):
            newest = max(newest, (int(major), int(minor)))
    return newest


def contents(tree: Path) -> dict[str, bytes]:
    """By their path in the wheel. Of a library's names it has the one that programs ask for."""
    package = tree / "share" / "headrace" / "python" / "headrace"
    files = {
        f"headrace/{path.relative_to(package)}": path.read_bytes()
        for path in sorted(package.rglob("*")) if path.is_file()
    }  # fmt: skip
    for path in [*ours(tree), *carried(tree)]:
        files[f"headrace/{path.relative_to(tree)}"] = path.resolve().read_bytes()
    return files


def ours(tree: Path) -> list[Path]:
    """The library and the programs."""
    return [next(tree.rglob("libheadrace.so")), *(tree / "bin" / name for name in PROGRAMS)]


def needed(file: Path) -> list[str]:
    """The names of the libraries that a file asks for."""
    told = subprocess.run(["objdump", "-p", str(file)], capture_output=True, text=True, check=True)
    return re.findall(r"^\s*NEEDED\s+(\S+)", told.stdout, re.MULTILINE)


def carried(tree: Path) -> list[Path]:
    """The shared libraries that the wheel brings along: what library, programs and UCX's modules need."""
    library, *programs = ours(tree)
    folder = library.parent / "headrace"
    modules = [path for path in sorted(folder.glob("ucx/*.so.0")) if not path.name.startswith(OF_RDMA)]
    asking = [library, *programs, *modules]
    found: dict[str, Path] = {}
    while asking:
        for name in needed(asking.pop()):
            path = folder / name
            if name not in found and path.exists() and not name.startswith(OF_THE_SYSTEM):
                found[name] = path
                asking.append(path)
    return [*(found[name] for name in sorted(found)), *modules]


def licences(tree: Path) -> dict[str, bytes]:
    """This project's, and those of what the wheel carries, by their path in it."""
    folder = tree / "share" / "doc" / "headrace" / "licences"
    lists = (folder / f"{component}.txt" for component in COMPONENTS)
    told = {tuple(line.split("\t")) for path in lists if path.exists() for line in path.read_text().splitlines()}
    inside = {path.name for path in carried(tree)}
    owned = sorted((name, package) for name, package in told if name in inside or name.startswith("compiled in"))
    files = {
        path: (folder / path).read_bytes()
        for path in sorted({f"{package}/copyright" for _, package in owned})
    }
    common = {name.decode() for text in files.values() for name in re.findall(rb"common-licenses/([\w.+-]+)", text)}
    for name in sorted(name.rstrip(".") for name in common):
        files[f"common/{name}"] = (folder / "common" / name).read_bytes()
    files["LICENSE"] = (tree / "share" / "doc" / "headrace" / "LICENSE").read_bytes()
    files["carried.txt"] = "".join(f"{name}\t{package}\n" for name, package in owned).encode()
    return {f"headrace-{version()}.dist-info/licenses/{path}": text for path, text in files.items()}


def metadata() -> bytes:
    """pyproject.toml's [project] in the form of an installed package."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {version()}",
        f"Summary: {project['description']}",
        f"License: {project['license']['text']}",
        *(f"Classifier: {classifier}" for classifier in project["classifiers"]),
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {need}" for need in project["dependencies"]),
    ]
    for extra, needs in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f"Requires-Dist: {need}; extra == '{extra}'" for need in needs]
    return ("\n".join(lines) + "\n").encode()


def entry_points() -> bytes:
    """What other packages find this one by, as pyproject.toml says."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    sections = (
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
        for group, points in groups.items()
    )
    return "\n".join(sections).encode()


def described(tag: str) -> dict[str, bytes]:
    folder = f"headrace-{version()}.dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: headrace\nRoot-Is-Purelib: false\nTag: {tag}\n"
    return {
        f"{folder}/METADATA": metadata(),
        f"{folder}/WHEEL": wheel.encode(),
        f"{folder}/entry_points.txt": entry_points(),
    }


def record(files: dict[str, bytes]) -> bytes:
    def line(name: str, data: bytes) -> str:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        return f"{name},sha256={digest},{len(data)}\n"

    own = f"headrace-{version()}.dist-info/RECORD"
    return ("".join(line(name, data) for name, data in files.items()) + f"{own},,\n").encode()


def build_tree(settings: dict[str, str]) -> Path:
    build = Path(settings.get("build-dir") or os.environ.get("HEADRACE_BUILD") or ROOT / "build" / "release")
    lacks = [name for name in ("libheadrace.so", *PROGRAMS) if not (build / name).exists()]
    if lacks:
        raise RuntimeError(
            f"{build} has no {', '.join(lacks)}: build all of it (`cmake --preset release && cmake --build --preset "
            "release`), or name another build tree by the setting build-dir or the variable HEADRACE_BUILD"
        )
    return build.resolve()


def build_wheel(
    wheel_directory: str, config_settings: dict[str, str] | None = None, metadata_directory: str | None = None
) -> str:
    """PEP 517: writes the wheel into `wheel_directory` and returns its name."""
    build = build_tree(config_settings or {})
    with tempfile.TemporaryDirectory() as folder:
        install(build, Path(folder))
        files = contents(Path(folder)) | licences(Path(folder))
        major, minor = max(glibc_of([*ours(Path(folder)), *carried(Path(folder))]), GLIBC_MIN)
    tag = f"py3-none-manylinux_{major}_{minor}_{platform.machine()}"
    files |= described(tag)
    files[f"headrace-{version()}.dist-info/RECORD"] = record(files)
    name = f"headrace-{version()}-{tag}.whl"
    with zipfile.ZipFile(Path(wheel_directory) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path)  # its date is fixed: the same tree gives the same bytes
            entry.compress_type = zipfile.ZIP_DEFLATED
            # pip keeps that a file may be executed.
            entry.external_attr = (0o100755 if path.startswith("headrace/bin/") else 0o100644) << 16
            wheel.writestr(entry, data)
    return name


def build_sdist(sdist_directory: str, config_settings: dict[str, str] | None = None) -> str:
    """PEP 517 wants it; a package without the library's sources would build nowhere."""
    raise NotImplementedError("there is no source distribution: build a wheel from a checkout")
