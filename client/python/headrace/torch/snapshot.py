"""Training state as one value: copied, sent to other ranks as bytes, and put back.

A value is a number, text, None, a tensor, or a list, tuple or mapping of such. Nothing that is read can run code.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Mapping
from typing import Any

import torch

_PLAIN = (bool, int, float, str, type(None))


def copied(value: Any, before: Any = None, name: str = "state") -> Any:
    """A copy, of mappings as dicts, which has the memory of ``before``, a copy that nobody needs any more, where
    that is as large. TypeError, which says where, for what is no such value.
    """
    if torch.is_tensor(value):
        source = value.detach()
        if (
            torch.is_tensor(before)
            and (before.shape, before.dtype) == (source.shape, source.dtype)
            and before.device == source.device
        ):
            return before.copy_(source)
        return source.clone()
    if isinstance(value, Mapping):
        old = before if isinstance(before, dict) else {}
        return {key: copied(each, old.get(key), f"{name}[{key!r}]") for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        same = isinstance(before, (list, tuple)) and len(before) == len(value)
        parts = [copied(each, before[i] if same else None, f"{name}[{i}]") for i, each in enumerate(value)]
        return parts if isinstance(value, list) else tuple(parts)
    if not isinstance(value, _PLAIN):
        raise TypeError(
            f"{name} is a {type(value).__name__}: a state holds numbers, text, None, tensors, lists, tuples and "
            "dicts of these, and objects whose state_dict() is made of them"
        )
    return value


def put_back(value: Any, before: Any) -> Any:
    """A value, with its tensors in the place of those of ``before``, or at least on their devices."""
    if torch.is_tensor(value) and torch.is_tensor(before):
        if (before.shape, before.dtype) != (value.shape, value.dtype):
            return value.to(before.device)
        with torch.no_grad():
            return before.copy_(value)
    if isinstance(value, dict) and isinstance(before, Mapping):
        return {key: put_back(each, before.get(key)) for key, each in value.items()}
    if isinstance(value, (list, tuple)) and isinstance(before, (list, tuple)):
        same = len(before) == len(value)
        parts = [put_back(each, before[i] if same else None) for i, each in enumerate(value)]
        return parts if isinstance(value, list) else tuple(parts)
    return value


def packed(value: Any) -> torch.Tensor:
    """A value as copied() makes it, as bytes; other things only as far as loaded() knows their classes."""
    if not is_value(value):
        return saved((None, value))
    tensors: list[torch.Tensor] = []
    text = json.dumps(encoded(value, tensors)).encode()
    return saved((torch.frombuffer(bytearray(text), dtype=torch.uint8), tensors))


def unpacked(data: torch.Tensor) -> Any:
    """What packed() was given, with its tensors on the CPU."""
    text, tensors = loaded(data)
    if text is None:
        return tensors
    return decoded(json.loads(bytes(text.numpy())), tensors)


def saved(value: Any) -> torch.Tensor:
    """By torch.save(), as bytes."""
    file = io.BytesIO()
    torch.save(value, file)
    return torch.frombuffer(file.getbuffer(), dtype=torch.uint8)


def loaded(data: torch.Tensor) -> Any:
    """What saved() was given, with its tensors on the CPU. TypeError for a class whose reading could run code."""
    try:
        return torch.load(_Reader(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise TypeError(
            "the state of another rank has what is not read here, since reading it could run code: keep numbers, text, "
            f"None, tensors, lists, tuples and dicts in the optimizer's state: {error}"
        ) from error


class _Reader(io.RawIOBase):
    """A file of bytes that are not copied before they are read."""

    def __init__(self, data: torch.Tensor) -> None:
        super().__init__()
        self._data = memoryview(data.numpy())
        self._at = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As io.IOBase has it."""
        self._at = offset + (0, self._at, len(self._data))[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """As io.RawIOBase has it."""
        part = self._data[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


def is_plain(value: Any) -> bool:
    """Whether it is a number, text, None, or a tuple of such."""
    return all(map(is_plain, value)) if isinstance(value, tuple) else isinstance(value, _PLAIN)


def is_value(value: Any) -> bool:
    """Whether it is made of numbers, text, None, tensors, lists, tuples and mappings."""
    if isinstance(value, Mapping):
        return all(map(is_value, [*value.keys(), *value.values()]))
    if isinstance(value, (list, tuple)):
        return all(map(is_value, value))
    return torch.is_tensor(value) or isinstance(value, _PLAIN)


def encoded(value: Any, tensors: list[torch.Tensor]) -> Any:
    """A value for JSON, whose tensors are appended to the list, and stand in it by their place there."""
    if torch.is_tensor(value):
        tensors.append(value)
        return ["tensor", len(tensors) - 1]
    if isinstance(value, Mapping):
        return ["dict", [[encoded(key, tensors), encoded(each, tensors)] for key, each in value.items()]]
    if isinstance(value, (list, tuple)):
        return ["list" if isinstance(value, list) else "tuple", [encoded(each, tensors) for each in value]]
    return value


def decoded(value: Any, tensors: list[torch.Tensor]) -> Any:
    """What encoded() was given."""
    if not isinstance(value, list):
        return value
    kind, inside = value
    if kind == "tensor":
        return tensors[inside]
    if kind == "dict":
        return {decoded(key, tensors): decoded(each, tensors) for key, each in inside}
    parts = [decoded(each, tensors) for each in inside]
    return parts if kind == "list" else tuple(parts)
