"""A process group that goes on with other ranks: torch's calls for it, as torchft's Manager makes them.

Each reconfigure() is a new job of the service. What its members must agree on, its name, their ranks
and where their nodes meet, follows from the handles that they exchange, so they need no store.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import secrets
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from headrace import library
from headrace.errors import Timeout
from headrace.session import Session, init
from headrace.torch.jobs import node_of
from headrace.torch.work import Work

if TYPE_CHECKING:
    from typing_extensions import Self

DEFAULT_TIMEOUT = timedelta(minutes=1)
_JOB_MAX = 20  # letters of the job's name, before what tells its epochs apart
_HANDLE_MAX = 4096  # letters
_MEMBERS_MAX = 1 << 16


@dataclasses.dataclass(frozen=True)
class Handle:
    """What one process tells the others of itself, once for the life of its group."""

    identity: str  # of the group in this process: no other has it
    job: str  # as the environment names it
    node: str  # the same for all processes that attach to one service
    address: str  # where services meet if the members are on several nodes

    @classmethod
    def own(cls, identity: str) -> Handle:
        """That of this process, from its environment."""
        options = library.Options()
        library.fill(options, library.ErrorText())
        rendezvous = options.rendezvous.decode()
        return cls(
            identity=identity,
            job=options.job.decode() or "torch",
            node=node_of(options.socket_path.decode()),
            address=rendezvous or socket.gethostname(),
        )

    @classmethod
    def parse(cls, text: str) -> Handle:
        """Parses the handle of a peer. ValueError for what no peer of this version gives."""
        if len(text) > _HANDLE_MAX:
            raise ValueError(f"a handle of {len(text)} letters: {_HANDLE_MAX} are possible")
        wanted = {field.name for field in dataclasses.fields(cls)}
        try:
            values = json.loads(text)
        except ValueError:
            values = None
        if (
            not isinstance(values, dict)
            or set(values) != wanted
            or not all(isinstance(value, str) for value in values.values())
        ):
            raise ValueError(
                f"{text[:80]!r} is not a handle of the backend headrace: give what "
                "get_reconfigure_handle() returns on each member, which all have one version of headrace"
            )
        return cls(**values)

    def text(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


@dataclasses.dataclass(frozen=True)
class Membership:
    """What one member attaches as."""

    job: str
    rank: int
    size: int
    rendezvous: str

    @classmethod
    def of(cls, handles: Sequence[str] | set[str], uuid: int, identity: str) -> Membership:
        """Ranks are the places in a list; in a set, in the order of the texts. ValueError if these are not
        the handles of a group, or not of one that this process has a part in.
        """
        texts = list(handles) if isinstance(handles, (list, tuple)) else sorted(handles)
        if not 0 < len(texts) <= _MEMBERS_MAX:
            raise ValueError(f"reconfigure: {len(texts)} handles: 1 to {_MEMBERS_MAX} are possible")
        members = [Handle.parse(text) for text in texts]
        identities = [member.identity for member in members]
        if len(set(identities)) < len(identities):
            raise ValueError("reconfigure: a handle stands twice in the list: give one for each member")
        if identity not in identities:
            raise ValueError(
                f"reconfigure: none of the {len(members)} handles is this group's: give that of its "
                "get_reconfigure_handle(), too"
            )
        whole = hashlib.blake2b("\n".join([str(uuid), *texts]).encode(), digest_size=6)
        one_node = len({member.node for member in members}) == 1
        return cls(
            job=f"{members[0].job[:_JOB_MAX]}.{whole.hexdigest()}",
            rank=identities.index(identity),
            size=len(members),
            rendezvous="" if one_node else members[0].address,
        )

    def attach(self, timeout: timedelta) -> Session:
        """Returns when the service has accepted this member. ``timeout``: of each operation; HEADRACE_TIMEOUT_MS
        outdoes it.
        """
        seconds = None if os.environ.get("HEADRACE_TIMEOUT_MS") else timeout.total_seconds()
        return init(
            job=self.job,
            rank=self.rank,
            world_size=self.size,
            timeout=seconds,
            role="rank",
            rendezvous=self.rendezvous,
            slow_evict=False,  # torchft decides who goes
        )

    def join(self, timeout: timedelta, limit: timedelta) -> Session:
        """As attach(), and returns when all members have attached; Timeout when not all came within ``limit``."""
        session = self.attach(timeout)
        try:
            session.barrier(async_op=True).wait(limit.total_seconds())
        except Timeout as late:
            session.close()
            raise Timeout(
                f"reconfigure: not all of the {self.size} ranks of job {self.job} came within "
                f"{limit.total_seconds():g} s: each member is to call reconfigure() with the same uuid and "
                f"handles ({late})",
                late.code,
                late.number,
            ) from late
        except BaseException:
            session.close()
            raise
        return session


class Reconfigurable:
    """What a process group inherits to go on with other ranks; it has _start(), shutdown(), timeout."""

    supports_reconfigure = True
    timeout: timedelta
    _session: Session | None = None  # None: the group has no ranks
    _rank: int
    _size: int

    @classmethod
    def reconfigurable(cls, timeout: timedelta = DEFAULT_TIMEOUT) -> Self:
        """A group beside the default one, without ranks until reconfigure(): for torchft's Manager."""
        return cls("", 0, 1, timeout, starts=False)

    @functools.cached_property
    def _identity(self) -> str:
        return secrets.token_hex(16)

    @property
    def session(self) -> Session:
        """In the job of the present ranks."""
        if self._session is None:
            raise RuntimeError(
                "the process group has no ranks: all members are to call reconfigure() with each other's "
                "get_reconfigure_handle()"
            )
        return self._session

    def getRank(self) -> int:
        """This process's among the present ranks; C++ asks by this name."""
        return self._rank

    def getSize(self) -> int:
        """How many ranks there are at present; C++ asks by this name."""
        return self._size

    rank, size = getRank, getSize

    def get_reconfigure_handle(self) -> str:
        """What the other members need to know of this one; the same for the life of the group."""
        return Handle.own(self._identity).text()

    def reconfigure(self, opts: Any) -> Work:
        """Goes on with the members of ``opts.handles``, in a new job, when all of them have called it with
        the same ``uuid`` and handles: a list gives the ranks, a set is sorted. What is open ends with
        an error. Returns ended work.

        ``opts.timeout``: for how long the others are waited for; None: the group's. Raises ValueError for
        wrong handles or any hints, with the group as it was; Timeout, PeerLost and others as init(),
        without ranks then.
        """
        if opts.hints:
            raise ValueError(
                f"reconfigure: the backend headrace knows no hints (given: {sorted(opts.hints)}): its "
                "service is configured"
            )
        membership = Membership.of(opts.handles, opts.uuid, self._identity)
        self.shutdown()
        self._session = None
        self._start(membership.join(self.timeout, opts.timeout or self.timeout))
        return Work([], [])
