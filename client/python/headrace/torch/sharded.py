"""fully_shard() whose all-gathers and reduce-scatters hide behind forward and backward passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

try:
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
except ImportError as error:
    raise ImportError(
        f"accelerate() of fully_shard needs torch 2.9 or later, this is {torch.__version__}"
    ) from error

from headrace.torch.gather_ahead import GatherAhead
from headrace.torch.process_group import ProcessGroup
from headrace.torch.shared_memory import HostMemory, memory_of
from headrace.torch.tracing import untraced
from headrace.torch.updates import Options, Updates
from headrace.torch.wrapping import WrappingOptimizer

_MARK = "_headrace_accelerated"
# What the service reduces as it is.
_REDUCED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class OpenShard(DTensor):
    """A sharded gradient whose reduce-scatter has not been waited for.

    Whatever computes with it waits first, and from then on it is a DTensor like any other.
    """

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Called by torch in place of any function on such a tensor."""
        settle_shards((*args, *(kwargs or {}).values()))
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    def to_local(self, *arguments: Any, **named: Any) -> torch.Tensor:
        """As DTensor's."""
        settle_shards((self,))
        return DTensor.to_local(self, *arguments, **named)

    def full_tensor(self, *arguments: Any, **named: Any) -> torch.Tensor:
        """As DTensor's."""
        settle_shards((self,))
        return DTensor.full_tensor(self, *arguments, **named)

    def redistribute(self, *arguments: Any, **named: Any) -> DTensor:
        """As DTensor's."""
        settle_shards((self,))
        return DTensor.redistribute(self, *arguments, **named)


def settle_shards(values: Iterable[Any]) -> None:
    """Waits for every open shard among the values, also within lists of them."""
    for value in values:
        if isinstance(value, OpenShard):
            value._headrace_unit.wait()
        elif isinstance(value, (list, tuple)):
            settle_shards(value)


@dataclasses.dataclass
class Due:
    """An update that is to be made before the next forward pass of its module."""

    gradient: torch.Tensor
    options: Options


class Gathering(AllGather):
    """torch's own all-gather, but that parameters lie in memory that needs no copy, and that on the host nobody
    waits for them before torch copies them out, which is when their module needs them.
    """

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self._input: torch.Tensor | None = None  # of the work, which reads it

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Shared memory, on the host."""
        return _allocate(self._memory, size, dtype, device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        """As torch's own, or posted only: torch waits for any work that it gets."""
        if output_tensor.device.type == "cpu":
            self._input = input_tensor
            async_op = True
        return dist.all_gather_into_tensor(
            output_tensor, input_tensor, group, async_op=async_op
        )

    def release(self) -> None:
        """Lets go of the last input, whose work has ended."""
        self._input = None


class Unit(ReduceScatter):
    """A module of fully_shard: its parameters, and the reduce-scatter of their gradients.

    torch calls it in the place of its own reduce-scatter. Where torch computes with the result at once
    (gradients that accumulate, another type of reduction, replicas), and on a GPU, where torch's streams wait,
    it waits as torch's own does.
    """

    def __init__(self, module: FSDPModule) -> None:
        self.module = module
        self.state = module._get_fsdp_state()
        (self._group,) = _groups_of(self.state)
        own = type(self._group._reduce_scatter_comm).__name__
        if own != "DefaultReduceScatter":
            raise ValueError(
                f"accelerate(): a module has a reduce-scatter of its own ({own}): train it without"
            )
        group = _group_of(self._group)
        # Over another backend there is none that it would use.
        self.memory = memory_of(group) if isinstance(group, ProcessGroup) else None
        self.gathering: Gathering | None = None  # where torch's own is not used
        self._work: dist.Work | None = None
        self._input: torch.Tensor | None = None  # of the work, which reads it
        self.due: dict[torch.nn.Parameter, Due] = {}
        self.hidden = 0  # reduce-scatters that backward did not wait for

    def is_on_gpu(self) -> bool:
        """Whether its parameters are."""
        return any(each.device.type != "cpu" for each in self.parameters())

    def parameters(self) -> list[torch.nn.Parameter]:
        """The sharded ones."""
        return [each.sharded_param for each in self._group.fsdp_params]

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Shared memory on the host, else memory of torch's allocator."""
        return _allocate(self.memory, size, dtype, device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Posts it. What it gives is there after wait()."""
        self.wait()
        if self.gathering is not None:  # backward had the parameters
            self.gathering.release()
        if isinstance(group, ProcessGroup) and input_tensor.dtype in _REDUCED:
            # torch lets go of the input afterwards.
            work = group.reduce_scatter_in_place(output_tensor, input_tensor, op)
        else:
            work = dist.reduce_scatter_tensor(
                output_tensor, input_tensor, op, group, async_op=True
            )
        if async_op:
            return work
        if not self._may_hide(output_tensor, op):
            work.wait()
            return None
        self._work, self._input = work, input_tensor
        self.hidden += 1
        torch.autograd.Variable._execution_engine.queue_callback(self._open)
        return None

    def _may_hide(self, output: torch.Tensor, op: Any) -> bool:
        group = self._group
        divides_afterwards = op == dist.ReduceOp.SUM
        if divides_afterwards or group._is_hsdp or group._all_reduce_hook is not None:
            return False
        if output.device.type != "cpu":
            return False
        return all(
            each.sharded_param.grad is None
            and each.sharded_param.dtype == output.dtype
            and not each.offload_to_cpu
            and not getattr(each.sharded_param, "_post_accumulate_grad_hooks", None)
            for each in group.fsdp_params
        )

    def _open(self) -> None:
        """Backward has ended: from here on somebody may look at gradients."""
        if self._work is None:
            return
        for parameter in self.parameters():
            if type(parameter.grad) is DTensor:
                parameter.grad._headrace_unit = self
                parameter.grad.__class__ = OpenShard

    def wait(self) -> None:
        """Returns when the gradients are there; raises what the reduce-scatter failed with."""
        if self._work is None:
            return
        work, self._work = self._work, None
        try:
            work.wait()
        finally:
            self._input = None
            gradients = [p.grad for p in self.parameters()]
            for gradient in [*gradients, *(due.gradient for due in self.due.values())]:
                if isinstance(gradient, OpenShard):
                    gradient.__class__ = DTensor


class ShardedOptimizer(WrappingOptimizer):
    """The optimizer of a model of fully_shard; made by accelerate().

    step() notes the options of that moment and returns; each module waits for its own gradients and takes the
    step of its parameters just before its next forward pass gathers them. On a GPU step() makes all updates.
    """

    def __init__(self, model: FSDPModule, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self._updates = Updates(optimizer)
        self._model = model
        self._updates.parameters()
        self.units = _units_of(model)
        self._unit_of = {p: unit for unit in self.units for p in unit.parameters()}
        self._by_state = {unit.state: unit for unit in self.units}
        self._handles: list[Any] = []
        for unit in self.units:
            unit.module.set_custom_reduce_scatter(unit)
            gathering = type(unit._group._all_gather_comm).__name__
            if unit.memory is not None and gathering == "DefaultAllGather":
                unit.gathering = Gathering(unit.memory)
                unit.module.set_custom_all_gather(unit.gathering)
            self._register(unit)
        # torch's streams do that on a GPU.
        on_host = [unit for unit in self.units if unit.gathering and not unit.is_on_gpu()]
        self._ahead = GatherAhead([unit.module for unit in on_host])
        setattr(model, _MARK, True)

    def _register(self, unit: Unit) -> None:
        for module in unit.state._modules:
            # Before torch's own, which gathers the parameters.
            self._handles.append(
                module.register_forward_pre_hook(
                    untraced(
                        lambda module, _, unit=unit: self._before_forward(module, unit)
                    ),
                    prepend=True,
                )
            )
            self._handles.append(
                module._register_state_dict_hook(lambda *_: self.synchronize())
            )
            self._handles.append(
                module._register_load_state_dict_pre_hook(
                    lambda *_: self.synchronize()
                )
            )

    # ---- What every optimizer has ----------------------------------------------------------------

    def step(self, closure: None = None) -> None:
        """From here on the update is due, with the options of this moment."""
        if closure is not None:
            raise ValueError("accelerate(): step() takes no closure")
        self.synchronize()
        self._updates.note_step()
        options = self._updates.options()
        alone = []
        for parameter in self._updates.parameters():
            unit = self._unit_of.get(parameter)
            if parameter.grad is None:
                continue
            if unit is None:
                alone.append(parameter)
            else:
                unit.due[parameter] = Due(parameter.grad, options)
        self._updates.make(alone, options)
        if any(parameter.device.type != "cpu" for parameter in self._unit_of):
            # torch's stream that gathers parameters waits for updates before the first module's forward only.
            self.synchronize()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Lets go of all gradients; an update that is due has its own."""
        if not set_to_none:
            self.synchronize()
        self._optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Updates that are due are made before."""
        self.synchronize()
        self._optimizer.add_param_group(param_group)

    # ---- What only this one has ------------------------------------------------------------------

    def synchronize(self) -> None:
        """Makes the updates that are due, once their gradients are there."""
        for unit in self.units:
            self._update(unit)

    def close(self) -> None:
        """Makes the updates that are due; torch's own reduce-scatter and the optimizer go on alone."""
        from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
            DefaultAllGather,
            DefaultReduceScatter,
        )

        self.synchronize()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._ahead.close()
        for unit in self.units:
            unit.wait()
            unit.module.set_custom_reduce_scatter(DefaultReduceScatter())
            if unit.gathering is not None:
                unit.module.set_custom_all_gather(DefaultAllGather())
        if hasattr(self._model, _MARK):
            delattr(self._model, _MARK)

    def _before_forward(self, module: torch.nn.Module, unit: Unit) -> None:
        if module is self._model and not (module.training and torch.is_grad_enabled()):
            self.synchronize()
            return
        if torch.is_grad_enabled() and unit.gathering is not None:
            self._ahead.begin(unit.module)
        self._update(unit)
        # torch gathers the parameters of these, too, in this module's hook.
        for state in unit.state._states_to_forward_prefetch:
            if state in self._by_state:
                self._update(self._by_state[state])

    def _update(self, unit: Unit) -> None:
        if not unit.due:
            return
        unit.wait()
        due, unit.due = unit.due, {}
        before = {parameter: parameter.grad for parameter in due}
        for parameter, each in due.items():
            parameter.grad = each.gradient
        self._updates.make(list(due), next(iter(due.values())).options)
        for parameter, gradient in before.items():
            parameter.grad = gradient


def _group_of(parameters: Any) -> dist.ProcessGroup | None:
    """The group that shards a parameter group of torch's; None where it is replicated only."""
    has_shards = hasattr(parameters.mesh_info, "shard_process_group")
    return parameters._reduce_scatter_process_group if has_shards else None


def _allocate(
    memory: HostMemory | None,
    size: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    if memory is not None and torch.device(device).type == "cpu" and dtype in _REDUCED:
        return memory.empty(tuple(size), dtype)
    return torch.empty(*size, dtype=dtype, device=device)


def _groups_of(state: Any) -> list[Any]:
    """A module's parameters by their mesh; torch before 2.12 has at most one group of them."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [state._fsdp_param_group] if state._fsdp_param_group is not None else []


def _units_of(model: FSDPModule) -> list[Unit]:
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if any(hasattr(module, _MARK) for module in modules):
        raise ValueError("accelerate(): the model is accelerated already; close() the first one")
    units, seen = [], set()
    for module in modules:
        state = module._get_fsdp_state()
        if state in seen or not _groups_of(state):
            continue
        seen.add(state)
        if len(_groups_of(state)) > 1:
            raise ValueError(
                "accelerate(): a module has parameters on several meshes; torch takes one reduce-scatter "
                "for it, and accelerate() none of them: train it without"
            )
        units.append(Unit(module))
    if not units:
        raise ValueError("accelerate(): the model has no sharded parameters")
    return units
