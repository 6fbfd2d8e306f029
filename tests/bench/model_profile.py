"""What a benchmark needs to know of a profile of client/profiles, or of any other one."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

PROFILES = Path(__file__).resolve().parents[2] / "client" / "profiles"
PUBLISHED_PROFILES = PROFILES / "published"
REMEDY = "python3 -m headrace.profile MODEL --out FILE records a profile"
ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


class ProfileError(Exception):
    """A file that is no profile; the text names it, the line or the field, and what helps."""


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
    profile = _load(path, folder)
    dtype = profile.get("dtype", "float32")
    if not isinstance(dtype, str) or dtype not in ELEMENT_BYTES:
        raise ProfileError(f"{path}: dtype: {dtype!r} is none of {', '.join(ELEMENT_BYTES)}")
    rows = profile.get("tensors")
    if not isinstance(rows, list) or not rows:
        raise ProfileError(f"{path}: tensors: has to be a list of at least one tensor; {REMEDY}")
    tensors = tuple(_tensor(path, index, row) for index, row in enumerate(rows))
    return Model(path.stem, path, ELEMENT_BYTES[dtype], tensors)


def _load(path: Path, folder: Path) -> dict[str, Any]:
    try:
        profile = json.loads(path.read_text())
    except FileNotFoundError:
        known = ", ".join(sorted(each.stem for each in folder.glob("*.json")))
        raise ProfileError(
            f"{path}: no such file; {folder} has {known}; any other is named by its path, with .json"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: {error}") from error
    except json.JSONDecodeError as error:
        raise ProfileError(
            f"{path}: line {error.lineno}: column {error.colno}: not JSON: {error.msg}; {REMEDY}"
        ) from None
    if not isinstance(profile, dict):
        raise ProfileError(f"{path}: line 1: has to be an object with tensors; {REMEDY}")
    return profile


def _tensor(path: Path, index: int, row: Any) -> Tensor:
    """A row of "tensors", whose fields are checked one by one."""
    where = f"{path}: tensors[{index}]"
    if not isinstance(row, dict):
        raise ProfileError(f"{where}: has to be an object; {REMEDY}")

    def number(field: str, kinds: tuple[type, ...], least: float, wanted: str) -> Any:
        if field not in row:
            raise ProfileError(f"{where}.{field}: is missing: {wanted}; {REMEDY}")
        value = row[field]
        good = isinstance(value, kinds) and not isinstance(value, bool)
        if not good or not least <= value < math.inf:
            raise ProfileError(f"{where}.{field}: {value!r} is not {wanted}")
        return value

    seconds = "a number of seconds, 0 or more"
    return Tensor(
        number("elements", (int,), 1, "a whole number, 1 or more"),
        number("backward_s", (int, float), 0, seconds),
        number("forward_s", (int, float), 0, seconds),
    )


def published_model(name: str) -> Model:
    return read_model(name, PUBLISHED_PROFILES)
