"""Several nodes on one machine: README.md says how."""

from .cluster import Cluster
from .node import LoopbackNode, Node
from .requirements import SkipReason

__all__ = ["Cluster", "LoopbackNode", "Node", "SkipReason"]
