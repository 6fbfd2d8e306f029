"""Keeps torch.compile out of what talks to the service.

Dynamo would trace Python that torch's C++ calls from compiled code, and hooks of modules: there is
nothing in them that it could compile.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

_WRAPPERS = os.path.join(os.path.dirname(torch.__file__), "_dynamo", "")


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which compiled code calls as it is, with all that it calls."""
    # torch 1.13 has no compiler. The first call loads dynamo, which optimizers of torch 2 do anyway.
    compiler = getattr(torch, "compiler", None)
    return compiler.disable(function) if compiler else function


def keep_untraced(*classes: type) -> None:
    """The same of all public methods of the classes, once."""
    for each in classes:
        if vars(each).get("_is_untraced"):
            continue
        each._is_untraced = True
        for name, method in list(vars(each).items()):
            if isinstance(method, FunctionType) and not name.startswith("_"):
                setattr(each, name, untraced(method))


def file_of_caller() -> str:
    """The file from which the method that asks was called, by way of C++ or not; "": by no code in Python."""
    frame = sys._getframe(1).f_back
    while frame is not None and frame.f_code.co_filename.startswith(_WRAPPERS):
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename
