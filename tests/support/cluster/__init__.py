"""Several nodes on one machine: README.md says how."""

from .cluster import Cluster
from .node import LoopbackNode, Node
from .requirements import SkipReason
from .services import Services

__all__ = ["Cluster", "LoopbackNode", "Node", "Services", "SkipReason"]
