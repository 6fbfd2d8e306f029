"""Whether all ranks mean the same gradients: sums of others that are as large would say nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from headrace import errors
from headrace.session import Session

_SHOWN = 112  # bytes of a name that other ranks can show
_DIGEST = 16
_MISMATCH = 9  # HR_MISMATCH


def digest(name: str) -> bytes:
    """What stands for a name of any length."""
    return hashlib.blake2b(name.encode(), digest_size=_DIGEST).digest()


def check_names(session: Session, names: Sequence[str], whose: str) -> None:
    """Raises Mismatch where a rank has other names, or the same ones in another order.

    Every rank calls it at the same place among its operations. ``whose`` begins the sentence: "the
    gradients". One small operation; a second one where ranks differ.
    """
    if session.world_size == 1:
        return
    whole = digest("\0".join(names))
    alike = _gather(session, len(names).to_bytes(8, "little") + whole)
    if alike.count(alike[0]) == len(alike):
        return
    counts = [int.from_bytes(each[:8], "little") for each in alike]
    for rank, count in enumerate(counts):
        if count != counts[0]:
            _fail(
                f"{whose} are {counts[0]} on rank 0 and {count} on rank {rank}: build the same model "
                "on every rank"
            )
    rows = _gather(session, b"".join(_row(name) for name in names))
    size = _SHOWN + _DIGEST
    for index in range(counts[0]):
        of_ranks = [row[index * size : (index + 1) * size] for row in rows]
        for rank, row in enumerate(of_ranks):
            if row != of_ranks[0]:
                _fail(
                    f'{whose} differ: gradient {index} is "{_shown(of_ranks[0])}" on rank 0 and '
                    f'"{_shown(row)}" on rank {rank}: build the model in the same order, and under '
                    "the same names, on every rank"
                )
    raise AssertionError("digests differ and names do not")


def _gather(session: Session, own: bytes) -> list[bytes]:
    everybodys = torch.zeros(session.world_size, len(own), dtype=torch.uint8)
    everybodys[session.rank] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    session.all_gather(everybodys)
    return [bytes(row.tolist()) for row in everybodys]


def _row(name: str) -> bytes:
    return name.encode()[:_SHOWN].ljust(_SHOWN, b"\0") + digest(name)


def _shown(row: bytes) -> str:
    return row[:_SHOWN].rstrip(b"\0").decode(errors="replace")


def _fail(text: str) -> None:
    raise errors.make(text, "mismatch", _MISMATCH)
