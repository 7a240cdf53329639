"""What the controller asks of the layer above: ingresses, one on each node."""

from typing import Any, Protocol


class Edge(Protocol):
    """The ingresses as values: equal edges need no restart to become each other. It is kept by the
    controller and sent to other processes, so it is made of plain values."""

    def deploy(self, controller: Any, num_nodes: int) -> None:
        """Have Serve run them on `num_nodes` nodes; those that run stay as they are where only the
        number changes. Blocks until they answer. Raises EngineFailure.
        """
        ...
