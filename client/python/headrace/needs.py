"""What to say where a module that Debian and pip install is not there."""

from __future__ import annotations

import sys

# What brings a module, by its name in `import`: the Debian package and pip's.
_PACKAGES = {
    "numpy": ("python3-numpy", "numpy"),
    "torch": ("python3-torch", "torch"),
    "torchvision": ("python3-torchvision", "torchvision"),
}


def sentence(who: str, error: ImportError) -> str:
    """What ``who`` needs and how to install it, from the error of the import."""
    name = (error.name or "").partition(".")[0]
    if name not in _PACKAGES:
        return f"{who}: {error}"
    debian, pip = _PACKAGES[name]
    return (
        f"{who} needs {name}, which {sys.executable} does not find: "
        f"apt-get install {debian}, or pip install {pip}"
    )
