"""The shared prefixes that a running batch job holds, and those that it still needs."""

from collections.abc import Iterable

from muxcluster.offline.prefix.tree import PrefixTree


class LivePrefixes:
    """Counts the requests of each tree node: open ones hold the node, later ones need it.

    `lifetimes.prefix_lifetimes` predicts the same for a sequence of requests.
    """

    def __init__(self, tree: PrefixTree) -> None:
        self._parents = tree.parent.tolist()
        self._leaf_nodes = tree.leaf_node.tolist()
        self._num_left = tree.num_leaves.tolist()
        self._edge_tokens = tree.edge_tokens.tolist()
        self._num_open: dict[int, int] = {}
        self._needed: set[int] = set()
        self.idle_tokens = 0  # of nodes that are needed and that no request holds

    @property
    def needed(self) -> frozenset[int]:
        """Return the nodes of which a request has begun and not all have ended."""
        return frozenset(self._needed)

    def need(self, place: int) -> list[int]:
        """Note that the request at `place` begins; return newly needed nodes, deepest first."""
        begun = [node for node in self._path(place) if node not in self._needed]
        self._needed.update(begun)
        self.idle_tokens += self._tokens(node for node in begun if node not in self._num_open)
        return begun

    def free(self, place: int) -> list[int]:
        """Note that the request at `place` is over; return nodes no longer needed.

        A node for whose requests `need` was never called is not among them.
        """
        done: list[int] = []
        for node in self._path(place):
            self._num_left[node] -= 1
            if self._num_left[node] == 0 and node in self._needed:
                self._needed.remove(node)
                done.append(node)
        self.idle_tokens -= self._tokens(node for node in done if node not in self._num_open)
        return done

    def open(self, place: int) -> list[int]:
        """Note that the request at `place` runs; return nodes that only it holds."""
        path = self._path(place)
        for node in path:
            self._num_open[node] = self._num_open.get(node, 0) + 1
        held = [node for node in path if self._num_open[node] == 1]
        self.idle_tokens -= self._tokens(node for node in held if node in self._needed)
        return held

    def close(self, place: int) -> list[int]:
        """Note that an opened request runs no longer; return nodes that no request holds now."""
        closed: list[int] = []
        for node in self._path(place):
            self._num_open[node] -= 1
            if self._num_open[node] == 0:
                del self._num_open[node]
                closed.append(node)
        self.idle_tokens += self._tokens(node for node in closed if node in self._needed)
        return closed

    def _tokens(self, nodes: Iterable[int]) -> int:
        return sum(self._edge_tokens[node] for node in nodes)

    def _path(self, place: int) -> list[int]:
        """Return the nodes above a leaf, deepest first, without the root, which has no tokens."""
        path: list[int] = []
        node = self._leaf_nodes[place]
        while node:
            path.append(node)
            node = self._parents[node]
        return path
