"""What a benchmark needs to know of a profile of client/profiles, or of any other one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

PROFILES = Path(__file__).resolve().parents[2] / "client" / "profiles"
PUBLISHED_PROFILES = PROFILES / "published"
ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


class ProfileError(Exception):
    """A file that is no profile; the text names it and what is wrong."""


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
    try:
        profile = json.loads(path.read_text())
        tensors = tuple(
            Tensor(row["elements"], row["backward_s"], row["forward_s"]) for row in profile["tensors"]
        )
        model = Model(path.stem, path, ELEMENT_BYTES[profile.get("dtype", "float32")], tensors)
        if model.compute_s < 0 or model.bytes <= 0:
            raise ValueError("no bytes, or times below 0")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProfileError(f"{path}: not a profile: {error!r}") from error
    return model


def published_model(name: str) -> Model:
    return read_model(name, PUBLISHED_PROFILES)
