"""A directory that is gone when its process is, however that ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile

# Waits for the end of its standard input, which comes when the last process that holds the other end
# has ended. In the background of a shell that ends at once, so that it is nobody's child and no one
# who ends a tree of processes takes it along. (A shell takes the standard input from what it puts in
# the background, so that it goes by another number.)
_REMOVE_LATER = 'exec 3<&0; (cat <&3; rm -rf -- "$1") >/dev/null 2>&1 &'


class OwnDirectory:
    """A new directory under the temporary one. ``close`` removes it; so does the end of the process,
    kill -9 included."""

    def __init__(self, prefix: str) -> None:
        self.path = tempfile.mkdtemp(prefix=prefix)
        read, self._lifeline = os.pipe()
        try:
            subprocess.run(
                ["sh", "-c", _REMOVE_LATER, "sh", self.path],
                stdin=read,
                start_new_session=True,
                check=True,
            )
        except BaseException:
            self.close()
            raise
        finally:
            os.close(read)

    def close(self) -> None:
        """Safe to call again."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
