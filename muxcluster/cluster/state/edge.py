"""Interface of the layer above to the controller: ingresses, one on each node."""

from typing import Any, Protocol


class Edge(Protocol):
    """The ingresses as plain values, stored by the controller and sent to other processes. Equal
    edges need no restart to become each other.

    Where ingresses listen themselves, `stand_in` runs a second set of them at the same addresses,
    so that the first can be replaced while somebody answers.
    """

    @property
    def version(self) -> str:
        """Equal for equal edges; ingresses know their own, and say it when they leave."""
        ...

    @property
    def listens(self) -> bool:
        """Whether the ingresses listen themselves."""
        ...

    @property
    def drain_s(self) -> float:
        """Longest time in seconds that an answer takes."""
        ...

    def count(self, num_nodes: int) -> int:
        """Return how many ingresses run on so many nodes."""
        ...

    def deploy(self, controller: Any, num_nodes: int, *, is_beside: bool) -> None:
        """Let Serve run them on `num_nodes` nodes; if only the number changes, running ones stay as
        they are. Blocks until they answer. Raises EngineFailure.

        is_beside: stand-ins listen at their addresses.
        """
        ...

    def stand_in(self, controller: Any, num_nodes: int) -> None:
        """Let Serve run a second set beside those that run. Blocks until they answer.

        Raises EngineFailure; then none of them is left.
        """
        ...

    def has_stand_in(self) -> bool:
        """Return whether a second set runs. Blocks."""
        ...

    def end_stand_in(self) -> None:
        """End the second set, and cut what it still answers. Blocks."""
        ...


def stand_in_version(version: str) -> str:
    """Return the version that stand-ins of this one have."""
    return f"{version}-stand-in"
