"""In which codec each gradient of a layout crosses between nodes."""

from __future__ import annotations

import fnmatch
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace import library

if TYPE_CHECKING:
    from headrace.layout import Gradient
    from headrace.session import Session

_RANK = "4"  # of powersgd without a number


def choose_codecs(
    gradients: Sequence[Gradient], compress: str | Mapping[str, str] | None
) -> list[str | None]:
    """Returns for each gradient the codec of the last pattern (fnmatch) that its name matches, else "none" if
    it has one dimension, else None: the layout's. Gradients that travel as one have the codec of most of
    their elements.

    ValueError for a pattern that matches no name.
    """
    patterns = compress if isinstance(compress, Mapping) else {}
    unused = dict(patterns)
    codecs: list[str | None] = []
    for gradient in gradients:
        parts = gradient.parts
        if parts is None:
            parts = [(gradient.name, gradient.shape)]
        elements: dict[str | None, int] = {}
        for name, shape in parts:
            codec = None if len(shape) > 1 else "none"
            for pattern, wanted in patterns.items():
                if fnmatch.fnmatchcase(name, pattern):
                    unused.pop(pattern, None)
                    codec = wanted
            elements[codec] = elements.get(codec, 0) + math.prod(shape)
        codecs.append(max(elements, key=elements.__getitem__) if elements else "none")
    if unused:
        names = ", ".join(gradient.name for gradient in gradients[:4])
        raise ValueError(
            f'compress: "{next(iter(unused))}" matches no gradient; the first are named {names}'
        )
    return codecs


def rows_of(shape: Sequence[int]) -> int:
    """The rows of a gradient as a matrix, its first dimension by all others; 0: it is none."""
    return shape[0] if len(shape) > 1 else 0


def names_of(choice: str) -> list[str]:
    """The codecs of "int8", or of "auto:int8,bf16", which leaves it to the plan."""
    return choice.removeprefix("auto:").split(",")


def loses(choice: str) -> bool:
    """Whether the decoded values may differ from the encoded ones."""
    return any(codec not in ("", "none", "lossless") for codec in names_of(choice))


def rank_of(choice: str) -> int:
    """The largest rank of powersgd among its codecs; 0: it is not one of them."""
    ranks = [name.partition(":") for name in names_of(choice)]
    return max((int(rank or _RANK) for codec, _, rank in ranks if codec == "powersgd"), default=0)


def right_factor_room(rank_max: int, shape: Sequence[int]) -> int:
    """The elements of room for a gradient's right factor of at most that rank: hr_layout_options."""
    rows = rows_of(shape)
    return min(rank_max, rows // 2) * (math.prod(shape) // rows) if rows else 0


def keeps_residuals() -> bool:
    """Whether this process is the one of its node that keeps the residuals."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def compress_all_reduces(session: Session, codec: str | None) -> None:
    """Sets the codec in which a session's all_reduces cross between nodes from now on, if they are sums or
    averages of float32 of 16 KiB or more. With ``gpu_network = nccl`` those on GPUs cross as they are, which an
    event of the job says.

    ``codec``: "bf16", "fp16", "int8-stochastic", "int4-stochastic", "lossless", or "none", as is None. All
    ranks must set the same between the same operations. Other codecs need residuals, which only layouts keep.
    """
    error = library.ErrorText()
    name = None if codec is None else codec.encode()
    status = library.load().hr_session_compress(session.handle, name, error)
    library.check(status, error)
