"""What torch calls a process group."""

from __future__ import annotations


class GroupNames:
    """Names that torch 2 keeps in the backend, too, and asks it for under several words."""

    _group_name = ""
    _group_description = ""

    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    def _set_group_desc(self, text: str) -> None:
        self._group_description = text

    @property
    def group_name(self) -> str:
        """What torch calls the group; the job's name is session.job."""
        return self._group_name

    @property
    def group_desc(self) -> str:
        """torch's word for what the group is for."""
        return self._group_description

    def getGroupName(self) -> str:
        """As group_name."""
        return self._group_name

    def getGroupDesc(self) -> str:
        """As group_desc."""
        return self._group_description
