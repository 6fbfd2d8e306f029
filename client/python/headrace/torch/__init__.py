"""PyTorch: training that does not wait for its gradients.

Four ways, from the one that hides most to the one that changes least:

- ScheduledOptimizer wraps an optimizer: gradients move by the job's plan, and each module waits for
  its own just before its forward.
- accelerate() gives DistributedDataParallel and fully_shard the same overlap by one line.
- GradientArena averages gradients while backward runs; ddp_hook does so under DistributedDataParallel,
  compressed_hook in fewer bytes between nodes.
- ``init_process_group("headrace")``: a backend of torch.distributed, registered by this import.

elastic_run() has plain loops and DDP go on when ranks are lost or join; ScheduledOptimizer does so by itself.

Works with torch 1.13 and 2.15 on the CPU. Sessions come from headrace.init(), which takes what torchrun
says, the rendezvous of a job of several nodes included.
"""

from __future__ import annotations

from headrace import needs

try:
    import torch.distributed
except ImportError as error:
    text = needs.sentence("headrace.torch", error)
    raise ImportError(text, name=error.name) from error

from headrace.torch.compressed_ddp import CompressedState, compressed_hook
from headrace.torch.compression import GroupOptions
from headrace.torch.ddp import DdpState, ddp_hook
from headrace.torch.gradients import GradientArena
from headrace.torch.optimizer import ScheduledOptimizer
from headrace.torch.parameters import broadcast_parameters
from headrace.torch.resize import Resize

__all__ = [
    "CompressedState",
    "DdpState",
    "GradientArena",
    "GroupOptions",
    "Resize",
    "ScheduledOptimizer",
    "broadcast_parameters",
    "compressed_hook",
    "ddp_hook",
]

if torch.distributed.is_available():
    from headrace.torch.accelerate import accelerate
    from headrace.torch.backend import ProcessGroup, register
    from headrace.torch.elastic import ElasticState, elastic_run
    from headrace.torch.shared_memory import empty, shared_memory

    register()
    __all__ += ["ElasticState", "ProcessGroup", "accelerate", "elastic_run", "empty", "shared_memory"]
