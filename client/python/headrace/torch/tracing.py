"""Keeps torch.compile out of what talks to the service.

Dynamo would trace Python that torch's C++ calls from compiled code, and hooks of modules: there is
nothing in them that it could compile.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch

_WRAPPERS = os.path.join(os.path.dirname(torch.__file__), "_dynamo", "")


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which compiled code calls as it is, with all that it calls."""
    # torch 1.13 has no compiler. The first call loads dynamo, which optimizers of torch 2 do anyway.
    compiler = getattr(torch, "compiler", None)
    return compiler.disable(function) if compiler else function


def trace_forward(module: torch.nn.Module) -> bool:
    """Has dynamo compile the forward of one of torch's own modules where its caller was not compiled.

    A hook that dynamo may not trace breaks the graph of the module's caller, which then runs as it is. Dynamo
    goes on with the frames that this one calls. Some versions (2.11) leave out those of torch.nn, and would
    compile nothing of it. A frame of ours around forward is one that they compile, with all within. False:
    there is no need.
    """
    forward = type(module).forward
    if "forward" in vars(module) or not forward.__module__.startswith("torch.nn.modules."):
        return False
    rules = getattr(getattr(torch, "_dynamo", None), "trace_rules", None)  # untraced() has loaded it
    if rules is None or "frame" in inspect.signature(rules.check).parameters or not rules.check(forward):
        return False
    # A method, not a function, so that a deep copy of the module has one of its own.
    module.forward = MethodType(_frame_around(forward), module)
    return True


@functools.cache
def _frame_around(forward: Callable[..., Any]) -> FunctionType:
    def frame(self: torch.nn.Module, *inputs: Any, **named: Any) -> Any:
        return forward(self, *inputs, **named)

    # Dynamo counts what it has compiled by code object, so each forward has one of its own.
    code = frame.__code__.replace(co_name=forward.__name__)
    own = FunctionType(code, frame.__globals__, forward.__name__, None, frame.__closure__)
    return functools.update_wrapper(own, forward)


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
