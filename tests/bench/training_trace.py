"""The moments of every iteration of one way of training, on one rank: what a breakdown is made from.

Times are those of CLOCK_MONOTONIC, so ranks of one machine can be compared.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from ways import Scheduled, Way


class Tracer:
    """Notes moments of each iteration of a way; from its construction on.

    An iteration is that of Way.iterate(): forward, backward, step. Of a gradient's slot it notes when it
    was posted and waited for, and how long posts, waits and updates kept the thread.
    """

    def __init__(self, way: Way) -> None:
        self.iterations: list[dict[str, Any]] = []
        self._trained = way._trained
        self._iterate = way.iterate
        way.iterate = self._one
        way._trained = self._forward
        way.before_backward = lambda: self._note("backward_begin")
        way.after_backward = lambda: self._note("backward_end")
        if isinstance(way, Scheduled):
            flow = way.optimizer._flow
            self._wrap(flow, "_post", "posts", lambda slot: slot.index)
            self._wrap(flow, "_wait", "waits", lambda slot: slot.index)
            self._wrap(flow, "_update", "updates", lambda slots: slots[0].index)
        else:
            self._wrap(way.optimizer, "step", "updates", lambda: 0)

    def _wrap(self, owner: Any, name: str, kind: str, index_of: Any) -> None:
        call = getattr(owner, name)

        def timed(*arguments: Any) -> Any:
            begin = time.perf_counter()
            result = call(*arguments)
            # Before the first iteration there is nothing to note in.
            if self.iterations:
                self.iterations[-1][kind].append(
                    [index_of(*arguments), begin, time.perf_counter()]
                )
            return result

        setattr(owner, name, timed)

    def _note(self, moment: str) -> None:
        self.iterations[-1][moment] = time.perf_counter()

    def _one(self) -> None:
        self.iterations.append(
            {"begin": time.perf_counter(), "posts": [], "waits": [], "updates": []}
        )
        self._iterate()
        self._note("end")

    def _forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self._note("forward_begin")
        result = self._trained(inputs)
        self._note("forward_end")
        return result
