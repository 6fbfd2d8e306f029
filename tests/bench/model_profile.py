"""What a benchmark needs to know of a profile of client/profiles, or of any other one."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PROFILES = Path(__file__).resolve().parents[2] / "client" / "profiles"
PUBLISHED_PROFILES = PROFILES / "published"
REMEDY = "python3 -m headrace.profile MODEL --out FILE records a profile"
ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


class ProfileError(Exception):
    """A file that is no profile; the text names it, the line, the field where there is one, and what helps."""


@dataclasses.dataclass(frozen=True)
class Tensor:
    elements: int
    backward_s: float
    forward_s: float


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    path: Path
    element_bytes: int
    tensors: tuple[Tensor, ...]

    @property
    def bytes(self) -> int:
        return sum(tensor.elements for tensor in self.tensors) * self.element_bytes

    @property
    def compute_s(self) -> float:
        """Backward and forward."""
        return sum(tensor.backward_s + tensor.forward_s for tensor in self.tensors)


def read_model(name: str, folder: Path = PROFILES) -> Model:
    """One of the folder by its name, or any other by its path."""
    path = Path(name) if name.endswith(".json") else folder / f"{name}.json"
    text = _read(path, folder)
    profile = _parse(path, text)

    def at(*keys: str | int) -> str:
        return f"{path}: line {line_of(text, keys)}: "

    dtype = profile.get("dtype", "float32")
    if not isinstance(dtype, str) or dtype not in ELEMENT_BYTES:
        raise ProfileError(f"{at('dtype')}dtype: {dtype!r} is not one of {', '.join(ELEMENT_BYTES)}")
    rows = profile.get("tensors")
    if not isinstance(rows, list) or not rows:
        raise ProfileError(f"{at('tensors')}tensors: has to be a list of at least one tensor; {REMEDY}")
    tensors = tuple(_tensor(at, index, row) for index, row in enumerate(rows))
    return Model(path.stem, path, ELEMENT_BYTES[dtype], tensors)


def _read(path: Path, folder: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        known = ", ".join(sorted(each.stem for each in folder.glob("*.json")))
        raise ProfileError(
            f"{path}: no such file; {folder} has {known}; any other is named by its path, with .json"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: {error}") from error


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        profile = json.loads(text)
    except json.JSONDecodeError as error:
        raise ProfileError(
            f"{path}: line {error.lineno}: column {error.colno}: not JSON: {error.msg}; {REMEDY}"
        ) from None
    if not isinstance(profile, dict):
        raise ProfileError(f"{path}: line 1: has to be an object with tensors; {REMEDY}")
    return profile


_SPACE = re.compile(r"[\s,:]*")


def line_of(text: str, keys: Sequence[str | int]) -> int:
    """The line, from 1, of the value that these names and indices lead to in JSON that parses; of the last
    of the values on the way that is there."""  # fmt: skip
    decode = json.JSONDecoder().raw_decode

    def skipped(place: int) -> int:
        return _SPACE.match(text, place).end()

    at = skipped(0)
    for key in keys:
        opens = text[at]
        if opens not in "{[" or (opens == "{") != isinstance(key, str):
            break
        found, index, place = None, 0, skipped(at + 1)
        while text[place] not in "]}":
            name = index
            if opens == "{":
                name, place = decode(text, place)
                place = skipped(place)
            if name == key:
                found = place  # of equal names the last one counts
            place = skipped(decode(text, place)[1])
            index += 1
        if found is None:
            break
        at = found
    return text.count("\n", 0, at) + 1


def _tensor(at: Callable[..., str], index: int, row: Any) -> Tensor:
    """A row of "tensors", whose fields are checked one by one. ``at`` is what an error opens with."""
    where = f"tensors[{index}]"
    if not isinstance(row, dict):
        raise ProfileError(f"{at('tensors', index)}{where}: has to be an object; {REMEDY}")

    def number(field: str, kinds: tuple[type, ...], least: float, wanted: str) -> Any:
        here = f"{where}.{field}"
        if field not in row:
            raise ProfileError(f"{at('tensors', index)}{here}: is missing: {wanted}; {REMEDY}")
        value = row[field]
        good = isinstance(value, kinds) and not isinstance(value, bool)
        if not good or not least <= value < math.inf:
            raise ProfileError(f"{at('tensors', index, field)}{here}: {value!r} is not {wanted}")
        return value

    seconds = "a number of seconds, 0 or more"
    return Tensor(
        number("elements", (int,), 1, "a whole number, 1 or more"),
        number("backward_s", (int, float), 0, seconds),
        number("forward_s", (int, float), 0, seconds),
    )


def published_model(name: str) -> Model:
    return read_model(name, PUBLISHED_PROFILES)
