"""An optimizer whose steps are taken where the next forward pass needs them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from headrace.session import Session
from headrace.torch.clipping import Clipping
from headrace.torch.compression import LayoutMaker, check_codecs, is_adaptive
from headrace.torch.gradient_flow import GradientFlow
from headrace.torch.hooks import ModelHooks
from headrace.torch.jobs import next_session
from headrace.torch.parameters import broadcast_parameters
from headrace.torch.recovery import Recovery
from headrace.torch.resize import Resize
from headrace.torch.updates import Updates
from headrace.torch.wrapping import WrappingOptimizer

if TYPE_CHECKING:
    from typing_extensions import Self

_NEEDS_CLOSURES = (torch.optim.LBFGS,)
_RESIDUALS = "headrace_residuals"


def _min_world(session: Session, shrink: int | None, scale: float | None, can_shrink: bool) -> int:
    """With how many ranks the job may go on; 0: with those with which it began."""
    min_world = session.shrink_min_world if shrink is None else shrink
    if scale is not None:  # the world's, which would be another
        min_world = 0
    if min_world > 0 and not can_shrink:
        raise ValueError('shrink needs op="average" and reconnect')
    if session.joins and min_world == 0:
        raise ValueError(
            "a rank that joins a running job needs shrink (HEADRACE_SHRINK), as its ranks have it"
        )
    return min_world


def _recovery(
    session: Session,
    updates: Updates,
    reconnect: float | None,
    shrink: int | None,
    op: str,
    scale: float | None,
    resized: Callable[[Resize], None] | None,
    transaction: bool | None,
) -> Recovery | None:
    """As ScheduledOptimizer's arguments say; None: a loss is raised."""
    seconds = session.reconnect_seconds if reconnect is None else reconnect
    min_world = _min_world(session, shrink, scale, op == "average" and seconds > 0)
    if transaction and seconds <= 0:
        raise ValueError("transaction needs reconnect (HEADRACE_RECONNECT)")
    if seconds <= 0:
        return None
    votes = min_world > 0 if transaction is None else transaction
    return Recovery(session, updates, seconds, min_world, resized, votes)


class ScheduledOptimizer(WrappingOptimizer):
    """Wraps an optimizer: gradients move by the job's plan, and no module waits for another's.

        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        optimizer = headrace.torch.ScheduledOptimizer(optimizer, model)
        for batch in batches:
            optimizer.zero_grad()
            loss(model(batch)).backward()
            optimizer.step()

    backward() posts each gradient as soon as it is accumulated. step() only records the options of that
    moment (learning rate and the like) and returns; each module waits for the averages of its own parameters
    just before its next forward, and takes the wrapped optimizer's step for them there. So the results are
    those of the wrapped optimizer with the averaged gradients, to the bit, if its update of one parameter
    does not depend on the others. Of torch's own optimizers only LBFGS violates this, and it is refused.

    Call the model's forward pass through the model given here. Its first pass in training mode on rank 0
    fixes the order for all ranks. A module that reads parameters of other modules must run after them in that
    pass, or the others' forward must never be called.

    Everything that reads all parameters or gradients first waits for all: state_dict() and load_state_dict()
    of the optimizer and of the model, forward passes in evaluation mode or without gradients,
    clip_grad_norm_() (here or torch.nn.utils'), a GradScaler's unscaling, anything that computes with
    ``.grad`` between backward() and step(). If it happens in each iteration, less is hidden; rank 0 warns
    once. Only reading parameters directly shows old values until the next forward pass: call synchronize()
    before that, and at the end of training.

    ``clip_norm`` clips the averages by their global norm, to the bits of clip_grad_norm_. The norm is
    computed from the parameters' norms as averages arrive; the next forward pass waits for it once, and then
    scales and updates module by module. On a GPU, or with ``reconnect``, step() waits.

    A parameter that this rank's backward did not reach counts as zeros, and is posted by step(). One that no
    rank reached is left alone, as torch does: neither momentum nor weight decay changes it. Sparse gradients
    are made dense. Element types may differ among parameters. Buffers stay each rank's own.

    With parameters on a GPU the gradients are views into GPU memory, and streams wait instead of the host: in
    the current stream, each module's forward comes after its averages, and the host runs ahead. A failure is
    then raised by a later call, once it is known; the parameters are undefined from the failed iteration on.

    If backward() raises after it has posted gradients, other ranks wait for the rest; zero_grad() and step()
    then raise, and the process should end.
    """

    # A scaler would leave unscaling to the wrapped optimizer, at a time when it does not step.
    _step_supports_amp_scaling = False

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module,
        session: Session | None = None,
        policy: str | None = None,
        op: str = "average",
        broadcast: bool = True,
        reconnect: float | None = None,
        scale: float | None = None,
        compress: str | Mapping[str, str] | None = None,
        shrink: int | None = None,
        resized: Callable[[Resize], None] | None = None,
        compress_after: int = 0,
        force_compress: bool = False,
        clip_norm: float | None = None,
        clip_norm_type: float = 2.0,
        transaction: bool | None = None,
    ) -> None:
        """``session``: None makes one by headrace.init(), which close() closes; a second optimizer of this
        process gets a job of its own, "JOB.2". ``policy`` as in Session.layout, as are ``compress`` and
        ``compress_after``; codecs with which ``optimizer`` is known to diverge are refused unless
        ``force_compress``. ``broadcast``: begin with rank 0's parameters and buffers everywhere.

        ``reconnect``: for how many seconds to wait for a service that goes away during training; 0 raises
        Unavailable at once. None: the session's, usually HEADRACE_RECONNECT. With it each gradient is copied
        when it is posted, which takes as much memory as all gradients (and as much again where averages are
        waited for before step(), as by clip_grad_norm_()). All ranks come back, sum again what was under way,
        and go on with the same results as if nothing had happened; rank 0 warns. On a GPU the host then waits
        for averages, not the stream. A loss before the end of the first forward pass in training mode is
        still raised.

        ``shrink``: with how many ranks training may go on when others are lost for good; 0: with all of them
        only; None: the session's, usually HEADRACE_SHRINK. Needs ``reconnect`` and ``op="average"``, and
        turns itself off where ``scale`` is given. If no rank has used an average of the interrupted
        iteration, the remaining ranks sum it again and divide by their number. ``resized`` is then called on
        each, with a Resize: ranks are numbered anew, and the data must be divided among them from the next
        batch on. So that no iteration mixes two world sizes, the first module waits for all averages, not
        only for its own.

        ``transaction``: whether a rank uses averages only when it knows that all ranks have all averages of
        the iteration, so that no step is applied only by a rank that is then lost. It costs a barrier in each
        iteration, needs ``reconnect``, and must be the same on all ranks. None: on if ``shrink`` is.

        ``scale``: the factor of each gradient before it is summed; ``op="sum"`` with one over the number of
        ranks is the arithmetic of DistributedDataParallel.
        """
        if isinstance(optimizer, (ScheduledOptimizer, *_NEEDS_CLOSURES)):
            name = type(optimizer).__name__
            raise TypeError(f"{name} cannot be wrapped: its step is not one of each parameter by itself")
        check_codecs(optimizer, compress, force_compress)
        super().__init__(optimizer)
        self._owns_session = session is None
        self.session = next_session() if session is None else session
        self._warned = False
        if broadcast and not self.session.joins:
            broadcast_parameters(self.session, model)
        updates = Updates(optimizer)
        adaptive = is_adaptive(optimizer)
        self._maker = LayoutMaker(self.session, op, policy, compress, compress_after, adaptive)
        self._clipping = Clipping(clip_norm, clip_norm_type) if clip_norm is not None else None
        recovery = _recovery(self.session, updates, reconnect, shrink, op, scale, resized, transaction)
        self._flow = GradientFlow(
            model, updates, self.session, self._maker, self._say_once, recovery, scale, self._clipping
        )
        self._hooks = ModelHooks(model, self._flow)
        if self.session.joins:
            self._flow.join()

    # ---- What every optimizer has ----------------------------------------------------------------

    def step(self, closure: None = None) -> None:
        """Ends an iteration: the update is due from here on, with the options of this moment."""
        if closure is not None:
            raise ValueError(
                "ScheduledOptimizer takes no closure: it would need the gradients of several passes "
                "within one step"
            )
        self._flow.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops all gradients. If an update is due, they are first used for it.

        Between backward() and step() it abandons the iteration, which must happen on all ranks.
        """
        self._flow.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Before the first forward pass in training mode only."""
        if self._flow.started:
            raise RuntimeError(
                "add_param_group: the layout of the gradients is fixed since the first forward pass; "
                "add all groups before it, or close() this ScheduledOptimizer"
            )
        self._optimizer.add_param_group(param_group)

    def state_dict(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """The wrapped optimizer's, with all updates made; on ranks that keep residuals also these, as
        "headrace_residuals": save and load each rank's own.
        """
        state = super().state_dict(*arguments, **options)
        residuals = self._maker.save()
        if residuals is not None:
            state[_RESIDUALS] = residuals
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The wrapped optimizer's; updates that are due are made with the state before."""
        plain = {key: value for key, value in state_dict.items() if key != _RESIDUALS}
        super().load_state_dict(plain)
        self._maker.load(state_dict.get(_RESIDUALS))

    # ---- What only this one has ------------------------------------------------------------------

    @property
    def iterations(self) -> int:
        """How many iterations the job has begun: of a rank that joined, also those before it came."""
        return self._flow.iteration

    def synchronize(self) -> None:
        """Waits for all gradients whose update is due, and makes the updates."""
        self._flow.make_updates()

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """The norm of all averaged gradients before clipping, in the last iteration that was updated.

        None without ``clip_norm``, and before that.
        """
        return None if self._clipping is None else self._clipping.norm

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, **options: Any
    ) -> torch.Tensor:
        """torch.nn.utils.clip_grad_norm_ of all parameters' averaged gradients; before step().

        Needs all gradients, so nothing is hidden behind the next forward pass: ``clip_norm`` hides more.
        """
        self._flow.complete("clip_grad_norm_() needs all gradients")
        parameters = [p for group in self.param_groups for p in group["params"]]
        return torch.nn.utils.clip_grad_norm_(
            parameters, max_norm, norm_type, **options
        )

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it backward only accumulates: for all but the last of several micro-batches."""
        with self._flow.only_accumulating():
            yield

    def close(self) -> None:
        """Makes the updates that are due and removes all hooks; the wrapped optimizer goes on alone."""
        self.synchronize()
        self._hooks.remove()
        self._flow.close()
        if self._owns_session:
            self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        elif self._owns_session:
            self.session.close()

    def _say_once(self, why: str) -> None:
        """Tells that an iteration could not hide its communication."""
        if not self._warned and self.session.rank == 0:
            warnings.warn(
                f"headrace: {why}: waits for all of them before the update, so no communication "
                "hides behind the next forward pass (said once)",
                stacklevel=2,
            )
        self._warned = True
