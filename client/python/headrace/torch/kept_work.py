"""What a group keeps of the operations that were posted."""

from __future__ import annotations

import collections

from headrace.torch.work import Work

# Older versions let go of a Python object that C++ still waits for. As many operations may be open.
_KEPT = 1024
_KEPT_WITH_RESULTS = 64  # of those that have ended, where nobody has waited


class KeptWork:
    """The last operations of a group. Of one thread at a time, as posts are."""

    def __init__(self) -> None:
        self._last: collections.deque[Work] = collections.deque(maxlen=_KEPT)
        self._unended: collections.deque[Work] = collections.deque()  # as far as is known

    def add(self, work: Work) -> None:
        """Keeps it alive, and its tensors for a while if nobody waits for it."""
        self._last.append(work)
        if len(self._last) > _KEPT_WITH_RESULTS:
            self._last[-_KEPT_WITH_RESULTS - 1].forget_results()

    def look_after(self, work: Work) -> None:
        """Looks in later calls whether it has ended: nobody need wait for it, and what its tensors were copied into
        is used again then.
        """
        self._unended.append(work)
        while len(self._unended) > 1:
            oldest = self._unended.popleft()
            if not oldest.look():
                self._unended.append(oldest)
                return
