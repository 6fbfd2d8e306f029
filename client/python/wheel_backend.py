"""Builds the package's wheel from a CMake build tree (PEP 517): the package, libheadrace.so and what that needs.

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


def version() -> str:
    text = (ROOT / "CMakeLists.txt").read_text()
    found = re.search(r"project\(headrace VERSION ([0-9.]+)", text)
    assert found is not None, "CMakeLists.txt names no version"
    return found.group(1)


def install(build: Path, folder: Path) -> None:
    command = ["cmake", "--install", str(build), "--prefix", str(folder), "--strip", "--component", "client"]
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
    """By their path in the wheel. Links between names of a library become the file they lead to."""
    package = tree / "share" / "headrace" / "python" / "headrace"
    files = {
        f"headrace/{path.relative_to(package)}": path.read_bytes()
        for path in sorted(package.rglob("*")) if path.is_file()
    }  # fmt: skip
    lib = next(path.parent for path in tree.rglob("libheadrace.so"))
    files["headrace/libheadrace.so"] = (lib / "libheadrace.so").read_bytes()
    for path in sorted((lib / "headrace").glob("*.so*")):
        if path.name.startswith(OF_THE_SYSTEM):
            continue
        if not path.is_symlink() and not re.search(r"\.so\.\d+\.\d", path.name):
            files[f"headrace/headrace/{path.name}"] = path.read_bytes()
        elif path.is_symlink():
            files[f"headrace/headrace/{path.name}"] = path.resolve().read_bytes()
    return files


def licences(tree: Path) -> dict[str, bytes]:
    """This project's, and those of what the wheel carries, by their path in it."""
    folder = tree / "share" / "doc" / "headrace" / "licences"
    told = [line.split("\t") for line in (folder / "client.txt").read_text().splitlines()]
    carried = [(name, package) for name, package in told if not name.startswith(OF_THE_SYSTEM)]
    files = {
        path: (folder / path).read_bytes()
        for path in sorted({f"{package}/copyright" for _, package in carried})
    }
    common = {name.decode() for text in files.values() for name in re.findall(rb"common-licenses/([\w.+-]+)", text)}
    for name in sorted(name.rstrip(".") for name in common):
        files[f"common/{name}"] = (folder / "common" / name).read_bytes()
    files["LICENSE"] = (tree / "share" / "doc" / "headrace" / "LICENSE").read_bytes()
    files["carried.txt"] = "".join(f"{name}\t{package}\n" for name, package in carried).encode()
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
    if not (build / "libheadrace.so").exists():
        raise RuntimeError(
            f"{build} has no libheadrace.so: build it (`cmake --preset release && ninja -C build/release headrace`), "
            "or name another build tree by the setting build-dir or the variable HEADRACE_BUILD"
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
        libraries = [
            path for path in Path(folder).rglob("*.so*")
            if not path.is_symlink() and not path.name.startswith(OF_THE_SYSTEM)
        ]  # fmt: skip
        major, minor = max(glibc_of(libraries), GLIBC_MIN)
    tag = f"py3-none-manylinux_{major}_{minor}_{platform.machine()}"
    files |= described(tag)
    files[f"headrace-{version()}.dist-info/RECORD"] = record(files)
    name = f"headrace-{version()}-{tag}.whl"
    with zipfile.ZipFile(Path(wheel_directory) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path)  # its date is fixed: the same tree gives the same bytes
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, data)
    return name


def build_sdist(sdist_directory: str, config_settings: dict[str, str] | None = None) -> str:
    """PEP 517 wants it; a package without the library's sources would build nowhere."""
    raise NotImplementedError("there is no source distribution: build a wheel from a checkout")
