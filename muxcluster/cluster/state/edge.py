"""Interface of the layer above to the controller: ingresses, one on each node."""

from typing import Any, Protocol


class Edge(Protocol):
    """The ingresses as plain values, stored by the controller and sent to other processes. Equal
    edges need no restart to become each other."""

    def deploy(self, controller: Any, num_nodes: int) -> None:
        """Let Serve run them on `num_nodes` nodes; if only the number changes, running ones stay as
        they are. Blocks until they answer. Raises EngineFailure."""
        ...
